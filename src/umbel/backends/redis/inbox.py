"""The inbox: a list to which any program pushes CloudEvents, adopted by whoever fetches next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from umbel.backends.foreign_messages import TAKEN, id_of, stand_in
from umbel.backends.redis.job_rows import job_row
from umbel.backends.redis.scripts import octets, pack
from umbel.backends.redis.values import text
from umbel.backends.replies import Answers
from umbel.backends.transport import Arrival, Heading, Lane
from umbel.clock import Clock
from umbel.errors import BadMessage
from umbel.messages import Attempt, Envelope
from umbel.messages.documents import asked_by
from umbel.messages.wire import MEDIA_TYPE, read

_PORTION = 100
_LARGEST = 16 * 1024 * 1024
"""Bytes of an event. A larger one nobody could have sent over another broker either."""
_BEGINNING = 4096
"""Bytes that are kept of such a one."""

Run = Callable[[str, bytes], Awaitable[Any]]


class _Event(NamedTuple):
    envelope: Envelope
    digest: bytes
    problem: str
    """Why it cannot run; empty if it can."""


class Inbox:
    """Makes jobs of what was pushed. What is no job is buried, with the reason."""

    def __init__(self, run: Run, answers: Answers, *, namespace: str, clock: Clock) -> None:
        self._run = run
        self._answers = answers
        self._namespace = namespace
        self._clock = clock

    async def adopt(self) -> bool:
        """Take over a portion; whether there was something, for us or for somebody else.

        Raises:
            Unavailable: all of it was adopted, or nothing.
        """
        seen = await self._run("peek", pack(_PORTION, _LARGEST, _BEGINNING))
        if not seen:
            return False
        events = [self._read(*each) for each in seen]
        now = self._clock.now()
        arguments = pack([_row(each, now) for each in events])
        for place in await self._run("adopt", arguments):
            job = events[place - 1].envelope
            asked = asked_by(job.id, job.headers)
            if asked is not None:
                self._answers.asked_again(job.id, asked)
        return True

    def _read(self, data: bytes, size: int, digest: bytes) -> _Event:
        try:
            if size > _LARGEST:
                raise BadMessage("data", f"{size:,} bytes, the limit is {_LARGEST:,}")
            return _Event(replace(read(data), namespace=self._namespace), digest, "")
        except BadMessage as error:
            # It may be for any queue; the one that everybody has is as good as another.
            arrival = Arrival.of(Lane("default", ""), None, Heading({}, MEDIA_TYPE), data)
            job = id_of(arrival, self._namespace)
            return _Event(stand_in(arrival, self._namespace, job), digest, str(error))


def _row(event: _Event, now: float) -> list[Any]:
    """What ``adopt`` takes for it."""
    envelope, problem, if_taken = event.envelope, event.problem, False
    row = job_row(envelope)
    if row[6] == "raise":  # nobody is there to catch it
        row[6] = "return"
    if envelope.unique is not None and envelope.on_conflict != "return":
        problem, if_taken = TAKEN, True
    if not problem:
        return [text(event.digest), row]
    story = Attempt(envelope.attempt, "", now, now, "rejected", reason=problem)
    return [text(event.digest), row, [problem, octets(msgspec.json.encode(story)), if_taken]]

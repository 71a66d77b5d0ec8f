"""The inbox: a list to which other programs push CloudEvents. The next fetch adopts them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from umbel.backends.foreign_messages import UNIQUE_KEY_HELD, build_placeholder, id_of
from umbel.backends.redis.job_rows import job_row
from umbel.backends.redis.scripts import pack, pack_bytes
from umbel.backends.redis.values import text
from umbel.backends.replies import ReplySender
from umbel.backends.transport import Arrival, Lane, MessageHeaders
from umbel.clock import Clock
from umbel.errors import BadMessage
from umbel.messages import Attempt, Envelope
from umbel.messages.documents import find_reply_request
from umbel.messages.wire import MEDIA_TYPE, read

_MAX_EVENTS = 100
_MAX_EVENT_BYTES = 16 * 1024 * 1024
"""A larger event could not have been sent over another broker either."""
_EXCERPT_BYTES = 4096
"""How much is kept of an event that is too large."""

Run = Callable[[str, bytes], Awaitable[Any]]


class _Event(NamedTuple):
    envelope: Envelope
    digest: bytes
    problem: str
    """Why it cannot run; empty if it can."""


class Inbox:
    """Makes jobs of pushed events. An event that is not a valid job is buried with the reason."""

    def __init__(self, run: Run, replies: ReplySender, *, namespace: str, clock: Clock) -> None:
        self._run = run
        self._replies = replies
        self._namespace = namespace
        self._clock = clock

    async def adopt(self) -> bool:
        """Adopt a portion of the events. Return whether there were any.

        Raises:
            Unavailable: either the whole portion was adopted or nothing.
        """
        pushed = await self._run("peek", pack(_MAX_EVENTS, _MAX_EVENT_BYTES, _EXCERPT_BYTES))
        if not pushed:
            return False
        events = [self._read(*one) for one in pushed]
        now = self._clock.now()
        arguments = pack([_adopt_argument(one, now) for one in events])
        for index in await self._run("adopt", arguments):
            job = events[index - 1].envelope
            asked = find_reply_request(job.id, job.headers)
            if asked is not None:
                self._replies.reply_from_record(job.id, asked)
        return True

    def _read(self, data: bytes, size: int, digest: bytes) -> _Event:
        try:
            if size > _MAX_EVENT_BYTES:
                raise BadMessage("data", f"{size:,} bytes, the limit is {_MAX_EVENT_BYTES:,}")
            return _Event(replace(read(data), namespace=self._namespace), digest, "")
        except BadMessage as error:
            # The event may be for any queue; every application has the default queue.
            arrival = Arrival.of(Lane("default", ""), None, MessageHeaders({}, MEDIA_TYPE), data)
            job = id_of(arrival, self._namespace)
            return _Event(build_placeholder(arrival, self._namespace, job), digest, str(error))


def _adopt_argument(event: _Event, now: float) -> list[Any]:
    """Return the event as an argument of ``adopt``."""
    envelope, problem, only_if_taken = event.envelope, event.problem, False
    row = job_row(envelope)
    if row[6] == "raise":  # there is no caller who could catch the error
        row[6] = "return"
    if envelope.unique is not None and envelope.on_conflict != "return":
        problem, only_if_taken = UNIQUE_KEY_HELD, True
    if not problem:
        return [text(event.digest), row]
    attempt = Attempt(envelope.attempt, "", now, now, "rejected", reason=problem)
    return [
        text(event.digest),
        row,
        [problem, pack_bytes(msgspec.json.encode(attempt)), only_if_taken],
    ]

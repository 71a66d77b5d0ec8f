"""A backlog in memory: it lives as long as its process."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from umbel.backends.backlog import Held
from umbel.clock import Clock
from umbel.errors import BacklogFull
from umbel.messages import Envelope, waited


class MemoryBacklog:
    """See ``Backlog``.

    It has no lock: a thread may be suspended at any line by a signal handler that publishes. Each
    use of the dictionary is one operation of the interpreter.
    """

    durable = False

    def __init__(self, clock: Clock, *, limit: int) -> None:
        self._clock = clock
        self._limit = limit
        self._line: dict[str, tuple[float, float, Envelope]] = {}

    def put(self, envelopes: Sequence[Envelope]) -> None:
        now, since = self._clock.now(), self._clock.monotonic()
        if len(self._line) + len(envelopes) > self._limit:
            raise BacklogFull(
                f"the broker is out of reach and the backlog holds {len(self._line):,} of"
                f" {self._limit:,} messages; raise backlog_limit, or use a backlog on disk"
            )
        for envelope in envelopes:
            self._line.setdefault(envelope.id, (now, since, envelope))

    def oldest(self, limit: int, without: Collection[str] = ()) -> list[Envelope]:
        now = self._clock.monotonic()
        wanted = [one for one in list(self._line.values()) if one[2].id not in without]
        return [waited(one, now - since) for _, since, one in wanted[:limit]]

    def remove(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            self._line.pop(job, None)

    def held(self) -> Held:
        line = list(self._line.values())
        oldest = line[0][0] if line else None
        return Held(kind="memory", messages=len(line), oldest=oldest, limit=self._limit)

    def has(self, job: str) -> bool:
        return job in self._line

    def mortal(self) -> int:
        return len(self._line)

    def lead(self) -> bool:
        return True

    def beside(self) -> MemoryBacklog:
        return self

    def close(self) -> None:
        pass

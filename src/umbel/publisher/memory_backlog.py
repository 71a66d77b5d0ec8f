"""Backlogs in memory: one by itself, and one that stands in for a durable backlog that fails."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from umbel.backends.backlog import Backlog, BacklogStatus
from umbel.clock import Clock
from umbel.errors import BacklogFull, Unavailable
from umbel.messages import Envelope, subtract_wait


class MemoryBacklog:
    """A ``Backlog`` that is lost with its process.

    It has no lock, because a signal handler that publishes may suspend a thread at any line.
    Each use of the dictionary is one atomic operation of the interpreter.
    """

    durable = False

    def __init__(self, clock: Clock, *, limit: int) -> None:
        self._clock = clock
        self._limit = limit
        self._messages: dict[str, tuple[float, float, Envelope]] = {}

    def put(self, envelopes: Sequence[Envelope]) -> None:
        now, since = self._clock.now(), self._clock.monotonic()
        if len(self._messages) + len(envelopes) > self._limit:
            raise BacklogFull(
                f"the broker is unreachable and the backlog holds {len(self._messages):,} of"
                f" {self._limit:,} messages; raise backlog_limit, or use a backlog on disk"
            )
        for envelope in envelopes:
            self._messages.setdefault(envelope.id, (now, since, envelope))

    def oldest(self, limit: int, without: Collection[str] = ()) -> list[Envelope]:
        now = self._clock.monotonic()
        wanted = [one for one in list(self._messages.values()) if one[2].id not in without]
        return [subtract_wait(one, now - since) for _, since, one in wanted[:limit]]

    def remove(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            self._messages.pop(job, None)

    def status(self) -> BacklogStatus:
        kept = list(self._messages.values())
        oldest = kept[0][0] if kept else None
        return BacklogStatus(kind="memory", messages=len(kept), oldest=oldest, limit=self._limit)

    def has(self, job: str) -> bool:
        return job in self._messages

    def count_volatile(self) -> int:
        return len(self._messages)

    def acquire_leadership(self) -> bool:
        return True

    def open_unlocked(self) -> MemoryBacklog:
        return self

    def close(self) -> None:
        pass


class MemoryFallbackBacklog:
    """A durable ``Backlog`` with memory as its fallback while the durable one cannot be written.

    The messages in memory are published first, because they could be lost.
    """

    durable = True

    def __init__(self, durable: Backlog, memory: MemoryBacklog) -> None:
        self._durable = durable
        self._memory = memory

    def put(self, envelopes: Sequence[Envelope]) -> None:
        try:
            self._durable.put(envelopes)
        except BacklogFull:
            raise
        except Unavailable:
            self._memory.put(envelopes)

    def oldest(self, limit: int, without: Collection[str] = ()) -> list[Envelope]:
        return self._memory.oldest(limit, without) or self._durable.oldest(limit, without)

    def remove(self, jobs: Sequence[str]) -> None:
        # Messages in memory can be removed even while the durable backlog is unavailable.
        others = [job for job in jobs if not self._memory.has(job)]
        self._memory.remove(jobs)
        if others:
            self._durable.remove(others)

    def has(self, job: str) -> bool:
        return self._memory.has(job) or self._durable.has(job)

    def status(self) -> BacklogStatus:
        memory = self._memory.status()
        try:
            stored = self._durable.status()
        except Unavailable:
            return memory
        ages = [at for at in (memory.oldest, stored.oldest) if at is not None]
        return BacklogStatus(
            kind=stored.kind if not memory.messages else f"{stored.kind}, and memory",
            messages=memory.messages + stored.messages,
            oldest=min(ages, default=None),
            limit=stored.limit,
        )

    def count_volatile(self) -> int:
        return self._memory.count_volatile()

    def acquire_leadership(self) -> bool:
        return self._memory.count_volatile() > 0 or self._durable.acquire_leadership()

    def open_unlocked(self) -> MemoryFallbackBacklog:
        return MemoryFallbackBacklog(self._durable.open_unlocked(), self._memory)

    def close(self) -> None:
        self._memory.close()
        self._durable.close()

"""A backlog with one in memory behind it, for when the first fails itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from umbel.backends.backlog import Backlog, Held
from umbel.errors import BacklogFull, Unavailable
from umbel.messages import Envelope
from umbel.publisher.memory_backlog import MemoryBacklog


class Reserve:
    """See ``Backlog``. What memory took over is published first: it is what could be lost."""

    durable = True

    def __init__(self, first: Backlog, memory: MemoryBacklog) -> None:
        self._first = first
        self._memory = memory

    def put(self, envelopes: Sequence[Envelope]) -> None:
        try:
            self._first.put(envelopes)
        except BacklogFull:
            raise
        except Unavailable:
            self._memory.put(envelopes)

    def oldest(self, limit: int, without: Collection[str] = ()) -> list[Envelope]:
        return self._memory.oldest(limit, without) or self._first.oldest(limit, without)

    def remove(self, jobs: Sequence[str]) -> None:
        # What only memory holds is removed although the first backlog does not work.
        others = [job for job in jobs if not self._memory.has(job)]
        self._memory.remove(jobs)
        if others:
            self._first.remove(others)

    def has(self, job: str) -> bool:
        return self._memory.has(job) or self._first.has(job)

    def held(self) -> Held:
        memory = self._memory.held()
        try:
            first = self._first.held()
        except Unavailable:
            return memory
        ages = [at for at in (memory.oldest, first.oldest) if at is not None]
        return Held(
            kind=first.kind if not memory.messages else f"{first.kind}, and memory",
            messages=memory.messages + first.messages,
            oldest=min(ages, default=None),
            limit=first.limit,
        )

    def mortal(self) -> int:
        return self._memory.mortal()

    def lead(self) -> bool:
        return self._memory.mortal() > 0 or self._first.lead()

    def beside(self) -> Reserve:
        return Reserve(self._first.beside(), self._memory)

    def close(self) -> None:
        self._memory.close()
        self._first.close()

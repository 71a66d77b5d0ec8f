"""A backlog in memory: it lives as long as its process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice

from umbel.clock import Clock
from umbel.errors import BacklogFull
from umbel.messages import Envelope
from umbel.publisher.backlogs.port import Held


class MemoryBacklog:
    """See ``Backlog``."""

    durable = False

    def __init__(self, clock: Clock, *, limit: int) -> None:
        self._clock = clock
        self._limit = limit
        self._lock = threading.Lock()
        self._line: dict[str, tuple[float, Envelope]] = {}

    def put(self, envelopes: Sequence[Envelope]) -> None:
        now = self._clock.now()
        with self._lock:
            if len(self._line) + len(envelopes) > self._limit:
                raise BacklogFull(
                    f"the broker is out of reach and the backlog holds {len(self._line):,} of"
                    f" {self._limit:,} messages; raise backlog_limit, or use a backlog on disk"
                )
            for envelope in envelopes:
                self._line.setdefault(envelope.id, (now, envelope))

    def oldest(self, limit: int) -> list[Envelope]:
        with self._lock:
            return [envelope for _, envelope in islice(self._line.values(), limit)]

    def remove(self, jobs: Sequence[str]) -> None:
        with self._lock:
            for job in jobs:
                self._line.pop(job, None)

    def held(self) -> Held:
        with self._lock:
            oldest = next((at for at, _ in self._line.values()), None)
            return Held(kind="memory", messages=len(self._line), oldest=oldest, limit=self._limit)

    def mortal(self) -> int:
        return len(self._line)

    def lead(self) -> bool:
        return True

    def close(self) -> None:
        pass

"""The recorder: writes what a worker has counted, and folds what workers have written.

It counts in memory and writes one document per period, only if a job ended. While the store cannot
be reached, it keeps the documents; other services report the outage. Times are the store's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import anyio

from umbel.backends import Coordination, Depth, Put
from umbel.charts.counters import Counters, DepthSums, encode, merge
from umbel.charts.folding import NEW, PERIOD_SECONDS, WRITERS, Folder, align
from umbel.charts.tally import Tally
from umbel.clock import Clock
from umbel.errors import UmbelError, Unavailable
from umbel.messages import State, fresh_id, random_hex

_DOCUMENT_SECONDS = 90 * 86_400.0
_WRITER_SECONDS = 6 * 3_600.0
"""How long the number of a worker's last write is kept."""
_OFFSET_SECONDS = 60.0
"""After this time, the difference between the store's clock and this one is measured again."""
_MAX_PENDING = 60
"""How many periods are kept apart during an outage; later ones are added to the last."""
_JITTER_SECONDS = 4.0
_FOLD_TRIES = 3
_MAX_FOLDS = 50
_DEPTHS_SHARE = 100
"""A reading of the queues may take one of this many seconds: a long queue takes long to count."""
_STOP_SECONDS = 1.0


class _Period(NamedTuple):
    middle: float
    """By the monotonic clock."""
    counters: Counters


class Recorder:
    """A service of each worker."""

    name = "charts"

    def __init__(
        self,
        coordination: Coordination,
        tally: Tally,
        *,
        clock: Clock,
        read_depths: Callable[[], Awaitable[Sequence[Depth]]] | None = None,
    ) -> None:
        self._coordination = coordination
        self._folder = Folder(coordination)
        self._tally = tally
        self._clock = clock
        self._read_depths = read_depths
        self._depths_due = float("-inf")
        self._writer = fresh_id()
        self._taken = clock.monotonic()
        self._offset: float | None = None
        self._offset_measured = float("-inf")
        self._pending: list[_Period] = []
        self._sending: list[_Period] = []
        """What the write with the number ``sequence`` contains, until it is known to have
        happened."""
        self._sequence = 0
        self._revision = 0
        self._must_fold = False

    async def run(self, working: Callable[[], None]) -> None:
        """Record until cancelled."""
        try:
            while True:
                await anyio.sleep(self._until_next_period())
                with suppress(Unavailable):
                    if await self.record() or self._must_fold:
                        await anyio.sleep(_JITTER_SECONDS * _random_share())
                        await self.fold()
                        working()
        finally:
            with anyio.move_on_after(_STOP_SECONDS, shield=True), suppress(UmbelError):
                await self.record()
                await self.fold()

    def _until_next_period(self) -> float:
        if self._offset is None:
            return PERIOD_SECONDS
        return PERIOD_SECONDS - (self._clock.monotonic() + self._offset) % PERIOD_SECONDS

    # --- writing -----------------------------------------------------------------------------

    async def record(self) -> bool:
        """Write what was counted since the last call. Return whether there was something.

        Raises:
            Unavailable: it is written with the next call.
        """
        self._take()
        if not self._pending and not self._sending:
            return False
        if self._clock.monotonic() - self._offset_measured > _OFFSET_SECONDS:
            begun = self._clock.monotonic()
            page = await self._coordination.read(NEW, limit=1)
            self._measure_offset(begun, page.now)
        while self._pending or self._sending:
            if not self._sending:
                self._sending, self._pending = self._pending, []
                self._sequence += 1
            await self._send()
            self._must_fold = True
        return True

    def _take(self) -> None:
        now = self._clock.monotonic()
        counters = self._tally.take()
        middle = now - min(now - self._taken, PERIOD_SECONDS) / 2
        self._taken = now
        if counters is None:
            return
        if len(self._pending) >= _MAX_PENDING:
            last = self._pending.pop()
            middle, counters = last.middle, merge([last.counters, counters])
        self._pending.append(_Period(middle, counters))

    async def _send(self) -> None:
        """Write documents once, even if the answer to an earlier try was lost.

        A document may have been folded and deleted since, so its absence proves nothing. Each write
        therefore also writes its number, and checks that no later one was written.
        """
        key, number = WRITERS + self._writer, b"%d" % self._sequence
        puts = [*self._documents(), Put(key, number, _WRITER_SECONDS)]
        while True:
            revision = await self._coordination.commit({key: self._revision}, puts)
            if revision is not None:
                break
            page = await self._coordination.read(key, limit=1)
            revision = page.entries[0].revision if page.entries else 0
            if page.entries and page.entries[0].value == number:
                break
            self._revision = revision  # the number has lapsed
        self._revision, self._sending = revision, []

    def _documents(self) -> list[Put]:
        by_time: dict[int, list[Counters]] = {}
        for period in self._sending:
            time = align(period.middle + (self._offset or 0.0), PERIOD_SECONDS)
            by_time.setdefault(time, []).append(period.counters)
        return [
            Put(
                f"{NEW}{time:012d}/{self._writer}-{self._sequence}",
                encode(merge(many)),
                _DOCUMENT_SECONDS,
            )
            for time, many in by_time.items()
        ]

    def _measure_offset(self, begun: float, store_time: float) -> None:
        self._offset_measured = self._clock.monotonic()
        self._offset = store_time - (begun + self._offset_measured) / 2

    # --- folding -----------------------------------------------------------------------------

    async def fold(self) -> None:
        """Fold all documents. If other workers do it at the same time, leave it to them.

        Raises:
            Unavailable: it is done later.
        """
        self._must_fold = True
        depths: DepthSums | None = None
        tries = 0
        for _ in range(_MAX_FOLDS):
            begun = self._clock.monotonic()
            page = await self._folder.read()
            self._measure_offset(begun, page.now)
            if not page.entries:
                self._must_fold = False
                return
            depths = depths or await self._sample_depths()
            if not await self._folder.fold(page, depths):
                tries += 1
                if tries >= _FOLD_TRIES:
                    return
                await anyio.sleep(_random_share())

    async def _sample_depths(self) -> DepthSums | None:
        begun = self._clock.monotonic()
        if self._read_depths is None or begun < self._depths_due:
            return None
        jobs = dict.fromkeys(State, 0)
        oldest = 0
        for depth in await self._read_depths():
            jobs[depth.state] += depth.jobs
            if depth.state is State.QUEUED:
                oldest = max(oldest, int(depth.age))
        now = self._clock.monotonic()
        self._depths_due = now + _DEPTHS_SHARE * (now - begun)
        return DepthSums(1, jobs[State.QUEUED], jobs[State.WAITING], jobs[State.RUNNING], oldest)


def _random_share() -> float:
    """Return a number from 0 to 1."""
    return int(random_hex(2), 16) / 2**16

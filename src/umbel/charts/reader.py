"""Reads numbers over time, as the dashboard draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from umbel.backends import Coordination, Entry
from umbel.charts.counters import Counters, decode, merge, percentile, total
from umbel.charts.folding import HOURS, MINUTES, NEW, TEN_SECONDS, Series, align, time_of
from umbel.errors import ConfigurationError

ChartRange = Literal["15m", "1h", "24h", "7d"]
_LATE_SECONDS = 5.0
"""A point is complete so long after its end: workers write when a period has ended."""
_READ_TRIES = 3
RATE_POINTS = 3
"""Present rates are those of the last points that are complete, so many."""
_CLEAN_PERIODS = 6
"""After so many periods without failures, a task is no longer failing."""


class _Scale(NamedTuple):
    series: Series
    seconds: int
    """Of one point."""
    points: int


_SCALES: dict[str, _Scale] = {
    "15m": _Scale(TEN_SECONDS, 10, 90),
    "1h": _Scale(TEN_SECONDS, 30, 120),
    "24h": _Scale(MINUTES, 900, 96),
    "7d": _Scale(HOURS, 7_200, 84),
}


class MeanDepths(msgspec.Struct, frozen=True):
    """How many jobs there were on average, in all queues together."""

    queued: float
    waiting: float
    running: float
    oldest: float
    """Seconds since the oldest queued job was queued."""


class ChartPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one period. They are None if no worker wrote any."""

    time: int
    """When it begins, in seconds since 1970, by the store's clock."""
    seconds: int
    """How long it is."""
    complete: bool
    """Whether it has ended, so that its numbers do not change any more."""
    succeeded: int | None = None
    retried: int | None = None
    buried: int | None = None
    other: int | None = None
    p50: float | None = None
    """The median run time in seconds."""
    p95: float | None = None
    wait_p50: float | None = None
    """The median of the seconds that jobs waited for their first run."""
    wait_p95: float | None = None
    depths: MeanDepths | None = None


class TaskTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one task in the whole range."""

    task: str
    runs: int
    failures: int
    """Runs that failed, whether retried or buried."""
    buried: int
    p50: float | None
    p95: float | None
    failing_since: int | None = None
    """The beginning of the first period with failures, after several in a row without any."""


class QueueRates(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs of the jobs of one queue ended per second lately."""

    queue: str
    succeeded: float
    failed: float
    """Retried, buried or rejected."""


class ChartData(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers over time."""

    range: ChartRange
    now: float
    """The store's time."""
    points: tuple[ChartPoint, ...]
    """Oldest first; the last one contains the present time."""
    tasks: tuple[TaskTotals, ...]
    """Those with the most runs first."""
    queues: tuple[QueueRates, ...] = ()
    """Of the last ``RATE_POINTS`` points that are complete; of queues in which jobs ended then."""


class Charts:
    """Reads the numbers that workers have recorded."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def read(self, range: ChartRange) -> ChartData:
        """Return the points of a range up to now, at most 120, and the totals of each task.

        Raises:
            ConfigurationError: there is no such range.
            Unavailable: the caller should try again.
        """
        scale = _SCALES.get(range)
        if scale is None:
            raise ConfigurationError(f"range={range!r}: give {', '.join(get_args(ChartRange))}")
        tries = _READ_TRIES
        while True:
            now, found, is_consistent = await self._read(scale)
            tries -= 1
            if is_consistent or not tries:
                break
        points = tuple(
            _point(time, scale.seconds, found.get(time), now) for time in _times(scale, now)
        )
        queues = _queue_rates(points, found)
        return ChartData(range=range, now=now, points=points, tasks=_totals(found), queues=queues)

    async def _read(self, scale: _Scale) -> tuple[float, dict[int, Counters], bool]:
        """Return the store's time, the counters by point, and whether nothing changed meanwhile.

        Documents that are not folded yet are included.
        """
        page = await self._coordination.read(NEW)
        now, revision = page.now, page.revision
        first = _times(scale, now)[0]
        found: dict[int, list[Counters]] = {}

        def add(entries: tuple[Entry, ...], prefix: str) -> None:
            for entry in entries:
                time, counters = time_of(entry.key, prefix), decode(entry.value)
                if time is not None and counters is not None and time >= first:
                    point = align(min(time, now), scale.seconds)
                    found.setdefault(point, []).append(counters)

        add(page.entries, NEW)
        after, more = f"{scale.series.prefix}{first - 1:012d}", True
        while more:
            page = await self._coordination.read(scale.series.prefix, after=after)
            add(page.entries, scale.series.prefix)
            more = page.more
            after = page.entries[-1].key if page.entries else after
        merged = {time: merge(many) for time, many in found.items()}
        return now, merged, page.revision == revision


def _times(scale: _Scale, now: float) -> list[int]:
    last = align(now, scale.seconds)
    return [last - scale.seconds * back for back in reversed(range(scale.points))]


def _point(time: int, seconds: int, counters: Counters | None, now: float) -> ChartPoint:
    complete = now >= time + seconds + _LATE_SECONDS
    if counters is None:
        return ChartPoint(time=time, seconds=seconds, complete=complete)
    sums, depths = total(counters.tasks), counters.depths
    return ChartPoint(
        time=time,
        seconds=seconds,
        complete=complete,
        succeeded=sums.succeeded,
        retried=sums.retried,
        buried=sums.buried,
        other=sums.other,
        p50=percentile(sums.seconds, 0.5),
        p95=percentile(sums.seconds, 0.95),
        wait_p50=percentile(counters.waits, 0.5),
        wait_p95=percentile(counters.waits, 0.95),
        depths=MeanDepths(
            depths.queued / depths.readings,
            depths.waiting / depths.readings,
            depths.running / depths.readings,
            depths.oldest / depths.readings,
        )
        if depths is not None and depths.readings
        else None,
    )


def _queue_rates(
    points: Sequence[ChartPoint], found: Mapping[int, Counters]
) -> tuple[QueueRates, ...]:
    ended = [one for one in points if one.complete][-RATE_POINTS:]
    seconds = sum(one.seconds for one in ended)
    sums = merge(found[one.time] for one in ended if one.time in found).queues
    return tuple(
        QueueRates(queue=queue, succeeded=one.succeeded / seconds, failed=one.failed / seconds)
        for queue, one in sorted(sums.items())
    )


def _totals(found: Mapping[int, Counters]) -> tuple[TaskTotals, ...]:
    totals = (
        TaskTotals(
            task=task,
            runs=counts.runs,
            failures=counts.retried + counts.buried,
            buried=counts.buried,
            p50=percentile(counts.seconds, 0.5),
            p95=percentile(counts.seconds, 0.95),
            failing_since=_failing_since(task, found),
        )
        for task, counts in merge(found.values()).tasks.items()
    )
    return tuple(sorted(totals, key=lambda one: (-one.runs, one.task)))


def _failing_since(task: str, found: Mapping[int, Counters]) -> int | None:
    since, clean = None, 0
    for time in sorted(found, reverse=True):
        counts = found[time].tasks.get(task)
        if counts is None or not counts.runs:
            continue
        if counts.retried + counts.buried:
            since, clean = time, 0
        elif (clean := clean + 1) >= _CLEAN_PERIODS:
            break
    return since

"""The numbers of a period: counts per task, with a histogram of run times. Pure.

Counters are merged by addition, so the order in which periods and workers are merged does not
matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Annotated

import msgspec
from msgspec.structs import replace

from umbel.backends import json_value
from umbel.backends.coordination import MAX_VALUE_BYTES

OTHER_TASKS = "(other)"
"""Stands for the tasks with the fewest runs, where there are too many."""
OTHER_QUEUES = "(other)"
"""Stands for the queues with the fewest runs, where there are too many."""
MAX_TASKS = 200
MAX_QUEUES = 100
BOUNDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 7200.0),
)
"""The upper bounds of a histogram's buckets in seconds. One more bucket is above the last bound."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Histogram = Annotated[tuple[Count, ...], msgspec.Meta(max_length=len(BOUNDS) + 1)]


class TaskCounts(msgspec.Struct, frozen=True, array_like=True):
    """How the runs of one task ended."""

    succeeded: Count = 0
    retried: Count = 0
    buried: Count = 0
    """Failed permanently, or rejected."""
    other: Count = 0
    """Cancelled, expired, snoozed or interrupted."""
    seconds: Histogram = ()
    """How many runs took how long, by bucket. Empty buckets at the end are left out."""

    @property
    def runs(self) -> int:
        """How many runs ended."""
        return self.succeeded + self.retried + self.buried + self.other


class QueueCounts(msgspec.Struct, frozen=True, array_like=True):
    """How the runs of the jobs of one queue ended."""

    succeeded: Count = 0
    failed: Count = 0
    """Retried, buried or rejected."""


class DepthSums(msgspec.Struct, frozen=True, array_like=True):
    """The sums of several readings of how many jobs there were in each state."""

    readings: Count = 0
    queued: Count = 0
    waiting: Count = 0
    running: Count = 0
    oldest: Count = 0
    """The seconds since the oldest queued job was queued."""


class Counters(msgspec.Struct, frozen=True):
    """What was counted in a period."""

    tasks: dict[str, TaskCounts] = {}
    depths: DepthSums | None = None
    waits: Histogram = ()
    """How many jobs waited how long for their first run, by bucket."""
    queues: dict[str, QueueCounts] = {}


def merge(many: Iterable[Counters]) -> Counters:
    """Return the sums."""
    tasks: dict[str, TaskCounts] = {}
    depths: DepthSums | None = None
    waits: Histogram = ()
    queues: dict[str, QueueCounts] = {}
    for one in many:
        for task, counts in one.tasks.items():
            known = tasks.get(task)
            tasks[task] = counts if known is None else add(known, counts)
        if one.depths is not None:
            depths = one.depths if depths is None else _add_depths(depths, one.depths)
        waits = _add_buckets(waits, one.waits)
        for queue, sums in one.queues.items():
            queues[queue] = _add_queues(queues.get(queue, QueueCounts()), sums)
    return Counters(tasks, depths, waits, queues)


def add(one: TaskCounts, two: TaskCounts) -> TaskCounts:
    """Return the sums of two tasks, or of two periods of a task."""
    return TaskCounts(
        one.succeeded + two.succeeded,
        one.retried + two.retried,
        one.buried + two.buried,
        one.other + two.other,
        _add_buckets(one.seconds, two.seconds),
    )


def _add_buckets(one: Histogram, two: Histogram) -> Histogram:
    return tuple(a + b for a, b in zip_longest(one, two, fillvalue=0))


def _add_queues(one: QueueCounts, two: QueueCounts) -> QueueCounts:
    return QueueCounts(one.succeeded + two.succeeded, one.failed + two.failed)


def _add_depths(one: DepthSums, two: DepthSums) -> DepthSums:
    return DepthSums(
        one.readings + two.readings,
        one.queued + two.queued,
        one.waiting + two.waiting,
        one.running + two.running,
        one.oldest + two.oldest,
    )


def total(tasks: Mapping[str, TaskCounts]) -> TaskCounts:
    """Return the sums over all tasks."""
    found = TaskCounts()
    for counts in tasks.values():
        found = add(found, counts)
    return found


def limit_tasks(counters: Counters, most: int = MAX_TASKS) -> Counters:
    """Return the same sums for at most so many tasks and ``OTHER_TASKS``."""
    named = {task: counts for task, counts in counters.tasks.items() if task != OTHER_TASKS}
    if len(named) <= most:
        return counters
    order = sorted(named, key=lambda task: (-named[task].runs, task))
    rest = total({task: named[task] for task in order[most:]})
    known = counters.tasks.get(OTHER_TASKS, TaskCounts())
    kept = {task: named[task] for task in order[:most]}
    return replace(counters, tasks=kept | {OTHER_TASKS: add(known, rest)})


def limit_queues(counters: Counters, most: int = MAX_QUEUES) -> Counters:
    """Return the same sums for at most so many queues and ``OTHER_QUEUES``."""
    named = {queue: sums for queue, sums in counters.queues.items() if queue != OTHER_QUEUES}
    if len(named) <= most:
        return counters
    order = sorted(named, key=lambda queue: (-sum(msgspec.structs.astuple(named[queue])), queue))
    rest = counters.queues.get(OTHER_QUEUES, QueueCounts())
    for queue in order[most:]:
        rest = _add_queues(rest, named[queue])
    kept = {queue: named[queue] for queue in order[:most]}
    return replace(counters, queues=kept | {OTHER_QUEUES: rest})


def encode(counters: Counters, max_bytes: int = MAX_VALUE_BYTES) -> bytes:
    """Return the value of an entry.

    The tasks and queues with the fewest runs are merged until it fits.
    """
    tasks, queues = MAX_TASKS, MAX_QUEUES
    while True:
        value = json_value(limit_queues(limit_tasks(counters, tasks), queues))
        if len(value) <= max_bytes or not (tasks or queues):
            return value
        tasks, queues = tasks // 2, queues // 2


def decode(value: bytes) -> Counters | None:
    """Return what an entry contains; None if it cannot be read."""
    try:
        return msgspec.json.decode(value, type=Counters)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def percentile(histogram: Sequence[int], share: float) -> float | None:
    """Return the time in seconds below which this share of runs are; None without runs.

    It is interpolated inside a bucket. Times above the last bound count as the last bound.
    """
    runs = sum(histogram)
    if not runs:
        return None
    wanted, passed = share * runs, 0
    for bucket, count in enumerate(histogram):
        if count and passed + count >= wanted:
            if bucket >= len(BOUNDS):
                break
            low = BOUNDS[bucket - 1] if bucket else 0.0
            return low + (BOUNDS[bucket] - low) * (wanted - passed) / count
        passed += count
    return BOUNDS[-1]

"""Counts the jobs that end in a process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from threading import Lock

from umbel.charts.counters import (
    BOUNDS,
    OTHER_QUEUES,
    OTHER_TASKS,
    Counters,
    QueueCounts,
    TaskCounts,
    limit_queues,
    limit_tasks,
)
from umbel.messages import (
    Cancelled,
    Expired,
    Failed,
    Interrupted,
    Outcome,
    Rejected,
    Retry,
    Snoozed,
    Succeeded,
)
from umbel.messages.nodes import INTERNAL_TASKS

_TIMED: dict[type[Outcome], str] = {Succeeded: "succeeded", Retry: "retried", Failed: "buried"}
_UNTIMED: dict[type[Outcome], str] = {
    Rejected: "buried",
    Snoozed: "other",
    Interrupted: "other",
    Cancelled: "other",
    Expired: "other",
}
_NOT_TIMED = -1
_MAX_KEYS = 10_000
"""Messages may name any task and queue: beyond this number, new ones are counted as others."""

_Key = tuple[str, str, str, int]


class Tally:
    """Counts the runs of a process. Workers of one process share it, so each job counts once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[_Key, int] = {}
        self._waits = [0] * (len(BOUNDS) + 1)

    def count_waits(self, waits: Iterable[float]) -> None:
        """Count the seconds that jobs waited for their first run."""
        with self._lock:
            for seconds in waits:
                self._waits[bisect_left(BOUNDS, seconds)] += 1

    def count(self, runs: Iterable[tuple[str, str, Outcome, float]]) -> None:
        """Count runs: task, queue, the outcome that was recorded, and the seconds that it took.

        Nodes of graphs that run no task are not counted: their failures are those of tasks.
        """
        with self._lock:
            for task, queue, outcome, seconds in runs:
                kind, bucket = type(outcome), _NOT_TIMED
                name = _TIMED.get(kind)
                if name is not None:
                    bucket = bisect_left(BOUNDS, seconds)
                else:
                    name = _UNTIMED.get(kind)
                if name is not None and task not in INTERNAL_TASKS:
                    self._add((task, queue, name, bucket))

    def _add(self, key: _Key) -> None:
        counts = self._counts
        if key not in counts and len(counts) >= _MAX_KEYS:
            key = (OTHER_TASKS, OTHER_QUEUES, *key[2:])
        counts[key] = counts.get(key, 0) + 1

    def take(self) -> Counters | None:
        """Return what was counted since the last call; None if there was nothing."""
        if not self._counts:
            return None
        with self._lock:
            counts, self._counts = self._counts, {}
            waits, self._waits = self._waits, [0] * (len(BOUNDS) + 1)
        found = Counters(_by_task(counts), waits=_without_tail(waits), queues=_by_queue(counts))
        return limit_queues(limit_tasks(found))


def _by_task(counts: dict[_Key, int]) -> dict[str, TaskCounts]:
    sums: dict[str, dict[str, int]] = {}
    histograms: dict[str, list[int]] = {}
    for (task, _, outcome, bucket), count in counts.items():
        by_outcome = sums.setdefault(task, {})
        by_outcome[outcome] = by_outcome.get(outcome, 0) + count
        if bucket != _NOT_TIMED:
            histograms.setdefault(task, [0] * (len(BOUNDS) + 1))[bucket] += count
    return {
        task: TaskCounts(**by_outcome, seconds=_without_tail(histograms.get(task, [])))
        for task, by_outcome in sums.items()
    }


def _by_queue(counts: dict[_Key, int]) -> dict[str, QueueCounts]:
    sums: dict[str, list[int]] = {}
    for (_, queue, outcome, _bucket), count in counts.items():
        if outcome != "other":
            sums.setdefault(queue, [0, 0])[outcome != "succeeded"] += count
    return {queue: QueueCounts(*both) for queue, both in sums.items()}


def _without_tail(histogram: list[int]) -> tuple[int, ...]:
    while histogram and not histogram[-1]:
        histogram.pop()
    return tuple(histogram)

"""Counts the jobs that end in a process."""

from __future__ import annotations

from bisect import bisect_left
from threading import Lock

from umbel.charts.counters import BOUNDS, OTHER_TASKS, Counters, TaskCounts, limit_tasks
from umbel.messages.nodes import INTERNAL_TASKS
from umbel.telemetry import events
from umbel.telemetry.events import Event

_TIMED: dict[type[Event], str] = {
    events.JobSucceeded: "succeeded",
    events.JobRetried: "retried",
    events.JobBuried: "buried",
}
_UNTIMED: dict[type[Event], str] = {
    events.JobRejected: "buried",
    events.JobSnoozed: "other",
    events.JobInterrupted: "other",
    events.JobCancelled: "other",
    events.JobExpired: "other",
}
_NOT_TIMED = -1
_MAX_KEYS = 10_000
"""Messages may name any task: beyond this number, new ones are counted as ``OTHER_TASKS``."""

_Key = tuple[str, str, int]


class Tally:
    """A subscriber of telemetry. Workers of one process share it, so that each job counts once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[_Key, int] = {}

    def count(self, event: Event) -> None:
        """Count a job that has ended; ignore other events. May be called in any thread.

        Nodes of graphs that run no task are not counted: their failures are those of tasks.
        """
        outcome, bucket = _TIMED.get(type(event)), _NOT_TIMED
        if outcome is not None:
            bucket = bisect_left(BOUNDS, event.seconds)  # type: ignore[attr-defined]
        else:
            outcome = _UNTIMED.get(type(event))
            if outcome is None:
                return
        task: str = event.task  # type: ignore[attr-defined]
        if task in INTERNAL_TASKS:
            return
        with self._lock:
            counts = self._counts
            key = (task, outcome, bucket)
            if key not in counts and len(counts) >= _MAX_KEYS:
                key = (OTHER_TASKS, outcome, bucket)
            counts[key] = counts.get(key, 0) + 1

    def take(self) -> Counters | None:
        """Return what was counted since the last call; None if there was nothing."""
        if not self._counts:
            return None
        with self._lock:
            counts, self._counts = self._counts, {}
        return limit_tasks(Counters(_by_task(counts)))


def _by_task(counts: dict[_Key, int]) -> dict[str, TaskCounts]:
    sums: dict[str, dict[str, int]] = {}
    histograms: dict[str, list[int]] = {}
    for (task, outcome, bucket), count in counts.items():
        by_outcome = sums.setdefault(task, {})
        by_outcome[outcome] = by_outcome.get(outcome, 0) + count
        if bucket != _NOT_TIMED:
            histograms.setdefault(task, [0] * (len(BOUNDS) + 1))[bucket] += count
    return {
        task: TaskCounts(**by_outcome, seconds=_without_tail(histograms.get(task, [])))
        for task, by_outcome in sums.items()
    }


def _without_tail(histogram: list[int]) -> tuple[int, ...]:
    while histogram and not histogram[-1]:
        histogram.pop()
    return tuple(histogram)

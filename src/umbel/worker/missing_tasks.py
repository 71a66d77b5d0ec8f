"""Handles jobs whose tasks this worker does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from umbel.messages import Delivery, Interrupted, Outcome, Parked
from umbel.resilience import Backoff
from umbel.telemetry import Telemetry, events
from umbel.worker.intake import Intake

_MAX_TASKS = 1000
"""Maximum number of tasks that a fetch excludes by name."""
_MAX_JOBS = 10_000
"""Maximum number of jobs that are remembered as given back."""
_REDELIVERY_BACKOFF = Backoff(first=0.05, factor=1.5, cap=10.0)
"""Delay of a job that was fetched here again: some transports cannot exclude its task."""


class MissingTasks:
    """Gives such jobs back, excludes their tasks from later fetches, and reports the tasks."""

    name = "missing tasks"

    def __init__(self, intake: Intake, *, worker: str, telemetry: Telemetry) -> None:
        self._intake = intake
        self._worker = worker
        self._telemetry = telemetry
        self._tasks: dict[str, None] = {}
        self._given_back: dict[str, int] = {}
        self._unreported: set[str] = set()
        self._wake = anyio.Event()
        self._emitted: set[tuple[str, bool]] = set()

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks that fetches exclude, because other workers have them."""
        return tuple(self._tasks)

    def give_back(self, delivery: Delivery, reason: str) -> Outcome:
        """Return the outcome of such a job: it goes back at once, later times with a delay."""
        task = delivery.envelope.subject
        self._tasks.pop(task, None)
        _put(self._tasks, task, None, _MAX_TASKS)
        self._unreported.add(task)
        self._wake.set()
        times = self._given_back.pop(delivery.id, 0)
        _put(self._given_back, delivery.id, times + 1, _MAX_JOBS)
        if not times:
            return Parked(delivery.envelope.gates)
        return Interrupted(reason, _REDELIVERY_BACKOFF.delay(times, delivery.id))

    async def run(self, working: Callable[[], None]) -> None:
        """Report missing tasks to the store, which pauses those that no running worker has."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            tasks = sorted(self._unreported)
            nowhere = await self._intake.report_missing_tasks(tasks)
            self._unreported -= {*tasks}
            working()
            for task in tasks:
                self._emit(task, elsewhere=task not in nowhere)
            for task in nowhere:  # their jobs are paused, so fetches need not exclude them
                self._tasks.pop(task, None)

    def _emit(self, task: str, elsewhere: bool) -> None:
        if (task, elsewhere) not in self._emitted and len(self._emitted) < 2 * _MAX_TASKS:
            self._emitted.add((task, elsewhere))
            self._telemetry.emit(
                events.TaskMissing(worker=self._worker, task=task, elsewhere=elsewhere)
            )


def _put(into: dict[str, Any], key: str, value: Any, limit: int) -> None:
    """Add at the end; beyond the limit, delete the oldest entry."""
    into[key] = value
    if len(into) > limit:
        del into[next(iter(into))]

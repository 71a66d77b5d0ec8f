"""Tasks that this worker does not have, although it was given jobs of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from umbel.messages import Delivery, Interrupted, Outcome, Parked
from umbel.resilience import Backoff
from umbel.telemetry import Telemetry, events
from umbel.worker.intake import Intake

_MAX_TASKS = 1000
"""So many tasks are excluded by name in a fetch."""
_MAX_JOBS = 10_000
"""So many jobs are remembered as given back."""
_AGAIN = Backoff(first=0.05, factor=1.5, cap=10.0)
"""How long a job stays away that came here again: some transports cannot exclude its task."""


class MissingTasks:
    """Gives such jobs back, asks for no more of them, and reports their tasks."""

    name = "missing tasks"

    def __init__(self, intake: Intake, *, worker: str, telemetry: Telemetry) -> None:
        self._intake = intake
        self._worker = worker
        self._telemetry = telemetry
        self._tasks: dict[str, None] = {}
        self._given_back: dict[str, int] = {}
        self._reports: set[str] = set()
        self._wake = anyio.Event()
        self._told: set[tuple[str, bool]] = set()

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks that the worker does not ask for: others have them."""
        return tuple(self._tasks)

    def give_back(self, delivery: Delivery, reason: str) -> Outcome:
        """What becomes of a job: it goes back at once, and each further time it waits longer."""
        task = delivery.envelope.subject
        self._tasks.pop(task, None)
        _put(self._tasks, task, None, _MAX_TASKS)
        self._reports.add(task)
        self._wake.set()
        times = self._given_back.pop(delivery.id, 0)
        _put(self._given_back, delivery.id, times + 1, _MAX_JOBS)
        if not times:
            return Parked(delivery.envelope.gates)
        return Interrupted(reason, _AGAIN.delay(times, delivery.id))

    async def run(self, working: Callable[[], None]) -> None:
        """Report tasks as they are met."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            tasks = sorted(self._reports)
            nowhere = await self._intake.lacks(tasks)
            self._reports -= {*tasks}
            working()
            for task in tasks:
                self._tell(task, elsewhere=task not in nowhere)
            for task in nowhere:  # the store gives these jobs to no worker
                self._tasks.pop(task, None)

    def _tell(self, task: str, elsewhere: bool) -> None:
        if (task, elsewhere) not in self._told and len(self._told) < 2 * _MAX_TASKS:
            self._told.add((task, elsewhere))
            self._telemetry.emit(
                events.TaskMissing(worker=self._worker, task=task, elsewhere=elsewhere)
            )


def _put(into: dict[str, Any], key: str, value: Any, limit: int) -> None:
    """Add at the end; beyond the limit the oldest goes."""
    into[key] = value
    if len(into) > limit:
        del into[next(iter(into))]

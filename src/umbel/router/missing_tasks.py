"""Tasks that no running worker has: their jobs wait, and are buried after a long time.

While a task is missing it is paused, with ``MISSING`` as the holder. So its jobs are not claimed
again and again, and a job store does not send them to a transport, which cannot filter by task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from umbel.backends import Control, JobFilter, Records, RegisteredWorker, Registry
from umbel.clock import Clock
from umbel.control import MISSING, NO_WORKER, Pause, Pauses
from umbel.messages import State
from umbel.messages.nodes import INTERNAL_TASKS
from umbel.router.upkeep import SharedInterval, one_worker
from umbel.telemetry import Telemetry, events

_WAITING = (State.QUEUED, State.WAITING)
_BATCH = 500
_SEARCH_INTERVAL = 60.0
"""Seconds between two searches for waiting jobs of missing tasks, by all workers together."""


def tasks_of(workers: Sequence[RegisteredWorker]) -> frozenset[str]:
    """Return the tasks that at least one of these workers has, and those that every worker has."""
    return INTERNAL_TASKS.union(*(worker.entry.tasks for worker in workers))


async def pause_missing(pauses: Pauses, registry: Registry, tasks: set[str]) -> list[str]:
    """Pause those of these tasks that no running worker has; return their names."""
    missing = tasks - tasks_of(await registry.workers())
    new = missing - {pause.name for pause in await _missing(pauses)}
    if new:
        await pauses.change_missing(sorted(new), [])
    return sorted(missing)


async def _missing(pauses: Pauses) -> list[Pause]:
    return [one for one in (await pauses.state()).pauses if one.holder == MISSING]


class MissingTasks:
    """Finds missing tasks, resumes those that a running worker has, and buries jobs.

    Workers report missing tasks of jobs that they have fetched. Jobs that no worker fetches, for
    example because they wait at a gate, are found by a search from time to time. A job is buried
    when its task has been missing for ``after`` seconds, by the store's clock, and it was published
    before that time began. Then the time starts again for later jobs.
    """

    def __init__(
        self,
        registry: Registry,
        control: Control,
        pauses: Pauses,
        records: Records,
        *,
        after: float,
        interval: SharedInterval,
        clock: Clock,
        telemetry: Telemetry,
        worker_count: Callable[[], int] = one_worker,
    ) -> None:
        self._registry = registry
        self._control = control
        self._pauses = pauses
        self._records = records
        self._after = after
        self._interval = interval
        self._clock = clock
        self._telemetry = telemetry
        self._crowd = worker_count
        self._searched = clock.monotonic()

    async def run_once(self) -> None:
        """Search for missing tasks, resume or bury, each if it is time."""
        await self._search()
        if not self._interval.is_due():
            return
        self._interval.record_done()
        pauses = await _missing(self._pauses)
        if not pauses:
            return
        there = tasks_of(await self._registry.workers())
        if found := [pause.name for pause in pauses if pause.name in there]:
            await self._pauses.change_missing([], found)
        for pause in pauses:
            if pause.name not in there and pause.age > self._after:
                await self._bury(pause)

    async def _search(self) -> None:
        now = self._clock.monotonic()
        if now - self._searched < min(_SEARCH_INTERVAL, self._after) * max(self._crowd(), 1):
            return
        self._searched = now
        waiting = {one.task for one in await self._records.count_waiting()}
        if waiting:
            await pause_missing(self._pauses, self._registry, waiting)

    async def _bury(self, pause: Pause) -> None:
        wanted = JobFilter(
            task=pause.name, states=_WAITING, published_before=pause.since, limit=_BATCH
        )
        reason = f"{NO_WORKER} {pause.name}, and none had it for {pause.age:,.0f} s"
        buried = 0
        while found := await self._records.search(wanted):
            jobs = await self._control.bury([one.id for one in found], reason)
            buried += len(jobs)
            if not jobs:  # all of them have started or ended since the search
                break
        await self._pauses.change_missing([pause.name], [pause.name])
        if buried:
            self._telemetry.emit(events.MissingTaskBuried(task=pause.name, jobs=buried))

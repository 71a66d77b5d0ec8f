"""Broadcasts: one job that has a job of its own run on every worker, and tells what came of each.

The announcement is itself a job, so that it survives everything jobs survive. Whom it told is a
step of it; the parts' ids are made of its own and of the worker's index, so whoever repeats an
announcement tells nobody twice.
"""

from __future__ import annotations

import asyncio
from typing import Any

from umbel.app.client import Client
from umbel.backends import Seat
from umbel.errors import ResultTimeout, UnknownJob
from umbel.messages import Record, State, derived_id
from umbel.tasks import Task, TaskOptions, current, step
from umbel.tasks.handle import Told
from umbel.tasks.task import IOTask

_LOOK = 0.5
"""Seconds between looks at who lives."""


def announcement(task: Task[..., Any], desk: Client) -> IOTask[..., Any]:
    """What runs where a broadcast is published; the task itself runs on each worker."""

    async def announce(*args: Any, **kwargs: Any) -> dict[str, Told]:
        return await _Broadcast(task, desk, args, kwargs).run()

    declared = task.declared
    options = TaskOptions(queue=declared.queue, interruptible=True, max_deaths=100)
    return IOTask(announce, task.name, options)


class _Broadcast:
    """One announcement, in one run of it."""

    def __init__(
        self, task: Task[..., Any], desk: Client, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._task = task
        self._desk = desk
        self._args = args
        self._kwargs = kwargs
        self._job = current.job
        # The store's clock says how old the job is; what has passed since is measured here.
        self._published = desk.monotonic() - (self._job.claimed - self._job.created)
        self._ended: dict[int, Told] = {}
        self._told: dict[int, str] = {}

    async def run(self) -> dict[str, Told]:
        """Tell everybody, and wait for each until it is done or gone."""
        for index, name in await step.named("workers")(self._everybody):
            await self._tell(index, name)
        while True:
            waiting = [index for index in self._told if index not in self._ended]
            current.progress(len(self._ended), of=len(self._told))
            if not waiting and not await self._joining():
                return {self._told[index]: told for index, told in sorted(self._ended.items())}
            await asyncio.gather(*(self._hear(index) for index in waiting), asyncio.sleep(_LOOK))

    async def _everybody(self) -> list[tuple[int, str]]:
        """Who lives now: this worker at least."""
        return [(seat.index, seat.worker) for seat in await self._seats() if seat.alive]

    async def _tell(self, index: int, name: str) -> None:
        """Give one worker its part; once, however often it is tried."""
        self._told[index] = name
        part = self._task.options(worker=index, id=self._part(index))
        await part.adelay(*self._args, **self._kwargs)

    async def _joining(self) -> bool:
        """Tell those that have come since, for as long as it is for them, too."""
        window = self._task.declared.broadcast
        new = [s for s in await self._seats() if s.alive and s.index not in self._told]
        if window is True or self._desk.monotonic() > self._published + float(window):
            for seat in new:  # a run before this one may have told it
                if await self._known(seat.index):
                    self._told[seat.index] = seat.worker
            return any(index not in self._ended for index in self._told)
        for seat in new:
            await self._tell(seat.index, seat.worker)
        return True

    async def _hear(self, index: int) -> None:
        """What came of one part, unless it is still to come."""
        name, job = self._told[index], self._part(index)
        try:
            record = await self._desk.bridge.arun(self._desk.finished(job, _LOOK))
        except ResultTimeout:
            seats = {seat.index: seat for seat in await self._seats()}
            if index in seats and seats[index].alive and seats[index].worker == name:
                return
            await self._desk.bridge.arun(self._desk.cancel(job, f"worker {name} is gone"))
            self._ended[index] = Told(index=index, state="missing", reason="its worker is gone")
        else:
            self._ended[index] = self._outcome(index, record)

    def _outcome(self, index: int, record: Record) -> Told:
        if record.state is State.SUCCEEDED:
            result = None if record.result is None else self._desk.codec.decode(record.result)
            return Told(index=index, state="done", result=result)
        failed = record.failure
        kind = failed.type.rpartition(":")[2] if failed else ""
        reason = f"{kind}: {failed.message}" if failed else record.reason
        return Told(index=index, state="failed", reason=reason)

    async def _known(self, index: int) -> bool:
        try:
            await self._desk.bridge.arun(self._desk.record(self._part(index)))
        except UnknownJob:
            return False
        return True

    async def _seats(self) -> list[Seat]:
        return await self._desk.bridge.arun(self._desk.routes.seats())

    def _part(self, index: int) -> str:
        return derived_id(self._job.id, index, 0)

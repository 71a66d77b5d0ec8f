"""Broadcasts: one job that publishes a job for every worker and collects their results.

The broadcast is itself a job, so it survives a worker's death like any job. The list of workers is
a durable step of it. The id of the job for a worker is derived from the broadcast's id and the
worker's index, so a broadcast that runs again publishes no job twice.
"""

from __future__ import annotations

import asyncio
from typing import Any

from umbel.app.client import Client
from umbel.backends import WorkerIndex
from umbel.errors import BroadcastFailed, ResultTimeout, UnknownJob
from umbel.messages import Record, State, derived_id
from umbel.tasks import Retry, Task, TaskOptions, current, step
from umbel.tasks.handle import BroadcastResult
from umbel.tasks.task import IOTask

_CHECK_SECONDS = 0.5
"""Time between checks which workers are running."""


def fan_out_task(task: Task[..., Any], client: Client) -> IOTask[..., Any]:
    """Return the task of the broadcast itself; ``task`` runs on each worker."""

    async def announce(*args: Any, **kwargs: Any) -> dict[str, BroadcastResult]:
        return await _Broadcast(task, client, args, kwargs).run()

    declared = task.declared
    # The parts have had their own retries.
    options = TaskOptions(
        queue=declared.queue,
        retry=Retry(never=BroadcastFailed),
        interruptible=True,
        max_deaths=100,
    )
    return IOTask(announce, task.name, options)


class _Broadcast:
    """One run of a broadcast."""

    def __init__(
        self, task: Task[..., Any], client: Client, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._task = task
        self._client = client
        self._args = args
        self._kwargs = kwargs
        self._job = current.job
        # The store's clock measures the job's age when it was claimed, this clock the time since.
        age = self._job.claimed - self._job.created
        self._published_at = client.clock.monotonic() - age
        self._names: dict[int, str] = {}
        """The workers that got a job, by index."""
        self._results: dict[int, BroadcastResult] = {}

    async def run(self) -> dict[str, BroadcastResult]:
        """Publish a job for every worker. Wait until each has finished or its worker is gone.

        Raises:
            BroadcastFailed: the task failed on a worker.
        """
        for index, name in await step.named("workers")(self._running_workers):
            await self._publish(index, name)
        while True:
            waiting = [index for index in self._names if index not in self._results]
            current.progress(len(self._results), of=len(self._names))
            if not waiting and not await self._add_new_workers():
                return self._collect()
            checks = (self._check(index) for index in waiting)
            await asyncio.gather(*checks, asyncio.sleep(_CHECK_SECONDS))

    def _collect(self) -> dict[str, BroadcastResult]:
        results = {self._names[index]: one for index, one in sorted(self._results.items())}
        failed = {name: one.reason for name, one in results.items() if one.state == "failed"}
        if failed:
            raise BroadcastFailed(failed, len(results))
        return results

    async def _running_workers(self) -> list[tuple[int, str]]:
        """Return the running workers, of which this worker is one."""
        return [(one.index, one.worker) for one in await self._workers() if one.alive]

    async def _publish(self, index: int, name: str) -> None:
        """Publish the job of one worker. A second call with the same index has no effect."""
        self._names[index] = name
        part = self._task.options(worker=index, id=self._part_id(index))
        await part.adelay(*self._args, **self._kwargs)

    async def _add_new_workers(self) -> bool:
        """Publish to workers that started since, while the broadcast is open to new workers.

        Return whether to go on waiting.
        """
        window = self._task.declared.broadcast
        new = [one for one in await self._workers() if one.alive and one.index not in self._names]
        if window is True or self._client.clock.monotonic() > self._published_at + float(window):
            for one in new:  # an earlier run may have published to it
                if await self._is_published(one.index):
                    self._names[one.index] = one.worker
            return any(index not in self._results for index in self._names)
        for one in new:
            await self._publish(one.index, one.worker)
        return True

    async def _check(self, index: int) -> None:
        """Record the result of one worker's job, unless it is still running there."""
        name, job = self._names[index], self._part_id(index)
        try:
            record = await self._client.await_finished(job, _CHECK_SECONDS)
        except ResultTimeout:
            workers = {one.index: one for one in await self._workers()}
            if index in workers and workers[index].alive and workers[index].worker == name:
                return
            await self._client.bridge.arun(self._client.cancel(job, f"worker {name} is gone"))
            self._results[index] = BroadcastResult(
                index=index, state="missing", reason="its worker is gone"
            )
        else:
            self._results[index] = self._result_of(index, record)

    def _result_of(self, index: int, record: Record) -> BroadcastResult:
        if record.state is State.SUCCEEDED:
            result = None if record.result is None else self._client.codec.decode(record.result)
            return BroadcastResult(index=index, state="done", result=result)
        reason = record.failure.line if record.failure else record.reason
        return BroadcastResult(index=index, state="failed", reason=reason)

    async def _is_published(self, index: int) -> bool:
        try:
            await self._client.bridge.arun(self._client.record(self._part_id(index)))
        except UnknownJob:
            return False
        return True

    async def _workers(self) -> list[WorkerIndex]:
        return await self._client.bridge.arun(self._client.routes.worker_indexes())

    def _part_id(self, index: int) -> str:
        return derived_id(self._job.id, index, 0)

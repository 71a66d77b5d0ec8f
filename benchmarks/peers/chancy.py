"""Chancy: its worker with eager polling, so that a free slot looks for work at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import uvloop
from chancy import Chancy, Queue, Worker, job

from benchmarks import probe
from benchmarks.peers.port import KIND, URL, Job, Peer

_SLOTS = 16
_POLL = 0.005
"""Seconds between its looks for a result: there is no other way to wait."""
_EXECUTOR = Chancy.Executor.Async if KIND == "async" else Chancy.Executor.Threaded
_QUEUE = Queue("default", concurrency=_SLOTS, executor=_EXECUTOR, eager_polling=True)


@job(queue="default")
async def coroutine(*, given: Job) -> None:
    probe.started(given)


@job(queue="default")
def thread(*, given: Job) -> None:
    probe.started(given)


def _open() -> Chancy:
    return Chancy(URL, max_connection_pool_size=20, log=logging.getLogger("chancy"))


def _made(given: Job) -> Any:
    task = coroutine if KIND == "async" else thread
    return task.job.with_kwargs(given=given)


async def _install() -> None:
    async with _open() as chancy:
        await chancy.migrate()
        await chancy.declare(_QUEUE)


async def _work() -> None:
    async with _open() as chancy:
        # The queue outlives a measurement; which executor it has depends on the kind of task.
        await chancy.declare(_QUEUE, upsert=True)
        async with Worker(chancy) as worker:
            await worker.wait_for_shutdown()


class Adapter(Peer):
    def install(self) -> None:
        asyncio.run(_install())

    async def open(self) -> None:
        self._chancy = _open()
        await self._chancy.pool.open()
        self._chancy.sync_pool.open()

    async def close(self) -> None:
        await self._chancy.pool.close()
        self._chancy.sync_pool.close()

    def send(self, job: Job) -> None:
        self._chancy.sync_push(_made(job))

    async def bulk(self, jobs: Sequence[Job]) -> None:
        async for _ in self._chancy.push_many([_made(given) for given in jobs]):
            pass

    async def round_trip(self, job: Job) -> None:
        reference = await self._chancy.push(_made(job))
        await self._chancy.wait_for_job(reference, interval=_POLL, timeout=10)

    def work(self) -> None:
        uvloop.run(_work())

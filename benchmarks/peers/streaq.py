"""streaq: `streaq run`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from streaq import Worker

from benchmarks import probe
from benchmarks.peers.port import KIND, URL, Job, Peer

# Else it writes two lines a job.
logging.disable(logging.INFO)

worker = Worker(redis_url=URL)


async def _coroutine(job: Job) -> None:
    probe.started(job)


def _thread(job: Job) -> None:
    probe.started(job)


nothing = worker.task(name="nothing")(_coroutine if KIND == "async" else _thread)


class Adapter(Peer):
    async def open(self) -> None:
        await worker.__aenter__()

    async def close(self) -> None:
        await worker.__aexit__(None, None, None)

    async def asend(self, job: Job) -> None:
        await nothing.enqueue(job)

    async def bulk(self, jobs: Sequence[Job]) -> None:
        await worker.enqueue_many([nothing.enqueue(job) for job in jobs])

    async def round_trip(self, job: Job) -> None:
        task = await nothing.enqueue(job)
        await task.result(timeout=10)

"""arq: a hundred jobs at once and a look every 20 ms; with its defaults it runs 200 a second."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from benchmarks import probe
from benchmarks.peers.port import RESULTS, URL, Job, Peer

_SLOTS = 100
_LOOK = 0.02
_RESULT_POLL = 0.005
_KEPT = 60


async def nothing(context: dict[str, Any], job: Job) -> None:
    probe.started(job)


class Adapter(Peer):
    async def open(self) -> None:
        self._pool = await create_pool(RedisSettings.from_dsn(URL))

    async def close(self) -> None:
        await self._pool.aclose()

    async def asend(self, job: Job) -> None:
        await self._pool.enqueue_job("nothing", job)

    async def round_trip(self, job: Job) -> None:
        sent = await self._pool.enqueue_job("nothing", job)
        if sent is None:
            raise RuntimeError("it took the job for one it has")
        await sent.result(timeout=10, poll_delay=_RESULT_POLL)

    def work(self) -> None:
        asyncio.set_event_loop(uvloop.new_event_loop())
        Worker(
            functions=[nothing],
            redis_settings=RedisSettings.from_dsn(URL),
            max_jobs=_SLOTS,
            poll_delay=_LOOK,
            keep_result=_KEPT if RESULTS else 0,
        ).run()

"""Repid: ``run_worker()`` on its Redis streams."""

from __future__ import annotations

import uvloop
from repid import RedisServer, Repid, Router

from benchmarks import probe
from benchmarks.peers.port import KIND, URL, Job, Peer

app = Repid(title="bench", version="1")
app.servers.register_server("default", RedisServer(URL), is_default=True)
_router = Router()


async def _coroutine(job: Job) -> None:
    probe.started(job)


def _thread(job: Job) -> None:
    probe.started(job)


_router.actor(name="nothing")(_coroutine if KIND == "async" else _thread)
app.include_router(_router)


async def _work() -> None:
    async with app.servers.default.connection():
        await app.run_worker()


class Adapter(Peer):
    async def open(self) -> None:
        self._connection = app.servers.default.connection()
        await self._connection.__aenter__()

    async def close(self) -> None:
        await self._connection.__aexit__(None, None, None)

    async def asend(self, job: Job) -> None:
        await app.send_message_json(
            channel="default", payload={"job": job}, headers={"topic": "nothing"}
        )

    def work(self) -> None:
        uvloop.run(_work())

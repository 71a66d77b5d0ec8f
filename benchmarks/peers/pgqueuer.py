"""PgQueuer: its documented ``run()`` with batches of 100, on asyncpg and uvloop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.adapters.cli.supervisor import run
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver, SyncPsycopgDriver
from pgqueuer.queries import Queries, SyncQueries

from benchmarks import probe
from benchmarks.peers.port import KIND, URL, Job, Peer

_BATCH = 100


async def _coroutine(job: Any) -> None:
    probe.started(json.loads(job.payload))


async def _thread(job: Any) -> None:
    # It has no tasks that are plain functions; its documentation says to write them so.
    await asyncio.to_thread(lambda: probe.started(json.loads(job.payload)))


@asynccontextmanager
async def _worker() -> AsyncIterator[PgQueuer]:
    connection = await asyncpg.connect(URL)
    try:
        queuer = PgQueuer(AsyncpgDriver(connection))
        queuer.entrypoint("nothing")(_coroutine if KIND == "async" else _thread)
        yield queuer
    finally:
        await connection.close()


async def _install() -> None:
    connection = await asyncpg.connect(URL)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


def _body(job: Job) -> bytes:
    return json.dumps(job).encode()


class Adapter(Peer):
    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._mine = threading.local()
        self._connections: list[psycopg.Connection[Any]] = []
        self._watcher: CompletionWatcher | None = None

    def install(self) -> None:
        asyncio.run(_install())

    async def open(self) -> None:
        self._queries = Queries(await self._driver())

    async def close(self) -> None:
        await self._stack.aclose()
        for connection in self._connections:
            connection.close()

    async def _driver(self) -> AsyncpgDriver:
        connection = await asyncpg.connect(URL)
        self._stack.push_async_callback(connection.close)
        return AsyncpgDriver(connection)

    def send(self, job: Job) -> None:
        # A connection a thread: the driver's has no lock of its own.
        if not hasattr(self._mine, "queries"):
            connection = psycopg.connect(URL, autocommit=True)
            self._connections.append(connection)
            self._mine.queries = SyncQueries(SyncPsycopgDriver(connection))
        self._mine.queries.enqueue("nothing", _body(job))

    async def asend(self, job: Job) -> None:
        await self._queries.enqueue("nothing", _body(job))

    async def bulk(self, jobs: Sequence[Job]) -> None:
        many = len(jobs)
        await self._queries.enqueue(["nothing"] * many, [_body(job) for job in jobs], [0] * many)

    async def round_trip(self, job: Job) -> None:
        if self._watcher is None:
            driver = await self._driver()
            watcher = CompletionWatcher(driver, queries=Queries(driver))
            self._watcher = await self._stack.enter_async_context(watcher)
        (number,) = await self._queries.enqueue("nothing", _body(job))
        await self._watcher.wait_for(number)

    def work(self) -> None:
        uvloop.run(run(_worker, batch_size=_BATCH))

"""Umbel: `umbel worker` with its default settings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benchmarks import probe
from benchmarks.peers.port import KIND, NAME, STORE, URL, Job, Peer
from umbel import Umbel

app = Umbel(broker=URL, store=STORE or None, namespace=NAME)


async def _coroutine(job: Job) -> None:
    probe.started(job)


def _thread(job: Job) -> None:
    probe.started(job)


nothing = app.task(_coroutine if KIND == "async" else _thread, name="nothing")  # type: ignore[call-overload]


class Adapter(Peer):
    def install(self) -> None:
        asyncio.run(app.backend.migrate())

    async def close(self) -> None:
        app.close()

    def send(self, job: Job) -> None:
        nothing.delay(job)

    async def asend(self, job: Job) -> None:
        await nothing.adelay(job)

    async def bulk(self, jobs: Sequence[Job]) -> None:
        await app.apublish_many([nothing.s(job) for job in jobs])

    async def round_trip(self, job: Job) -> None:
        nothing.delay(job).get(timeout=10)

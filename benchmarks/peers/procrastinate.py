"""Procrastinate: `procrastinate worker` with sixteen jobs at once, on psycopg."""

from __future__ import annotations

from collections.abc import Sequence

from procrastinate import App, PsycopgConnector

from benchmarks import probe
from benchmarks.peers.port import KIND, URL, Job, Peer

app = App(connector=PsycopgConnector(conninfo=URL, max_size=20))


async def _coroutine(job: Job) -> None:
    probe.started(job)


def _thread(job: Job) -> None:
    probe.started(job)


nothing = app.task(name="nothing")(_coroutine if KIND == "async" else _thread)


class Adapter(Peer):
    def install(self) -> None:
        with app.open():
            app.schema_manager.apply_schema()

    async def open(self) -> None:
        app.open()

    async def close(self) -> None:
        app.close()

    def send(self, job: Job) -> None:
        nothing.defer(job=job)

    async def bulk(self, jobs: Sequence[Job]) -> None:
        nothing.batch_defer(*({"job": job} for job in jobs))

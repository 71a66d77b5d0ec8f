"""Umbel: `umbel worker` with its default settings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from benchmarks import probe, sizes
from benchmarks.peers.port import KIND, NAME, STORE, URL, Job, Peer
from umbel import Handle, Umbel, chain, chord
from umbel.app import client
from umbel.app.graphs import BuiltGraph
from umbel.messages.wire import write
from umbel.tasks.composing import Composable

app = Umbel(broker=URL, store=STORE or None, namespace=NAME)


async def _coroutine(job: Job) -> None:
    probe.started(job)


def _thread(job: Job) -> None:
    probe.started(job)


nothing = app.task(_coroutine if KIND == "async" else _thread, name="nothing")  # type: ignore[call-overload]


@app.task(name="step")
async def step(number: int) -> int:
    return number + 1


@app.task(name="total")
async def total(numbers: list[int]) -> int:
    return sum(numbers)


def nested(depth: int) -> Composable[int]:
    """Chords in chords, with two members each."""
    if depth == 0:
        return step.si(0)
    return chord([nested(depth - 1), nested(depth - 1)], total.s())


built: list[BuiltGraph] = []
"""Graphs whose messages were not measured yet."""

if sizes.FOLDER:
    build = client.build_graph

    def noting(*given: Any) -> BuiltGraph:
        built.append(build(*given))
        return built[-1]

    client.build_graph = noting


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

    def canvas(self, form: str, count: int) -> Handle[int]:
        if form == "chain":
            return chain([step.s(0), *(step.s() for _ in range(count - 1))]).delay()
        if form == "chord":
            return chord((step.si(0) for _ in range(count)), total.s()).delay()
        return nested(count).delay()  # type: ignore[attr-defined, no-any-return]

    def result(self, handle: Handle[int], seconds: float) -> int:
        return handle.get(timeout=seconds)

    def note_sizes(self) -> None:
        for graph in built:
            for envelope in graph.envelopes:
                sizes.note(len(write(envelope)))
        built.clear()

    async def round_trip(self, job: Job) -> None:
        nothing.delay(job).get(timeout=10)

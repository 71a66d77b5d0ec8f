"""What coordination and joins cost: ``python -m benchmarks.mechanisms [--on postgresql,redis]``.

Everything runs in this process, without a worker: one caller adds, claims and settles in batches.
Processor time is that of this process and of the server together.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psutil

from benchmarks.meters import listening, processor_time, tree
from umbel import Umbel
from umbel.backends import Demand, Put, Roles, WorkerEntry
from umbel.messages import (
    Attempt,
    Body,
    Delivery,
    Edge,
    Envelope,
    Join,
    Publication,
    Settlement,
    Succeeded,
    Wait,
    fresh_id,
    fresh_ids,
)

JOBS = 10_000
CHUNK = 2_500
BATCH = 500
URLS = {
    "postgresql": os.environ.get(
        "UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test"
    ),
    "redis": "redis://127.0.0.1:6379",
}
PORTS = {"postgresql": 5432, "redis": 6379}


@dataclass
class Bench:
    """One namespace on one server, and a registered worker."""

    roles: Roles
    namespace: str
    owner: str
    port: int

    def envelopes(self, many: int, group: str = "") -> list[Envelope]:
        body, headers = Body("application/json", b'{"args":[],"kwargs":{}}'), {"graph": group}
        return [
            Envelope(
                id=job,
                subject="t",
                body=body,
                namespace=self.namespace,
                kind="io",
                headers=headers if group else {},
            )
            for job in fresh_ids(many)
        ]

    def used(self) -> float:
        """Seconds of processor time of this process and of the server."""
        server = tree(process.pid for process in listening(self.port))
        return processor_time([psutil.Process(), *server])

    async def drain(self) -> int:
        """Claim and settle until nothing is left; return how many jobs ran."""
        ran = 0
        while found := await self.roles.broker.fetch(
            ["default"], Demand.of(io=BATCH), self.owner, 0.0
        ):
            await self.roles.broker.settle([success(delivery) for delivery in found])
            while await self.roles.joins.advance():
                pass
            ran += len(found)
        return ran

    async def add(self, parts: Sequence[Publication]) -> None:
        for publication in parts:
            await self.roles.joins.add(publication)


def success(delivery: Delivery) -> Settlement:
    now = time.time()
    return Settlement(
        lease=delivery.lease,
        outcome=Succeeded(Body("application/json", b"1")),
        attempt=Attempt(1, "w", now, now, "succeeded"),
    )


async def independent(bench: Bench) -> int:
    """Jobs that wait for nothing."""
    for _ in range(JOBS // CHUNK):
        await bench.roles.broker.publish(bench.envelopes(CHUNK))
    return await bench.drain()


async def parts_of_one_join(bench: Bench) -> int:
    """Many parts before one job."""
    group = fresh_id()
    (body,) = bench.envelopes(1, group)
    first = Publication(
        envelopes=(body,), joins=(Join(group, group, held=True),), waits=(Wait(body.id, group),)
    )
    chunks = [first]
    for number in range(JOBS // CHUNK):
        parts = bench.envelopes(CHUNK, group)
        edges = [Edge(one.id, group, number * CHUNK + at) for at, one in enumerate(parts)]
        chunks.append(Publication(envelopes=tuple(parts), edges=tuple(edges)))
    await bench.add(chunks)
    await bench.roles.joins.seal([group])
    return await bench.drain()


async def jobs_after_one_part(bench: Bench) -> int:
    """One part before many jobs."""
    group, start = fresh_id(), fresh_id()
    (part,) = bench.envelopes(1, group)
    chunks = [Publication(joins=(Join(start, group, held=True),))]
    for _ in range(JOBS // CHUNK):
        jobs = bench.envelopes(CHUNK, group)
        waits = tuple(Wait(one.id, start) for one in jobs)
        chunks.append(Publication(envelopes=tuple(jobs), waits=waits))
    chunks.append(Publication(envelopes=(part,), edges=(Edge(part.id, start, 0),)))
    await bench.add(chunks)
    await bench.roles.joins.seal([start])
    return await bench.drain()


async def commits(bench: Bench) -> int:
    """Commits with a check, one after the other."""
    entries = (await bench.roles.coordination.read("bench/key")).entries
    revision = entries[0].revision if entries else 0
    for number in range(1000):
        checks = {"bench/key": revision}
        found = await bench.roles.coordination.commit(checks, [Put("bench/key", b"%d" % number)])
        assert found is not None
        revision = found
    return 1000


async def watches(bench: Bench) -> int:
    """Calls of changed that return at once."""
    for _ in range(1000):
        await bench.roles.coordination.changed({"bench/": -1}, 0.0)
    return 1000


async def wake_up(bench: Bench, other: Roles) -> float:
    """Return the median seconds from a commit until a waiting watch returns."""
    took = []
    for number in range(50):
        seen = (await bench.roles.coordination.read("bench/")).revision
        waiting = asyncio.create_task(other.coordination.changed({"bench/": seen}, 10.0))
        await asyncio.sleep(0.02)
        began = time.perf_counter()
        await bench.roles.coordination.commit({}, [Put("bench/key", b"%d" % number)])
        await waiting
        took.append(time.perf_counter() - began)
    return sorted(took)[len(took) // 2]


@asynccontextmanager
async def opened(server: str) -> AsyncIterator[tuple[Bench, Umbel]]:
    namespace, owner = f"bench-{fresh_id()}", fresh_id()
    app = Umbel(URLS[server], namespace=namespace)
    await app.backend.migrate()
    roles = app.backend.open()
    entry = WorkerEntry(
        incarnation=owner,
        name="w",
        host="here",
        pid=os.getpid(),
        queues=("default",),
        capacity={"io": BATCH},
        lease=3600.0,
        tasks=("t",),
    )
    await roles.registry.register(entry)
    try:
        yield Bench(roles, namespace, owner, PORTS[server]), app
    finally:
        await roles.registry.unregister(owner)
        await roles.records.prune(older_than=-1e9, keep=0, limit=10**9)
        await roles.close()
        app.close()


async def measure(server: str, rounds: int) -> None:
    rows: list[Callable[[Bench], Awaitable[int]]] = [
        independent,
        parts_of_one_join,
        jobs_after_one_part,
        commits,
        watches,
    ]
    async with opened(server) as (bench, app):
        base = 0.0
        for row in rows:
            results = []
            for _ in range(rounds):
                used, began = bench.used(), time.perf_counter()
                many = await row(bench)
                results.append((bench.used() - used, time.perf_counter() - began, many))
            used, took, many = sorted(results)[len(results) // 2]
            base = base or used / many
            ratio = f"{used / many / base:5.2f}x" if many >= JOBS else ""
            print(
                f"{server:11} {row.__name__:20} {many / took:9,.0f}/s"
                f" {1e6 * used / many:7.0f} µs of processor time each {ratio}"
            )
        other = app.backend.open()
        try:
            median = await wake_up(bench, other)
            print(f"{server:11} {'wake_up':20} {1000 * median:9.2f} ms median")
        finally:
            await other.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", default="postgresql,redis", help="of postgresql, redis")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    for server in asked.on.split(","):
        asyncio.run(measure(server, asked.rounds))


if __name__ == "__main__":
    main()

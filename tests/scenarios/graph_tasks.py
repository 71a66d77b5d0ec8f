"""Jobs that wait for jobs, and an elected leader that publishes ticks, in processes to be killed.

``python graph_tasks.py publish LOG`` publishes random graphs without end. ``python graph_tasks.py
tick NAME`` campaigns to be the leader and publishes one tick after the other.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import uuid
from collections.abc import Iterator

from umbel import Umbel, poisonous
from umbel.backends import Put, Roles
from umbel.control import Election
from umbel.errors import Unavailable
from umbel.messages import Body, Edge, Envelope, Join, Publication, Wait, fresh_id

app = Umbel(namespace="scenario")

TICKS = uuid.UUID("6f3d1c9e-6f0c-4c65-9a55-0a4d0f6c7a11")
CURSOR = "ticks/cursor"
_FIRES = ("all", "success", "failure")


@app.task(name="node")
async def node(fails: bool) -> int:
    await asyncio.sleep(random.random() / 50)
    if fails:
        with poisonous():
            raise ValueError("this part fails")
    return 1


@app.task(name="tick")
async def tick(number: int) -> int:
    return number


def envelope(group: str, task: str, argument: object, job: str = "") -> Envelope:
    body = Body("application/json", json.dumps({"args": [argument], "kwargs": {}}).encode())
    headers = {"graph": group} if group else {}
    return Envelope(
        id=job or fresh_id(),
        subject=task,
        body=body,
        namespace="scenario",
        kind="io",
        headers=headers,
    )


def random_graph() -> Iterator[Publication]:
    """Return the chunks of a graph: layers of jobs, in which each job waits for jobs before it."""
    group, start = f"g{fresh_id()}", f"start{fresh_id()}"
    layers = [[envelope(group, "node", random.random() < 0.1) for _ in range(random.randint(1, 6))]]
    yield Publication(
        envelopes=tuple(layers[0]),
        joins=(Join(start, group, held=True),),
        waits=tuple(Wait(one.id, start) for one in layers[0]),
    )
    for _ in range(random.randint(1, 4)):
        before = layers[-1]
        layer = [
            envelope(group, "node", random.random() < 0.1) for _ in range(random.randint(1, 4))
        ]
        joins = [Join(f"j{one.id}", group, random.choice(_FIRES), held=True) for one in layer]
        edges = [
            Edge(part.id, join.id, position)
            for join in joins
            for position, part in enumerate(random.sample(before, random.randint(1, len(before))))
        ]
        waits = [Wait(one.id, join.id) for one, join in zip(layer, joins, strict=True)]
        layers.append(layer)
        yield Publication(
            envelopes=tuple(layer), joins=tuple(joins), edges=tuple(edges), waits=tuple(waits)
        )


async def publish(log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    roles = app.backend.open()
    while True:
        chunks = list(random_graph())
        description = {
            "group": chunks[0].joins[0].group,
            "jobs": [[one.id for one in chunk.envelopes] for chunk in chunks],
            "joins": {
                join.id: [join.fire, [e.job for e in chunk.edges if e.join == join.id]]
                for chunk in chunks
                for join in chunk.joins
            },
            "waits": {wait.job: wait.join for chunk in chunks for wait in chunk.waits},
        }
        os.write(out, json.dumps({"begun": description}).encode() + b"\n")
        for chunk in chunks:
            await insist(roles, chunk)
        await seal(roles, [join.id for chunk in chunks for join in chunk.joins])
        os.write(out, json.dumps({"sealed": description["group"]}).encode() + b"\n")
        await asyncio.sleep(0.05)


async def insist(roles: Roles, chunk: Publication) -> None:
    """Add a chunk; repeat it while the store is away, which is safe."""
    while True:
        try:
            await roles.joins.add(chunk)
            return
        except Unavailable:
            await asyncio.sleep(0.1)


async def seal(roles: Roles, joins: list[str]) -> None:
    while True:
        try:
            await roles.joins.seal(joins)
            return
        except Unavailable:
            await asyncio.sleep(0.1)


async def lead(name: str) -> None:
    roles = app.backend.open()
    election = Election(roles.coordination, "ticker", name, seconds=1.0)
    while True:
        try:
            if await election.campaign():
                await publish_tick(roles, election)
        except Unavailable:
            pass
        await asyncio.sleep(0.05)


async def publish_tick(roles: Roles, election: Election) -> None:
    """Publish the next tick and advance the cursor in one commit, if this process still leads."""
    entries = (await roles.coordination.read(CURSOR)).entries
    number = int(entries[0].value) + 1 if entries else 1
    job = envelope("", "tick", number, str(uuid.uuid5(TICKS, str(number))))
    checks = {**election.checks, CURSOR: entries[0].revision if entries else 0}
    await roles.coordination.commit(checks, [Put(CURSOR, b"%d" % number)], publish=[job])


if __name__ == "__main__":
    asyncio.run({"publish": publish, "tick": lead}[sys.argv[1]](sys.argv[2]))

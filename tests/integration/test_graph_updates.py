"""``handle.updates()``: the nodes of a graph as they end. Row 71 of CANVAS.md."""

from __future__ import annotations

import asyncio
import time

from integration.conftest import working
from integration.running import Delays, Signal, until
from umbel import Umbel, group

POLL = 5.0
"""Seconds after which ``updates`` looks at nodes that it does not watch."""
RUNNING = 60
"""More than the nodes that it watches."""


def test_each_node_is_reported_once_and_soon_while_many_others_run(app: Umbel) -> None:
    last, others = Signal(), Signal()

    @app.task(name="held")
    async def held(number: int) -> int:
        await (last if number == RUNNING - 1 else others).seen()
        return number

    async def follow() -> tuple[list[str], float]:
        reported: list[str] = []
        begun = 0.0
        updates = handle.updates()
        first = asyncio.ensure_future(anext(updates))
        begun = time.monotonic()
        last.set()
        reported.append((await first).path)
        seconds = time.monotonic() - begun
        others.set()
        reported += [node.path async for node in updates]
        return reported, seconds

    with working(app, io=RUNNING):
        handle = group(held.s(number) for number in range(RUNNING)).delay()
        until(lambda: handle.graph.counts() == {"running": RUNNING}, "all nodes to run")
        with Delays() as delays:
            reported, seconds = asyncio.run(follow())
        assert reported[0] == str(RUNNING - 1)
        assert sorted(map(int, reported)) == [*range(RUNNING)]
        assert seconds < POLL - 1 + delays.seconds

"""Tasks of canvases, for workers that are killed, and random canvases with their results."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from umbel import Umbel, chain, chord, current, fork, group

app = Umbel(namespace="scenario")
PATIENT: Any = {"max_deaths": 100}
"""The storm is not the fault of a task."""


def declare(app: Umbel) -> dict[str, Any]:
    """Declare the tasks for an application, and return them."""

    @app.task(name="plus", **PATIENT)
    async def plus(value: int, more: int) -> int:
        await asyncio.sleep(random.random() / 20)
        return value + more

    @app.task(name="total", **PATIENT)
    async def total(values: list[int]) -> int:
        return sum(values)

    @app.task(name="count_to", **PATIENT)
    async def count_to(number: int) -> list[int]:
        return list(range(number))

    @app.task(name="twice", **PATIENT)
    async def twice(value: int) -> int:
        await asyncio.sleep(random.random() / 20)
        return 2 * value

    @app.task(name="spread", **PATIENT)
    async def spread(width: int) -> Any:
        return current.replace(group([plus.s(n, 1) for n in range(width)]))

    @app.task(name="fails", retry=0, **PATIENT)
    async def fails(value: Any = None) -> Any:
        raise ValueError("this node fails")

    return {task.name: task for task in (plus, total, count_to, twice, spread, fails)}


TASKS = declare(app)


def random_canvas(
    tasks: dict[str, Any], size: int, chosen: random.Random
) -> tuple[Any, int | None]:
    """Return a canvas of about this many nodes, and its result; None if it fails."""
    plus, total, twice = tasks["plus"], tasks["total"], tasks["twice"]
    form = chosen.choice(["chain", "chord", "map", "nested", "spread", "fails", "cancels"])
    if form == "chain":
        return chain(plus.s(0, 1), *[plus.s(1) for _ in range(size - 1)]), max(size, 1)
    if form == "chord":
        return chord([plus.s(n, 0) for n in range(size)], total.s()), sum(range(size))
    if form == "map":
        canvas = tasks["count_to"].s(size) | twice.map() | fork(total.s()) | total.s()
        return canvas, 2 * sum(range(size))
    if form == "spread":
        return tasks["spread"].s(size) | total.s(), sum(range(size)) + size
    if form == "fails":
        middle = tasks["fails"].s()
        return chain(group([plus.s(n, 0) for n in range(size)]), middle, total.s()), None
    if form == "cancels":
        members = [plus.s(n, 0) for n in range(size)]
        return chord([*members, tasks["fails"].s()], total.s(), errors="cancel"), None
    rows = [chord([plus.s(n, 0) for n in range(5)], total.s()) for _ in range(max(size // 6, 1))]
    return chord(rows, total.s()), 10 * max(size // 6, 1)

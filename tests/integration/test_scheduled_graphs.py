"""Canvases and workflows that schedules publish."""

from __future__ import annotations

from typing import Any

import pytest

from integration.conftest import working
from integration.running import ask, until
from umbel import Signal, Umbel, chain
from umbel.errors import ConfigurationError
from umbel.messages import Record, State


def declare(app: Umbel) -> dict[str, Any]:
    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="ship")
    def ship(order: int, approved: bool) -> str:
        return f"{order} {approved}"

    @app.workflow(name="order")
    def order(number: int) -> Any:
        return ship.s(number, Signal("approved", type=bool))

    return {"add": add, "order": order}


def roots(app: Umbel, schedule: str) -> list[Record]:
    async def read(operations: Any) -> list[Record]:
        found = await operations.graphs.roots(limit=1_000)
        return [one for one in found if one.headers.get("schedule") == schedule]

    return ask(app, read)


def test_each_tick_of_a_scheduled_canvas_is_a_graph_of_its_own(app: Umbel) -> None:
    add = declare(app)["add"]
    app.schedule("sums", chain(add.s(1, 2), add.s(3)), every=1, overlap="allow")
    with working(app):
        until(lambda: len(roots(app, "sums")) >= 2, "two ticks")
        first, second = roots(app, "sums")[-2:]
        assert first.id != second.id
        assert app.handle(first.id).get(timeout=30) == 6
        assert app.handle(second.id).get(timeout=30) == 6


def test_a_tick_is_skipped_while_the_graph_of_the_one_before_has_not_ended(app: Umbel) -> None:
    order = declare(app)["order"]
    app.schedule("orders", order.s(7), every=1)
    with working(app):
        until(lambda: roots(app, "orders"), "the first run")
        until(lambda: _skipped(app), "a tick that is skipped")
        (run,) = roots(app, "orders")
        app.handle(run.id).signal("approved", True)
        assert app.handle(run.id).get(timeout=30) == "7 True"
        until(lambda: len(roots(app, "orders")) >= 2, "the next run")


def _skipped(app: Umbel) -> bool:
    from umbel.backends import JobFilter

    async def read(operations: Any) -> list[Record]:
        return await operations.jobs(JobFilter(task="umbel.launch", states=(State.CANCELLED,)))

    return any("has not ended" in one.reason for one in ask(app, read))


def test_a_graph_that_is_too_large_cannot_be_scheduled(shop: Umbel) -> None:
    add = declare(shop)["add"]
    with pytest.raises(ConfigurationError, match="too large; schedule a task that starts it"):
        shop.schedule("many", add.starmap([(1, 1)] * 6_000), every=60)


def test_a_declared_graph_is_the_same_in_each_process(shop: Umbel) -> None:
    order = declare(shop)["order"]
    first, second = shop.build(order.s(1)), shop.build(order.s(1))
    assert first.body == second.body
    assert first.subject == "umbel.launch"

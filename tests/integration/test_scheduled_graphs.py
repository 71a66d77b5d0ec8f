"""Canvases and workflows that schedules publish."""

from __future__ import annotations

from typing import Any

import pytest

from integration.conftest import working
from integration.running import ask, ask_backend, until
from umbel import Signal, Umbel, chain
from umbel.backends import JobFilter
from umbel.errors import ConfigurationError
from umbel.messages import (
    GRAPH_TASK,
    JSON,
    LIVE,
    NODE_HEADER,
    Body,
    Envelope,
    NodeSpec,
    Publication,
    Record,
    State,
    fresh_id,
)
from umbel.operations import Operations


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


def test_arguments_of_a_scheduled_graph_stay_as_they_are(shop: Umbel) -> None:
    """Its ids are derived from this one until it is published."""
    nil = "00000000-0000-0000-0000-000000000000"

    @shop.task(name="echo")
    def echo(text: str, more: str = "") -> str:
        return f"{text} {more}"

    @shop.task(name="undo_echo")
    def undo_echo(result: str, text: str) -> None:
        undone.append(text)

    @shop.task(name="bad", retry=0)
    def bad(result: str) -> None:
        raise ValueError(result)

    undone: list[str] = []

    @shop.workflow(name="echoes")
    def echoes(text: str) -> Any:
        return bad.s(echo.s(text, nil).compensate(undo_echo.s(nil)))

    shop.schedule("echoes", echoes.s(nil), every=1)
    with working(shop):
        until(lambda: roots(shop, "echoes"), "a run")
        with pytest.raises(ValueError, match=f"{nil} {nil}"):
            shop.handle(roots(shop, "echoes")[-1].id).get(timeout=30)
        until(lambda: undone, "the undo")
    assert {*undone} == {nil}


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


def test_a_tick_is_skipped_if_very_many_graphs_are_newer_than_the_one_before(shop: Umbel) -> None:
    order = declare(shop)["order"]
    shop.schedule("orders", order.s(7), every=1)
    with working(shop):
        until(lambda: roots(shop, "orders"), "the first run")
        (run,) = roots(shop, "orders")
        waiting_runs(shop, 1_500)
        skipped = _skipped_ticks(shop)
        until(lambda: _skipped_ticks(shop) > skipped + 1, "further ticks that are skipped")
        live = ask(shop, lambda operations: _live_orders(operations))
        assert [one.id for one in live] == [run.id]


def test_all_runs_that_have_not_ended_are_counted(shop: Umbel) -> None:
    waiting_runs(shop, 6_000, version="old")
    waiting_runs(shop, 6_000, version="new")
    found = ask(shop, lambda operations: operations.graphs.earlier_versions({"held": "new"}))
    assert [(one.version, one.live) for one in found] == [("old", 6_000)]


def waiting_runs(app: Umbel, count: int, version: str = "1") -> None:
    """Publish the roots of runs that no worker takes."""
    spec = NodeSpec(kind="graph", workflow="held", version=version)
    jobs = [
        Envelope(
            id=fresh_id(), subject=GRAPH_TASK, body=Body(JSON, b"{}"), queue="unserved",
            namespace=app.settings.namespace, headers={NODE_HEADER: spec.encode()},
        )
        for _ in range(count)
    ]  # fmt: skip
    ask_backend(app, lambda roles: roles.joins.add(Publication(envelopes=tuple(jobs))))


async def _live_orders(operations: Operations) -> list[Record]:
    found = await operations.graphs.roots(states=tuple(LIVE), limit=3_000)
    return [one for one in found if one.headers.get("schedule") == "orders"]


def _skipped(app: Umbel) -> bool:
    return _skipped_ticks(app) > 0


def _skipped_ticks(app: Umbel) -> int:
    async def read(operations: Any) -> list[Record]:
        return await operations.jobs(JobFilter(task="umbel.launch", states=(State.CANCELLED,)))

    return sum("has not ended" in one.reason for one in ask(app, read))


def test_a_graph_that_is_too_large_cannot_be_scheduled(shop: Umbel) -> None:
    add = declare(shop)["add"]
    with pytest.raises(ConfigurationError, match="too large; schedule a task that starts it"):
        shop.schedule("many", add.starmap([(1, 1)] * 6_000), every=60)


def test_a_declared_graph_is_the_same_in_each_process(shop: Umbel) -> None:
    order = declare(shop)["order"]
    first, second = shop.build(order.s(1)), shop.build(order.s(1))
    assert first.body == second.body
    assert first.subject == "umbel.launch"

"""Workflows that have failed, were undone, and are retried."""

from __future__ import annotations

from typing import Any

import pytest

from integration.conftest import working
from integration.running import ask, until
from umbel import Signal, Umbel, group
from umbel.errors import NotAllowed
from umbel.operations import Operations, RetriedGraph


class Shop:
    """An order whose ``ship`` fails until ``broken`` is False."""

    def __init__(self, app: Umbel) -> None:
        self.calls: list[str] = []
        self.broken = True

        @app.task(name="reserve")
        def reserve(order: int) -> str:
            self.calls.append("reserve")
            return f"box {order}"

        @app.task(name="release")
        def release(box: str) -> None:
            self.calls.append("release")

        @app.task(name="charge")
        def charge(box: str) -> int:
            self.calls.append("charge")
            return 7

        @app.task(name="refund")
        def refund(amount: int) -> None:
            self.calls.append("refund")

        @app.task(name="ship", retry=0)
        def ship(order: int) -> str:
            self.calls.append("ship")
            if self.broken:
                raise ValueError("no truck")
            return f"shipped {order}"

        @app.workflow(name="fulfil")
        def fulfil(order: int) -> Any:
            box = reserve.s(order).compensate(release.s())
            paid = charge.s(box.result).compensate(refund.s())
            return ship.s(order).after(Signal("approved").after(paid))

        self.fulfil = fulfil


def failed_run(app: Umbel, shop: Shop) -> str:
    handle = shop.fulfil.delay(1)
    handle.signal("approved", True)
    with pytest.raises(ValueError, match="no truck"):
        handle.get(timeout=30)
    undos_have_ended(app, handle.id, 2)
    return str(handle.id)


def undos_have_ended(app: Umbel, graph: str, count: int) -> None:
    def undos() -> list[Any]:
        return [node for node in app.handle(graph).graph.nodes if node.undoes and node.has_ended]

    until(lambda: len(undos()) == count, "the undos")


def retry(app: Umbel, graph: str, **options: Any) -> RetriedGraph:
    async def change(operations: Operations) -> RetriedGraph:
        return await operations.graphs.retry(graph, **options)

    return ask(app, change)


def test_what_only_a_signal_waits_for_gets_its_own_inputs(app: Umbel) -> None:
    shop = Shop(app)
    found = {node.path: node for node in shop.fulfil.shape.nodes}
    assert found["charge"].before == (found["reserve"].job,)
    assert {*found["ship"].before} == {found["approved"].job, found["charge"].job}


def test_a_map_takes_its_items_from_a_parameter_or_an_item_of_it(app: Umbel) -> None:
    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    @app.workflow(name="maps")
    def maps(numbers: list[int], order: dict[str, Any]) -> Any:
        return group(double.map(numbers), double.map(order["prices"]))

    with working(app):
        assert maps.delay([1, 2], {"prices": [3]}).get(timeout=30) == [[2, 4], [6]]


def test_a_retry_runs_undone_nodes_again_and_their_undos_if_it_fails_again(app: Umbel) -> None:
    shop = Shop(app)
    with working(app):
        graph = failed_run(app, shop)
        shop.calls.clear()
        assert {*retry(app, graph).nodes} == {"reserve", "charge", "ship"}
        undos_have_ended(app, graph, 4)
        assert shop.calls == ["reserve", "charge", "ship", "refund", "release"]
        shop.calls.clear()
        shop.broken = False
        retry(app, graph, start="ship")
        assert app.handle(graph).get(timeout=30) == "shipped 1"
        assert shop.calls == ["reserve", "charge", "ship"]


def test_a_node_of_a_run_that_has_succeeded_is_not_undone_any_more(app: Umbel) -> None:
    shop = Shop(app)
    with working(app):
        graph = failed_run(app, shop)
        shop.broken = False
        retry(app, graph)
        assert app.handle(graph).get(timeout=30) == "shipped 1"
        shop.calls.clear()
        assert retry(app, graph, start="ship").nodes == ("ship",)
        assert app.handle(graph).get(timeout=30) == "shipped 1"


def test_a_node_after_undone_ones_takes_no_new_arguments(app: Umbel) -> None:
    shop = Shop(app)
    with working(app):
        graph = failed_run(app, shop)
        with pytest.raises(NotAllowed, match="node ship follows nodes that were undone"):
            retry(app, graph, node="ship", arguments=[2])

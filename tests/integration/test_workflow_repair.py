"""Workflows that have failed, were undone, and are retried."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from integration.conftest import working
from integration.running import ask, until
from umbel import Signal, State, Umbel, chain, fork, group
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


def resolve(app: Umbel, graph: str, node: str, result: Any) -> bool:
    async def change(operations: Operations) -> bool:
        return await operations.graphs.resolve(graph, node, result)

    return ask(app, change)


def test_a_resolved_node_runs_again_in_its_own_queue(app: Umbel) -> None:
    """The worker serves only the queues of the tasks."""

    @app.task(name="first", queue="mail")
    def first() -> int:
        return 1

    @app.task(name="second", queue="mail", retry=0)
    def second(number: int) -> int:
        if not mended:
            raise ValueError("broken")
        return number + 1

    mended: list[bool] = []
    with working(app, queues=("mail",)):
        handle = (first.s() | second.s()).delay()
        with pytest.raises(ValueError, match="broken"):
            handle.get(timeout=30)
        assert resolve(app, handle.id, "1", 40)
        assert handle.get(timeout=30) == 40
        mended.append(True)
        retry(app, handle.id, start="0")
        again = app.handle(handle.id)
        until(lambda: again.state.finished and again.get(timeout=30) == 2, "the second run")


def test_what_cannot_be_resolved_stays_as_it_is(app: Umbel) -> None:
    """A branch that follows an undone node runs, because its worker came late."""
    goes_on = threading.Event()

    @app.task(name="reserve")
    def reserve() -> int:
        return 1

    @app.task(name="release")
    def release(number: int) -> None:
        return None

    @app.task(name="held", queue="late")
    def held(number: int) -> None:
        goes_on.wait(60)

    @app.task(name="ship", retry=0)
    def ship(number: int) -> None:
        raise ValueError("no truck")

    @app.workflow(name="fulfil")
    def fulfil() -> Any:
        return chain(reserve.s().compensate(release.s()), fork(held.s()), ship.s())

    with working(app, queues=("default",)):
        handle = fulfil.delay()
        with pytest.raises(ValueError, match="no truck"):
            handle.get(timeout=30)
        undos_have_ended(app, handle.id, 1)
        running = next(node for node in handle.graph.nodes if node.task == "held")
        failed = next(node for node in handle.graph.nodes if node.failed)
        with working(app, queues=("late",), name="late"):
            until(lambda: app.handle(running.job).state is State.RUNNING, "the branch to run")
            with pytest.raises(NotAllowed, match="runs: wait until it has ended"):
                resolve(app, handle.id, failed.path, None)
            assert app.handle(failed.job).state is State.BURIED
            goes_on.set()
            until(lambda: app.handle(running.job).state.finished, "the branch to end")
            assert resolve(app, handle.id, failed.path, "by hand")
            assert app.handle(handle.id).get(timeout=30) == "by hand"


def test_a_run_with_a_map_over_a_result_is_undone_and_retried(app: Umbel) -> None:
    """The items of the map are not processed again; what was undone is."""
    calls: list[str] = []
    broken = [True]

    @app.task(name="reserve")
    def reserve() -> list[int]:
        calls.append("reserve")
        return [1, 2]

    @app.task(name="release")
    def release(numbers: list[int]) -> None:
        calls.append("release")

    @app.task(name="pack")
    def pack(number: int) -> int:
        calls.append(f"pack {number}")
        return 10 * number

    @app.task(name="ship", retry=0)
    def ship(packed: list[int]) -> list[int]:
        if broken:
            raise ValueError("no truck")
        return packed

    @app.workflow(name="fulfil")
    def fulfil() -> Any:
        return ship.s(pack.map(reserve.s().compensate(release.s())))

    with working(app):
        handle = fulfil.delay()
        with pytest.raises(ValueError, match="no truck"):
            handle.get(timeout=30)
        undos_have_ended(app, handle.id, 1)
        calls.clear()
        broken.clear()
        retry(app, handle.id)
        until(lambda: "reserve" in calls, "the undone node to run again")
        assert handle.get(timeout=30) == [10, 20]
        assert calls == ["reserve"]


def test_a_node_after_a_collected_list_and_another_value_can_be_named(app: Umbel) -> None:
    """The list of its inputs is gathered below its path, which is no replacement."""
    counted: list[int] = []

    @app.task(name="count")
    def count() -> int:
        counted.append(1)
        return len(counted)

    @app.task(name="join")
    def join(values: list[int], more: int) -> list[int]:
        return [*values, more]

    with working(app):
        both = group(count.s(), count.s(), errors="collect")
        handle = chain(both, join.s(count.s())).delay()
        assert sorted(handle.get(timeout=30)) == [1, 2, 3]
        named = retry(app, handle.id, start="1")
        assert named.nodes == ("1",)
        until(lambda: handle.state.finished, "the second run")
        assert sorted(handle.get(timeout=30)) == [1, 2, 3]

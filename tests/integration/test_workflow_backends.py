"""Workflows with a real worker on each server: signals, timers, undos, recovery, transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.backends import opened
from integration.running import until
from integration.workflow_world import WorkflowWorld, states, working_world
from umbel import Signal, Sleep, State, Umbel
from umbel.errors import NotAllowed, UmbelError, UnknownJob

SERVERS = ("sqlite", "postgres", "redis", "rabbitmq+postgres")


@pytest.fixture(scope="module", params=SERVERS)
def w(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[WorkflowWorld]:
    folder: Path = tmp_path_factory.mktemp("workflows")
    with opened(request.param, folder) as (backend, _):
        broker = backend.broker + ("?synchronous=off" if request.param == "sqlite" else "")
        store = "" if backend.store == backend.broker else backend.store
        with working_world(broker, store=store, namespace=backend.namespace) as world:
            yield world


def order(w: WorkflowWorld, name: str = "") -> Any:
    def flow(order: dict[str, Any]) -> Any:
        stock = w.step.s("reserve").compensate(w.take_back.s())
        paid = w.step.s("charge", stock, order["total"]).compensate(w.take_back.s())
        approved = Signal("approved", timeout=60, type=bool).after(paid)
        gift = w.step.s("gift").when(order["total"] > 100).after(paid)
        return w.step.s("ship", approved).after(gift, Sleep(0.05).after(approved))

    return w.declare(flow)


def test_an_order_waits_for_its_approval_and_ships(w: WorkflowWorld) -> None:
    declared = order(w)
    handle = declared.delay({"total": 50})
    until(lambda: handle.graph.counts().get("succeeded", 0) == 2, "the order to wait")
    with pytest.raises(UmbelError, match="is not bool"):
        handle.signal("approved", "x")
    with pytest.raises(UnknownJob, match="its signals: approved"):
        handle.signal("nope")
    handle.signal("approved", True, sender="Ann")
    with pytest.raises(NotAllowed, match="given by Ann"):
        handle.signal("approved", False)
    assert handle.get(timeout=60) == "ship"
    graph = w.ended(handle)
    found = {node.task: str(node.state) for node in graph.tasks()}
    assert found["signal approved"] == "succeeded"
    assert "skipped" in states(graph).values()
    early = declared.delay({"total": 500})
    early.signal("approved", False)
    assert early.get(timeout=60) == "ship"
    assert "skipped" not in states(w.ended(early)).values()


def test_a_failed_order_is_undone_retried_and_ships(w: WorkflowWorld) -> None:
    w.broken.add("ship")
    handle = order(w).delay({"total": 50})
    handle.signal("approved")
    with pytest.raises(ValueError, match="ship is broken"):
        handle.get(timeout=60)
    until(lambda: sum(bool(one.undoes) for one in handle.graph.nodes) == 2, "the undos")
    w.ended(handle)
    for undone in ("reserve", "charge"):
        assert w.log.count(f"undo {undone}") == 1
    assert w.log.index("undo charge") < w.log.index("undo reserve")
    w.broken.clear()
    w.log.clear()
    w.ask(lambda o: o.graphs.retry(handle.id))
    assert handle.get(timeout=60) == "ship"
    w.ended(handle)
    assert w.log == ["reserve", "charge", "ship"]


def test_a_signal_that_times_out_fails_and_can_be_resolved(w: WorkflowWorld) -> None:
    handle = w.declare(lambda: w.any_.s(Signal("approved", timeout=0.05))).delay()
    with pytest.raises(TimeoutError, match="no signal approved was given in time"):
        handle.get(timeout=60)
    w.ended(handle)
    assert w.ask(lambda o: o.graphs.resolve(handle.id, "approved", 7))
    assert handle.get(timeout=60) == 7
    defaulted = w.declare(lambda: w.any_.s(Signal("approved", timeout=0.05, default="d")))
    assert defaulted.delay().get(timeout=60) == "d"


def test_a_failure_before_a_signal_ends_it_and_a_retry_waits_again(w: WorkflowWorld) -> None:
    w.broken.add("bad")
    handle = w.declare(lambda: w.any_.s(Signal("approved").after(w.step.s("bad")))).delay()
    with pytest.raises(ValueError, match="bad is broken"):
        handle.get(timeout=60)
    w.ended(handle)
    w.broken.clear()
    w.ask(lambda o: o.graphs.retry(handle.id))
    until(lambda: states(handle.graph)["step"] == "succeeded", "the step")
    until(lambda: states(handle.graph)["approved"] == "scheduled", "the signal to wait")
    handle.signal("approved", 5)
    assert handle.get(timeout=60) == 5


def test_a_deadline_and_a_cancel_end_a_run_and_undo_it(w: WorkflowWorld) -> None:
    def flow() -> Any:
        paid = w.step.s("paid").compensate(w.take_back.s())
        return w.any_.s(Signal("approved").after(paid))

    w.log.clear()
    handle = w.declare(flow, deadline=1).delay()
    with pytest.raises(UmbelError, match="the deadline of the workflow has passed"):
        handle.get(timeout=60)
    w.ended(handle)
    until(lambda: w.log == ["paid", "undo paid"], "the undo")
    handle = w.declare(flow).delay()
    until(lambda: w.log[2:] == ["paid"], "the node")
    until(lambda: "succeeded" in states(handle.graph).values(), "the node to be recorded")
    assert handle.cancel("no more")
    until(lambda: w.log[2:] == ["paid", "undo paid"], "the undo")
    assert w.ended(handle).state is State.CANCELLED


def test_many_runs_wait_and_end(w: WorkflowWorld) -> None:
    declared = w.declare(lambda n: w.number.s(n).after(Signal("go")))
    handles = [declared.delay(n) for n in range(20)]
    versions = w.ask(lambda o: o.graphs.workflow_versions())
    assert [(one.live, one.ended) for one in versions if one.workflow == declared.name] == [(20, 0)]
    for handle in handles:
        handle.signal("go")
    assert [handle.get(timeout=60) for handle in handles] == [*range(20)]


def test_a_run_starts_with_the_transaction(tmp_path: Path) -> None:
    import sqlite3

    url = f"sqlite:///{tmp_path}/umbel.db"
    with working_world(url) as w:
        declared = w.declare(lambda n: w.number.s(n).after(Signal("go").after(w.step.s("a"))))
        connection = sqlite3.connect(tmp_path / "umbel.db")
        lost = declared.options(connection=connection).delay(1)
        connection.rollback()
        kept = declared.options(connection=connection).delay(2)
        connection.commit()
        connection.close()
        kept.signal("go")
        assert kept.get(timeout=60) == 2
        with pytest.raises(UnknownJob):
            lost.signal("go")


def test_a_worker_that_starts_later_does_what_is_due(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/umbel.db?synchronous=off"
    app = Umbel(url, namespace="later")
    first = WorkflowWorld(app)
    handle = first.app.workflow(name="later")(
        lambda: first.any_.s(Signal("a", timeout=0.01, default=1), Sleep(0.01), first.number.s(3))
    ).delay()
    with working_world(url, namespace="later"):
        assert handle.get(timeout=60) == [1, None, 3]
    app.close()

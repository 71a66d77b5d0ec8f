"""Runs of workflows that are ended early: undos and handlers begin when nothing runs any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.running import until
from integration.workflow_world import WorkflowWorld, working_world
from umbel import State, chain
from umbel.errors import UmbelError


@pytest.fixture
def w(tmp_path: Path) -> Iterator[WorkflowWorld]:
    with working_world(f"sqlite:///{tmp_path}/umbel.db") as world:

        @world.app.task(name="slow_to_stop")
        async def slow_to_stop(value: Any = None) -> None:
            world.log.append("runs")
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.5)
                world.log.append("stopped")

        @world.app.task(name="gated_undo", retry=0)
        async def gated_undo(done: str) -> None:
            world.log.append(f"undo {done} began")
            while not world.gates["undo"].is_set():
                await asyncio.sleep(0.005)
            world.log.append(f"undo {done} ended")

        yield world


def test_a_run_that_is_cancelled_again_is_still_undone(w: WorkflowWorld) -> None:  # Q11
    undo, slow = w.app.registry.get("gated_undo"), w.app.registry.get("slow_to_stop")

    def flow() -> Any:
        first = w.step.s("a").compensate(undo.s())
        return slow.s(w.step.s("b", first.result).compensate(undo.s()).result)

    handle = w.declare(flow).delay()
    until(lambda: "runs" in w.log, "the third node to run")
    assert handle.cancel()
    until(lambda: "undo b began" in w.log, "the first undo to begin")
    handle.cancel()  # the undo of a waits for that of b
    w.gates["undo"].set()
    graph = w.ended(handle)
    assert w.log[-1] == "undo a ended"
    assert [node.state for node in graph.nodes if node.undoes] == [State.SUCCEEDED] * 2


def test_undos_begin_when_the_items_of_a_map_have_stopped(w: WorkflowWorld) -> None:  # Q11
    undo, slow = w.app.registry.get("gated_undo"), w.app.registry.get("slow_to_stop")
    w.gates["undo"].set()

    def flow() -> Any:
        first = w.step.s("a").compensate(undo.s())
        return slow.map(w.any_.s(1, 2).after(first))

    handle = w.declare(flow).delay()
    until(lambda: w.log.count("runs") == 2, "both items to run")
    assert handle.cancel()
    until(lambda: "undo a ended" in w.log, "the undo to end")
    w.ended(handle)
    assert w.log.index("undo a began") > w.log.index("stopped", w.log.index("stopped") + 1)


def test_handlers_of_a_run_past_its_deadline_begin_when_nothing_runs(w: WorkflowWorld) -> None:
    slow = w.app.registry.get("slow_to_stop")  # row 86, Q4

    def flow() -> Any:
        return chain(slow.s(), w.any_.s()).on_error(w.handle.s())

    handle = w.declare(flow, deadline=1).delay()
    with pytest.raises(UmbelError, match="deadline"):
        handle.get(30)
    w.ended(handle)
    assert [one.partition(" ")[0] for one in w.log] == ["runs", "stopped", "handled"]


def test_a_run_ends_although_a_task_ignores_its_cancellation(
    w: WorkflowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:  # promise 12
    monkeypatch.setattr("umbel.graphs.stopping.MAX_STOP_CHECKS", 4)
    stubborn = threading.Event()

    @w.app.task(name="stubborn")
    def ignores() -> None:
        w.log.append("runs")
        stubborn.wait(60)

    def flow() -> Any:
        return chain(ignores.s(), w.any_.s()).on_error(w.handle.s())

    handle = w.declare(flow, deadline=1).delay()
    until(lambda: any("handled" in one for one in w.log), "the handler to run")
    stubborn.set()
    with pytest.raises(UmbelError, match="deadline"):
        handle.get(30)
    w.ended(handle)

"""Recovery of canvases with a real worker. Rows 66, 74 to 76, 79 and 87 of CANVAS.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from integration.conftest import in_child, working
from integration.running import Gauge, Signal, ask, ask_backend, until
from umbel import Handle, Limit, NodeFailed, Sleep, State, Umbel, chain, fork, group
from umbel.backends import JobFilter
from umbel.errors import JobCancelled, NotAllowed
from umbel.graphs import GraphNode
from umbel.operations import RetriedGraph


class Broken:
    """Tasks that note their runs, of which some fail until they are mended."""

    def __init__(self, app: Umbel) -> None:
        self.app = app
        self.runs: list[str] = []
        self.broken = {"bad"}
        self.goes_on = Signal()

        @app.task(name="step", retry=0)
        async def step(name: str) -> str:
            self.runs.append(name)
            if name in self.broken:
                raise ValueError(f"{name} is broken")
            return name

        @app.task(name="held", retry=0)
        async def held(name: str) -> str:
            self.runs.append(name)
            await self.goes_on.seen()
            return name

        @app.task(name="join")
        async def join(values: list[Any]) -> list[str]:
            self.runs.append("join")
            return ["failed" if isinstance(one, NodeFailed) else one for one in values]

        @app.task(name="handle")
        async def handle(failure: NodeFailed) -> None:
            self.runs.append("handler")

        self.step, self.held, self.join, self.handle = step, held, join, handle

    def ended(self, handle: Handle[Any]) -> None:
        """Wait until the graph has ended with all of its nodes."""
        until(lambda: handle.state.finished, "the graph to end")
        until(lambda: all(node.has_ended for node in handle.graph.nodes), "its nodes to end")

    def retried(self, handle: Handle[Any], **options: Any) -> list[str]:
        """Mend what is broken, retry, and return what ran again when all has ended."""
        self.broken.clear()
        self.runs.clear()
        self.retry(handle, **options)
        self.ended(self.app.handle(handle.id))
        return sorted(self.runs)

    def retry(self, handle: Handle[Any], **options: Any) -> RetriedGraph:
        return ask(self.app, lambda operations: operations.graphs.retry(handle.id, **options))


Build = Callable[[Broken], Any]


def members(b: Broken, *names: str) -> list[Any]:
    return [b.step.si(name) for name in names]


def failing(b: Broken) -> Any:
    return group(members(b, "a", "bad")) | b.join.s()


def limited(b: Broken) -> Any:
    return group(members(b, "a", "bad", "c"), limit=1) | b.join.s()


def with_branch(b: Broken) -> Any:
    return chain(b.step.si("a"), fork(b.step.si("branch")), b.step.si("bad"), b.step.si("c"))


def with_handler(b: Broken) -> Any:
    return chain(b.step.si("a"), b.step.si("bad")).on_error(b.handle.s())


@pytest.mark.parametrize(
    ("build", "again", "result"),
    [
        (failing, ["bad", "join"], ["a", "bad"]),
        (limited, ["bad", "join"], ["a", "bad", "c"]),
        (with_branch, ["bad", "c"], "c"),
        (with_handler, ["bad"], "bad"),
    ],
    ids=["a group", "a group with a limit", "a branch", "a handler"],
)
def test_only_what_failed_and_was_not_reached_runs_again(
    app: Umbel, build: Build, again: list[str], result: Any
) -> None:
    b = Broken(app)
    with working(app):
        handle = build(b).delay()
        with pytest.raises(ValueError, match="bad is broken"):
            handle.get(timeout=30)
        b.ended(handle)
        assert b.retried(handle) == again
        assert app.handle(handle.id).get(timeout=30) == result


def test_members_that_were_cancelled_run_again(app: Umbel) -> None:
    b = Broken(app)
    with working(app, io=10):
        both = group([b.held.si("held"), b.step.si("bad")], errors="cancel")
        handle = (both | b.join.s()).delay()
        with pytest.raises(ValueError, match="bad is broken"):
            handle.get(timeout=30)
        b.ended(handle)
        b.goes_on.set()
        assert b.retried(handle) == ["bad", "held", "join"]
        assert app.handle(handle.id).get(timeout=30) == ["held", "bad"]


def test_a_collected_failure_is_retried_with_what_has_read_it(app: Umbel) -> None:
    b = Broken(app)
    with working(app):
        handle = (group(members(b, "a", "bad"), errors="collect") | b.join.s()).delay()
        assert handle.get(timeout=30) == ["a", "failed"]
        b.ended(handle)
        failed = next(node.path for node in handle.graph.nodes if node.failed)
        assert b.retried(handle, start=failed) == ["bad", "join"]
        assert app.handle(handle.id).get(timeout=30) == ["a", "bad"]


def test_a_node_that_runs_is_not_retried_and_goes_on(app: Umbel) -> None:
    b = Broken(app)
    with working(app, io=10):
        handle = (group([b.held.si("held"), b.step.si("bad")]) | b.join.s()).delay()

        def running() -> GraphNode | None:
            found = handle.graph.nodes
            is_failed = any(node.failed for node in found)
            runs = (node for node in found if node.state is State.RUNNING)
            return next(runs, None) if is_failed else None

        until(running, "one node to run, and the other to fail")
        held = running()
        assert held is not None
        for options in ({"node": held.path}, {"start": held.path}):
            with pytest.raises(NotAllowed, match=r"wait until it has ended"):
                b.retry(handle, **options)
        b.broken.clear()
        b.retry(handle)
        b.goes_on.set()
        assert handle.get(timeout=30) == ["held", "bad"]
        assert sorted(b.runs) == ["bad", "bad", "held", "join"]


def test_many_failed_graphs_that_are_retried_pass_their_limit(app: Umbel) -> None:
    broken, gauge = [True], Gauge()

    @app.task(name="limited", retry=0, limit=Limit(2))
    async def limited(number: int) -> int:
        if broken:
            raise ValueError("broken")
        with gauge:
            await goes_on.seen()
        return number

    @app.task(name="total")
    async def total(number: int) -> int:
        return number

    goes_on = Signal()
    with working(app, io=30):
        handles = [chain(limited.s(number), total.s()).delay() for number in range(20)]
        until(lambda: all(one.state is State.BURIED for one in handles), "all graphs to fail")
        broken.clear()
        failed = ask(app, lambda operations: operations.jobs(JobFilter(task="limited")))
        again = ask(app, lambda operations: operations.retry([one.id for one in failed]))
        assert len(again) == 20
        waiting = JobFilter(task="limited", states=(State.WAITING,))
        until(
            lambda: len(ask(app, lambda operations: operations.jobs(waiting))) == 18,
            "the others to wait for the limit",
        )
        goes_on.set()
        found = [app.handle(one.id).get(timeout=30) for one in handles]
        assert found == [*range(20)]
        assert gauge.most == 2


def test_a_sleep_goes_on_while_no_worker_runs(app: Umbel) -> None:
    b = Broken(app)
    seconds = 1.5
    handle = chain(b.step.si("a"), Sleep(seconds), b.step.si("b")).delay()
    with working(app):
        until(lambda: "scheduled" in handle.graph.counts(), "the sleep to begin")
    assert b.runs == ["a"]
    with working(app):
        assert handle.get(timeout=30) == "b"
    first, _, last = handle.graph.tasks()
    assert first.finished is not None
    assert last.started is not None
    assert last.started - first.finished >= seconds


def test_a_batch_whose_process_died_ends_as_cancelled_and_its_jobs_run(app: Umbel) -> None:
    b = Broken(app)

    def begin() -> str:
        batch = app.batch()
        batch.__enter__()
        return f"{batch.handle.id} {b.step.delay('a').id}"

    # The child ends inside the block, without any cleanup.
    batch, job = (app.handle(one) for one in in_child(begin).removeprefix("+").split())
    with working(app):
        assert job.get(timeout=30) == "a"
        assert batch.state is State.BLOCKED
        ask_backend(app, lambda roles: roles.joins.sweep(0.0))  # as a worker does after an hour
        with pytest.raises(JobCancelled, match="its publication was never completed"):
            batch.get(timeout=30)

"""Workflows with a limit: so many runs are active at once, and the others wait in their order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from integration.backends import opened
from integration.running import Gauge, ask_backend, until, working
from integration.workflow_world import (
    VirtualWorld,
    WorkflowWorld,
    node_at,
    states,
    virtual_world,
    working_world,
)
from umbel import Handle, Signal, Sleep, State, Umbel, chain, group
from umbel.backends import JobFilter
from umbel.errors import UmbelError
from umbel.graphs import tree
from umbel.tasks.workflow import Workflow

SERVERS = ("sqlite", "postgres", "redis", "rabbitmq+postgres")


# --- virtual time ------------------------------------------------------------------------------


@pytest.fixture
def v() -> Iterator[VirtualWorld]:
    with virtual_world() as world:
        yield world


def sleeper(v: VirtualWorld, limit: int = 2, **options: Any) -> Workflow[..., Any]:
    """A workflow whose runs take ten seconds."""
    return v.declare(
        lambda n: chain(v.any_.s("begin", n), Sleep(10), v.any_.si("end", n)),
        limit=limit,
        **options,
    )


def start(v: VirtualWorld, declared: Workflow[..., Any], *arguments: Any) -> list[Handle[Any]]:
    """Start a run for each argument, each a little later than the one before it."""
    handles = []
    for one in arguments:
        handles.append(declared.delay(one))
        v.jobs.advance(0.001)
    return handles


def begun(log: list[str]) -> list[str]:
    return [one.removeprefix("any begin ") for one in log if one.startswith("any begin")]


def test_runs_wait_in_the_order_of_start_and_begin_at_once_when_one_ends(v: VirtualWorld) -> None:
    handles = start(v, sleeper(v), *range(5))
    assert begun(v.run(9)) == ["0", "1"]
    assert begun(v.run(2)) == ["2", "3"]
    assert begun(v.run(10)) == ["4"]
    v.run(20)
    assert [one.state for one in handles] == [State.SUCCEEDED] * 5


def test_a_run_that_waits_says_so_and_occupies_one_row(v: VirtualWorld) -> None:
    declared = sleeper(v, limit=1, name="fulfil")
    _, waiting = start(v, declared, 0, 1)
    v.run(1)
    node = node_at(waiting.graph, "place")
    assert (node.state, node.task) == (State.SCHEDULED, "limit 1")
    assert node.error == "waits for a place: limit 1 of workflow fulfil"
    assert "place" in [one.path for _, one in tree(waiting.graph)]
    assert set(states(waiting.graph).values()) == {"scheduled", "blocked"}
    v.run(40)
    assert node_at(waiting.graph, "place").error == ""


def test_everything_at_the_beginning_waits_also_after_a_signal_that_came_early(
    v: VirtualWorld,
) -> None:
    def flow() -> Any:
        together = group(v.step.s("member"), v.step.s("other"), errors="collect")
        items = v.number.map([1, 2], limit=1)
        signal = v.step.s("signalled", Signal("go", timeout=5, default=1))
        slept = v.step.s("slept").after(Sleep(1))
        failed = v.step.s("handled").on_error(v.handle.s())
        return v.any_.s("end", together.result, items.result, signal, slept, failed)

    declared = v.declare(flow, limit=1)
    first = declared.delay()
    v.jobs.advance(0.001)
    second = declared.delay()
    second.signal("go", "early")
    log = v.run(4)
    assert len(log) == 6, log  # of the first run: not those behind the signal, nor the end
    assert first.state is State.BLOCKED
    v.run(20)
    assert second.get()[0] == "end"


def test_a_timeout_of_a_signal_counts_from_when_the_run_is_active(v: VirtualWorld) -> None:
    declared = v.declare(lambda: v.any_.s(Signal("go", timeout=10, default="late")), limit=1)
    first = declared.delay()
    v.jobs.advance(0.001)
    second = declared.delay()
    v.run(15)
    assert (first.get(), second.state) == ("late", State.BLOCKED)
    second.signal("go", "given")
    v.run(1)
    assert second.get() == "given"


def test_nothing_runs_although_the_place_fails(v: VirtualWorld) -> None:
    def flow() -> Any:
        return v.any_.s("end", group(v.step.s("a"), v.step.s("b"), errors="collect").result)

    declared = v.declare(flow, limit=1)
    handle = declared.delay()
    ask_roles(v, lambda roles: roles.control.cancel([node_at(handle.graph, "place").job], "why"))
    ask_roles(v, lambda roles: roles.joins.advance())
    assert v.run(60) == []
    with pytest.raises(UmbelError, match="why"):
        handle.get()


def test_a_deadline_passes_while_a_run_waits(v: VirtualWorld) -> None:
    start(v, sleeper(v, limit=1, name="same"), "held")
    handles = start(v, sleeper(v, limit=1, name="same", deadline=5), "a", "b")
    last = start(v, sleeper(v, limit=1, name="same"), "c")  # it does not wait for a and b
    assert begun(v.run(6)) == ["held"]
    for handle in handles:
        with pytest.raises(UmbelError, match="the deadline of the workflow has passed"):
            handle.get()
        assert node_at(handle.graph, "place").state is State.CANCELLED
    assert begun(v.run(5)) == ["c"]
    v.run(20)
    assert last[0].state is State.SUCCEEDED


def test_a_run_with_a_delay_has_the_turn_of_its_start(v: VirtualWorld) -> None:
    declared = sleeper(v, limit=1)
    start(v, declared, "a")
    start(v, declared.options(delay=5), "b")
    start(v, declared, "c")
    assert begun(v.run(6)) == ["a"]
    assert begun(v.run(20)) == ["b", "c"]
    start(v, declared.options(delay=50), "d")
    start(v, declared, "e")
    assert begun(v.run(49)) == ["e"]  # no run waits for one that is not due
    assert begun(v.run(2)) == ["d"]


def test_each_run_keeps_the_limit_with_which_it_was_started(v: VirtualWorld) -> None:
    start(v, sleeper(v, limit=1, name="same"), "a", "b")
    start(v, sleeper(v, limit=3, name="same"), "c", "d", "e")
    assert begun(v.run(9)) == ["a"]  # none goes before b, which was started before it
    assert begun(v.run(2)) == ["b", "c", "d"]
    assert begun(v.run(10)) == ["e"]


def test_a_run_that_ended_in_another_way_and_was_deleted_does_not_keep_its_place(
    v: VirtualWorld,
) -> None:
    declared = sleeper(v, limit=2)
    lost, waiting = start(v, declared, "a", "b"), start(v, declared, "c", "d")
    v.run(1)
    for handle in lost:
        jobs = [handle.id, *(node.job for node in handle.graph.nodes)]
        ask_roles(v, lambda roles, jobs=jobs: roles.control.cancel(jobs, "by hand"))
    v.ask(lambda o: o.forget(JobFilter(states=(State.CANCELLED,))))
    with pytest.raises(UmbelError):
        lost[0].state  # noqa: B018 - it raises
    assert begun(v.run(7)) == ["c", "d"]  # the first of the line finds out by itself
    v.run(20)
    assert [one.state for one in waiting] == [State.SUCCEEDED] * 2


def test_a_run_that_is_first_because_all_before_it_were_deleted_finds_out(v: VirtualWorld) -> None:
    declared = sleeper(v, limit=1)
    *lost, kept = start(v, declared, *range(60), "kept")
    v.run(1)
    for handle in lost:
        jobs = [handle.id, *(node.job for node in handle.graph.nodes)]
        ask_roles(v, lambda roles, jobs=jobs: roles.control.cancel(jobs, "by hand"))
    assert begun(v.run(60)) == ["kept"]
    v.run(20)
    assert kept.state is State.SUCCEEDED
    page = ask_roles(v, lambda roles: roles.coordination.read("runs/"))
    assert page.entries == ()  # nothing stays of runs that have ended


def test_an_operator_lets_a_failed_run_go_on_and_it_counts_again(v: VirtualWorld) -> None:
    def flow(n: str) -> Any:
        return chain(v.any_.s("begin", n), Sleep(10), v.step.si(n))

    declared = v.declare(flow, limit=1)
    v.broken.add("a")
    failed = declared.delay("a")
    v.run(11)
    assert failed.state is State.BURIED
    v.broken.clear()

    declared.delay("b")
    v.run(1)
    v.ask(lambda o: o.graphs.retry(failed.id, start="1"))  # beside b: the operator decides
    declared.delay("c")
    assert v.run(9.5) == ["b"]
    assert begun(v.run(0.2)) == []  # the retried run still counts
    assert "any begin c" in v.run(2)
    assert failed.get() == "a"


def test_a_cancelled_run_gives_its_place_to_the_next_at_once(v: VirtualWorld) -> None:
    first, second, third, _ = start(v, sleeper(v, limit=1), "a", "b", "c", "d")
    v.run(1)
    assert second.cancel()
    assert first.cancel()
    assert begun(v.run(1)) == ["c"]
    assert third.cancel()
    assert begun(v.run(1)) == ["d"]


def test_a_retried_run_that_never_had_a_place_waits_for_one(v: VirtualWorld) -> None:
    declared = sleeper(v, limit=1)
    start(v, declared, "a")
    (late,) = start(v, sleeper(v, limit=1, deadline=5, name=declared.name), "b")
    start(v, declared, "c")
    v.run(6)
    assert late.state is State.BURIED
    v.ask(lambda o: o.graphs.retry(late.id))
    assert begun(v.run(3)) == []
    assert begun(v.run(2)) == ["b"]
    assert begun(v.run(10)) == ["c"]


def test_an_operator_gives_a_place_out_of_turn(v: VirtualWorld) -> None:
    declared = sleeper(v, limit=1)
    _, _, handle, _ = start(v, declared, "a", "b", "c", "d")
    v.run(1)
    assert v.ask(lambda o: o.graphs.resolve(handle.id, "place", None))
    assert begun(v.run(8)) == ["c"]
    assert begun(v.run(1.5)) == []  # a has ended, but c counts
    assert begun(v.run(1)) == ["b"]


def test_a_purge_of_the_queue_ends_runs_that_wait(v: VirtualWorld) -> None:
    declared = sleeper(v, limit=1)
    handles = start(v, declared, "a", "b", "c")
    v.run(1)
    v.ask(lambda o: o.purge("default"))
    v.run(1)
    assert {one.state for one in handles} <= {State.BURIED, State.CANCELLED}
    assert declared.delay("d").get() is not None


def test_names_of_workflows_do_not_share_a_line(v: VirtualWorld) -> None:
    names = ("a", "a/line", "a%2Fline", "a/active", "ä/" + "x" * 200)
    for name in names:
        sleeper(v, limit=1, name=name).delay(name)
        sleeper(v, limit=1, name=name).delay(name)
    assert sorted(begun(v.run(9))) == sorted(names)
    assert sorted(begun(v.run(9))) == sorted(names)


def ask_roles(v: VirtualWorld, question: Any) -> Any:
    return asyncio.run(question(v.app.backend.open()))


# --- servers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=SERVERS)
def w(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[WorkflowWorld]:
    """Two workers."""
    folder: Path = tmp_path_factory.mktemp("limits")
    with opened(request.param, folder) as (backend, _):
        broker = backend.broker + ("?synchronous=off" if request.param == "sqlite" else "")
        settings = {
            "store": "" if backend.store == backend.broker else backend.store,
            "namespace": backend.namespace,
        }
        with working_world(broker, **settings) as world:
            other = Umbel(broker, **settings, deadline=30.0)
            second = WorkflowWorld(other)
            second.log, second.gates, second.broken = world.log, world.gates, world.broken
            with working(other, name="second", io=20):
                yield world
            other.close()


def waits(handle: Handle[Any]) -> bool:
    return node_at(handle.graph, "place").state is State.SCHEDULED


def test_never_more_runs_than_the_limit_are_active(w: WorkflowWorld) -> None:
    gauge = Gauge()

    @w.app.task(name="enter", queue="inner")
    async def enter(n: int) -> int:
        gauge.__enter__()
        return n

    @w.app.task(name="leave", queue="inner")
    async def leave(n: int) -> int:
        gauge.__exit__()
        return n

    declared = w.declare(lambda n: chain(enter.s(n), w.any_.s(), leave.s()), limit=2)
    handles = [declared.delay(n) for n in range(30)]
    with working(w.app, name="inner", queues=("inner",), io=20):
        assert [one.get(timeout=120) for one in handles] == [*range(30)]
    assert (gauge.entered, gauge.most) == (30, 2)


def test_runs_that_are_started_at_once_get_no_more_places_than_there_are(w: WorkflowWorld) -> None:
    declared = w.declare(lambda n: w.any_.s(n).after(Signal("go")), limit=10)
    with ThreadPoolExecutor(8) as threads:
        handles = [*threads.map(declared.delay, range(40))]

    def states_of_places() -> Counter[str]:
        return Counter(str(node_at(one.graph, "place").state) for one in handles)

    until(lambda: states_of_places() == {"succeeded": 10, "scheduled": 30}, "ten active runs")
    for handle in handles:
        handle.signal("go")
    assert [one.get(timeout=120) for one in handles] == [*range(40)]
    page = ask_backend(w.app, lambda roles: roles.coordination.read(f"runs/{declared.name}/"))
    assert page.entries == ()


def test_the_next_in_the_order_of_start_begins_when_a_run_ends(w: WorkflowWorld) -> None:
    names = [f"run {n}" for n in range(6)]
    declared = w.declare(lambda name: w.gated.s(name), limit=1)
    handles = []
    for name in names:
        handles.append(declared.delay(name))
        if len(handles) == 1:
            until(lambda: "run 0 started" in w.log, "the first run")
    until(lambda: all(map(waits, handles[1:])), "the others to wait")
    started = [one for one in w.log if one.endswith("started") and one.startswith("run")]
    assert started == ["run 0 started"]
    for name in names:
        until(lambda name=name: f"{name} started" in w.log, name)
        w.gates[name].set()
    assert [one.get(timeout=60) for one in handles] == names
    started = [one for one in w.log if one.endswith("started") and one.startswith("run")]
    assert started == [f"{name} started" for name in names]


def test_cancelled_runs_give_back_their_place_and_do_not_break_the_line(w: WorkflowWorld) -> None:
    declared = w.declare(lambda name: w.gated.s(name), limit=1)
    first = declared.delay("held 1")
    until(lambda: "held 1 started" in w.log, "the first run")
    others = [declared.delay(f"held {n}") for n in range(2, 6)]
    until(lambda: all(map(waits, others)), "the others to wait")
    assert others[0].cancel()
    assert others[2].cancel()
    assert first.cancel()
    until(lambda: "held 3 started" in w.log, "the first that was not cancelled")
    w.gates["held 3"].set()
    until(lambda: "held 5 started" in w.log, "the next that was not cancelled")
    w.gates["held 5"].set()
    assert others[3].get(timeout=60) == "held 5"
    assert not {"held 2 started", "held 4 started"} & {*w.log}
    assert w.ended(others[0]).state is State.CANCELLED


def test_a_deadline_ends_a_run_that_waits_and_the_next_begins(w: WorkflowWorld) -> None:
    def flow(name: str) -> Any:
        return w.gated.s(name)

    first = w.declare(flow, limit=1, name="timed").delay("long")
    until(lambda: "long started" in w.log, "the first run")
    late = w.declare(flow, limit=1, name="timed", deadline=1).delay("late")
    last = w.declare(flow, limit=1, name="timed").delay("last")
    with pytest.raises(UmbelError, match="the deadline of the workflow has passed"):
        late.get(timeout=60)
    assert waits(last)
    for name in ("long", "last"):
        w.gates[name].set()
    assert [first.get(timeout=60), last.get(timeout=60)] == ["long", "last"]
    assert "late started" not in w.log


def test_a_failed_run_gives_back_its_place(w: WorkflowWorld) -> None:
    w.broken.add("breaks")
    declared = w.declare(lambda name: w.step.s(name), limit=1)
    handles = [declared.delay(name) for name in ("breaks", "works")]
    with pytest.raises(ValueError, match="breaks is broken"):
        handles[0].get(timeout=60)
    assert handles[1].get(timeout=60) == "works"


def test_a_place_of_a_run_that_was_deleted_is_found(w: WorkflowWorld) -> None:
    declared = w.declare(lambda name: w.any_.s(name).after(Signal("never")), limit=1)
    lost = declared.delay("x")
    until(lambda: node_at(lost.graph, "place").has_ended, "the first run")
    waiting = declared.delay("y")
    until(lambda: waits(waiting), "the second run to wait")
    jobs = [lost.id, *(node.job for node in lost.graph.nodes)]
    ask_backend(w.app, lambda roles: roles.control.cancel(jobs, "by hand"))
    w.ask(lambda o: o.forget_possible(jobs))
    waiting.signal("never")
    assert waiting.get(timeout=60) == "y"


def test_runs_that_a_schedule_starts_and_that_a_transaction_starts_wait(tmp_path: Path) -> None:
    import sqlite3

    with working_world(f"sqlite:///{tmp_path}/umbel.db") as w:
        declared = w.declare(lambda name: w.gated.s(name), limit=1)
        connection = sqlite3.connect(tmp_path / "umbel.db")
        first = declared.options(connection=connection).delay("first")
        connection.commit()
        connection.close()
        until(lambda: "first started" in w.log, "the first run")
        w.app.schedule("ticks", declared.s("tick"), every=1, overlap="skip")
        with working(w.app, name="scheduler"):
            until(lambda: len(w.ask(lambda o: o.graphs.roots())) > 1, "a tick")
            run = next(one for one in w.ask(lambda o: o.graphs.roots()) if one.id != first.id)
            until(lambda: waits(w.app.handle(run.id)), "the run of the tick to wait")
            w.gates["tick"].set()
            w.gates["first"].set()
            assert w.app.handle(run.id).get(timeout=60) == "tick"

"""Recovery of workflows: retry, resolve, cancel. Rows 74 to 79 of CANVAS.md."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from integration.workflow_world import VirtualWorld, states, virtual_world
from umbel import Signal, Sleep, State, current
from umbel.backends import UNCHANGED, Put
from umbel.errors import NotAllowed, UmbelError, UnknownJob
from umbel.graphs import give_signal, named_id
from umbel.graphs.running import NodePreparer
from umbel.graphs.workflow_nodes import PreparedNode
from umbel.messages import Snoozed, fresh_id
from umbel.operations import Operations
from umbel.testing.actions import FULL_DEMAND, register, settle


@pytest.fixture
def w() -> Iterator[VirtualWorld]:
    with virtual_world() as world:
        yield world


def order(w: VirtualWorld) -> Any:
    """A workflow whose nodes are called reserve, log, charge, approved, and ship."""

    def flow(n: int = 0) -> Any:
        stock = w.step.s("reserve").compensate(w.take_back.s())
        noted = w.any_.s("log", stock)
        paid = w.text.s("charge").after(noted).compensate(w.take_back.s())
        return w.step.s("ship", Signal("approved", timeout=100).after(paid))

    return w.declare(flow)


def retry(w: VirtualWorld, handle: Any, **options: Any) -> Any:
    return w.ask(lambda o: o.graphs.retry(handle.id, **options))


# --- row 74 ------------------------------------------------------------------------------------


def test_failed_and_unreached_nodes_run_again_and_succeeded_ones_do_not(w: VirtualWorld) -> None:
    def flow() -> Any:
        good = w.step.s("good")
        return w.any_.s(good, w.step.s("after", w.step.s("bad", good)))

    w.broken.add("bad")
    handle = w.declare(flow).delay()
    assert w.run() == ["good", "bad"]
    w.broken.clear()
    again = retry(w, handle)
    assert len(again.nodes) == 1
    assert w.run() == ["bad", "after", "any good after"]
    assert handle.get() == ["good", "after"]


def test_a_graph_goes_on_if_its_failed_node_is_retried_as_a_job(w: VirtualWorld) -> None:
    w.broken.add("ship")
    handle = order(w).delay()
    handle.signal("approved")
    w.run()
    (failed,) = [one for one in handle.graph.nodes if one.failed and one.kind == ""]
    w.broken.clear()
    assert w.ask(lambda o: o.retry([failed.job])) == [failed.job]
    assert w.run() == ["reserve", "any log reserve", "text charge", "ship"]
    assert handle.get() == "ship"


def test_a_graph_is_retried_and_cancelled_by_its_root(w: VirtualWorld) -> None:
    w.broken.add("bad")

    def flow() -> Any:
        return w.step.s("after", w.step.s("bad", w.step.s("good")))

    handle = w.declare(flow).delay()
    assert w.run() == ["good", "bad"]
    w.broken.clear()
    assert w.ask(lambda o: o.retry([handle.id])) == [handle.id]
    assert w.run() == ["bad", "after"]
    other = order(w).delay()
    w.run()
    w.ask(lambda o: o.cancel([other.id], "not needed"))
    live = {"queued", "running", "scheduled", "blocked"}
    assert not live & {*states(other.graph).values()}


def test_what_was_undone_runs_again_with_all_that_follows(w: VirtualWorld) -> None:
    w.broken.add("ship")
    handle = order(w).delay()
    handle.signal("approved")
    first = ["reserve", "any log reserve", "text charge", "ship"]
    undone = ["undo charge", "undo reserve"]
    assert w.run() == [*first, *undone]
    for _ in range(2):  # each failure is undone, once
        retry(w, handle)
        assert w.run() == [*first, *undone]
    w.broken.clear()
    retry(w, handle)
    assert w.run() == first
    assert handle.get() == "ship"
    with pytest.raises(NotAllowed, match="no node has failed"):
        retry(w, handle)


def test_what_was_undone_several_times_runs_again_each_time(w: VirtualWorld) -> None:
    """Its undos are in the order of texts with fences, such as 99 and 100; the last counts."""
    handle = order(w).delay()
    handle.signal("approved")
    w.broken.add("ship")
    w.run()
    for _ in range(12):
        retry(w, handle)
        ran = w.run()
        assert ran[:4] == ["reserve", "any log reserve", "text charge", "ship"]
        assert ran[4:] == ["undo charge", "undo reserve"]


def test_the_node_that_undoes_others_is_shown_after_it_has_done_so(w: VirtualWorld) -> None:
    """A retry that begins while it runs is refused."""
    w.broken.add("ship")
    handle = order(w).delay()
    handle.signal("approved")
    for _ in range(3):
        w.run()
        assert [one.state for one in handle.graph.nodes if one.kind == "undo"] == [State.SUCCEEDED]
        retry(w, handle)


def test_nothing_is_undone_if_the_run_was_retried_when_that_began(w: VirtualWorld) -> None:
    """The retry has read the graph before."""
    w.broken.add("ship")
    handle = order(w).delay()
    handle.signal("approved")
    w.run()
    (failed,) = [one.job for one in handle.graph.nodes if one.failed]
    undo = named_id(handle.id, "undo")

    async def begin_and_retry() -> PreparedNode:
        roles = w.app.backend.open()
        owner = await register(roles)
        await roles.joins.reopen([undo])
        (begun,) = await roles.broker.fetch(("default",), FULL_DEMAND, owner, 0)
        await roles.joins.reopen([failed])
        prepared = await NodePreparer(roles, w.app.registry, w.app.codec).prepare(begun)
        await roles.close()
        return prepared

    prepared = asyncio.run(begin_and_retry())
    assert isinstance(prepared.outcome, Snoozed)


def test_a_failed_undo_is_not_run_again_with_the_graph_but_by_itself(w: VirtualWorld) -> None:
    w.broken |= {"ship", "undo charge"}
    handle = order(w).delay()
    handle.signal("approved")
    assert w.run()[-2:] == ["undo charge", "undo reserve"]
    (failed,) = [one for one in handle.graph.nodes if one.undoes and one.failed]
    w.broken.discard("undo charge")
    retry(w, handle, node=failed.job)
    assert w.run() == ["undo charge"]
    assert handle.state is State.BURIED
    w.broken.clear()
    retry(w, handle)
    assert w.run() == ["reserve", "any log reserve", "text charge", "ship"]
    assert handle.get() == "ship"


def test_a_value_of_a_signal_stays_in_a_retry(w: VirtualWorld) -> None:
    def flow() -> Any:
        return w.step.s("end", Signal("approved"))

    w.broken.add("end")
    handle = w.declare(flow).delay()
    handle.signal("approved", "kept")
    w.run()
    w.broken.clear()
    retry(w, handle)
    w.run()
    assert handle.get() == "end"
    with pytest.raises(NotAllowed, match="has a value already"):
        handle.signal("approved", 2)


def test_a_signal_that_was_not_reached_waits_again(w: VirtualWorld) -> None:
    def flow() -> Any:
        first = Signal("first").after(w.step.s("bad"))
        return w.any_.s(Signal("second", timeout=50).after(first))

    w.broken.add("bad")
    handle = w.declare(flow).delay()
    w.run()
    assert handle.state is State.BURIED
    w.broken.clear()
    retry(w, handle)
    w.run(1)
    assert states(handle.graph)["first"] == states(handle.graph)["second"] == "scheduled"
    handle.signal("first")
    w.run(49)
    handle.signal("second", 7)
    assert handle.get() == 7


def test_a_signal_is_given_while_a_worker_looks_at_it_after_a_retry(w: VirtualWorld) -> None:
    handle = w.declare(lambda: w.any_.s(Signal("approved"))).delay()
    handle.cancel()
    w.run()
    retry(w, handle)

    async def give_while_it_runs() -> None:
        roles = w.app.backend.open()
        owner = await register(roles)
        (looked_at,) = await roles.broker.fetch(("default",), FULL_DEMAND, owner, 0)
        async with anyio.create_task_group() as group:
            group.start_soon(give_signal, roles, w.app.codec, handle.id, "approved", 7)
            await anyio.sleep(0.1)
            assert await settle(roles, looked_at, Snoozed(3e9)) == []
        await roles.close()

    asyncio.run(give_while_it_runs())
    w.run()
    assert handle.get() == 7


def test_a_signal_that_timed_out_waits_again_when_it_is_retried(w: VirtualWorld) -> None:
    handle = w.declare(lambda: w.any_.s(Signal("approved", timeout=5))).delay()
    w.run(10)
    assert handle.state is State.BURIED
    retry(w, handle)
    w.run(10)
    handle.signal("approved", 7)
    assert handle.get() == 7


def test_a_timeout_and_a_deadline_that_had_not_passed_take_their_whole_time_again(
    w: VirtualWorld,
) -> None:
    def flow() -> Any:
        return w.step.s("end", Signal("approved", timeout=50, default=1).after(w.step.s("begin")))

    timed = w.declare(flow).delay()
    hurried = w.declare(lambda: w.any_.s(Signal("approved")), deadline=50).delay()
    w.run(40)
    for _ in range(2):
        for handle in (timed, hurried):
            assert handle.cancel()
            retry(w, handle)
        assert w.run(40) in ([], ["begin"])
    assert w.run(20) == ["end"]
    assert timed.get() == "end"
    with pytest.raises(UmbelError, match="the deadline of the workflow has passed"):
        hurried.get()


def test_a_run_that_was_cancelled_or_passed_its_deadline_can_be_retried(w: VirtualWorld) -> None:
    def flow() -> Any:
        return w.step.s("end", Signal("approved").after(w.step.s("begin")))

    handle = w.declare(flow).delay()
    w.run()
    handle.cancel()
    w.run()
    retry(w, handle)
    w.run()
    handle.signal("approved")
    assert handle.get() == "end"
    handle = w.declare(flow, deadline=5).delay()
    w.run(10)
    assert handle.state is State.BURIED
    retry(w, handle)
    w.run()
    handle.signal("approved")
    assert handle.get() == "end"


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "after a node"])
def test_a_sleep_that_is_retried_takes_its_whole_time_again(
    w: VirtualWorld, is_first: bool
) -> None:
    def flow() -> Any:
        sleep = Sleep(100) if is_first else Sleep(100).after(w.step.s("begin"))
        return w.step.s("end").after(sleep)

    handle = w.declare(flow).delay()
    w.run(50)
    for _ in range(2):
        handle.cancel()
        w.run()
        retry(w, handle)
        assert w.run(90) == []
    assert w.run(20) == ["end"]
    assert handle.get() == "end"


def test_a_sleep_that_was_retried_waits_for_a_node_that_runs_again(w: VirtualWorld) -> None:
    def flow() -> Any:
        done = w.step.s("done").compensate(w.take_back.s())
        return w.step.s("end").after(Sleep(100).after(done))

    handle = w.declare(flow, compensate=False).delay()
    w.run(50)
    handle.cancel()
    w.run()
    w.broken.add("end")
    retry(w, handle)
    assert w.run(200) == ["end", "undo done"]
    w.broken.clear()
    retry(w, handle)
    assert w.run(90) == ["done"]
    assert w.run(20) == ["end"]


def test_a_sleep_after_a_node_that_runs_again_takes_its_time_once(w: VirtualWorld) -> None:
    handle = w.declare(lambda: w.step.s("end").after(Sleep(100).after(w.step.s("begin")))).delay()
    assert w.run(200) == ["begin", "end"]
    retry(w, handle, start="step-2")
    assert w.run(90) == ["begin"]
    assert w.run(20) == ["end"]


# --- row 75 ------------------------------------------------------------------------------------


def test_a_node_and_all_after_it_run_again_with_its_new_result(w: VirtualWorld) -> None:
    counter = iter(range(10))

    @w.app.task(name="count")
    async def count() -> int:
        return next(counter)

    def flow() -> Any:
        begin = w.step.s("begin")
        counted = count.s().after(begin)
        return w.any_.s(w.number.s(counted), w.step.s("beside", begin))

    handle = w.declare(flow).delay()
    w.run()
    assert handle.get() == [0, "beside"]
    w.log.clear()
    again = retry(w, handle, start="count")
    assert set(again.nodes) >= {"count", "number", "any_"}
    w.run()
    assert handle.get() == [1, "beside"]
    assert w.log == ["number 1", "any 1 beside"]


def test_arguments_of_a_node_are_replaced(w: VirtualWorld) -> None:
    w.broken.add("bad")
    handle = w.declare(lambda: w.any_.s(w.step.s("bad"))).delay()
    w.run()
    with pytest.raises(NotAllowed, match="name the node"):
        retry(w, handle, arguments=["good"])
    with pytest.raises(NotAllowed, match="give a list"):
        retry(w, handle, node="step", arguments="good")
    retry(w, handle, node="step", arguments=["good"])
    w.run()
    assert handle.get() == "good"


def test_a_node_with_an_undo_or_a_handler_can_be_named(w: VirtualWorld) -> None:
    """Its undo and its handler have paths below its own: they do not count as replacements."""
    w.broken.add("end")

    def flow() -> Any:
        done = w.step.s("done").compensate(w.take_back.s())
        noted = w.step.s("noted", done).on_error(w.handle.s())
        return w.step.s("end", noted)

    handle = w.declare(flow).delay()
    w.run()
    w.broken.clear()
    done = next(one for one in handle.graph.nodes if one.undoes).undoes
    retry(w, handle, start=done)
    assert w.run() == ["done", "noted", "end"]


# --- row 76 ------------------------------------------------------------------------------------


def test_a_node_that_runs_and_a_graph_without_failures_are_refused(w: VirtualWorld) -> None:
    handle = w.declare(lambda: w.step.s("end", Signal("x").after(w.step.s("a")))).delay()
    w.run()
    for options in ({}, {"node": "x"}, {"node": "step"}, {"node": "nope"}, {"start": "nope"}):
        with pytest.raises(NotAllowed):
            retry(w, handle, **options)
    with pytest.raises(UnknownJob):
        w.ask(lambda o: o.graphs.retry(fresh_id()))
    with pytest.raises(NotAllowed, match="is no graph"):
        w.ask(lambda o: o.graphs.retry(w.number.delay(1).id))
    handle.signal("x")
    assert handle.get() == "end"


def test_two_operators_do_not_retry_a_graph_at_once(w: VirtualWorld) -> None:
    """The second one has read that the node failed, when it has run again and succeeded."""
    w.broken.add("bad")
    handle = w.declare(lambda: w.step.s("after", w.step.s("bad"))).delay()
    w.run()
    w.broken.clear()

    async def retry_twice(operations: Operations) -> list[Any]:
        both = (operations.graphs.retry(handle.id), operations.graphs.retry(handle.id))
        return await asyncio.gather(*both, return_exceptions=True)

    first, second = w.ask(retry_twice)
    assert len(first.nodes) == 1
    assert "is being retried by another operator" in str(second)
    assert w.run() == ["bad", "after"]


def test_a_job_that_was_retried_and_has_succeeded_does_not_run_again(w: VirtualWorld) -> None:
    w.broken.add("bad")
    handle = w.declare(lambda: w.step.s("after", w.step.s("bad"))).delay()
    w.run()
    w.broken.clear()
    (failed,) = [one.job for one in handle.graph.nodes if one.failed]
    retry(w, handle)
    assert w.run() == ["bad", "after"]
    assert w.ask(lambda o: o.graphs.retry_jobs(handle.id, [failed], UNCHANGED)) == []
    assert w.run() == []


def test_a_retry_that_outlasts_its_lease_leaves_the_entry_of_the_next_one(w: VirtualWorld) -> None:
    w.broken.add("bad")
    handle = w.declare(lambda: w.step.s("bad")).delay()
    w.run()
    w.broken.clear()
    key = f"retries/{handle.id}"

    async def retry_slowly(operations: Operations) -> int:
        roles, show = w.app.backend.open(), operations.graphs.show

        async def slow(graph: str) -> Any:
            await roles.coordination.commit({}, [Put(key, seconds=30)])  # another operator's
            return await show(graph)

        operations.graphs.show = slow  # type: ignore[method-assign]
        await operations.graphs.retry(handle.id)
        left = await roles.coordination.read(key)
        await roles.close()
        return len(left.entries)

    assert w.ask(retry_slowly) == 1


def test_a_graph_whose_retry_has_died_is_retried_later(w: VirtualWorld) -> None:
    w.broken.add("bad")
    handle = w.declare(lambda: w.step.s("bad")).delay()
    w.run()
    w.broken.clear()

    async def die() -> None:
        roles = w.app.backend.open()
        await roles.coordination.commit({}, [Put(f"retries/{handle.id}", seconds=30)])
        await roles.close()

    asyncio.run(die())
    with pytest.raises(NotAllowed, match="by another operator: try again"):
        retry(w, handle)
    w.run(40)
    retry(w, handle)
    assert w.run() == ["bad"]


def test_nothing_follows_a_node_that_was_replaced(w: VirtualWorld) -> None:
    @w.app.task(name="replaced")
    async def replaced() -> Any:
        return current.replace(w.step.s("inside"))

    handle = w.declare(lambda: w.any_.s(replaced.s().after(w.number.s(1)))).delay()
    w.run()
    with pytest.raises(NotAllowed, match="was replaced by other nodes"):
        retry(w, handle, start="number")


# --- row 77 ------------------------------------------------------------------------------------


def test_a_retried_node_of_a_sub_workflow_lets_its_parents_go_on(w: VirtualWorld) -> None:
    inner = w.declare(lambda n: w.any_.s(w.step.s("inner", w.number.s(n))))
    handle = w.declare(lambda n: w.step.s("outer", inner.s(w.number.s(n).result))).delay(1)
    w.broken.add("inner")
    w.run()
    w.broken.clear()
    failed = next(one for one in handle.graph.nodes if one.failed)
    retry(w, handle, node=failed.path)
    assert w.run() == ["inner", "any inner", "outer"]
    assert handle.get() == "outer"


# --- resolve -----------------------------------------------------------------------------------


def test_a_failed_node_counts_as_succeeded_with_a_given_result(w: VirtualWorld) -> None:
    w.broken.add("bad")
    handle = w.declare(lambda: w.any_.s(w.step.s("bad"))).delay()
    w.run()
    assert w.ask(lambda o: o.graphs.resolve(handle.id, "step", {"by": "hand"}))
    w.run()
    assert handle.get() == {"by": "hand"}
    with pytest.raises(NotAllowed, match="has succeeded"):
        w.ask(lambda o: o.graphs.resolve(handle.id, "step", 1))
    with pytest.raises(NotAllowed, match="has no node"):
        w.ask(lambda o: o.graphs.resolve(handle.id, "nope", 1))


def test_what_was_undone_runs_again_after_a_node_was_resolved(w: VirtualWorld) -> None:
    w.broken.add("ship")
    handle = order(w).delay()
    handle.signal("approved")
    w.run()
    (failed,) = [one for one in handle.graph.nodes if one.failed]
    assert w.ask(lambda o: o.graphs.resolve(handle.id, failed.path, "by hand"))
    assert w.run() == ["reserve", "any log reserve", "text charge"]
    assert handle.get() == "by hand"


def test_a_waiting_signal_and_a_sleep_can_be_resolved(w: VirtualWorld) -> None:
    handle = w.declare(lambda: w.any_.s(Signal("approved")).after(Sleep(1_000))).delay()
    w.run()
    assert w.ask(lambda o: o.graphs.resolve(handle.id, "approved", 5))
    assert w.ask(lambda o: o.graphs.resolve(handle.id, "sleep", None))
    w.run()
    assert handle.get() == 5


# --- row 78 ------------------------------------------------------------------------------------


def test_an_undo_of_an_earlier_try_does_not_run_after_a_retry(w: VirtualWorld) -> None:
    """It does not wait for the node that it has undone, so it is not reopened with it."""
    w.broken.add("ship")
    handle = order(w).delay()
    handle.signal("approved")
    w.run()
    undos = {one.job for one in handle.graph.nodes if one.undoes}
    w.broken.clear()
    retry(w, handle)
    assert "undo" not in " ".join(w.run(10_000))
    after = {one.job: one for one in handle.graph.nodes if one.undoes}
    assert set(after) == undos
    assert all(one.state is State.SUCCEEDED for one in after.values())


def test_a_retry_of_a_run_that_is_cancelled_meanwhile_starts_nothing(w: VirtualWorld) -> None:
    w.broken.add("ship")
    handle = order(w).delay()
    handle.signal("approved")
    w.run()
    retry(w, handle)
    assert handle.cancel()
    assert [one for one in w.run() if not one.startswith("undo")] == []
    with pytest.raises(UmbelError):
        handle.get()

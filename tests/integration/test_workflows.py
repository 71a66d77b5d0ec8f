"""Runs of workflows, in virtual time on SQLite. The rows are those of CANVAS.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from integration.workflow_world import VirtualWorld, states, virtual_world
from umbel import NodeFailed, Signal, Sleep, State, chain, current, group
from umbel.errors import (
    BadArguments,
    DuplicateJob,
    JobCancelled,
    NotAllowed,
    UmbelError,
    UnknownJob,
)
from umbel.graphs import tree
from umbel.messages import fresh_id

DAY = 86_400.0


@pytest.fixture
def world() -> Iterator[VirtualWorld]:
    with virtual_world() as world:
        yield world


@pytest.fixture
def w(world: VirtualWorld) -> VirtualWorld:
    return world


# --- row 82: conditions ----------------------------------------------------------------------


def test_a_join_waits_until_every_branch_is_decided(w: VirtualWorld) -> None:
    def flow(n: int) -> Any:
        first = w.number.s(n)
        late = w.any_.s(w.text.s("late").after(Sleep(50)))
        many = w.any_.s("many", late).when(first.result > 3)
        few = w.any_.s("few").when(first.result <= 3)
        return w.any_.s(many, few)

    declared = w.declare(flow)
    handle = declared.delay(1)
    assert w.run(10) == ["number 1", "any few"]
    assert handle.state is State.BLOCKED
    w.run(100)
    assert handle.get() == [None, "few"]
    assert states(handle.graph)["any_-2"] == "skipped"
    handle = declared.delay(5)
    w.run(100)
    assert handle.get() == [["many", "late"], None]


def test_a_condition_on_parameters_only_is_obeyed(w: VirtualWorld) -> None:
    def flow(n: int) -> Any:
        return w.step.s("end").after(w.step.s("gift").when(n > 100), w.step.s("begin"))

    declared = w.declare(flow)
    for n, wanted in ((50, ["begin", "end"]), (500, ["begin", "end", "gift"])):
        handle = declared.delay(n)
        assert sorted(w.run()) == wanted
        assert handle.get() == "end"


def test_what_gets_only_results_of_skipped_nodes_is_skipped_too(w: VirtualWorld) -> None:
    def flow(n: int) -> Any:
        skipped = w.text.s("a").when(n > 100)
        return chain(skipped, Sleep(5), w.any_.s(), w.any_.s())

    handle = w.declare(flow).delay(1)
    assert w.run(10) == []
    assert handle.get() is None
    assert handle.state is State.SUCCEEDED
    assert set(states(handle.graph).values()) == {"skipped"}


def test_conditions_are_combined_and_negated(w: VirtualWorld) -> None:
    def flow(n: int, name: str) -> Any:
        found = w.number.s(n)
        inside = (found.result > 1) & (found.result < 5)
        named = (name == "x") | (found.result != 7)
        return w.any_.s(w.step.s("run").when(inside | ~named), 1)

    declared = w.declare(flow)
    for n, name, runs in ((3, "x", True), (9, "y", False), (7, "y", True), (7, "x", False)):
        assert declared.delay(n, name).get() == (["run", 1] if runs else None)


def test_an_error_in_a_condition_fails_its_node_only(w: VirtualWorld) -> None:
    def flow(value: Any) -> Any:
        found = w.any_.s(value)
        return w.step.s("end", w.step.s("x").when(found.result > 3)).on_error(w.handle.s())

    handle = w.declare(flow).delay("text")
    assert w.run()[0] == "any text"
    with pytest.raises(BadArguments, match="condition of node step-2: '>' not supported"):
        handle.get()
    assert handle.state is State.BURIED


def test_an_item_of_a_result_that_is_missing_is_named(w: VirtualWorld) -> None:
    def flow(value: dict[str, Any]) -> Any:
        found = w.data.s(value)
        return w.any_.s(found.result["lines"][0])

    declared = w.declare(flow)
    assert declared.delay({"lines": [7]}).get() == 7
    for value in ({}, {"lines": []}, {"lines": None}):
        with pytest.raises(BadArguments, match=r"node data has no item \['lines'\]\[0\]"):
            declared.delay(value).get()


def test_results_that_are_none_are_passed_on_and_are_not_skipped(w: VirtualWorld) -> None:
    def flow(value: Any) -> Any:
        first = w.any_.s(value)
        return w.any_.s(w.any_.s(first))

    handle = w.declare(flow).delay(None)
    assert w.run() == ["any None"] * 3
    assert handle.get() is None


# --- row 83: after ---------------------------------------------------------------------------


def test_a_node_does_not_run_if_one_that_it_waits_for_has_failed(w: VirtualWorld) -> None:
    def flow() -> Any:
        bad = w.step.s("bad")
        return w.step.s("end").after(w.step.s("between").after(bad))

    w.broken.add("bad")
    handle = w.declare(flow).delay()
    assert w.run() == ["bad"]
    assert list(states(handle.graph).values()) == ["buried", "cancelled", "cancelled"]
    with pytest.raises(ValueError, match="bad is broken"):
        handle.get()


def test_a_node_runs_after_one_that_was_skipped(w: VirtualWorld) -> None:
    declared = w.declare(lambda n: w.step.s("end").after(w.step.s("x").when(n > 5)))
    assert declared.delay(1).get() == "end"
    assert w.log == ["end"]


def test_a_node_waits_for_a_whole_group_and_a_map(w: VirtualWorld) -> None:
    def flow() -> Any:
        both = group(w.step.s("a"), chain(w.step.s("b"), Sleep(5), w.step.si("c")))
        return w.step.s("end").after(both, w.number.map([1, 2]))

    declared = w.declare(flow)
    declared.delay()
    assert sorted(w.run(1)) == ["a", "b", "number 1", "number 2"]
    assert w.run(10) == ["c", "end"]
    w.broken.add("c")
    handle = declared.delay()
    assert "end" not in w.run(10)
    assert handle.state is State.BURIED


# --- row 84: signals -------------------------------------------------------------------------


def test_a_signal_that_comes_early_is_kept_and_what_follows_still_waits(w: VirtualWorld) -> None:
    def flow() -> Any:
        paid = w.step.s("paid").after(Sleep(50))
        return w.any_.s(Signal("approved").after(paid))

    handle = w.declare(flow).delay()
    handle.signal("approved", "yes")
    assert w.run(10) == []
    assert w.run(50) == ["paid", "any yes"]
    assert handle.get() == "yes"


def test_the_first_value_of_a_signal_counts_and_the_sender_is_named(w: VirtualWorld) -> None:
    declared = w.declare(lambda: w.any_.s(Signal("approved"), w.step.s("end").after(Sleep(9))))
    handle = declared.delay()
    handle.signal("approved", 1, sender="Ann B. ä;=\n")
    for _ in range(2):
        with pytest.raises(NotAllowed, match="has a value already, given by Ann"):
            handle.signal("approved", 2)
    w.run(10)
    assert handle.get() == [1, "end"]


def test_an_unknown_signal_names_those_that_exist(w: VirtualWorld) -> None:
    handle = w.declare(lambda: w.any_.s(Signal("approved"), Signal("paid.by"))).delay()
    with pytest.raises(UnknownJob, match=r"no signal 'nope'; its signals: approved, paid\.by"):
        handle.signal("nope")
    handle.signal("paid.by", 2)
    handle.signal("approved", 1)
    assert handle.get() == [1, 2]
    other = w.declare(lambda: w.number.s(1)).delay()
    with pytest.raises(UnknownJob, match="it has no signals"):
        other.signal("approved")
    with pytest.raises(UnknownJob):
        w.app.handle(fresh_id()).signal("approved")
    with pytest.raises((NotAllowed, UnknownJob)):
        w.number.delay(3).signal("approved")


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        (bool, True, 1),
        (int, 3, True),
        (int, 3, 3.5),
        (float, 3, "3"),
        (float, 3.5, True),
        (str, "x", None),
        (list, [1], {"a": 1}),
        (dict, {"a": 1}, [1]),
    ],
)
def test_a_signal_of_a_wrong_type_is_refused_and_can_be_given_again(
    w: VirtualWorld, wanted: type, good: Any, bad: Any
) -> None:
    handle = w.declare(lambda: w.any_.s(Signal("approved", type=wanted))).delay()
    w.run()
    with pytest.raises(BadArguments, match=f"is not {wanted.__name__}"):
        handle.signal("approved", bad)
    handle.signal("approved", good)
    assert handle.get() == good


def test_a_signal_that_cannot_be_encoded_changes_nothing(w: VirtualWorld) -> None:
    handle = w.declare(lambda: w.any_.s(Signal("approved"))).delay()
    with pytest.raises(UmbelError):
        handle.signal("approved", object())
    handle.signal("approved", "good")
    assert handle.get() == "good"


def test_a_signal_after_the_end_is_an_error(w: VirtualWorld) -> None:
    declared = w.declare(lambda: w.any_.s(Signal("approved")).after(w.step.s("bad")))
    handle = declared.delay()
    handle.cancel("no more")
    with pytest.raises(NotAllowed, match="signal approved has ended: no more"):
        handle.signal("approved")


def test_everything_before_a_signal_must_succeed(w: VirtualWorld) -> None:
    """Also before another signal, in a chain, in a group, and if it was given early."""

    def chained() -> Any:
        return chain(w.step.s("bad"), Signal("approved"), w.any_.s())

    def grouped() -> Any:
        return w.any_.s(group(chain(w.step.s("bad"), Signal("approved")), w.number.s(3)).result)

    def repeated() -> Any:
        first = Signal("first").after(w.step.s("bad"))
        return w.any_.s(Signal("approved").after(first))

    for flow in (chained, grouped, repeated):
        declared = w.declare(flow)
        for is_given in (False, True):
            w.broken = {"bad"}
            handle = declared.delay()
            if is_given:
                handle.signal("approved")
            assert not [one for one in w.run() if one.startswith("any")]
            with pytest.raises(ValueError, match="bad is broken"):
                handle.get(timeout=0)
        w.broken = set()
        handle = declared.delay()
        w.run()
        if flow is repeated:
            handle.signal("first")
        handle.signal("approved", 7)
        assert handle.get() == ([7, 3] if flow is grouped else 7)


def test_a_signal_goes_on_after_failures_that_are_collected(w: VirtualWorld) -> None:
    w.broken.add("bad")

    def flow() -> Any:
        members = group(w.step.s("bad"), w.step.s("good"), errors="collect")
        return w.any_.s(Signal("approved").after(members))

    handle = w.declare(flow).delay()
    w.run()
    handle.signal("approved", 5)
    assert handle.get() == 5


def test_the_nodes_before_a_signal_may_be_used_nowhere_else(w: VirtualWorld) -> None:
    def flow(n: int) -> Any:
        return w.any_.s(Signal("approved").after(w.number.s(w.number.s(n))))

    handle = w.declare(flow).delay(3)
    assert w.run() == ["number 3", "number 3"]
    handle.signal("approved", 1)
    assert handle.get() == 1


def test_a_signal_waits_after_a_node_that_was_skipped(w: VirtualWorld) -> None:
    def flow(n: int) -> Any:
        return w.any_.s(Signal("approved", timeout=5, default="late").after(
            w.number.s(n).when(n > 5)
        ))  # fmt: skip

    handle = w.declare(flow).delay(1)
    w.run(1)
    assert states(handle.graph)["approved"] == "scheduled"
    handle.signal("approved", "in time")
    assert handle.get() == "in time"


def test_a_signal_to_a_node_that_cannot_run_any_more_ends_the_run(w: VirtualWorld) -> None:
    w.broken.add("bad")
    handle = w.declare(lambda: w.any_.s(Signal("approved"), w.step.s("bad"))).delay()
    w.run()
    handle.signal("approved")
    with pytest.raises(ValueError, match="bad is broken"):
        handle.get(timeout=0)


# --- row 85: timeouts of signals -------------------------------------------------------------


def test_a_signal_that_times_out_fails_or_gives_its_default(w: VirtualWorld) -> None:
    def flow() -> Any:
        first = w.step.s("first").after(Sleep(100))
        return w.any_.s(Signal("approved", timeout=50).after(first))

    def with_default() -> Any:
        return w.any_.s(Signal("approved", timeout=50, default={"by": None}))

    handle = w.declare(flow).delay()
    w.run(149)
    assert handle.state is State.BLOCKED, "the timeout counts from when its nodes have ended"
    w.run(10)
    with pytest.raises(TimeoutError, match="no signal approved was given in time"):
        handle.get()
    with pytest.raises(NotAllowed, match="signal approved has ended"):
        handle.signal("approved")
    handle = w.declare(with_default).delay()
    assert handle.get() == {"by": None}
    with pytest.raises(NotAllowed, match="has a value already"):
        handle.signal("approved")


def test_a_default_may_be_a_parameter(w: VirtualWorld) -> None:
    declared = w.declare(lambda n: w.any_.s(Signal("approved", timeout=5, default=n["x"])))
    assert declared.delay({"x": 7}).get() == 7


def test_no_timer_is_left_when_a_run_has_ended(w: VirtualWorld) -> None:
    def flow() -> Any:
        first = w.step.s("first")
        return w.step.s("end", Signal("approved", timeout=30 * DAY).after(first))

    declared = w.declare(flow, deadline=60 * DAY)
    for broken in (set[str](), {"end"}, {"first"}):
        w.broken = broken
        handle = declared.delay()
        w.run()
        if broken != {"first"}:
            handle.signal("approved")
        w.run()
        assert handle.state.finished
        assert all(one.has_ended for one in handle.graph.nodes), f"after {broken}"


# --- row 86: deadlines -----------------------------------------------------------------------


def test_a_deadline_ends_a_run_that_waits_for_a_signal(w: VirtualWorld) -> None:
    def flow() -> Any:
        paid = w.step.s("paid").compensate(w.take_back.s())
        return w.any_.s(Signal("approved").after(paid)).on_error(w.handle.s())

    handle = w.declare(flow, deadline=50).delay()
    assert w.run(49) == ["paid"]
    assert sorted(w.run(10)) == ["handled any_ any_", "undo paid"]
    with pytest.raises(UmbelError, match="the deadline of the workflow has passed"):
        handle.get()
    assert handle.state is State.BURIED
    with pytest.raises(NotAllowed):
        handle.signal("approved")


def test_a_deadline_counts_from_the_delayed_start(w: VirtualWorld) -> None:
    declared = w.declare(lambda: w.step.s("end").after(Sleep(10)), deadline=50)
    handle = declared.options(delay=1_000).delay()
    w.run(2_000)
    assert handle.get() == "end"


def test_a_deadline_that_has_not_passed_changes_nothing(w: VirtualWorld) -> None:
    handle = w.declare(lambda: w.step.s("end").after(Sleep(10)), deadline=50).delay()
    w.run(100)
    assert handle.get() == "end"
    assert w.log == ["end"]


# --- row 87: sleeps --------------------------------------------------------------------------


def test_a_sleep_of_days_passes_the_result_on(w: VirtualWorld) -> None:
    declared = w.declare(lambda: chain(w.number.s(7), Sleep(30 * DAY), w.number.s()))
    handle = declared.delay()
    assert w.run(30 * DAY - 10) == ["number 7"]
    assert states(handle.graph) == {"0": "succeeded", "1": "scheduled", "2": "blocked"}
    assert w.run(20) == ["number 7"]
    assert handle.get() == 7


def test_a_sleep_counts_from_when_the_nodes_before_it_have_ended(w: VirtualWorld) -> None:
    def flow() -> Any:
        first = w.step.s("first").after(Sleep(100))
        return w.step.s("end").after(Sleep(100).after(first))

    handle = w.declare(flow).delay()
    w.run(195)
    assert handle.state is State.BLOCKED
    w.run(10)
    assert handle.get() == "end"


# --- row 88: compensation --------------------------------------------------------------------


def order(w: VirtualWorld, name: str = "") -> Any:
    def flow(n: int = 0) -> Any:
        stock = w.step.s("stock").compensate(w.take_back.s())
        first = w.step.s("first", stock).compensate(w.take_back.s())
        second = w.step.s("second", stock).compensate(w.take_back.s())
        unused = w.step.s("skipped").when(n > 5).compensate(w.take_back.s())
        return w.step.s("ship", first, second).compensate(w.take_back.s()).after(unused)

    return w.declare(flow)


def test_what_has_succeeded_is_undone_in_the_reverse_order(w: VirtualWorld) -> None:
    w.broken.add("ship")
    handle = order(w).delay()
    noted = w.run()
    undone = noted[noted.index("ship") + 1 :]
    assert sorted(undone[:2]) == ["undo first", "undo second"]
    assert undone[2:] == ["undo stock"]
    with pytest.raises(ValueError, match="ship is broken"):
        handle.get()
    assert [one.task for one in handle.graph.nodes if one.undoes] == ["undo: take_back"] * 3


def test_nothing_is_undone_if_the_run_succeeds(w: VirtualWorld) -> None:
    handle = order(w).delay()
    assert "undo" not in "".join(w.run())
    assert handle.get() == "ship"
    assert all(node.has_ended for node in handle.graph.nodes)


def test_an_undo_that_fails_is_listed_and_the_others_go_on(w: VirtualWorld) -> None:
    w.broken |= {"ship", "undo first"}
    handle = order(w).delay()
    assert w.run()[-1] == "undo stock"
    failed = [one for one in handle.graph.nodes if one.undoes and one.failed]
    assert [one.error for one in failed] == ["ValueError: cannot undo first"]
    with pytest.raises(ValueError, match="ship is broken"):
        handle.get()


def test_an_undo_is_retried_like_any_job(w: VirtualWorld) -> None:
    w.broken.add("end")

    def flow() -> Any:
        return w.step.s("end", w.flaky.s(2).compensate(w.flaky_undo.s()))

    w.declare(flow).delay()
    assert w.run(10) == [
        *("attempt 1", "attempt 2", "attempt 3", "end"),
        *(f"undo flaky, attempt {number}" for number in (1, 2, 3)),
    ]


def test_an_undo_gets_the_result_and_parameters(w: VirtualWorld) -> None:
    w.broken.add("end")

    def flow(n: dict[str, Any]) -> Any:
        done = w.number.s(5).compensate(w.any_.s(n["why"]))
        other = w.number.s(6).compensate(w.any_.si("fixed", n))
        return w.step.s("end", done, other)

    w.declare(flow).delay({"why": "x"})
    assert sorted(w.run()[-2:]) == ["any 5 x", "any fixed {'why': 'x'}"]


def test_a_node_that_replaced_itself_is_undone_if_the_replacement_succeeded(
    w: VirtualWorld,
) -> None:
    @w.app.task(name="replaced", retry=0)
    async def replaced(name: str) -> Any:
        return current.replace(w.step.s(name))

    def flow(name: str) -> Any:
        return w.step.s("end", replaced.s(name).compensate(w.take_back.s()))

    declared = w.declare(flow)
    w.broken |= {"end", "bad"}
    declared.delay("good")
    assert w.run() == ["good", "end", "undo good"]
    declared.delay("bad")
    assert w.run() == ["bad"]


def test_a_cancelled_run_is_undone_unless_it_is_declared_not_to_be(w: VirtualWorld) -> None:
    def flow() -> Any:
        paid = w.step.s("paid").compensate(w.take_back.s())
        return w.any_.s(Signal("approved").after(paid))

    for compensate, wanted in ((True, ["undo paid"]), (False, [])):
        handle = w.declare(flow, compensate=compensate).delay()
        w.run()
        assert handle.cancel("no more")
        assert w.run() == wanted
        assert handle.state is State.CANCELLED
        with pytest.raises(JobCancelled):
            handle.get()
    w.broken.add("end")

    def failing() -> Any:
        return w.step.s("end", w.step.s("paid").compensate(w.take_back.s()))

    w.declare(failing, compensate=False).delay()
    assert w.run()[-1] == "undo paid", "a run that fails is undone in any case"


def test_a_run_cannot_be_cancelled_or_retried_while_it_is_undone(w: VirtualWorld) -> None:
    def flow() -> Any:
        return w.step.s("end", w.step.s("paid").compensate(w.any_.s().options(delay=100)))

    w.broken.add("end")
    handle = w.declare(flow).delay()
    w.run(10)
    assert handle.state is State.BURIED
    assert not handle.cancel()
    with pytest.raises(NotAllowed, match="is undone now"):
        w.ask(lambda o: o.graphs.retry(handle.id))
    with pytest.raises(NotAllowed, match="is undone now"):
        w.ask(lambda o: o.graphs.resolve(handle.id, "step", "x"))
    assert w.run(200) == ["any paid"]


# --- row 89: versions ------------------------------------------------------------------------


def test_a_run_keeps_its_shape_when_the_workflow_is_declared_anew(w: VirtualWorld) -> None:
    old = w.declare(lambda: w.step.s("old").after(Signal("go")), name="rolling")
    first = old.delay()
    new = w.declare(lambda: w.step.s("new").after(Signal("go")), name="rolling")
    second = new.delay()
    back = w.declare(lambda: w.step.s("old").after(Signal("go")), name="rolling")
    third = back.delay()
    assert back.version == old.version != new.version
    versions = w.ask(lambda o: o.graphs.workflow_versions())
    assert {(one.version, one.live) for one in versions} == {(old.version, 2), (new.version, 1)}
    for handle, wanted in ((first, "old"), (second, "new"), (third, "old")):
        handle.signal("go")
        assert handle.get() == wanted
    versions = w.ask(lambda o: o.graphs.workflow_versions())
    assert {(one.version, one.live, one.ended) for one in versions} == {
        (old.version, 0, 2),
        (new.version, 0, 1),
    }


# --- row 90: sub-workflows -------------------------------------------------------------------


def test_a_workflow_is_a_node_of_another(w: VirtualWorld) -> None:
    def inner(a: int, b: int = 2) -> Any:
        both = w.any_.s(w.number.s(a), b).compensate(w.any_.s("undo inner"))
        return w.any_.s(both, Signal("approved").after(both))

    declared = w.declare(inner)

    def outer(n: int) -> Any:
        found = declared.s(w.number.s(n).result)
        return w.step.s("end", found).after(declared_twice.s(n))

    declared_twice = w.declare(lambda n: w.number.s(n))
    handle = w.declare(outer).delay(1)
    w.run()
    handle.signal("approved", "yes")
    assert handle.get() == "end"
    w.broken.add("end")
    handle = w.declare(outer).delay(1)
    w.run()
    handle.signal("approved", "yes")
    w.run()
    assert handle.state is State.BURIED
    assert w.log[-1].startswith("any [1, 2] undo inner"), "an undo of the inner one runs, too"


def test_the_failure_of_a_sub_workflow_is_that_of_the_node_and_cancel_goes_down(
    w: VirtualWorld,
) -> None:
    inner = w.declare(lambda: w.step.s("inner").after(Signal("approved")))
    declared = w.declare(lambda: w.step.s("end", inner.s()).on_error(w.handle.s()))
    w.broken.add("inner")
    handle = declared.delay()
    handle.signal("approved")
    w.run()
    with pytest.raises(ValueError, match="inner is broken"):
        handle.get()
    assert "end" not in w.log
    handle = declared.delay()
    handle.cancel()
    w.run()
    assert all(node.has_ended for node in handle.graph.nodes)


def test_a_handler_of_a_sub_workflow_handles_the_failures_of_all_its_nodes(
    w: VirtualWorld,
) -> None:
    inner = w.declare(lambda: w.step.s("last", w.step.s("first")))
    declared = w.declare(lambda: w.step.s("end", inner.s().on_error(w.handle.s())))
    for name in ("first", "last"):
        w.broken = {name}
        declared.delay()
        w.run()
        assert w.log[-1].startswith("handled"), name


def test_a_sub_workflow_that_fails_is_shown_with_its_state(w: VirtualWorld) -> None:  # row 93
    inner = w.declare(lambda: w.step.s("last", w.step.s("first").after(Sleep(30))))
    handle = w.declare(lambda: w.step.s("end", inner.s())).delay()

    def shown() -> tuple[str, str]:
        found = next(node for _, node in tree(handle.graph) if not node.job)
        return found.path, str(found.state)

    path, state = shown()
    assert state == "scheduled"
    w.run(31)
    assert shown() == (path, "succeeded")
    w.broken.add("last")
    handle = w.declare(lambda: w.step.s("end", inner.s())).delay()
    w.run(31)
    assert shown() == (path, "buried")


def test_a_workflow_with_signals_cannot_replace_a_node(w: VirtualWorld) -> None:
    signalled = w.declare(lambda: w.any_.s(Signal("approved")))
    undone = w.declare(lambda: w.step.s("x").compensate(w.take_back.s()))
    hurried = w.declare(lambda: w.step.s("x"), deadline=5)
    limited = w.declare(lambda: w.step.s("x"), limit=5)
    plain = w.declare(lambda: w.step.s("plain"))

    @w.app.task(name="launch", retry=0)
    async def launch(number: int) -> Any:
        given = (signalled, undone, hurried, limited, plain)
        return current.replace(given[number].s())

    declared = w.declare(lambda n: w.any_.s(launch.s(n)))
    texts = ("signal approved", "compensate|undos", "deadline", "its deadline, limit and undos")
    for number, text in enumerate(texts):
        with pytest.raises(UmbelError, match=text):
            declared.delay(number).get()
        if number < 3:
            with pytest.raises(UmbelError, match=text):
                launch.delay(number).get()
    assert declared.delay(4).get() == launch.delay(4).get() == "plain"
    assert launch.delay(3).get() == "x"  # as a graph of its own, it has a place of its own


# --- row 91: parallel branches ---------------------------------------------------------------


@pytest.mark.parametrize("slow", ["a", "b", "c"])
def test_recovery_does_not_depend_on_the_order_of_branches(w: VirtualWorld, slow: str) -> None:
    def branch(name: str) -> Any:
        first = w.step.s(name)
        return w.step.s(f"{name}2").after(Sleep(50 if name == slow else 1).after(first))

    w.broken.add("b2")
    handle = w.declare(lambda: w.any_.s(*(branch(name) for name in "abc"))).delay()
    w.run(100)
    assert handle.state is State.BURIED
    w.broken.clear()
    begun = len(w.log)
    w.ask(lambda o: o.graphs.retry(handle.id))
    w.run(100)
    assert handle.get() == ["a2", "b2", "c2"]
    assert w.log[begun:] == ["b2", "any a2 b2 c2"]


# --- starting --------------------------------------------------------------------------------


def test_the_unique_key_is_held_until_the_run_ends(w: VirtualWorld) -> None:
    declared = w.declare(lambda: w.any_.s(Signal("approved")))
    first = declared.options(unique="k").delay()
    with pytest.raises(DuplicateJob):
        declared.options(unique="k").delay()
    assert len(w.ask(lambda o: o.graphs.roots(()))) <= 2
    first.signal("approved", 1)
    assert first.get() == 1
    second = declared.options(unique="k").delay()
    second.cancel()
    w.run()
    declared.options(unique="k").delay()


def test_the_same_id_starts_a_run_once(w: VirtualWorld) -> None:
    declared = w.declare(lambda: w.any_.s(Signal("approved")))
    name = fresh_id()
    first, second = (declared.options(id=name).delay() for _ in range(2))
    assert first.id == second.id
    second.signal("approved", 5)
    assert first.get() == 5
    assert w.log == ["any 5"]


def test_a_run_is_delayed_as_a_whole(w: VirtualWorld) -> None:
    declared = w.declare(lambda: w.step.s("b").after(w.step.s("a")))
    declared.options(delay=100).delay()
    assert w.run(90) == []
    assert w.run(20) == ["a", "b"]


def test_handlers_get_the_failure_of_a_signal(w: VirtualWorld) -> None:
    noted: list[NodeFailed] = []

    @w.app.task(name="note")
    async def note(failure: NodeFailed) -> None:
        noted.append(failure)

    declared = w.declare(
        lambda: chain(w.step.s("a"), Signal("x", timeout=5), w.any_.s()).on_error(note.s())
    )
    declared.delay()
    w.run(10)
    assert ["no signal x was given in time" in str(one) for one in noted] == [True]

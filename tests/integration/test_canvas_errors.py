"""Failures in canvases: what ends how, who is told, and what does not run. Rows of CANVAS.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.backends import opened
from integration.canvas_world import CanvasWorld, label, node_of, running_world, states
from integration.running import ask, until
from umbel import (
    NodeFailed,
    Retry,
    Snooze,
    State,
    Umbel,
    chain,
    chord,
    chunks,
    current,
    fork,
    group,
    poisonous,
)
from umbel.errors import ConfigurationError, JobCancelled, UmbelError
from umbel.messages import fresh_id

POLICIES = ["fail", "cancel", "collect"]


# --- what a failure does -------------------------------------------------------------------------


def test_a_failure_cancels_the_rest_of_a_chain_and_names_the_node(world: CanvasWorld) -> None:
    handle = chain(
        world.add.s(1, 2), world.fail.s(), world.same.s(), group(world.same.s()), world.same.si(1)
    ).delay()
    with pytest.raises(ValueError, match="no") as raised:
        handle.get(timeout=30)
    assert "1 fail" in " ".join(getattr(raised.value, "__notes__", []))
    graph = world.ended(handle)
    assert graph.state is State.BURIED
    assert "node 1 fail" in graph.error
    assert list(states(graph).values()) == ["succeeded", "buried", *["cancelled"] * 3]


@pytest.mark.parametrize("errors", ["fail", "cancel"])
@pytest.mark.parametrize(
    "header",
    [
        lambda w: [w.fail.s(), w.add.s(1, 1)],
        lambda w: [w.add.s(1, 1), w.fail.s()],
        lambda w: [w.add.s(1, 1), chain(w.add.s(1, 1), w.fail.s(), w.same.s())],
        lambda w: [group(w.add.s(1, 1), group(w.fail.s())), w.add.s(1, 1)],
        lambda w: [chord([w.fail.s()], w.same.s()), w.add.s(1, 1)],
        lambda w: [chain(w.numbers.s(3), w.fail.map()), w.add.s(1, 1)],
        lambda w: [chunks(w.fail, [(1,), (2,)], 1), w.add.s(1, 1)],
        lambda w: [w.same.s(w.fail.s().result), w.add.s(1, 1)],
        lambda w: [w.fail.s(), w.fail.s(), w.fail.s()],
    ],
)
def test_a_failure_in_a_header_keeps_the_body_from_running(
    world: CanvasWorld, header: Callable[[CanvasWorld], Any], errors: Any
) -> None:  # rows 34, 35
    body = label()
    handle = (
        chord(header(world), world.noted.s(body), errors=errors) | world.noted.s(body)
    ).delay()
    with pytest.raises(ValueError, match="no"):
        handle.get(timeout=30)
    graph = world.ended(handle)
    assert not world.notes[body]
    assert graph.state is State.BURIED


def test_the_other_members_finish_before_the_join_fails(world: CanvasWorld) -> None:  # row 35
    held = label()
    handle = group(world.fail.s(), world.held.s(1, held)).delay()
    world.noted_at(f"{held} started")
    until(lambda: node_of(handle.graph, "fail").has_ended, "the failure")
    assert not handle.state.finished
    world.signal(held).set()
    with pytest.raises(ValueError, match="no"):
        handle.get(30)
    assert states(world.ended(handle)) == {"0": "buried", "1": "succeeded"}


def test_cancel_stops_running_members_and_cancels_queued_ones(world: CanvasWorld) -> None:
    held, started = label(), label()  # row 36
    inner = group(world.held.s(1, held), chain(world.held_thread.s(2, held), world.same.s()))
    later = world.same.s(3).options(delay=600)
    ready = world.held.s(None, started)
    canvas = group(inner, later, chain(ready, world.fail.s()), errors="cancel")
    handle = canvas.delay()
    world.noted_at(f"{held} started", 2)
    world.signal(started).set()
    with pytest.raises(ValueError, match="no"):
        handle.get(30)
    graph = world.ended(handle)
    ended = {node.path: (str(node.state), node.error) for node in graph.tasks()}
    cancelled = "cancelled: another member of its group failed"
    assert ended["0.0"] == ended["0.1.0"] == ended["1"] == ("cancelled", cancelled)
    assert ended["2.1"][0] == "buried"
    assert not world.notes[f"{held} ended"]


def test_a_nested_group_cancels_only_its_own_members(world: CanvasWorld) -> None:
    held = label()
    other = world.held.s(1, held)
    inner = group(world.fail.s(), world.held.s(2, held), errors="cancel")
    handle = (group(other, inner, errors="collect") | world.same.s()).delay()
    world.noted_at(f"{held} started")
    until(lambda: [n for n in handle.graph.nodes if n.path == "0.1.list" and n.has_ended], "inner")
    world.signal(held).set()
    first, second = handle.get(30)
    assert first == 1
    assert "0.1.0 fail" in second["node"]


def test_the_join_of_cancelled_members_fails_when_none_of_them_runs(
    world: CanvasWorld,
) -> None:  # row 36, Q4
    held, handled = label(), label()

    @world.app.task(name="slow_to_stop")
    async def slow_to_stop() -> None:
        world.note(f"{held} started")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.5)
            world.note(f"{held} stopped")

    @world.app.task(name="look")
    async def look(failure: NodeFailed) -> None:
        world.note(handled, list(world.notes[f"{held} stopped"]))

    @world.app.task(name="fail_later", retry=0)
    async def fail_later() -> None:
        while not world.notes[f"{held} started"]:
            await asyncio.sleep(0.01)
        raise ValueError("no")

    members = group(slow_to_stop.si() | world.same.si(1), fail_later.s(), errors="cancel")
    handle = members.on_error(look.s()).delay()
    with pytest.raises(ValueError, match="no"):
        handle.get(timeout=30)
    world.ended(handle)
    assert world.notes[handled] == [[None]]


@pytest.mark.parametrize("errors", ["cancel", "fail"])
def test_a_result_in_an_argument_belongs_to_the_part_that_uses_it(
    world: CanvasWorld, errors: Any
) -> None:  # rows 36, 43
    handled, held = label(), label()
    inner = (world.same.s(world.fail.s().result) | world.same.s()).on_error(world.handle.s(handled))
    handle = group(inner, world.held.s(1, held), errors=errors).delay()
    until(lambda: world.notes[handled], "the handler has run")
    if errors == "fail":
        world.signal(held).set()
    with pytest.raises(ValueError, match="no"):
        handle.get(timeout=30)
    assert len(world.notes[f"{held} ended"]) == (errors == "fail")
    assert len(world.notes[handled]) == 1


def test_jobs_of_others_are_not_cancelled_with_a_graph(world: CanvasWorld) -> None:  # row 32
    held = label()
    with world.app.batch() as batch:
        first = world.held.delay(1, held)
    until(lambda: world.notes[f"{held} started"], "the task has started")
    handle = chord([first, world.same.s(2)], world.total.s()).delay()
    assert handle.cancel()
    failed = group(first, world.fail.s(), errors="cancel").delay()
    until(lambda: "succeeded" in _states_of(failed, "umbel.cancel"), "the group was cancelled")
    world.signal(held).set()
    assert batch.handle.get(timeout=30) == [1]
    with pytest.raises(ValueError, match="no"):
        failed.get(timeout=30)


def test_a_node_of_another_graph_that_was_not_reached_is_a_failure(world: CanvasWorld) -> None:
    other = chain(world.fail.s(), world.same.s()).delay()
    graph = world.ended(other)
    unreached = world.app.handle(graph.nodes[-1].job)
    handle = (group(unreached) | world.total.s()).delay()
    with pytest.raises(UmbelError, match="cancelled"):
        handle.get(timeout=30)


def _states_of(handle: Any, task: str) -> list[str]:
    """Return the states of the nodes of a task."""
    return [one.state for one in handle.graph.nodes if one.task == task]


def test_a_job_that_is_replaced_ends_with_its_replacement(
    world: CanvasWorld,
) -> None:  # rows 32, 53
    held = label()

    @world.app.task(name="replaced_by_held")
    async def replaced_by_held() -> Any:
        return current.replace(group(world.held.s(1, held), world.same.s(2)))

    handle = replaced_by_held.delay()
    until(lambda: world.notes[f"{held} started"], "the task has started")
    both = group(handle, world.same.s(3)).delay()
    waits = (group(handle) | world.same.s()).delay()
    until(lambda: "succeeded" in _states_of(both, "same"), "the other member has ended")
    assert not both.state.finished
    world.signal(held).set()
    assert both.get(timeout=30) == [[1, 2], 3]
    assert waits.get(timeout=30) == [[1, 2]]


def test_handlers_run_after_the_failure_of_a_replacement(world: CanvasWorld) -> None:
    of_part, of_whole = label(), label()

    @world.app.task(name="replaced_by_failure")
    async def replaced_by_failure() -> Any:
        return current.replace(world.fail.s())

    handle = replaced_by_failure.delay()
    with pytest.raises(ValueError, match="no"):
        handle.get(timeout=30)
    part = group(handle, world.fail.s()).on_error(world.handle.s(of_part))
    whole = (part | world.same.s()).on_error(world.handle.s(of_whole)).delay()
    with pytest.raises(ValueError, match="no"):
        whole.get(timeout=30)
    world.ended(whole)
    assert len(world.notes[of_part]) == 1
    assert len(world.notes[of_whole]) == 1


@pytest.mark.parametrize("fails", [True, False])
def test_what_acts_on_failures_sees_that_of_a_replaced_job(world: CanvasWorld, fails: bool) -> None:
    """The job was replaced before the graph was published. What replaced it fails later."""
    inner, outer, branch, held, later = label(), label(), label(), label(), label()

    @world.app.task(name=f"replaced {fails}")
    async def replaced() -> Any:
        return current.replace(
            world.held.s(1, later) | (world.fail.s() if fails else world.same.s())
        )

    handle = replaced.delay()
    world.noted_at(f"{later} started")
    assert handle.record().state is State.SUCCEEDED
    part = group(handle).on_error(world.handle.s(inner)).on_error(world.noted.si(1, branch))
    whole = (part | world.same.s()).on_error(world.handle.s(outer)).delay()
    others = group(handle, world.held.s(1, held), errors="cancel").delay()
    world.noted_at(f"{held} started")
    world.signal(later).set()
    if not fails:
        world.signal(held).set()
        assert whole.get(timeout=30) == [1]
        assert others.get(timeout=30) == [1, 1]
    for graph in (whole, others):
        world.ended(graph)
        assert graph.state is (State.BURIED if fails else State.SUCCEEDED)
    times = 1 if fails else 0
    assert [len(world.notes[one]) for one in (inner, outer, branch)] == [times] * 3
    assert all(failure.node == "1 fail" for failure in world.notes[inner])


def test_a_handler_covers_a_failed_job_of_others_in_its_part(world: CanvasWorld) -> None:
    inside, outside = label(), label()
    failed = world.fail.delay()
    with pytest.raises(ValueError, match="no"):
        failed.get(timeout=30)
    covered = chain(group(failed, world.same.s(1)), world.same.s()).on_error(world.handle.s(inside))
    other = world.same.si(2).on_error(world.handle.s(outside))
    handle = (chain(covered, world.same.s()) | group(other)).delay()
    with pytest.raises(ValueError, match="no"):
        handle.get(timeout=30)
    world.ended(handle)
    assert len(world.notes[inside]) == 1
    assert not world.notes[outside]


def test_a_group_does_not_cancel_an_argument_that_others_use(world: CanvasWorld) -> None:
    held = label()
    shared = world.held.s(1, held)
    failing = group(world.same.s(shared.result), world.fail.s(), errors="cancel")
    handle = group(failing, world.same.s(shared.result), errors="collect").delay()
    until(lambda: "succeeded" in _states_of(handle, "umbel.cancel"), "the group was cancelled")
    world.signal(held).set()
    first, second = handle.get(timeout=30)
    assert isinstance(first, NodeFailed)
    assert second == 1


def test_cancelling_does_not_wait_behind_the_members(tmp_path: Path) -> None:  # row 36
    url = f"sqlite:///{tmp_path}/u.db?synchronous=off"
    with running_world(url, io=1, cpu=1) as world:
        noted, held = label(), label()
        first = chain(world.held.s(None, held), world.fail.s())
        handle = group(
            first, *[world.noted.s(n, noted).options(delay=0.001) for n in range(100)],
            errors="cancel",
        ).options(priority=5).delay()  # fmt: skip
        world.signal(held).set()
        world.ended(handle)
        graph = world.ended(group(world.fail.s(), *[world.noted.s(n, held) for n in range(100)],
                                  errors="cancel").delay())  # fmt: skip
        assert graph.counts()["cancelled"] > 50


@pytest.mark.parametrize(
    "members",
    [
        lambda w: [w.add.s(1, 1), w.fail.s()],
        lambda w: [w.fail.s(), w.fail.s()],
        lambda w: [chain(w.fail.s(), w.same.s(), w.same.s()), w.add.s(1, 1)],
        lambda w: [group(w.fail.s(), w.add.s(1, 1)), w.add.s(1, 1)],
        lambda w: [w.fail.map([1, 2]), chain(w.numbers.s(2), w.fail.map())],
    ],
)
def test_a_failure_takes_its_place_in_a_collected_list(
    world: CanvasWorld, members: Callable[[CanvasWorld], Any]
) -> None:  # row 37
    handle = group(members(world), errors="collect").delay()
    found = handle.get(timeout=30)
    failed = ["fail" in repr(member) for member in members(world)]
    for value in found:
        assert value == 2 or (isinstance(value, NodeFailed) and "fail" in value.node), failed
    assert any(isinstance(value, NodeFailed) for value in found)
    assert handle.state is State.SUCCEEDED


def test_a_body_gets_failures_in_place(world: CanvasWorld) -> None:  # row 37
    kinds: list[Any] = []
    app = world.app

    async def look(found: list[int | NodeFailed]) -> list[str]:
        kinds.extend(found)
        return [type(one).__name__ for one in found]

    task = app.task(name=f"look-{fresh_id()}")(look)
    canvas = group(world.add.s(1, 1), chain(world.fail.s(), world.same.s()), errors="collect")
    assert (canvas | task.s()).delay().get(30) == ["int", "NodeFailed"]
    (failure,) = [one for one in kinds if isinstance(one, NodeFailed)]
    assert failure.node == "0.1.0 fail"
    assert failure.error == "ValueError: no"
    assert world.app.handle(failure.job).state is State.BURIED


def test_collected_failures_of_nested_groups_and_maps_stay_in_place(world: CanvasWorld) -> None:
    inner = group(world.fail.s(), world.add.s(1, 1), errors="collect")
    found = group(inner, world.add.s(2, 2), inner | world.same.s()).delay().get(30)
    assert isinstance(found[0][0], NodeFailed)
    assert (found[0][1], found[1], found[2][1]) == (2, 4, 2)
    mapped = (world.same.s([0, "x", 2]) | world.double.map(errors="collect")).delay().get(30)
    assert (mapped[0], mapped[2]) == (0, 4)
    assert isinstance(mapped[1], NodeFailed)


def test_a_failure_before_a_collecting_group_fails_the_chain(world: CanvasWorld) -> None:
    group_of = group(world.same.s(), world.same.si(1), errors="collect")
    for canvas in (
        world.fail.s() | group_of,
        world.fail.s() | group_of | world.same.s(),
        world.fail.s() | group_of | group_of | world.same.s(),
        world.fail.s() | world.same.map(errors="collect"),
        group(world.fail.s(), world.add.s(1, 1)) | group_of,
        world.fail.s() | group(group_of, world.same.s()),
    ):
        handle = canvas.delay()
        with pytest.raises(ValueError, match="no"):
            handle.get(timeout=30)
        assert world.ended(handle).state is State.BURIED


def test_each_kind_of_end_arrives_as_a_failure_with_its_reason(tmp_path: Path) -> None:  # row 38
    def prepare(world: CanvasWorld) -> None:
        app = world.app

        @app.task(name="slow", timeout=0.05, retry=0)
        async def slow() -> None:
            await world.signal("never").seen()

        @app.task(name="keyed", unique=True)
        async def keyed() -> None: ...

        @app.task(name="routed", affinity="key", only_if_routed=True)
        async def routed(key: str) -> None: ...

        @app.task(name="large", retry=0)
        async def large() -> str:
            return "x" * 2_000_000

        @app.task(name="odd", retry=0)
        async def odd() -> Any:
            return object()

        world.tasks = (slow, keyed, routed, large, odd)  # type: ignore[attr-defined]

    with running_world(f"sqlite:///{tmp_path}/u.db?synchronous=off", prepare) as world:
        slow, keyed, routed, large, odd = world.tasks  # type: ignore[attr-defined]
        held = keyed.options(delay=600).delay()
        waiting = world.same.s(7).options(delay=600)
        handle = group(
            world.same.s(1).options(expires=0.001, delay=1),
            slow.s(),
            keyed.s(),
            routed.s("nowhere"),
            large.s(),
            odd.s(),
            waiting,
            world.fail.s(why="oh"),
            errors="collect",
        ).delay()
        (cancelled,) = [n for n in handle.graph.tasks() if n.path == "6"]
        assert world.app.handle(cancelled.job).cancel("not today")
        found = handle.get(30)
        texts = [one.error for one in found]
        wanted = [
            "expired", "timed out", held.id, "no worker has", "2,000,002 bytes", "no wire form",
            "not today", "ValueError: oh",
        ]  # fmt: skip
        assert [(t, w) for t, w in zip(texts, wanted, strict=True) if w not in t] == []
        assert "result of large" in texts[4]
        assert "pass a reference" in texts[4]
        assert "result of odd" in texts[5] or "odd" in found[5].node
        body = label()
        one = group(keyed.s()) | world.noted.s(body)
        with pytest.raises(NodeFailed, match=held.id):
            one.delay().get(30)
        assert not world.notes[body]


def test_a_node_whose_task_no_worker_knows_waits_visibly(tmp_path: Path) -> None:  # row 40
    url = f"sqlite:///{tmp_path}/u.db?synchronous=off"
    with running_world(url) as world:
        other = Umbel(url, namespace=world.app.settings.namespace)

        @other.task(name="unknown")
        async def unknown(value: Any) -> Any:
            return value

        @other.task(name="same")
        async def same(value: Any = None) -> Any:
            return value

        handle = chain(same.s(1), unknown.s(), same.s()).delay()
        live = (State.QUEUED, State.WAITING, State.SCHEDULED)
        until(lambda: node_of(handle.graph, "unknown").state in live, "the node to wait")
        until(lambda: "unknown" in str(ask(other, lambda o: o.missing_tasks())), "the report")
        assert not handle.state.finished
        assert not node_of(handle.graph, "unknown").failed
        other.close()


def test_the_error_of_an_unknown_class_has_its_text(world: CanvasWorld, tmp_path: Path) -> None:
    class Own(Exception):
        pass

    @world.app.task(name=f"own-{fresh_id()}", retry=0)
    async def own() -> None:
        raise Own("something special")

    with pytest.raises(Exception, match="something special"):  # row 41
        (own.s() | world.same.s()).delay().get(30)
    (found,) = group(own.s(), errors="collect").delay().get(30)
    assert "Own: something special" in found.error


def test_arguments_that_no_longer_fit_fail_the_node(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/u.db?synchronous=off"
    with running_world(url) as world:
        old = Umbel(url, namespace=world.app.settings.namespace)

        @old.task(name="double")
        def double(number: str, more: int) -> int:
            return 1

        @old.task(name="answer")
        async def answer(number: int) -> int:
            return number

        for canvas in (
            double.s("x", 1),
            answer.s(double.s("5", 2).result),
            answer.s(1) | double.si("a", 1),
        ):
            handle = group(canvas).delay()
            with pytest.raises(UmbelError, match=r"does not fit|no place|too many"):
                handle.get(30)
            failure = handle.record().failure
            assert failure is not None
            assert failure.node.rpartition(" ")[2] in ("double", "answer")
        old.close()


# --- handlers --------------------------------------------------------------------------------


def test_a_handler_of_a_node_runs_once_after_the_last_attempt(world: CanvasWorld) -> None:
    handled, fine = label(), label()  # row 42
    node = world.flaky.s(1, 9).on_error(world.handle.s(handled))
    good = world.flaky.s(1, 2).on_error(world.handle.s(fine))
    handle, other = chain(node, world.same.s()).delay(), good.delay()
    with pytest.raises(ConnectionError):
        handle.get(30)
    world.ended(handle)
    assert other.get(30) == 1
    world.ended(other)
    (failure,) = world.notes[handled]
    assert failure.node == "0 flaky"
    assert failure.error == "ConnectionError: attempt 4"
    assert not world.notes[fine]


@pytest.mark.parametrize("errors", ["fail", "cancel"])
def test_a_handler_of_a_scope_runs_once_however_many_failed(
    world: CanvasWorld, errors: Any
) -> None:  # row 43
    for form in (
        lambda: group([world.fail.s(why=str(n)) for n in range(4)], errors=errors),
        lambda: chain(world.fail.s(), world.same.s(), world.same.s()),
        lambda: chord([world.fail.s(), world.fail.s()], world.same.s(), errors=errors),
        lambda: world.fail.map([1, 2, 3], errors=errors),
        lambda: chain(world.numbers.s(3), world.fail.map(errors=errors)),
        lambda: chunks(world.fail, [(1,), (2,)], 1, errors=errors),
        lambda: world.same.s(world.fail.s().result),
    ):
        handled = label()
        handle = form().on_error(world.handle.s(handled)).delay()
        with pytest.raises(ValueError, match=r"no|\d"):
            handle.get(30)
        world.ended(handle)
        (failure,) = world.notes[handled]
        assert " fail" in failure.node


def test_the_failure_has_the_others_in_the_order_of_time(world: CanvasWorld) -> None:
    handled, first, second = label(), label(), label()
    members = [chain(world.held.s(None, one), world.fail.s(why=one)) for one in (first, second)]
    handle = group(members[::-1]).on_error(world.handle.s(handled)).delay()
    world.noted_at(f"{first} started")
    world.signal(first).set()
    until(lambda: any(node.failed for node in handle.graph.nodes), "the first failure")
    world.signal(second).set()
    (failure,) = world.noted_at(handled)
    assert first in failure.error
    assert [second in other.error for other in failure.others] == [True]


def test_handlers_at_several_levels_each_run_once(world: CanvasWorld) -> None:  # rows 44, 45
    levels = [label() for _ in range(4)]
    node = world.fail.s().on_error(world.handle.s(levels[0]))
    inner = chord([node, world.add.s(1, 1)], world.same.s()).on_error(world.handle.s(levels[1]))
    outer = group(inner, world.add.s(1, 1)).on_error(world.handle.s(levels[2]))
    whole = (outer | world.same.s()).on_error(world.handle.s(levels[3]))
    handle = whole.on_error(world.handle.s(levels[3])).delay()
    with pytest.raises(ValueError, match="no"):
        handle.get(30)
    world.ended(handle)
    assert [len(world.notes[level]) for level in levels] == [1, 1, 1, 2]
    nodes = {failure.node for level in levels for failure in world.notes[level]}
    assert nodes == {"0.0.0.0 fail"}


def test_a_handler_that_fails_is_buried_alone(world: CanvasWorld) -> None:  # row 46
    handled = label()
    canvas = (
        world.fail.s().on_error(world.fail.s(why="the handler")).on_error(world.handle.s(handled))
    )
    handle = (canvas | world.same.s()).delay()
    with pytest.raises(ValueError, match=r"^no"):
        handle.get(30)
    graph = world.ended(handle)
    assert len(world.notes[handled]) == 1
    buried = [node for node in graph.nodes if node.failed]
    assert sorted((node.handler, node.task) for node in buried) == [(False, "fail"), (True, "fail")]
    assert "no" in graph.error


def test_a_handler_may_retry_and_be_a_canvas(world: CanvasWorld) -> None:  # row 47
    after, branch = label(), label()
    canvas = chain(
        world.flaky.s(1), group(world.noted.s(branch), world.noted.s(branch)), world.noted.s(after)
    )
    handle = (world.fail.s() | world.same.s()).on_error(canvas).delay()
    until(lambda: world.notes[after], "the canvas of the handler")
    world.ended(handle)
    assert len(world.notes[branch]) == 2
    assert [one["node"] for one in world.notes[branch]] == ["0 fail"] * 2


def test_a_handler_covers_only_its_part(world: CanvasWorld) -> None:  # row 49
    def handlers() -> tuple[str, Any]:
        name = label()
        return name, world.handle.s(name)

    (before, a), (inner, b), (whole, c), (leaf, d) = (handlers() for _ in range(4))
    first = chain(world.add.s(1, 1), world.same.s()).on_error(a)
    second = chain(world.same.s(), world.same.s().on_error(d)).on_error(b)
    handle = (first | world.fail.s() | second | world.same.s()).on_error(c).delay()
    with pytest.raises(ValueError, match="no"):
        handle.get(30)
    graph = world.ended(handle)
    assert [len(world.notes[name]) for name in (before, inner, whole, leaf)] == [0, 0, 1, 0]
    assert [node.path for node in graph.nodes if node.failed] == ["1"]

    (inner, b), (whole, c) = handlers(), handlers()
    extended = (world.fail.s() | world.same.s()).on_error(b) | world.same.s()
    world.ended(extended.on_error(c).delay())
    assert [len(world.notes[name]) for name in (inner, whole)] == [1, 1]


def test_a_handler_of_a_fork_covers_its_branches(world: CanvasWorld) -> None:  # rows 28, 43
    note = label()
    fails = fork(world.fail.s(), world.double.s(), world.fail.s()).on_error(world.handle.s(note))
    handle = (world.add.s(1, 2) | fails | world.double.s()).delay()
    assert handle.get(timeout=30) == 6
    assert world.ended(handle).state is State.SUCCEEDED
    (failure,) = world.notes[note]
    assert isinstance(failure, NodeFailed)
    assert len(failure.others) == 1


def test_a_handler_of_an_empty_group_does_not_run(world: CanvasWorld) -> None:
    handled = label()
    canvas = world.add.s(1, 1) | group().on_error(world.handle.s(handled)) | world.same.s()
    handle = canvas.on_error(world.handle.s(handled)).delay()
    assert handle.get(30) == []
    world.ended(handle)
    assert not world.notes[handled]
    failing = (world.fail.s() | group()).on_error(world.handle.s(handled)).delay()
    world.ended(failing)
    assert len(world.notes[handled]) == 1


def test_a_handler_of_a_collecting_group_does_not_run(world: CanvasWorld) -> None:
    handled, whole = label(), label()
    collecting = group(world.fail.s(), errors="collect").on_error(world.handle.s(handled))
    world.ended((world.add.s(1, 1) | collecting).on_error(world.handle.s(whole)).delay())
    assert (world.notes[handled], world.notes[whole]) == ([], [])
    world.ended((world.fail.s() | collecting).on_error(world.handle.s(whole)).delay())
    assert (world.notes[handled], len(world.notes[whole])) == ([], 1)


def test_a_handler_cannot_wait_for_other_nodes(world: CanvasWorld) -> None:
    one = world.add.s(1, 2)
    with pytest.raises(ConfigurationError, match="handler cannot wait"):
        group(one, world.fail.s().on_error(world.add.s(one.result))).delay()


def test_a_handler_may_have_handlers_and_groups(world: CanvasWorld) -> None:
    handled = label()
    handler = group(world.same.s(), world.fail.s(why="second"), errors="cancel").on_error(
        world.handle.s(handled)
    )
    handle = world.fail.s(why="first").on_error(handler).delay()
    with pytest.raises(ValueError, match="first"):
        handle.get(30)
    (failure,) = world.noted_at(handled)
    assert "second" in failure.error
    world.ended(handle)


# --- retries -----------------------------------------------------------------------------------


def test_a_member_that_retries_does_not_arrive(world: CanvasWorld) -> None:  # rows 50, 51
    body = label()
    handle = (
        group(world.flaky.s(1, 3), world.flaky.s(2, 1) | world.flaky.s(2), errors="collect")
        | world.noted.s(body)
    ).delay()
    assert handle.get(30) == [1, 2]
    assert world.notes[body] == [[1, 2]]


def test_a_member_that_snoozes_does_not_arrive(world: CanvasWorld) -> None:  # row 50
    tries = label()

    @world.app.task(name=f"snoozing-{fresh_id()}")
    async def snoozing(value: Any) -> Any:
        world.note(tries, value)
        if len(world.notes[tries]) < 3:
            raise Snooze(0.01)
        return value

    chunked = chunks(world.same, [(1,)], 1)
    assert (group(snoozing.s(5), chunked) | world.same.s()).delay().get(30) == [5, [1]]
    assert len(world.notes[tries]) == 3


def test_a_call_of_a_chunk_that_fails(world: CanvasWorld) -> None:  # row 26
    tries = label()

    @world.app.task(name=f"chunked-{fresh_id()}", retry=5)
    async def chunked(value: int, fails: bool) -> int:
        world.note(tries, value)
        if fails:
            raise ValueError(f"call {value}")
        return value

    few = chunked.options(retry=Retry(1, first=0.01))
    calls = [(1, False), (2, True), (3, False)]
    found = chunks(few, calls, 3, errors="collect").delay().get(30)
    assert (found[0], found[2]) == (1, 3)
    assert found[1].error == "ValueError: call 2"
    assert found[1].node.startswith("0.0[1] chunked")
    assert world.notes[tries] == [1, 2, 1, 2, 3]
    with pytest.raises(ValueError, match="call 2"):
        chunks(few, calls, 3).delay().get(30)

    @world.app.task(name=f"poisoned-{fresh_id()}", retry=5)
    def poisoned(value: int) -> int:
        with poisonous():
            if value == 2:
                raise ValueError("poison")
        return value

    found = chunks(poisoned, [(1,), (2,), (3,)], 3, errors="collect").delay().get(30)
    assert (found[0], found[2], found[1].error) == (1, 3, "ValueError: poison")


@pytest.mark.parametrize("way", ["replace", "finish", "snooze"])
def test_a_call_of_a_chunk_that_changes_the_graph(world: CanvasWorld, way: str) -> None:
    tries = label()

    @world.app.task(name=f"changing-{fresh_id()}", retry=0)
    async def changing(value: int) -> Any:
        world.note(tries)
        if way == "replace":
            return current.replace(world.add.s(1, value))
        if way == "finish":
            return current.finish(value)
        if len(world.notes[tries]) == 1:
            raise Snooze(0.01)
        return value

    errors: Any = "fail" if way == "replace" else "collect"
    handle = chunks(changing, [(1,), (2,)], 2, errors=errors).delay()
    if way == "replace":
        with pytest.raises(UmbelError, match="map"):
            handle.get(30)
    else:
        assert handle.get(30) == [1, 2]


# --- cancelling ----------------------------------------------------------------------------------


def test_cancel_stops_all_and_runs_no_handler(world: CanvasWorld) -> None:  # row 72
    held, handled, body = label(), label(), label()
    handler = world.handle.s(handled)
    canvas = chain(
        group(
            world.held.s(1, held).on_error(handler),
            world.held_thread.s(2, held),
            *[world.noted.s(n, body).options(delay=600).on_error(handler) for n in range(5)],
        ).on_error(handler),
        fork(world.noted.s(body)),
        world.noted.s(body),
    ).on_error(handler)
    handle = canvas.delay()
    world.noted_at(f"{held} started", 2)
    assert handle.cancel("enough")
    with pytest.raises(JobCancelled, match="enough"):
        handle.get(30)
    graph = world.ended(handle)
    assert {str(node.state) for node in graph.nodes} == {"cancelled"}
    assert (world.notes[handled], world.notes[body], world.notes[f"{held} ended"]) == ([], [], [])


def test_a_cancelled_graph_of_many_nodes_runs_no_handler(world: CanvasWorld) -> None:
    handled = label()
    handler = world.handle.s(handled)
    members = [world.same.s(n).options(delay=600).on_error(handler) for n in range(700)]
    handle = group(members).on_error(handler).delay()
    assert handle.cancel()
    graph = world.ended(handle)
    assert {str(node.state) for node in graph.nodes} == {"cancelled"}
    assert not world.notes[handled]


def test_no_body_starts_after_cancel_returned_true(world: CanvasWorld) -> None:  # row 73
    for number in range(20):
        body = label()
        handle = chord([world.same.s(n) for n in range(4)], world.noted.s(body)).delay()
        if number % 2:
            until(lambda h=handle: h.graph.progress[0] > 1, "some members")  # type: ignore[misc]
        won = handle.cancel()
        started = node_of(handle.graph, "noted").started is not None
        graph = world.ended(handle)
        if won:
            assert handle.state is State.CANCELLED
            # It runs at most if a worker had claimed it before.
            assert (node_of(graph, "noted").started is not None) == started
            assert started or not world.notes[body]
        else:
            assert handle.get(30) == [0, 1, 2, 3]


# --- other backends -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["postgres", "redis", "rabbitmq+postgres"])
def test_failures_have_the_same_effects_on_each_backend(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as (backend, _):
        store = {} if backend.broker == backend.store else {"store": backend.store}
        settings = {"namespace": backend.namespace, **store}
        with running_world(backend.broker, settings=settings) as world:
            test_a_failure_cancels_the_rest_of_a_chain_and_names_the_node(world)
            test_cancel_stops_running_members_and_cancels_queued_ones(world)
            test_handlers_at_several_levels_each_run_once(world)
            test_a_handler_covers_only_its_part(world)
            test_collected_failures_of_nested_groups_and_maps_stay_in_place(world)
            test_a_failure_before_a_collecting_group_fails_the_chain(world)
            test_cancel_stops_all_and_runs_no_handler(world)
            test_no_body_starts_after_cancel_returned_true(world)

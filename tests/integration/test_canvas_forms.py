"""The forms of a canvas: what each runs, and its result. The rows are those of CANVAS.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from integration.backends import opened
from integration.canvas_world import CanvasWorld, label, running_world, states
from integration.running import ask
from umbel import Umbel, chain, chord, chunks, fork, group
from umbel.backends import JobFilter
from umbel.errors import (
    BadArguments,
    ConfigurationError,
    NotEncodable,
    UmbelError,
    UnknownJob,
)
from umbel.graphs.drawing import mermaid
from umbel.messages import NODE_HEADER, fresh_id

Graphs = dict[str, tuple[Any, Any]]


def forms(w: CanvasWorld) -> Graphs:
    """Return canvases of all forms, with their results."""
    add, double, total, numbers, same = w.add, w.double, w.total, w.numbers, w.same
    shared = add.s(1, 2)
    inner = chain(add.s(1, 1), double.s())
    return {
        "chain": (chain(add.s(1, 2), add.s(3), double.s()), 12),
        "nested chain": (chain(add.s(1, 2), chain(add.s(3), chain(double.s()))), 12),
        "pipe": (add.s(1, 2) | add.s(3) | double.s(), 12),
        "chain of one": (chain(add.s(1, 2)), 3),
        "chain of a list": (chain([add.s(1, 2), double.s()]), 6),
        "si": (add.s(1, 2) | add.si(5, 5) | double.s(), 20),
        "None is passed": (w.nothing.s() | same.s(), None),
        "group": (group(add.s(1, 2), add.s(3, 4)), [3, 7]),
        "group of a generator": (group(add.s(n, n) for n in range(3)), [0, 2, 4]),
        "group gets the result": (add.s(1, 1) | group(add.s(1), add.s(2) | double.s()), [3, 8]),
        "group of one is a list": (group(add.s(1, 2)) | same.s(), [3]),
        "empty group": (add.s(1, 2) | group() | total.s(), 0),
        "empty group with a task": (group(group(), add.s(1, 2)), [[], 3]),
        "empty group last": (add.s(1, 2) | group(), []),
        "nested lists": (
            group(group(add.s(1, 1), add.s(2, 2)), group(), add.s(1, 2)), [[2, 4], [], 3],
        ),
        "group after group": (
            group(add.s(1, 1), add.s(2, 2)) | group(total.s(), same.s()), [6, [2, 4]],
        ),
        "chord": (chord([add.s(1, 2), add.s(3, 4)], total.s()), 10),
        "chord without header": (chord([], total.s()), 0),
        "chord with a chain": (chord([add.s(1, 2)], total.s() | double.s()), 6),
        "chord with a group": (chord([add.s(1, 2)], group(total.s(), same.s())), [3, [3]]),
        "chord with a chord": (chord([add.s(1, 2)], chord([total.s(), total.s()], total.s())), 6),
        "chord of canvases": (
            chord([inner, group(add.s(1, 1), add.s(2, 2)) | total.s(), double.map([1])], same.s()),
            [4, 6, [2]],
        ),
        "after a chord": (chord([add.s(1, 2), add.s(3, 4)], total.s()) | double.s(), 20),
        "map": (double.map([1, 2, 3]), [2, 4, 6]),
        "map of nothing": (double.map([]), []),
        "map over a result": (numbers.s(5) | double.map() | total.s(), 20),
        "map over a signature": (double.map(numbers.s(3)), [0, 2, 4]),
        "map over a result used as an argument": (double.map(numbers.s(3).result), [0, 2, 4]),
        "map over an empty result": (numbers.s(0) | double.map() | total.s(), 0),
        "map of a group": (group(add.s(1, 1), add.s(2, 2)) | double.map(), [4, 8]),
        "map in map": (
            group(numbers.s(2), numbers.s(3)) | same.map() | same.map(), [[0, 1], [0, 1, 2]],
        ),
        "map with a limit": (numbers.s(7) | double.map(limit=2), [0, 2, 4, 6, 8, 10, 12]),
        "map in a group": (numbers.s(3) | group(double.map(), total.s()), [[0, 2, 4], 3]),
        "starmap": (add.starmap([(1, 2), (3, 4)]), [3, 7]),
        "starmap over a result": (
            group(numbers.s(2), same.s([4, 5])) | add.starmap(), [1, 9],
        ),
        "chunks": (chunks(add, [(n, n) for n in range(25)], 10), [2 * n for n in range(25)]),
        "chunks in a chain": (chunks(add, [(n, n) for n in range(25)], 10) | total.s(), 600),
        "chunks over a result": (
            chunks(add, same.s([[n, n] for n in range(25)]), 10), [2 * n for n in range(25)],
        ),
        "chunks of nothing": (chunks(add, [], 10), []),
        "fork": (add.s(1, 2) | fork(double.s(), double.s() | double.s()) | add.s(1), 4),
        "fork last": (add.s(1, 2) | fork(double.s()), 3),
        "fork in a group": (add.s(1, 1) | group(double.s() | fork(double.s()), same.s()), [4, 2]),
        "edge": (add.s(add.s(1, 2).result, 3), 6),
        "edges": (add.s(add.s(1, 2), add.s(4, 5).result), 12),
        "keyword edge": (add.s(1, b=add.s(4, 5).result), 10),
        "edge to a group": (total.s(group(add.s(1, 2), add.s(3, 4)).result), 10),
        "edge in a list": (total.s([add.s(1, 2).result, 4, double.s(3).result]), 13),
        "edge in a dict": (same.s({"a": [add.s(1, 2).result], "b": 1}), {"a": [3], "b": 1}),
        "edge to a shared node": (add.s(shared.result, shared.result), 6),
        "edge to a part of the chain": (
            chain(shared, double.s(), add.s(shared.result)), 9,
        ),
        "edge to an inner chain": (group(inner | double.s(), add.s(inner.result, 1)), [8, 5]),
        "map of edges": (double.map([shared, 4]), [6, 8]),
        "limit of a group": (group([add.s(n, n) for n in range(6)], limit=2), [0, 2, 4, 6, 8, 10]),
        "limit after a group": (
            group(add.s(1, 1), add.s(2, 2), add.s(0, 0)) | group([total.s()] * 5, limit=2),
            [6] * 5,
        ),
        "deep": (
            group(
                chain(
                    group(
                        chain(add.s(1, 1), group(add.s(1), chain(double.s(), add.s(1)))),
                        same.s(5),
                    ),
                    same.s(),
                ),
                numbers.s(3) | double.map() | total.s(),
            ),
            [[[3, 5], 5], 6],
        ),
        "unicode": (chain(w.text.s("ä😀\n\"<b>"), same.s()), 'ä😀\n"<b>'),
        "collect": (group(add.s(1, 2), add.s(3, 4), errors="collect") | total.s(), 10),
        "cancel": (group(add.s(1, 2), add.s(3, 4), errors="cancel") | total.s(), 10),
    }  # fmt: skip


def check(world: CanvasWorld, graphs: Graphs) -> None:
    """Publish graphs, all at once, and compare their results."""
    handles = {name: canvas.delay() for name, (canvas, _) in graphs.items()}
    found: dict[str, Any] = {}
    for name, handle in handles.items():
        try:
            found[name] = handle.get(timeout=60)
        except UmbelError as error:
            found[name] = error
    wanted = {name: result for name, (_, result) in graphs.items()}
    assert {k: v for k, v in found.items() if v != wanted[k]} == {}


def test_each_form_has_the_result_of_plain_python(world: CanvasWorld) -> None:
    check(world, forms(world))


SUBSET = (
    *("chain", "si", "group gets the result", "nested lists", "chord", "empty group"),
    *("map over a result", "chunks over a result", "fork", "edge to a shared node", "deep"),
    *("map with a limit", "limit of a group", "collect"),
)


@pytest.mark.parametrize("kind", ["postgres", "redis", "rabbitmq+postgres"])
def test_each_form_has_the_same_result_on_each_backend(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as (backend, _):
        store = {} if backend.broker == backend.store else {"store": backend.store}
        settings = {"namespace": backend.namespace, **store}
        with running_world(backend.broker, settings=settings) as world:
            every = forms(world)
            check(world, {name: every[name] for name in SUBSET})


# --- chains ----------------------------------------------------------------------------------


def test_a_nested_chain_is_flat(world: CanvasWorld) -> None:  # row 1
    flat = (world.add.s(1, 2) | chain(world.add.s(3), chain(world.double.s()))).delay()
    assert [*states(world.ended(flat))] == ["0", "1", "2"]


def test_a_chain_of_nothing_is_an_error_when_it_is_built() -> None:  # row 2
    with pytest.raises(ValueError, match="at least one signature"):
        chain()
    with pytest.raises(ConfigurationError, match="fork"):
        chain(fork())


def test_a_task_without_parameters_cannot_get_a_result(world: CanvasWorld) -> None:  # row 4
    with pytest.raises(BadArguments, match=r"node 1: answer.*\.si\("):
        (world.nothing.s() | world.answer.s()).delay()


def test_an_argument_of_delay_goes_to_each_head_and_no_other(world: CanvasWorld) -> None:  # row 5
    add, same = world.add, world.same
    canvas = group(
        add.s(1), chain(add.s(2), add.s(3)), group(same.s(), add.si(5, 5)), world.double.map([7])
    )
    assert canvas.delay(10).get(30) == [11, 15, [10, 10], [14]]
    assert chain(add.s(1), add.s(1)).delay(1).get(30) == 3
    assert add.s(1).delay(2).get(30) == 3
    assert (world.double.map() | world.total.s()).delay([1, 2]).get(30) == 6
    with pytest.raises(BadArguments, match=r"node 0\.0"):
        group(chain(add.s(1, 2), same.s())).delay(1)


def test_operands_stay_as_they_were(world: CanvasWorld) -> None:  # row 6
    first = world.add.s(1, 2)
    left = chain(first, world.double.s())
    longer, handled = left | world.double.s(), left.on_error(world.handle.s("x"))
    delayed = left.options(priority=3)
    assert (first.handlers, left.handlers) == ((), ())
    assert left.call_options.priority is None
    assert (len(left.parts), len(longer.parts)) == (2, 3)
    assert handled.handlers
    assert delayed.call_options.priority == 3
    assert first.on_error(world.handle.s("x")) is not first
    assert left.delay().get(30) == 6


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda w: w.add.s(1, 2) | w.add.s(1, 2), ["node 1", ".si("]),
        (lambda w: w.add.s(1, 2) | w.answer.s(), ["node 1", ".si("]),
        (lambda w: group(w.add.s(1), w.add.s(1, 2)), ["node 0", "'b'"]),
        (lambda w: w.answer.s() | group(w.add.s(1), w.add.si(1, 1), w.add.s(1, 2)), ["node 1.2"]),
        (lambda w: w.text.s("x") | w.double.s(), ["node 1", "double", "int", "str"]),
        (lambda w: w.double.map(["x"]), ["node 0.0", "number", "str"]),
        (lambda w: w.add.starmap([(1, 2), (3,)]), ["node 0.1", "'b'"]),
        (lambda w: w.add.starmap([(1, 2), 3]), ["item 3", "tuple"]),
        (lambda w: chunks(w.add, [(1, 2), (3,)], 1), ["node 0.1", "'b'"]),
        (lambda w: w.same.s(1) | w.same.si(object()), ["node 1", "object"]),
        (lambda w: chain(w.same.s(float("nan")), w.same.s()), ["node 0", "NaN"]),
        (lambda w: w.add.s(w.text.s("x").result, 1), ["node 0", "int", "str"]),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_with_the_node_and_nothing_is_stored(
    tmp_path: Path, wrong: Callable[[CanvasWorld], Any], words: list[str]
) -> None:  # row 7
    world = CanvasWorld(Umbel(f"sqlite:///{tmp_path}/u.db", namespace="one"))
    with pytest.raises((BadArguments, NotEncodable)) as refused:
        wrong(world).delay()
    text = " ".join([str(refused.value), *getattr(refused.value, "__notes__", [])])
    assert [word for word in words if word not in text] == [], text
    assert ask(world.app, lambda operations: operations.jobs(JobFilter(limit=10))) == []
    world.app.close()


def test_long_chains_are_built_and_published_in_linear_time(tmp_path: Path) -> None:  # row 8
    url = f"sqlite:///{tmp_path}/u.db?synchronous=off"
    world = CanvasWorld(Umbel(url, namespace="one", deadline=30))
    link = world.add.s(1)
    handle = chain([world.add.s(0, 0), *[link] * 9_999]).delay()
    assert len(handle.graph.tasks()) == 10_000
    longer: Any = world.add.s(0, 0)
    for _ in range(10_000):
        longer |= link
    assert len(longer.parts) == 10_001
    edges: Any = world.add.s(0, 0)
    for _ in range(1_000):
        edges = world.add.s(edges.result, 1)
    assert len(edges.delay().graph.tasks()) == 1_001
    world.app.close()


# --- groups and chords -------------------------------------------------------------------------


def test_a_generator_that_raises_publishes_nothing(world: CanvasWorld) -> None:  # row 9
    def broken() -> Iterator[Any]:
        yield world.add.s(1, 2)
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        group(broken())


def test_each_node_between_two_groups_runs_once(world: CanvasWorld) -> None:  # row 14
    noted = world.noted
    first, second = label(), label()
    canvas = group(*[noted.s(n, first) for n in range(3)]) | group(
        *[noted.s(second) for _ in range(3)]
    )
    assert canvas.delay().get(30) == [[0, 1, 2]] * 3
    assert sorted(world.notes[first]) == [0, 1, 2]
    assert world.notes[second] == [[0, 1, 2]] * 3


def test_a_chord_is_a_group_and_its_body(world: CanvasWorld) -> None:  # row 16
    header = [world.add.s(1, 2), world.add.s(3, 4)]
    one = world.ended(chord(header, world.total.s()).delay())
    other = world.ended((group(header) | world.total.s()).delay())
    assert (states(one), len(one.nodes)) == (states(other), len(other.nodes))
    assert [node.task for node in one.tasks()] == [node.task for node in other.tasks()]
    assert mermaid(one) == mermaid(other)


def test_the_body_is_queued_once_and_no_job_polls(world: CanvasWorld) -> None:  # rows 15, 20, 21
    body, after = label(), label()
    canvas = chord([world.double.s(n) for n in range(20)], world.noted.s(body))
    graph = world.ended((canvas | world.noted.s(after)).delay())
    assert [len(world.notes[one]) for one in (body, after)] == [1, 1]
    assert len(graph.nodes) == 22


# --- map, chunks, fork -------------------------------------------------------------------------


def test_a_map_has_one_job_for_each_item(world: CanvasWorld) -> None:  # rows 22, 25
    assert len(world.ended(world.double.map(range(7)).delay()).tasks()) == 7
    assert len(world.ended(chunks(world.add, [(1, 1)] * 25, 10).delay()).tasks()) == 3


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "3"])
def test_a_chunk_has_at_least_one_call(world: CanvasWorld, size: Any) -> None:  # row 25
    with pytest.raises(ValueError, match="at least 1"):
        chunks(world.add, [], size)


@pytest.mark.parametrize("items", ["abc", b"abc", {"a": 1}, 5, None])
def test_a_map_over_what_is_no_list_is_refused(world: CanvasWorld, items: Any) -> None:
    with pytest.raises((ConfigurationError, BadArguments), match="list"):
        world.same.map(items).delay()


@pytest.mark.parametrize("value", [5, "abc", {"a": 1}, None])
def test_a_map_over_a_result_that_is_no_list_fails_and_is_named(
    world: CanvasWorld, value: Any
) -> None:  # row 24
    handle = (world.same.s(value) | world.double.map() | world.total.s()).delay()
    with pytest.raises(UmbelError, match="not a list"):
        handle.get(timeout=30)
    assert states(world.ended(handle)) == {"0": "succeeded", "1": "buried", "2": "cancelled"}
    failure = handle.record().failure
    assert failure is not None
    assert failure.node == "1 double"


@pytest.mark.parametrize(
    ("count", "errors"),
    [
        (2_100, "fail"),
        (2_100, "collect"),
        pytest.param(2_000, "cancel", marks=pytest.mark.slow),
    ],
)
def test_a_wide_map_over_a_result_grows_in_steps(
    world: CanvasWorld, count: int, errors: Any
) -> None:  # row 23
    canvas = world.numbers.s(count) | world.same.map(errors=errors) | world.total.s()
    assert canvas.delay().get(timeout=120) == sum(range(count))


def test_a_chain_does_not_wait_for_its_forks(world: CanvasWorld) -> None:  # row 27
    kept = label()
    handle = (world.add.s(1, 2) | fork(world.held.s(kept)) | world.double.s()).delay()
    assert handle.get(timeout=30) == 6
    assert not world.notes[f"{kept} ended"]
    world.signal(kept).set()
    world.ended(handle)
    assert world.notes[f"{kept} ended"] == [3]


def test_a_branch_that_fails_changes_nothing_else(world: CanvasWorld) -> None:  # row 28
    handled = label()
    canvas = world.add.s(1, 2) | fork(world.fail.s(), world.double.s()) | world.double.s()
    handle = canvas.on_error(world.handle.s(handled)).delay()
    assert handle.get(timeout=30) == 6
    graph = world.ended(handle)
    assert str(graph.state) == "succeeded"
    assert [node.task for node in graph.nodes if node.failed] == ["fail"]
    assert not world.notes[handled]


def test_a_fork_needs_a_result_and_branches(world: CanvasWorld) -> None:
    with pytest.raises(ConfigurationError, match="no result before it"):
        chain(fork(world.double.s()))
    with pytest.raises(ConfigurationError, match="part of a chain"):
        group(fork(world.double.s())).delay()
    with pytest.raises(ConfigurationError, match="fork has no result"):
        world.same.s(fork(world.double.s())).delay()


# --- nesting and sharing -----------------------------------------------------------------------


def test_messages_of_nested_chords_are_as_small_as_of_one(world: CanvasWorld) -> None:  # row 30
    canvas: Any = world.add.s(1, 1)
    for _ in range(20):
        canvas = chord([canvas, world.add.s(1, 1)], world.total.s())
    handle = canvas.delay()
    assert handle.get(timeout=60) == 42
    sizes = [
        len(json.dumps(world.app.handle(node.job).record().headers)) for node in handle.graph.nodes
    ]
    assert max(sizes) - min(sizes) < 300


def test_one_signature_at_two_places_is_two_nodes(world: CanvasWorld) -> None:  # row 31
    noted = label()
    one = world.noted.s(5, noted)
    assert group(one, one).delay().get(30) == [5, 5]
    assert world.notes[noted] == [5, 5]


def test_a_result_used_twice_is_one_node(world: CanvasWorld) -> None:  # row 31
    single, grouped = label(), label()
    one = world.noted.s(5, single)
    lists = group(world.noted.s(1, grouped), world.noted.s(2, grouped))
    canvas = group(
        world.add.s(one.result, one.result), world.same.s([lists.result, one]), world.double.s(one)
    )
    assert canvas.delay().get(30) == [10, [[1, 2], 5], 10]
    assert world.notes[single] == [5]
    assert sorted(world.notes[grouped]) == [1, 2]


def test_a_signature_at_two_places_has_no_single_result(world: CanvasWorld) -> None:
    one = world.add.s(1, 2)
    with pytest.raises(ConfigurationError, match=r"node 2.*used twice.*write it twice"):
        group(one, one, world.double.s(one.result)).delay()


def test_a_handle_is_a_member_of_a_group(world: CanvasWorld) -> None:  # row 32
    held = label()
    live, ended, graph = (
        world.held.delay(1, held),
        world.add.delay(1, 1),
        group(world.add.s(1, 2)).delay(),
    )
    ended.get(30)
    handle = (group(live, ended, world.add.s(2, 2), graph) | world.same.s()).delay()
    world.signal(held).set()
    assert handle.get(timeout=30) == [1, 2, 4, [3]]
    assert chord([ended, graph], world.same.s()).delay().get(30) == [2, [3]]


def test_an_unknown_handle_is_an_error_when_it_is_published(world: CanvasWorld) -> None:  # row 32
    unknown = world.app.handle(fresh_id())
    with pytest.raises(UnknownJob):
        group(unknown, world.add.s(1, 2)).delay()


def test_a_failed_handle_is_a_failed_member(world: CanvasWorld) -> None:  # row 32
    failed = world.fail.delay()
    with suppress(ValueError):
        failed.get(30)
    with pytest.raises(ValueError, match="no"):
        (group(failed, world.add.s(1, 2)) | world.total.s()).delay().get(30)
    collected = group(failed, world.add.s(1, 2), errors="collect").delay().get(30)
    assert (collected[0].job, collected[1]) == (failed.id, 3)


def test_cancel_leaves_a_handle_alone(world: CanvasWorld) -> None:  # row 32
    held = label()
    live, other = world.held.delay(1, held), group(world.held.s(2, held), world.add.s(1, 1)).delay()
    world.noted_at(f"{held} started", 2)
    handle = group(live, other, world.add.s(1, 1).options(delay=600)).delay()
    assert handle.cancel()
    world.signal(held).set()
    assert live.get(30) == 1
    assert other.get(30) == [2, 2]


def test_a_group_that_is_cancelled_by_a_failure_leaves_handles_alone(world: CanvasWorld) -> None:
    held = label()
    live, other = world.held.delay(1, held), group(world.held.s(2, held)).delay()
    handle = group(live, other, world.fail.s(), errors="cancel").delay()
    until_cancelled = group(world.fail.s(), errors="cancel").delay()
    world.ended(until_cancelled)
    world.signal(held).set()
    with pytest.raises(ValueError, match="no"):
        handle.get(30)
    assert (live.get(30), other.get(30)) == (1, [2])


def test_a_handle_is_first_in_a_chain_or_refused(world: CanvasWorld) -> None:
    ended = world.add.delay(1, 2)
    parts: list[Any] = [ended, world.double.s()]
    assert chain(parts).delay().get(30) == 6
    with pytest.raises(ConfigurationError, match="handle"):
        chain(parts[::-1]).delay()


def test_a_failure_before_a_handle_fails_the_chain(world: CanvasWorld) -> None:
    ended = world.add.delay(1, 2)
    with pytest.raises(ValueError, match="no"):
        (world.fail.s() | group(ended) | world.total.s()).delay().get(30)


# --- bad input -----------------------------------------------------------------------------------


def test_a_cycle_is_refused_and_both_ends_are_named(world: CanvasWorld) -> None:
    values: list[Any] = []
    first = world.same.s(values)
    second = world.same.s([first.result])
    values.append(second.result)
    with pytest.raises(ConfigurationError, match=r"node \S+ waits for node"):
        group(first, second).delay()


def test_too_many_nodes_are_refused_with_the_remedy(world: CanvasWorld) -> None:
    with pytest.raises(ConfigurationError, match=r"250,000 nodes.*chunks"):
        group([world.nothing.s()] * 1_000_000).delay()


@pytest.mark.parametrize("depth", [150, 300, 20_000])
def test_deep_nesting_works_or_is_refused(world: CanvasWorld, depth: int) -> None:
    canvas: Any = world.add.s(1, 2)
    for _ in range(depth):
        canvas = group(canvas)
    if depth > 200:
        with pytest.raises(ConfigurationError, match="nest it less"):
            canvas.delay()
        return
    found, levels = canvas.delay().get(60), 0
    while isinstance(found, list):
        (found,), levels = found, levels + 1
    assert (found, levels) == (3, depth)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda w: group(5), "give signatures"),
        (lambda w: chain("abc"), "give signatures"),
        (lambda w: chain(w.add), "give signatures"),
        (lambda w: group(w.add.s(1, 2), errors="ignore"), '"collect"'),
        (lambda w: group(w.add.s(1, 2), limit=0), "limit"),
        (lambda w: w.add.s(1, 2).on_error("x"), "on_error"),
        (lambda w: group(w.add.s(1, 2)).on_error(w.handle), "on_error"),
        (lambda w: chunks("add", [], 3), "give a task"),
        (lambda w: w.double.options(unique="x").map([1, 2]), "unique"),
    ],
)
def test_mistakes_are_refused_with_the_remedy(
    world: CanvasWorld, wrong: Callable[[CanvasWorld], Any], words: str
) -> None:
    with pytest.raises((ConfigurationError, BadArguments), match=words):
        wrong(world).delay()


def test_a_node_that_reads_many_results_is_refused_with_the_remedy(world: CanvasWorld) -> None:
    with pytest.raises(ConfigurationError, match="put them into a group"):
        world.total.s([world.add.s(n, n).result for n in range(1_000)]).delay()


# --- drawing -------------------------------------------------------------------------------------


def test_any_name_is_drawn_as_valid_mermaid(tmp_path: Path) -> None:  # row 94
    app = Umbel(f"sqlite:///{tmp_path}/u.db", namespace="one")
    tasks = [app.task(name=name)(_one) for name in ('a"b', "<script>", "😀 ä", "a]]-->b", "#35;")]
    drawn = mermaid(chain([task.s() for task in tasks]).delay().graph)
    for line in drawn.splitlines()[1:]:
        assert line.count('"') in (0, 2), line
    assert "<script" not in drawn
    assert "😀" in drawn
    app.close()


def _one(value: Any = None) -> Any:
    return value


def test_headers_name_the_node_and_no_other(world: CanvasWorld) -> None:
    handle = group([world.add.s(n, n) for n in range(300)]).delay()
    handle.get(60)
    jobs = [world.app.handle(node.job) for node in handle.graph.tasks()]
    assert max(len(job.record().headers[NODE_HEADER]) for job in jobs) < 100


def test_canvases_are_published_together_with_calls(world: CanvasWorld) -> None:
    calls: list[Any] = [world.add.s(1, 2), chain(world.add.s(1, 2), world.double.s())]
    assert [handle.get(30) for handle in world.app.publish_many(calls)] == [3, 6]


def test_a_canvas_without_any_task_is_refused(world: CanvasWorld) -> None:
    with pytest.raises(ConfigurationError, match="give it a signature"):
        group().delay()


def test_what_an_empty_group_follows_is_waited_for_and_shown(world: CanvasWorld) -> None:
    """Also if its failures would be values, so that nothing has to succeed."""
    name = label()
    before = group(world.held.s(1, name), world.add.s(1, 2), errors="collect")
    handle = chain(before, group()).delay()
    world.noted_at(f"{name} started")
    assert len(handle.graph.tasks()) == 2
    assert not handle.state.finished
    world.signal(name).set()
    assert handle.get(timeout=60) == []


def test_a_chain_that_was_finished_ends_also_where_lists_and_results_are_joined(
    world: CanvasWorld,
) -> None:
    name = label()
    none: list[int] = []
    later = chain(
        world.double.map(none, errors="collect"), world.noted.si([world.answer.s()], name)
    )
    handle = chain(world.answer.s(), world.finish.s(), fork(later)).delay()
    assert handle.get(timeout=60) == 42
    world.ended(handle)
    assert world.notes[name] == []

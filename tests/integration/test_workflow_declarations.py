"""What is refused when a workflow is declared, and its version. Rows 80 and 81 of CANVAS.md."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.workflow_world import VirtualWorld, virtual_world
from umbel import Signal, Sleep, chain, fork, group
from umbel.errors import BadArguments, ConfigurationError, UmbelError

Build = Callable[[VirtualWorld], Callable[..., Any]]


@pytest.fixture
def world() -> Iterator[VirtualWorld]:
    with virtual_world() as world:
        yield world


# --- row 80 ----------------------------------------------------------------------------------


def unused_branch(w: VirtualWorld) -> Any:
    def flow(a: int) -> Any:
        w.number.s(a)
        return w.text.s("x")

    return flow


def unused_signal(w: VirtualWorld) -> Any:
    def flow(a: int) -> Any:
        Signal("approved")
        return w.number.s(a)

    return flow


def wrong_edge(w: VirtualWorld) -> Any:
    return lambda a: w.text.s(w.number.s(a))


def wrong_parameter(w: VirtualWorld) -> Any:
    def flow(a: int) -> Any:
        return w.text.s(a)

    return flow


def wrong_signal(w: VirtualWorld) -> Any:
    return lambda a: w.text.s(Signal("approved", type=int))


def wrong_undo(w: VirtualWorld) -> Any:
    return lambda a: w.number.s(a).compensate(w.take_back.s())


def missing_argument(w: VirtualWorld) -> Any:
    return lambda a: w.any_.s(w.number.s())


def too_many_arguments(w: VirtualWorld) -> Any:
    return lambda a: w.any_.s(w.number.s(a, 2))


def no_node(w: VirtualWorld) -> Any:
    return lambda a: [1]


def nothing(w: VirtualWorld) -> Any:
    return lambda a: None


def no_task(w: VirtualWorld) -> Any:
    return lambda: Sleep(5)


def coroutine(w: VirtualWorld) -> Any:
    async def flow(a: int) -> Any:
        return w.number.s(a)

    return flow


def var_args(w: VirtualWorld) -> Any:
    return lambda *values: w.any_.s(1)


def same_signal(w: VirtualWorld) -> Any:
    return lambda a: w.any_.s(Signal("approved"), Signal("approved"))


def same_sub_workflow(w: VirtualWorld) -> Any:
    inner = w.declare(lambda a: w.any_.s(Signal("approved"), a))
    return lambda a: w.any_.s(inner.s(a), inner.s(a))


def inner_limit(w: VirtualWorld) -> Any:
    inner = w.declare(lambda a: w.any_.s(a), limit=5)
    return lambda a: w.any_.s(inner.s(a))


def only_inner_limit(w: VirtualWorld) -> Any:
    inner = w.declare(lambda a: w.any_.s(a), limit=5)
    return lambda a: inner.s(a)


def inner_deadline(w: VirtualWorld) -> Any:
    inner = w.declare(lambda a: w.any_.s(a), deadline=5)
    return lambda a: w.any_.s(inner.s(a))


def result_of_fork(w: VirtualWorld) -> Any:
    return lambda a: w.any_.s(a).after(chain(fork(w.any_.s(1)), w.any_.s(1)))


def none_if_skipped(w: VirtualWorld) -> Any:
    def flow(a: int) -> Any:
        return w.any_.s(1) | chain(w.number.s(2).when(a > 3), Sleep(1), w.number.s())

    return lambda a: w.any_.s(_pair(w, w.number.s(a).when(a > 3), w.any_.s(1)))


def _pair(w: VirtualWorld, first: Any, second: Any) -> Any:
    @w.app.task(name="pair")
    async def pair(first: int, second: Any) -> None: ...

    return pair.s(first, second)


def changing(w: VirtualWorld) -> Any:
    return lambda a: w.any_.s(random.random())


def changing_shape(w: VirtualWorld) -> Any:
    counter = iter(range(100))
    return lambda a: group(w.any_.s(a) for _ in range(next(counter) + 1))


def lambda_condition(w: VirtualWorld) -> Any:
    return lambda a: w.number.s(1).when(lambda: True)


def condition_of_node(w: VirtualWorld) -> Any:
    return lambda a: w.any_.s(w.number.s(1).when(w.number.s(1) == 3))


def two_conditions_with_and(w: VirtualWorld) -> Any:
    return lambda a: w.number.s(1).when(a > 1 and a < 3)


def undo_with_result(w: VirtualWorld) -> Any:
    def flow(a: int) -> Any:
        first = w.any_.s(a)
        return w.step.s("x", first).compensate(w.step.s(first.result))

    return flow


def undo_after(w: VirtualWorld) -> Any:
    return lambda a: w.step.s("x").compensate(w.take_back.s().after(w.number.s(1)))


def undo_arguments(w: VirtualWorld) -> Any:
    return lambda a: w.step.s("x").compensate(w.take_back.s(1, 2))


def signal_in_handler(w: VirtualWorld) -> Any:
    return lambda a: w.number.s(a).on_error(Signal("why"))


def cycle(w: VirtualWorld) -> Any:
    def flow(a: int) -> Any:
        values: list[Any] = [a]
        first = w.step.s("first", values)
        second = w.any_.s(first)
        values.append(second)
        return second

    return flow


def option_of_task(w: VirtualWorld) -> Any:
    return lambda a: w.number.options(colour="red").s(a)


def option_of_canvas(w: VirtualWorld) -> Any:
    return lambda a: chain(w.number.s(a), w.number.s()).options(colour="red")


REFUSED: list[tuple[Build, str]] = [
    (cycle, r"step\.s\(\.\.\.\) waits for any_\.s\(\.\.\.\), which waits for it"),
    (option_of_task, r"line \d+: colour: not an option of a call; the options are queue"),
    (option_of_canvas, r"line \d+: colour: not an option of a canvas; it has delay"),
    (result_of_fork, r"line \d+: fork: there is no result before it"),
    (unused_branch, r"number\.s\(\.\.\.\) is never used"),
    (unused_signal, "signal approved is never used"),
    (wrong_edge, r"argument 0 of text must be str, and node number returns int"),
    (wrong_parameter, r"argument 0 of text must be str, and parameter a is int"),
    (wrong_signal, "argument 0 of text must be str, and node approved returns int"),
    (wrong_undo, r"node number\.undo: argument 0 of take_back must be str, and node number"),
    (missing_argument, "node number: .* missing a required argument: 'value'"),
    (too_many_arguments, r"line \d+: BadArguments: number.* too many positional arguments"),
    (no_node, "return the node with its result"),
    (nothing, "return the node with its result"),
    (no_task, "runs no task"),
    (coroutine, "write it as def"),
    (var_args, r"\*args and \*\*kwargs cannot be parameters"),
    (same_signal, "signal approved is there twice"),
    (same_sub_workflow, "signal approved is there twice"),
    (inner_limit, "it has a limit, which counts only for a run of its own; give the limit to"),
    (only_inner_limit, "it has a limit, which counts only for a run of its own"),
    (inner_deadline, "it has a deadline, which counts only for a run of its own"),
    (none_if_skipped, r"is None if node number is skipped; annotate it as int \| None"),
    (changing, "it gives a different graph each time"),
    (changing_shape, "it gives a different graph each time"),
    (lambda_condition, "a lambda cannot be stored"),
    (condition_of_node, r"line \d+: when\(False\): give a comparison"),
    (two_conditions_with_and, r"line \d+: parameter a > 1 has no value yet.* & and | "),
    (undo_with_result, "an undo gets the result of its node and parameters"),
    (undo_after, "an undo has no after"),
    (undo_arguments, r"line \d+: .*take_back.* too many positional arguments"),
    (signal_in_handler, "a handler cannot begin with a signal"),
]


def test_a_sub_workflow_gets_the_result_of_the_node_before_it_or_ignores_it(
    world: VirtualWorld,
) -> None:
    inner = world.declare(lambda: world.any_.s())
    with_result = chain(world.number.s(1), inner.s()).delay()
    without = chain(world.number.s(1), inner.si()).delay()
    given = inner.si().delay(7)
    world.run()
    assert (with_result.get(), without.get(), given.get()) == (1, [], [])


def test_two_workflows_of_one_file_have_different_names(world: VirtualWorld) -> None:
    def first(a: int) -> Any:
        return world.number.s(a)

    def second(a: int) -> Any:
        return world.text.s("x")

    declared = world.declare(first, name="same")
    with pytest.raises(ConfigurationError, match=r"'same' \(.*first and .*second\); give one of"):
        world.declare(second, name="same")
    assert world.app.workflows["same"] is declared
    assert world.declare(first, name="same") is world.app.workflows["same"]  # as a reload does


def test_a_workflow_may_have_5_000_nodes_in_sequence(world: VirtualWorld) -> None:
    def flow(a: int) -> Any:
        node: Any = world.number.s(a)
        for number in range(2_500):
            node = world.number.s(world.number.s(number).after(node))
        return node

    assert len(world.declare(flow).shape.nodes) == 5_001


@pytest.mark.parametrize(("build", "text"), REFUSED, ids=[build.__name__ for build, _ in REFUSED])
def test_a_wrong_workflow_is_refused_when_it_is_declared(
    world: VirtualWorld, build: Build, text: str
) -> None:
    declared = {**world.app.workflows}
    with pytest.raises(UmbelError, match=text):
        world.declare(build(world), name="wrong")
    assert "wrong" not in world.app.workflows, declared


@pytest.mark.parametrize(
    "call",
    [
        lambda: Signal(""),
        lambda: Signal("x", timeout=0),
        lambda: Signal("x", timeout=-1),
        lambda: Signal("x", timeout=float("nan")),
        lambda: Signal("x", timeout=True),
        lambda: Signal("x", default=1),
        lambda: Signal("x", type=set),
        lambda: Signal("x", timeout=1, type=bool, default="no"),
        lambda: Signal("x", timeout=1, type=int, default=True),
        lambda: Sleep(0),
        lambda: Sleep(-1),
        lambda: Sleep(float("inf")),
        lambda: Sleep("5"),  # type: ignore[arg-type]
        lambda: Signal("x").after(1),  # type: ignore[arg-type]
    ],
)
def test_wrong_options_of_signals_and_sleeps_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"give|needs a timeout|neither"):
        call()


def test_a_deadline_must_be_seconds(world: VirtualWorld) -> None:
    with pytest.raises(ConfigurationError, match="deadline=-1: give seconds"):
        world.declare(lambda: world.number.s(1), deadline=-1)


@pytest.mark.parametrize("limit", [0, -1, True, "2", 2.0, 1_001, 10**9])
def test_a_limit_must_be_a_number_of_runs(world: VirtualWorld, limit: Any) -> None:
    text = rf"limit={limit!r} of workflow wrong: give how many runs .* 1 to 1,000; for more, give"
    with pytest.raises(ConfigurationError, match=text):
        world.declare(lambda: world.number.s(1), name="wrong", limit=limit)
    assert "wrong" not in world.app.workflows


# --- row 81 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda p: bool(p), "if cannot use it; use .*when"),
        (lambda p: list(p), "for cannot use it; use task.map"),
        (lambda p: len(p), r"len\(\) cannot use it; use a task that returns the length"),
        (lambda p: p + 1, "arithmetic cannot use it"),
        (lambda p: 2 * p, "arithmetic cannot use it"),
        (lambda p: -p, "arithmetic cannot use it"),
        (lambda p: int(p), "arithmetic cannot use it"),
        (lambda p: p.total, r"\.total cannot be read; use \['total'\]"),
        (lambda p: p.upper(), r"\.upper cannot be read"),
        (lambda p: p(), "a call cannot use it"),
        (lambda p: f"{p}", "a text cannot use it"),
        (lambda p: str(p), "a text cannot use it"),
        (lambda p: "%s" % p, "a text cannot use it"),  # noqa: UP031
        (lambda p: 3 in p, "for cannot use it"),
        (lambda p: p[1.5], r"\[1.5\] of a value that is not known yet"),
        (lambda p: 1 < p < 5, "has no value yet"),
        (lambda p: range(p), "arithmetic cannot use it"),
        (lambda p: {}[p["x"]], "KeyError"),
    ],
)
def test_a_parameter_used_as_a_value_is_named_with_its_line(
    world: VirtualWorld, use: Callable[[Any], Any], text: str
) -> None:
    def flow(order: dict[str, Any]) -> Any:
        return world.any_.s(use(order))

    line = flow.__code__.co_firstlineno + 1
    with pytest.raises(ConfigurationError, match=rf"workflow w\w+, line {line}: .*{text}"):
        world.declare(flow)


def test_a_result_used_as_a_value_is_named_with_its_line(world: VirtualWorld) -> None:
    def flow() -> Any:
        first = world.number.s(1)
        return world.number.s(first.result + 1)

    line = flow.__code__.co_firstlineno + 2
    with pytest.raises(ConfigurationError, match=rf"line {line}: the result of number.s\(...\)"):
        world.declare(flow)


def test_parameters_are_given_by_position_name_and_default(world: VirtualWorld) -> None:
    def flow(a: int, b: int = 4, *, c: int = 5) -> Any:
        return world.any_.s(a, b, c)

    declared = world.declare(flow)
    for call, wanted in (
        (declared.s(1), [1, 4, 5]),
        (declared.s(1, 2, c=3), [1, 2, 3]),
        (declared.s(b=2, a=1), [1, 2, 5]),
    ):
        assert call.delay().get() == wanted
    for args, kwargs in (((), {}), ((1, 2, 3), {}), ((1,), {"d": 1}), ((None,), {})):
        with pytest.raises(BadArguments, match=declared.name):
            declared.delay(*args, **kwargs)


def test_items_of_parameters_that_are_missing_are_named(world: VirtualWorld) -> None:
    declared = world.declare(lambda order: world.any_.s(order["lines"][0]["price"]))
    assert declared.delay({"lines": [{"price": 7}]}).get() == 7
    for order in ({}, {"lines": []}, {"lines": None}, None, 5):
        with pytest.raises(BadArguments, match=r"parameter order\['lines'\]"):
            declared.delay(order)


def test_an_argument_that_a_map_goes_over_must_be_a_list(world: VirtualWorld) -> None:
    declared = world.declare(lambda values: world.number.map(values))
    assert declared.delay([1, 2]).get() == [1, 2]
    assert declared.delay((3,)).get() == [3]
    assert declared.delay([]).get() == []
    for values in (5, "text", {"a": 1}):
        with pytest.raises(BadArguments, match="give a list of items"):
            declared.delay(values)


def test_a_map_goes_over_a_result(world: VirtualWorld) -> None:
    inner = world.declare(lambda values: world.number.map(values))

    def flow(order: dict[str, Any]) -> Any:
        found = world.data.s(order)
        return world.any_.s(world.number.map(found.result["lines"]), inner.s(found["lines"]))

    with pytest.raises(ConfigurationError):
        world.declare(flow)  # a signature has no items: its result has

    def right(order: dict[str, Any]) -> Any:
        found = world.data.s(order)
        lines = found.result["lines"]
        return world.any_.s(world.number.map(lines), inner.s(lines))

    assert world.declare(right).delay({"lines": [1, 2]}).get() == [[1, 2], [1, 2]]


# --- versions ----------------------------------------------------------------------------------


def test_the_version_changes_with_everything_on_which_a_run_depends(world: VirtualWorld) -> None:
    w = world
    variants: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (lambda a, b: w.any_.s(a), {}),
        (lambda a, b: w.any_.s(b), {}),
        (lambda a, b: w.any_.s(a["x"]), {}),
        (lambda a, b: w.any_.s(a["y"]), {}),
        (lambda a, b: w.any_.s([a]), {}),
        (lambda a, b: w.any_.s(a, 1), {}),
        (lambda a, b: w.any_.s(a, 2), {}),
        (lambda a, b: w.any_.s(a).options(priority=3), {}),
        (lambda a, b: w.any_.s(a).options(queue="other"), {}),
        (lambda a, b: w.any_.s(a).options(retry=7), {}),
        (lambda a, b: w.any_.s(a), {"deadline": 5}),
        (lambda a, b: w.any_.s(a), {"deadline": 6}),
        (lambda a, b: w.any_.s(a), {"limit": 1}),
        (lambda a, b: w.any_.s(a), {"limit": 2}),
        (lambda a, b: w.any_.s(a).when(b > 3), {}),
        (lambda a, b: w.any_.s(a).when(b > 4), {}),
        (lambda a, b: w.any_.s(a).when(a > 3), {}),
        (lambda a, b: w.any_.s(a).compensate(w.any_.s()), {}),
        (lambda a, b: w.any_.s(a).compensate(w.any_.s(a)), {}),
        (lambda a, b: w.any_.s(a).compensate(w.any_.s(b)), {}),
        (lambda a, b: w.any_.s(a).compensate(w.any_.s()), {"compensate": False}),
        (lambda a, b: w.number.map(a), {}),
        (lambda a, b: w.number.map(b), {}),
        (lambda a, b: w.any_.s(a, Signal("x")), {}),
        (lambda a, b: w.any_.s(a, Signal("x", type=int)), {}),
        (lambda a, b: w.any_.s(a, Signal("x", timeout=5)), {}),
        (lambda a, b: w.any_.s(a, Signal("x", timeout=5, default=1)), {}),
        (lambda a, b: w.any_.s(a).after(Sleep(5)), {}),
        (lambda a, b: w.any_.s(a).after(Sleep(6)), {}),
        (lambda a, b: w.any_.s(a).on_error(w.handle.s()), {}),
        (lambda a, b: w.any_.s(a, group(w.any_.s(1), w.any_.s(2)).result), {}),
    ]

    def versions() -> list[str]:
        return [w.declare(one, name="same", **options).version for one, options in variants]

    first = versions()
    assert len({*first}) == len(variants)
    assert versions() == first


VERSION = """
from umbel import Retry, Signal, Umbel, group
app = Umbel("sqlite:///:memory:")
@app.task
def f(a, b=None): ...
@app.workflow
def flow(order):
    first = f.s(order["x"], {"a": [order]}).options(retry=Retry(3, on=(OSError, ValueError)))
    return f.s(group(first, f.s(2).when(order["y"] > 3)).result, Signal("s", timeout=4, default={}))
print(flow.version)
"""


def test_the_version_is_the_same_in_each_process(tmp_path: Path) -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", VERSION],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1

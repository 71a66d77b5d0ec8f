"""Random workflows give what a model in plain Python gives, in virtual time.

A workflow is a list of nodes, each of which uses nodes before it: tasks that succeed or fail, with
conditions and undos, sleeps, signals that are given early, late or never, and other workflows. The
model decides which nodes run, with which values, and what is undone. A run that is cancelled at any
moment, undone and retried, again and again, has the result that it would have had.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from umbel import Signal, Sleep, State, Umbel
from umbel.errors import NotAllowed, UmbelError
from umbel.testing import in_memory

LATE = 1_000.0
"""When late signals are given: after all sleeps, and before the first timeout."""
TIMEOUT = 2_000.0


@dataclass
class Node:
    """A node, and what the model says about it."""

    kind: str
    args: list[int]
    after: list[int]
    fails: bool = False
    condition: tuple[int, int] | None = None
    """It runs if this node's result is this number."""
    undo: str = ""
    seconds: float = 0.0
    given: str = ""
    default: bool = False
    # --- decided by the model ---
    parts: list[int] = field(default_factory=list)
    state: str = ""
    value: Any = None
    is_early: bool = True
    """Whether it has ended before late signals are given."""


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    found: list[Node] = []
    for number in range(draw(st.integers(1, 9))):
        before = st.lists(st.integers(0, number - 1), max_size=2, unique=True)
        args, after = (draw(before), draw(before)) if number else ([], [])
        kind = draw(st.sampled_from(["task", "task", "task", "sleep", "signal", "sub"]))
        node = Node(kind, args, after)
        if kind == "task":
            node.fails = draw(st.integers(0, 5)) == 0
            if number and draw(st.booleans()):
                other = draw(st.integers(0, number - 1))
                node.condition = other, draw(st.sampled_from([other, other, -1]))
        if kind in ("task", "sub"):
            node.undo = draw(st.sampled_from(["", "undo", "undo", "failing"]))
        if kind in ("sleep", "signal"):
            node.args = []
        if kind == "sleep":
            node.seconds = float(draw(st.integers(1, 50)))
        if kind == "signal":
            node.given = draw(st.sampled_from(["early", "late", "never"]))
            node.default = draw(st.booleans())
        if kind == "sub":
            node.after = []
            node.fails = draw(st.integers(0, 5)) == 0
        found.append(node)
    return found


# --- the model -------------------------------------------------------------------------------


def decide(listed: list[Node]) -> None:
    """Decide the state and the value of each node, in the order in which they were made."""
    for number, node in enumerate(listed):
        uses = [*node.args, *node.after, *([node.condition[0]] if node.condition else [])]
        node.parts = [*dict.fromkeys(part for use in uses for part in waited(listed, use))]
        parts = [listed[part] for part in node.parts]
        has_failed = any(part.state in ("buried", "cancelled") for part in parts)
        node.is_early = all(part.is_early for part in parts)
        if node.kind == "signal":
            decide_signal(node, number, has_failed=has_failed)
        elif has_failed:
            node.state = "cancelled"
        else:
            decide_run(listed, node, number)


def waited(listed: list[Node], use: int) -> list[int]:
    """Return a node with those before it that must have succeeded, too, if it is a signal."""
    return [use, *(listed[use].parts if listed[use].kind == "signal" else [])]


def decide_signal(node: Node, number: int, *, has_failed: bool) -> None:
    is_released = has_failed and node.is_early
    if node.given == "early":
        node.state, node.value, node.is_early = "succeeded", number, True
    elif is_released:
        node.state = "cancelled"
    elif node.given == "late":
        node.state, node.value, node.is_early = "succeeded", number, False
    elif has_failed:
        node.state = "cancelled"
    else:
        node.state, node.is_early = ("succeeded" if node.default else "buried"), False
        node.value = number if node.default else None


def decide_run(listed: list[Node], node: Node, number: int) -> None:
    if (node.args and all(listed[one].state == "skipped" for one in node.args)) or (
        node.condition is not None and listed[node.condition[0]].value != node.condition[1]
    ):
        node.state = "skipped"
    elif node.fails:
        node.state = "buried"
    else:
        node.state = "succeeded"
        node.value = None if node.kind == "sleep" else number


def sinks(listed: list[Node]) -> list[int]:
    """Return the nodes that no other uses."""
    used = {
        use
        for node in listed
        for use in (*node.args, *node.after, *([node.condition[0]] if node.condition else []))
    }
    return [number for number in range(len(listed)) if number not in used]


# --- the real thing --------------------------------------------------------------------------


class World:
    """Runs workflows, and notes what ran."""

    def __init__(self) -> None:
        self.app = Umbel("sqlite:///:memory:")
        self.ran: list[tuple[int, tuple[Any, ...]]] = []
        self.undone: list[int] = []
        self.is_mended = False
        """Whether nothing fails any more, except undos."""
        app = self.app

        @app.task(name="work", retry=0)
        async def work(number: int, fails: bool, values: list[Any]) -> Any:
            self.ran.append((number, tuple(values)))
            if fails and not self.is_mended:
                raise ValueError(f"{number} fails")
            return number

        @app.task(name="end", retry=0)
        async def end(*values: Any) -> Any:
            return list(values)

        @app.task(name="undo", retry=0)
        async def undo(number: int, how: str) -> None:
            self.undone.append(number)
            if how == "failing":
                raise ValueError("cannot be undone")

        @app.task(name="first")
        async def first(*values: Any) -> list[Any]:
            return list(values)

        self.work, self.end, self.undo = work, end, undo
        self.inner = {
            (undo_, fails): app.workflow(name=f"inner {undo_} {fails}")(
                self._inner(undo_, fails=fails)
            )
            for undo_ in ("", "undo", "failing")
            for fails in (False, True)
        }

    def _inner(self, undo: str, *, fails: bool) -> Any:
        def one(number: int) -> Any:
            node = self.work.s(number, fails, [])
            return node.compensate(self.undo.s(undo)) if undo else node

        return one

    def build(self, listed: list[Node]) -> Any:
        built: list[Any] = []
        for number, node in enumerate(listed):
            after = [built[one] for one in node.after]
            if node.kind == "sleep":
                made: Any = Sleep(node.seconds)
            elif node.kind == "signal":
                options = {"timeout": TIMEOUT} if node.given == "never" else {}
                if node.given == "never" and node.default:
                    options["default"] = number  # type: ignore[assignment]
                made = Signal(f"s{number}", **options)  # type: ignore[arg-type]
            elif node.kind == "sub":
                built.append(self.inner[node.undo, node.fails].s(number))
                continue
            else:
                made = self.task(node, number, [built[one] for one in node.args], built)
            built.append(made.after(*after) if after else made)
        return self.end.s(*(built[one] for one in sinks(listed)))

    def task(self, node: Node, number: int, values: list[Any], built: list[Any]) -> Any:
        made = self.work.s(number, node.fails, [one.result for one in values])
        if node.condition is not None:
            made = made.when(built[node.condition[0]].result == node.condition[1])
        return made.compensate(self.undo.s(node.undo)) if node.undo else made


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World()
    yield world
    world.app.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(listed=nodes())
def test_a_random_workflow_does_what_the_model_does(world: World, listed: list[Node]) -> None:
    for node in listed:
        node.args = node.args if node.kind == "task" else []
    decide(listed)
    declared = world.app.workflow(name="random")(lambda: world.build(listed))
    world.ran.clear()
    world.undone.clear()
    with in_memory(world.app) as jobs:
        handle = declared.delay()
        for number, node in enumerate(listed):
            if node.given == "early":
                handle.signal(f"s{number}", number)
        jobs.drain(within=LATE, errors="collect")
        for number, node in enumerate(listed):
            if node.given == "late" and node.state == "succeeded":
                handle.signal(f"s{number}", number)
            elif node.given == "late":
                with pytest.raises(NotAllowed):
                    handle.signal(f"s{number}", number)
        jobs.drain(errors="collect")
        check(world, listed, handle)


def check(world: World, listed: list[Node], handle: Any) -> None:
    ends = sinks(listed)
    has_failed = any(
        listed[part].state in ("buried", "cancelled")
        for one in ends
        for part in waited(listed, one)
    )
    is_skipped = not has_failed and all(listed[one].state == "skipped" for one in ends)
    graph = handle.graph
    assert graph.state is (State.BURIED if has_failed else State.SUCCEEDED)
    if not has_failed:
        wanted = None if is_skipped else [listed[one].value for one in ends]
        assert handle.get(timeout=0) == wanted
    states = Counter(node.state for node in listed)
    states["cancelled" if has_failed else "skipped" if is_skipped else "succeeded"] += 1
    shown = Counter(str(node.state) for node in graph.tasks() if not node.undoes)
    assert shown == +states
    assert all(node.has_ended for node in graph.nodes)
    ran = [
        (number, tuple(listed[one].value for one in node.args))
        for number, node in enumerate(listed)
        if node.kind in ("task", "sub") and node.state in ("succeeded", "buried")
    ]
    assert sorted(world.ran, key=lambda one: one[0]) == ran
    check_undone(world, listed, has_failed=has_failed)


def check_undone(world: World, listed: list[Node], *, has_failed: bool) -> None:
    undone = [n for n, node in enumerate(listed) if node.undo and node.state == "succeeded"]
    assert sorted(world.undone) == (undone if has_failed else [])
    order = {number: at for at, number in enumerate(world.undone)}
    for number in world.undone:
        for earlier in everything_before(listed, number) & {*order}:
            assert order[number] < order[earlier], f"{earlier} was undone before {number}"


def everything_before(listed: list[Node], number: int) -> set[int]:
    found: set[int] = set()
    left = [*listed[number].parts]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += listed[one].parts
    return found


# --- cancelled, and retried --------------------------------------------------------------------


class Course:
    """What has run, was undone, and may run again while a workflow is cancelled and retried."""

    def __init__(self, world: World, listed: list[Node]) -> None:
        self._world = world
        self._listed = listed
        self._kept: set[int] = set()
        """Nodes that have succeeded and are to keep their effect."""
        self._runs = 0
        self._undos = 0

    def check_end(self) -> None:
        """Check which nodes ran since the last call, and that all of them were undone."""
        world, listed = self._world, self._listed
        ran = [number for number, _ in world.ran[self._runs :]]
        undone = world.undone[self._undos :]
        self._runs, self._undos = len(world.ran), len(world.undone)
        assert not {*ran} & self._kept, "a node that has succeeded ran again"
        assert len(ran) == len({*ran}), "a node ran twice"
        succeeded = {n for n in ran if world.is_mended or not listed[n].fails} | self._kept
        assert sorted(undone) == sorted(n for n in succeeded if listed[n].undo)
        taken_back = {n for n in undone if listed[n].undo == "undo"}
        again = {n for n in succeeded if everything_before(listed, n) & taken_back}
        self._kept = succeeded - taken_back - again


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    listed=nodes(),
    moments=st.lists(
        st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 60)), min_size=1, max_size=3
    ),
)
def test_a_random_workflow_that_was_cancelled_is_retried(
    world: World, listed: list[Node], moments: list[tuple[bool, int, int]]
) -> None:
    for node in listed:
        node.args = node.args if node.kind == "task" else []
        node.default = True
    declared = world.app.workflow(name="random")(lambda: world.build(listed))
    fails = [node.fails for node in listed]
    for node in listed:
        node.fails = False
    decide(listed)
    for node, failed in zip(listed, fails, strict=True):
        node.fails = failed
    world.ran.clear()
    world.undone.clear()
    world.is_mended = False
    course = Course(world, listed)
    with in_memory(world.app) as jobs:
        handle = declared.delay()
        give(handle, listed, "early")
        for is_late, runs, seconds in moments:
            if is_late:
                jobs.drain(within=LATE, errors="collect")
                give(handle, listed, "late")
            with suppress(UmbelError):  # jobs are left
                jobs.drain(within=float(seconds), errors="collect", max_runs=runs)
            handle.cancel()
            jobs.drain(within=20 * TIMEOUT, errors="collect")
            assert all(node.has_ended for node in handle.graph.nodes)
            if handle.state is State.SUCCEEDED:
                break
            course.check_end()
            world.is_mended = True
            asyncio.run(world.app.operations().graphs.retry(handle.id))
        jobs.drain(within=LATE, errors="collect")
        give(handle, listed, "late")
        jobs.drain(within=20 * TIMEOUT, errors="collect")
        ends = sinks(listed)
        is_skipped = all(listed[one].state == "skipped" for one in ends)
        assert handle.state is State.SUCCEEDED
        assert handle.get(timeout=5) == (
            None if is_skipped else [listed[one].value for one in ends]
        )
        assert all(node.has_ended for node in handle.graph.nodes)


def give(handle: Any, listed: list[Node], when: str) -> None:
    """Give signals, unless that was done before."""
    for number, node in enumerate(listed):
        if node.given == when:
            with suppress(NotAllowed):
                handle.signal(f"s{number}", number)

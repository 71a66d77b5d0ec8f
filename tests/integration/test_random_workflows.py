"""Random workflows give what a model in plain Python gives, in virtual time.

A workflow is a list of nodes, each of which uses nodes before it: tasks that succeed or fail, with
conditions and undos, sleeps, signals that are given early, late or never, and other workflows. The
model decides which nodes run, with which values, and what is undone. A run that is cancelled at any
moment, undone and retried, again and again, has the result that it would have had.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from integration.backends import opened
from integration.running import ask, until
from integration.running import working as running_worker
from umbel import Signal, Sleep, State, Umbel
from umbel.errors import NotAllowed, UmbelError
from umbel.messages import fresh_id
from umbel.testing import in_memory

LATE = 1_000.0
"""When late signals are given: after all sleeps, and before the first timeout."""
TIMEOUT = 2_000.0
FACTOR = 5 if os.environ.get("UMBEL_TEST_ALL") else 1


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


@dataclass
class Notes:
    """What ran for a run of a workflow."""

    ran: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    undone: list[int] = field(default_factory=list)
    is_mended: bool = False
    """Whether nothing fails any more, except undos."""


class World:
    """Runs workflows, and notes what ran."""

    def __init__(self, app: Umbel, second: float = 1.0) -> None:
        self.app = app
        self.second = second
        """How many real seconds one of the model is."""
        self.notes: dict[str, Notes] = defaultdict(Notes)

        @app.task(name="work", retry=0)
        async def work(run: str, number: int, fails: bool, values: list[Any]) -> Any:
            self.notes[run].ran.append((number, tuple(values)))
            if fails and not self.notes[run].is_mended:
                raise ValueError(f"{number} fails")
            return number

        @app.task(name="end", retry=0)
        async def end(*values: Any) -> Any:
            return list(values)

        @app.task(name="undo", retry=0)
        async def undo(number: int, run: str, how: str) -> None:
            self.notes[run].undone.append(number)
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
        def one(run: str, number: int) -> Any:
            node = self.work.s(run, number, fails, [])
            return node.compensate(self.undo.s(run, undo)) if undo else node

        return one

    def build(self, listed: list[Node], run: Any) -> Any:
        built: list[Any] = []
        for number, node in enumerate(listed):
            after = [built[one] for one in node.after]
            if node.kind == "sleep":
                made: Any = Sleep(node.seconds * self.second)
            elif node.kind == "signal":
                options = {"timeout": TIMEOUT * self.second} if node.given == "never" else {}
                if node.given == "never" and node.default:
                    options["default"] = number  # type: ignore[assignment]
                made = Signal(f"s{number}", **options)  # type: ignore[arg-type]
            elif node.kind == "sub":
                built.append(self.inner[node.undo, node.fails].s(run, number))
                continue
            else:
                made = self.task(run, node, number, [built[one] for one in node.args], built)
            built.append(made.after(*after) if after else made)
        return self.end.s(*(built[one] for one in sinks(listed)))

    def task(self, run: Any, node: Node, number: int, values: list[Any], built: list[Any]) -> Any:
        made = self.work.s(run, number, node.fails, [one.result for one in values])
        if node.condition is not None:
            made = made.when(built[node.condition[0]].result == node.condition[1])
        return made.compensate(self.undo.s(run, node.undo)) if node.undo else made


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World(Umbel("sqlite:///:memory:"))
    yield world
    world.app.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(listed=nodes())
def test_a_random_workflow_does_what_the_model_does(world: World, listed: list[Node]) -> None:
    for node in listed:
        node.args = node.args if node.kind == "task" else []
    decide(listed)
    declared = world.app.workflow(name="random")(lambda run: world.build(listed, run))
    world.notes.clear()
    with in_memory(world.app) as jobs:
        handle = declared.delay("")
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
    assert sorted(world.notes[""].ran, key=lambda one: one[0]) == ran
    check_undone(world, listed, has_failed=has_failed)


def check_undone(world: World, listed: list[Node], *, has_failed: bool) -> None:
    undone = [n for n, node in enumerate(listed) if node.undo and node.state == "succeeded"]
    assert sorted(world.notes[""].undone) == (undone if has_failed else [])
    order = {number: at for at, number in enumerate(world.notes[""].undone)}
    for number in world.notes[""].undone:
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
    """A run that is cancelled and retried: what has run, was undone, and may run again."""

    def __init__(self, world: World, listed: list[Node], run: str) -> None:
        self.listed = listed
        self.notes = world.notes[run]
        self._app = world.app
        fails = [node.fails for node in listed]
        for node in listed:
            node.args = node.args if node.kind == "task" else []
            node.default = True
            node.fails = False
        decide(listed)
        for node, failed in zip(listed, fails, strict=True):
            node.fails = failed
        declared = world.app.workflow(name=f"retried {run}")(lambda run: world.build(listed, run))
        self.handle = declared.delay(run)
        self._kept: set[int] = set()
        """Nodes that have succeeded and are to keep their effect."""
        self._runs = 0
        self._undos = 0
        self.give("early")

    def give(self, when: str) -> None:
        """Give signals, unless that was done before."""
        for number, node in enumerate(self.listed):
            if node.given == when:
                with suppress(NotAllowed):
                    self.handle.signal(f"s{number}", number)

    def has_ended(self) -> bool:
        graph = self.handle.graph
        return all(node.has_ended for node in (graph.root, *graph.nodes))

    def waits_for_signals(self) -> bool:
        """Whether nothing runs before a signal is given or times out."""
        return all(
            node.has_ended or node.kind in ("signal", "timer") or node.state is State.BLOCKED
            for node in self.handle.graph.nodes
        )

    def check_end(self) -> None:
        """Check which nodes ran since the last call, and that what has succeeded was undone."""
        listed, graph = self.listed, self.handle.graph
        assert all(node.has_ended for node in graph.nodes)
        ran = [number for number, _ in self.notes.ran[self._runs :]]
        undone = self.notes.undone[self._undos :]
        self._runs, self._undos = len(self.notes.ran), len(self.notes.undone)
        assert not {*ran} & self._kept, "a node that has succeeded ran again"
        assert len(ran) == len({*ran}), "a node ran twice"
        succeeded = {
            self._app.handle(node.job).get(timeout=5)
            for node in graph.nodes
            if node.task == "work" and node.state is State.SUCCEEDED
        }
        assert self._kept <= succeeded <= {*ran} | self._kept
        assert sorted(undone) == sorted(n for n in succeeded if listed[n].undo)
        taken_back = {n for n in undone if listed[n].undo == "undo"}
        again = {n for n in succeeded if everything_before(listed, n) & taken_back}
        self._kept = succeeded - taken_back - again

    def retry(self) -> None:
        """Retry the run. Nothing fails any more, except undos."""
        self.notes.is_mended = True
        ask(self._app, lambda operations: operations.graphs.retry(self.handle.id))

    def check_result(self) -> None:
        ends = [self.listed[one] for one in sinks(self.listed)]
        is_skipped = all(node.state == "skipped" for node in ends)
        assert self.handle.state is State.SUCCEEDED
        found = self.handle.get(timeout=5)
        assert found == (None if is_skipped else [node.value for node in ends])
        assert all(node.has_ended for node in self.handle.graph.nodes)


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
    """It is cancelled and retried several times, in virtual time."""
    world.notes.clear()
    with in_memory(world.app) as jobs:
        course = Course(world, listed, "")
        for is_late, runs, seconds in moments:
            if is_late:
                jobs.drain(within=LATE, errors="collect")
                course.give("late")
            with suppress(UmbelError):  # jobs are left
                jobs.drain(within=float(seconds), errors="collect", max_runs=runs)
            course.handle.cancel()
            jobs.drain(within=20 * TIMEOUT, errors="collect")
            if course.handle.state is State.SUCCEEDED:
                break
            course.check_end()
            course.retry()
        jobs.drain(within=LATE, errors="collect")
        course.give("late")
        jobs.drain(within=20 * TIMEOUT, errors="collect")
        course.check_result()


AT_ONCE = 10
"""How many runs one example starts: they run at the same time."""


@pytest.fixture(scope="module", params=["sqlite", "postgres", "redis", "rabbitmq+postgres"])
def working(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("random")
    with opened(request.param, folder) as (backend, _):
        broker = backend.broker + ("?synchronous=off" if request.param == "sqlite" else "")
        store = "" if backend.store == backend.broker else backend.store
        app = Umbel(broker, store=store, namespace=backend.namespace, deadline=30.0)
        world = World(app, second=0.001)
        with running_worker(app, io=20):
            yield world
        app.close()


def test_random_workflows_are_cancelled_and_retried_by_a_worker(working: World) -> None:
    """The moments are numbers of runs of tasks. After 10 of them, late signals are given, too."""
    cancelled = []
    many = st.integers(0, 15)

    @settings(
        max_examples=2 * FACTOR, suppress_health_check=[*HealthCheck], phases=[Phase.generate]
    )
    @given(
        st.lists(nodes(), min_size=AT_ONCE, max_size=AT_ONCE),
        st.lists(st.lists(many, min_size=AT_ONCE, max_size=AT_ONCE), min_size=1, max_size=3),
    )
    def run(shapes: list[list[Node]], moments: list[list[int]]) -> None:
        courses = [Course(working, listed, fresh_id()) for listed in shapes]
        live = courses
        for some in moments:
            for course, moment in zip(live, some, strict=False):
                if moment >= AT_ONCE:
                    course.give("late")
                enough = len(course.notes.ran) + moment % AT_ONCE
                until(
                    lambda c=course, n=enough: len(c.notes.ran) >= n or c.waits_for_signals(),
                    "runs of tasks",
                )
                cancelled.append(course.handle.cancel())
            for course in live:
                until(course.has_ended, f"the end of {course.handle.id}")
            live = [course for course in live if course.handle.state is not State.SUCCEEDED]
            for course in live:
                course.check_end()
                course.retry()
        for course in courses:
            course.give("late")
        for course in courses:
            until(course.has_ended, f"the end of {course.handle.id}")
            course.check_result()

    run()
    assert True in cancelled

"""Random canvases against a model in plain Python: same results, same failures, each node once.

Each node has a name, under which the worker notes each of its runs. The model computes the value
of the canvas, which nodes run, which fail, and which handlers run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from integration.backends import opened
from integration.canvas_world import CanvasWorld, label, running_world
from integration.running import ask, until
from umbel import NodeFailed, Retry, State, chain, chunks, current, fork, group
from umbel.errors import UmbelError

FACTOR = 5 if os.environ.get("UMBEL_TEST_ALL") else 1
AT_ONCE = 10
"""How many graphs one example publishes: they run at the same time."""


# --- descriptions of canvases ----------------------------------------------------------------


@dataclass
class Leaf:
    """Gives its number, and with ``takes`` the value before it: ``[number, value]``."""

    takes: bool
    fails: bool
    retries: int
    way: str
    """How it ends: by a value, a replacement, or the end of its chain."""
    handlers: int


@dataclass
class Line:
    parts: list[Any]
    handlers: int


@dataclass
class Branches:
    branches: list[Any]


@dataclass
class Members:
    members: list[Any]
    errors: Any
    limit: int | None
    handlers: int


@dataclass
class Items:
    """A map or chunks, over these values or over those before it. Values below 0 fail."""

    items: list[int] | None
    size: int
    errors: Any
    limit: int | None
    handlers: int
    is_result: bool
    """Whether a task returns the values."""


@dataclass
class Edges:
    """A node with the results of others as arguments: ``[number, value, value]``."""

    ways: list[str]
    """How the others end; ``"shared"`` is the one before it, if there is one."""
    handlers: int


@dataclass
class Earlier:
    """A job that was published before the canvas. Only a member of a group may be one."""

    way: str


handlers = st.sampled_from([0, 0, 0, 1, 2])
policies = st.sampled_from(["fail", "fail", "cancel", "collect"])
limits = st.sampled_from([None, None, 1, 2])
leaves = st.builds(
    Leaf,
    takes=st.booleans(),
    fails=st.sampled_from([False] * 7 + [True]),
    retries=st.sampled_from([0, 0, 0, 1, 2]),
    way=st.sampled_from(["value"] * 6 + ["replace", "replace by group", "finish"]),
    handlers=handlers,
)
items = st.builds(
    Items,
    items=st.lists(st.sampled_from([1, 2, 3, 4, -1]), max_size=4),
    size=st.sampled_from([0, 0, 1, 2, 3]),
    errors=policies,
    limit=limits,
    handlers=handlers,
    is_result=st.booleans(),
)
edges = st.builds(
    Edges,
    ways=st.lists(st.sampled_from(["value", "replace", "shared", "shared"]), max_size=3),
    handlers=handlers,
)
earlier = st.builds(Earlier, way=st.sampled_from(["value", "replace"]))


def extend(
    inner: st.SearchStrategy[Any], policies: st.SearchStrategy[Any] = policies
) -> st.SearchStrategy[Any]:
    """Return canvases with these as parts."""
    branches = st.builds(Branches, st.lists(inner, min_size=1, max_size=2))
    rest = st.lists(st.one_of(inner, inner, inner, branches), max_size=3)
    lines = st.builds(
        lambda first, others, handlers: Line([first, *others], handlers), inner, rest, handlers
    )
    groups = st.builds(
        Members,
        st.lists(st.one_of(inner, inner, inner, earlier), max_size=4),
        policies,
        limits,
        handlers,
    )
    return st.one_of(lines, groups)


canvases = st.recursive(st.one_of(leaves, leaves, items, edges), extend, max_leaves=20)


no_values = st.sampled_from(["fail", "fail", "cancel"])
"""Policies with which a failure is no value: after a retry, nothing has read it."""
repairable = st.recursive(
    st.one_of(leaves, leaves, edges, items.filter(lambda one: one.errors != "collect")),
    lambda inner: extend(inner, no_values),
    max_leaves=14,
)


# --- the model -------------------------------------------------------------------------------


class Failed(Exception):
    """A part has failed, or was not reached because a part before it has."""


@dataclass
class Finish(Exception):
    """A leaf has finished its chain with this value."""

    value: Any


FAILURE = "failure"
"""Stands for a NodeFailed in a list."""


@dataclass
class Model:
    """What a canvas does, as plain Python would."""

    runs: Counter[str] = field(default_factory=Counter)
    """How often each node runs."""
    handled: Counter[str] = field(default_factory=Counter)
    """How often each handler runs."""
    unsure: set[str] = field(default_factory=set)
    """Nodes and handlers that may run or not: others of their group fail, and cancel them."""

    def is_sure(self, name: str) -> bool:
        """Whether a node or handler runs exactly as often as here."""
        return " ".join(name.split()[:2]) not in self.unsure


@dataclass
class Built:
    """A canvas, and the function that computes its result in the model."""

    canvas: Any
    run: Any
    """Called with the value before it, or NOTHING. Raises Failed and Finish."""


class Nothing:
    """There is no value before this part."""


NOTHING = Nothing()


class Builder:
    """Builds canvases and their models."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._numbers = count()
        self.prefix = label()
        self.model = Model()
        self.is_mended = False
        """Whether nothing fails any more."""

    def build(self, shape: Any, *, has_value: bool) -> Built:
        if isinstance(shape, Leaf):
            return self._leaf(shape, has_value)
        if isinstance(shape, Line):
            return self._line(shape, has_value)
        if isinstance(shape, Members):
            return self._members(shape, has_value)
        if isinstance(shape, Edges):
            return self._edges(shape)
        return self._items(shape)

    def _name(self) -> str:
        return f"{self.prefix} {next(self._numbers)}"

    def _leaf(self, leaf: Leaf, has_value: bool) -> Built:
        name, model = self._name(), self.model
        takes = leaf.takes and has_value
        number = int(name.split()[1])
        task = self._world.node
        args = (name, number, leaf.fails, leaf.retries, leaf.way)
        signature = task.s(*args) if takes else self._world.start.si(*args)
        canvas, handled = self._handlers(signature, leaf.handlers)

        def run(value: Any) -> Any:
            model.runs[name] += 1 + leaf.retries
            if leaf.fails and not self.is_mended:
                self._note(handled)
                raise Failed
            found = [number, value] if takes else number
            if leaf.way == "replace by group":
                return [found, found]
            if leaf.way == "finish":
                raise Finish(found)
            return found

        return Built(canvas, run)

    def _edges(self, shape: Edges) -> Built:
        name = self._name()
        number = int(name.split()[1])
        sources: list[Built] = []
        for way in shape.ways:
            is_shared = way == "shared" and sources
            sources.append(sources[-1] if is_shared else self._source(way))
        given = [one.canvas.result for one in sources]
        signature = self._world.start.si(name, [number, *given], False, 0, "value")
        canvas, _ = self._handlers(signature, shape.handlers)

        def run(value: Any) -> Any:
            self.model.runs[name] += 1
            return [number, *[one.run(NOTHING) for one in sources]]

        return Built(canvas, run)

    def _source(self, way: str) -> Built:
        """Return a node whose result is an argument of another. It runs in any case."""
        name = self._name()
        number = int(name.split()[1])
        way = "value" if way == "shared" else way
        self.model.runs[name] += 1
        return Built(self._world.start.si(name, number, False, 0, way), lambda value: number)

    def _earlier(self, shape: Earlier) -> Built:
        name = self._name()
        number = int(name.split()[1])
        self.model.runs[name] += 1
        handle = self._world.start.si(name, number, False, 0, shape.way).delay()
        return Built(handle, lambda value: number)

    def _line(self, line: Line, has_value: bool) -> Built:
        parts: list[Any] = []
        steps: list[tuple[bool, Any]] = []
        for part in _flat(line):
            if isinstance(part, Branches):
                made = [self.build(one, has_value=True) for one in part.branches]
                parts.append(fork(*[one.canvas for one in made]))
                steps += [(True, one.run) for one in made]
            else:
                one = self.build(part, has_value=has_value)
                parts.append(one.canvas)
                steps.append((False, one.run))
            has_value = True
        canvas, handled = self._handlers(chain(*parts), line.handlers)

        def run(value: Any) -> Any:
            try:
                for is_branch, step in steps:
                    if is_branch:
                        with suppress(Failed, Finish):
                            step(value)
                    else:
                        value = step(value)
            except Finish as early:
                return early.value
            except Failed:
                self._note(handled)
                raise
            return value

        return Built(canvas, run)

    def _members(self, shape: Members, has_value: bool) -> Built:
        first = next(self._numbers)
        made = [
            self._earlier(one) if isinstance(one, Earlier) else self.build(one, has_value=has_value)
            for one in shape.members
        ]
        inside = {f"{self.prefix} {number}" for number in range(first, next(self._numbers))}
        whole = group([one.canvas for one in made], errors=shape.errors, limit=shape.limit)
        canvas, handled = self._handlers(whole, shape.handlers)

        def run(value: Any) -> Any:
            found: list[Any] = []
            has_failed = False
            for one in made:
                try:
                    found.append(one.run(value))
                except Finish as early:
                    found.append(early.value)
                except Failed:
                    found.append(FAILURE)
                    has_failed = True
            return self._joined(found, has_failed, shape.errors, handled, inside)

        return Built(canvas, run)

    def _items(self, shape: Items) -> Built:
        name, world = self._name(), self._world
        given = [(name, value) for value in shape.items or ()]
        listed: Any = world.same.si(given) if shape.is_result else given
        if shape.size:
            form = chunks(world.item, listed, shape.size, errors=shape.errors, limit=shape.limit)
        else:
            form = world.item.starmap(listed, errors=shape.errors, limit=shape.limit)
        canvas, handled = self._handlers(form, shape.handlers)

        def run(value: Any) -> Any:
            portions = [given[at : at + shape.size] for at in range(0, len(given), shape.size or 1)]
            for portion in portions if shape.size else [[one] for one in given]:
                for _, item in portion:
                    self.model.runs[f"{name} {item}"] += 1
                    if item < 0 and shape.errors != "collect":
                        break
            fails = (item < 0 and not self.is_mended for _, item in given)
            found = [
                FAILURE if failed else item * 10
                for failed, (_, item) in zip(fails, given, strict=True)
            ]
            return self._joined(found, FAILURE in found, shape.errors, handled, {name})

        return Built(canvas, run)

    def _joined(
        self, found: list[Any], has_failed: bool, errors: str, handled: list[str], inside: set[str]
    ) -> Any:
        if has_failed and errors == "cancel":
            self.model.unsure |= inside
        if has_failed and errors != "collect":
            self._note(handled)
            raise Failed
        return found

    def _handlers(self, canvas: Any, number: int) -> tuple[Any, list[str]]:
        names = [self._name() for _ in range(number)]
        for name in names:
            canvas = canvas.on_error(self._world.handler.s(name))
        return canvas, names

    def _note(self, handled: list[str]) -> None:
        for name in handled:
            self.model.handled[name] += 1


def _flat(line: Line) -> list[Any]:
    """Return the parts of a chain, with those of inner chains in place: it is one flat chain."""
    found: list[Any] = []
    for part in line.parts:
        found += _flat(part) if isinstance(part, Line) and not part.handlers else [part]
    return found


# --- the tasks -------------------------------------------------------------------------------


def declare(world: CanvasWorld) -> None:
    app = world.app

    def end(name: str, found: Any, fails: bool, retries: int, way: str) -> Any:
        world.note(name)
        if current.job.attempt <= retries:
            raise ConnectionError("again")
        if fails and name.split()[0] not in world.notes["mended"]:
            raise ValueError("fails")
        if way == "replace":
            return current.replace(chain(world.same.s(found), world.same.s()))
        if way == "replace by group":
            return current.replace(group(world.same.s(found), world.same.s(found)))
        return current.finish(found) if way == "finish" else found

    policy = Retry(2, first=0.001, jitter=0.0, on=ConnectionError)

    @app.task(name="node", retry=policy)
    async def node(value: Any, name: str, number: int, fails: bool, retries: int, way: str) -> Any:
        return end(name, [number, value], fails, retries, way)

    @app.task(name="start", retry=policy)
    async def start(name: str, number: Any, fails: bool, retries: int, way: str) -> Any:
        return end(name, number, fails, retries, way)

    @app.task(name="item", retry=0)
    async def item(name: str, value: int) -> int:
        world.note(f"{name} {value}")
        if value < 0 and name.split()[0] not in world.notes["mended"]:
            raise ValueError("fails")
        return value * 10

    @app.task(name="handler")
    async def handler(failure: NodeFailed, name: str) -> None:
        assert "node" in failure.node or "start" in failure.node or "item" in failure.node
        world.note(name)

    for task in (node, start, item, handler):
        setattr(world, task.name, task)


# --- the test --------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return a result with failures as the model has them."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, NodeFailed) or (isinstance(value, dict) and "error" in value):
        return FAILURE
    return value


def check(world: CanvasWorld, shapes: list[Any]) -> None:
    """Run graphs at the same time, and compare each with its model."""
    running = []
    for shape in shapes:
        builder = Builder(world)
        built = builder.build(shape, has_value=False)
        try:
            handle = chain(built.canvas).delay()
        except UmbelError as error:
            if "has no task" not in str(error):
                raise
            continue
        running.append((shape, builder, built, handle))
    for shape, builder, built, handle in running:
        try:
            want = built.run(NOTHING)
        except Finish as early:
            want = early.value
        except Failed:
            want = FAILURE
        try:
            found = plain(handle.get(timeout=60))
        except (ValueError, NodeFailed):  # the task's own error, or that it was cancelled
            found = FAILURE
        except UmbelError as error:
            nodes = [(n.path, n.kind, n.task, str(n.state), n.error) for n in handle.graph.nodes]
            pytest.fail(f"{error}: {shape}: {nodes}")
        assert found == want, shape
        world.ended(handle)
        model = builder.model
        noted = {k: len(v) for k, v in dict(world.notes).items() if k.startswith(builder.prefix)}
        wanted = {**model.runs, **model.handled}
        assert {name: times for name, times in noted.items() if model.is_sure(name)} == {
            name: times for name, times in wanted.items() if model.is_sure(name)
        }, shape
        for name, times in noted.items():
            assert times <= max(wanted.get(name, 0), 1), shape


@pytest.fixture(scope="module", params=["sqlite", "postgres", "redis", "rabbitmq+postgres"])
def random_world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[CanvasWorld, int]]:
    folder: Path = tmp_path_factory.mktemp("random")
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{folder}/umbel.db?synchronous=off"
            yield stack.enter_context(running_world(url, declare)), 20
            return
        backend, _ = stack.enter_context(opened(request.param, folder))
        store = {} if backend.broker == backend.store else {"store": backend.store}
        given = {"namespace": backend.namespace, **store}
        yield stack.enter_context(running_world(backend.broker, declare, given)), 4


def test_random_canvases_do_what_plain_python_does(
    random_world: tuple[CanvasWorld, int],
) -> None:
    world, examples = random_world

    @settings(
        max_examples=examples * FACTOR,
        suppress_health_check=[*HealthCheck],
        phases=[Phase.generate],  # the assertion shows the one canvas that differs
    )
    @given(st.lists(canvases, min_size=AT_ONCE, max_size=AT_ONCE))
    def run(shapes: list[Any]) -> None:
        check(world, shapes)

    run()


def started(world: CanvasWorld, shapes: list[Any]) -> list[tuple[Any, Builder, Built, Any]]:
    """Publish graphs, which run at the same time."""
    running = []
    for shape in shapes:
        builder = Builder(world)
        built = builder.build(shape, has_value=False)
        try:
            running.append((shape, builder, built, chain(built.canvas).delay()))
        except UmbelError as error:
            if "has no task" not in str(error):
                raise
    return running


def check_retry(world: CanvasWorld, shape: Any, builder: Builder, built: Built, root: str) -> None:
    """Retry a graph when nothing fails any more, and compare its result."""
    world.note("mended", builder.prefix)
    builder.is_mended = True
    ask(world.app, lambda operations: operations.graphs.retry(root))
    try:
        want = built.run(NOTHING)
    except Finish as early:
        want = early.value
    assert world.app.handle(root).get(timeout=60) == want, shape


def test_random_canvases_that_failed_are_retried(random_world: tuple[CanvasWorld, int]) -> None:
    world, examples = random_world

    @settings(
        max_examples=examples * FACTOR,
        suppress_health_check=[*HealthCheck],
        phases=[Phase.generate],
    )
    @given(st.lists(repairable, min_size=AT_ONCE, max_size=AT_ONCE))
    def run(shapes: list[Any]) -> None:
        for shape, builder, built, handle in started(world, shapes):
            world.ended(handle)
            if handle.state is not State.SUCCEEDED:
                check_retry(world, shape, builder, built, handle.id)

    run()


def test_random_canvases_that_were_cancelled_are_retried(
    random_world: tuple[CanvasWorld, int],
) -> None:
    world, examples = random_world
    cancelled = []

    def runs(builder: Builder) -> int:
        return sum(len(v) for k, v in dict(world.notes).items() if k.startswith(builder.prefix))

    @settings(
        max_examples=examples * FACTOR,
        suppress_health_check=[*HealthCheck],
        phases=[Phase.generate],
    )
    @given(
        st.lists(repairable, min_size=AT_ONCE, max_size=AT_ONCE),
        st.lists(st.integers(0, 12), min_size=AT_ONCE, max_size=AT_ONCE),
    )
    def run(shapes: list[Any], moments: list[int]) -> None:
        graphs = started(world, shapes)
        for (_, builder, _, handle), moment in zip(graphs, moments, strict=False):
            until(lambda b=builder, h=handle, n=moment: runs(b) >= n or h.state.finished, "a run")
            cancelled.append(handle.cancel())
        for shape, builder, built, handle in graphs:
            world.ended(handle)
            if handle.state is not State.SUCCEEDED:
                check_retry(world, shape, builder, built, handle.id)

    run()
    assert True in cancelled

"""A worker with tasks for canvases, and functions that wait for their graphs."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from integration.running import Signal, until, working
from umbel import Handle, NodeFailed, Retry, State, Umbel, chain, current, fork, group
from umbel.graphs import Graph, GraphNode
from umbel.messages import fresh_id


class CanvasWorld:
    """An application with tasks. Their runs are noted under labels that a test chooses."""

    def __init__(self, app: Umbel) -> None:
        self.app = app
        self.notes: dict[str, list[Any]] = defaultdict(list)
        self.signals: dict[str, Signal] = defaultdict(Signal)
        self._lock = threading.Lock()
        self._declare()

    def note(self, label: str, value: Any = None) -> None:
        with self._lock:
            self.notes[label].append(value)

    def signal(self, label: str) -> Signal:
        with self._lock:
            return self.signals[label]

    def _declare(self) -> None:
        app = self.app

        @app.task(name="add")
        async def add(a: int, b: int) -> int:
            return a + b

        @app.task(name="double")
        def double(number: int) -> int:
            return 2 * number

        @app.task(name="total")
        async def total(numbers: list[int]) -> int:
            return sum(numbers)

        @app.task(name="numbers")
        async def numbers(count: int) -> list[int]:
            return list(range(count))

        @app.task(name="same")
        async def same(value: Any = None) -> Any:
            return value

        @app.task(name="nothing")
        async def nothing() -> None:
            return None

        @app.task(name="answer")
        async def answer() -> int:
            return 42

        @app.task(name="text")
        async def text(value: str) -> str:
            return value

        @app.task(name="fail", retry=0)
        async def fail(value: Any = None, why: str = "no") -> int:
            raise ValueError(why)

        @app.task(name="flaky", retry=Retry(3, first=0.01, jitter=False))
        async def flaky(value: Any, failures: int) -> Any:
            if current.job.attempt <= failures:
                raise ConnectionError(f"attempt {current.job.attempt}")
            return value

        @app.task(name="noted")
        async def noted(value: Any, label: str) -> Any:
            self.note(label, value)
            return value

        @app.task(name="handle")
        async def handle(failure: NodeFailed, label: str) -> str:
            self.note(label, failure)
            return f"handled {failure.node}"

        @app.task(name="held")
        async def held(value: Any, label: str) -> Any:
            self.note(f"{label} started", value)
            await self.signal(label).seen()
            self.note(f"{label} ended", value)
            return value

        @app.task(name="held_thread")
        def held_thread(value: Any, label: str) -> Any:
            self.note(f"{label} started", value)
            while not self.signal(label):
                current.checkpoint()
                threading.Event().wait(0.005)
            return value

        @app.task(name="finish")
        async def finish(value: Any, when: bool = True) -> Any:
            return current.finish(value) if when else value

        self.add, self.double, self.total, self.numbers, self.same = (
            add, double, total, numbers, same,
        )  # fmt: skip
        self.nothing, self.answer, self.text, self.fail, self.flaky = (
            nothing, answer, text, fail, flaky,
        )  # fmt: skip
        self.noted, self.handle, self.held, self.held_thread, self.finish = (
            noted, handle, held, held_thread, finish,
        )  # fmt: skip

    # --- waiting -----------------------------------------------------------------------------

    def ended(self, handle: Handle[Any]) -> Graph:
        """Wait until the graph has ended with all of its nodes, and return it."""
        until(lambda: handle.state.finished, f"graph {handle.id} to end")
        until(lambda: all(node.has_ended for node in handle.graph.nodes), f"nodes of {handle.id}")
        return handle.graph

    def noted_at(self, label: str, count: int = 1) -> list[Any]:
        """Wait until something was noted so many times, and return it."""
        until(lambda: len(self.notes[label]) >= count, f"{count} notes of {label}")
        return self.notes[label]


def states(graph: Graph) -> dict[str, str]:
    """Return the state of each node that runs a task, by path."""
    return {node.path: str(node.state) for node in graph.tasks()}


def node_of(graph: Graph, task: str) -> GraphNode:
    """Return the only node of a task."""
    (found,) = [node for node in graph.tasks() if node.task == task]
    return found


def label() -> str:
    """Return a label that no other test uses."""
    return fresh_id()


@contextmanager
def running_world(
    url: str,
    prepare: Callable[[CanvasWorld], Any] | None = None,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[CanvasWorld]:
    """Run a worker for a new application until the block ends."""
    app = Umbel(url, **{"namespace": f"t{fresh_id()}", "deadline": 30.0, **(settings or {})})
    world = CanvasWorld(app)
    if prepare is not None:
        prepare(world)
    try:
        with working(app, **{"io": 20, "cpu": 2, **options}):
            try:
                yield world
            finally:
                for signal in [*world.signals.values()]:
                    signal.set()
    finally:
        app.close()


__all__ = [
    "CanvasWorld", "NodeFailed", "State", "chain", "fork", "group", "label", "node_of",
    "running_world", "states",
]  # fmt: skip

"""Tasks for workflows, and ways to run them: in virtual time, and with a worker."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from integration.running import until, working
from umbel import Handle, Retry, State, Umbel, current
from umbel.graphs import Graph, GraphNode
from umbel.messages import fresh_id
from umbel.operations import Operations
from umbel.tasks.workflow import Workflow
from umbel.testing import InMemoryJobs, in_memory

T = TypeVar("T")


class WorkflowWorld:
    """An application with tasks, which note their calls in one list."""

    def __init__(self, app: Umbel) -> None:
        self.app = app
        self.log: list[str] = []
        self.broken: set[str] = set()
        """The steps that fail."""
        self.gates: dict[str, threading.Event] = defaultdict(threading.Event)
        self.asks = 0
        self._declare()

    def _declare(self) -> None:
        app = self.app

        @app.task(name="step", retry=0)
        async def step(name: str, *values: Any) -> str:
            """Note the call, and return its name, or fail if it is broken."""
            self.log.append(name)
            if name in self.broken:
                raise ValueError(f"{name} is broken")
            return name

        @app.task(name="take_back", retry=0)
        async def take_back(done: str) -> None:
            self.log.append(f"undo {done}")
            if f"undo {done}" in self.broken:
                raise ValueError(f"cannot undo {done}")

        @app.task(name="number")
        async def number(value: int) -> int:
            self.log.append(f"number {value}")
            return value

        @app.task(name="text")
        async def text(value: str) -> str:
            self.log.append(f"text {value}")
            return value

        @app.task(name="any_")
        async def any_(*values: Any) -> Any:
            self.log.append(f"any {' '.join(map(str, values))}")
            return values[0] if len(values) == 1 else list(values)

        @app.task(name="data")
        async def data(value: dict[str, Any]) -> dict[str, Any]:
            return value

        @app.task(name="flaky", retry=Retry(3, first=0.01, jitter=False))
        async def flaky(failures: int) -> str:
            self.log.append(f"attempt {current.job.attempt}")
            if current.job.attempt <= failures:
                raise ConnectionError("again")
            return "flaky"

        @app.task(name="flaky_undo", retry=Retry(3, first=0.01, jitter=False))
        async def flaky_undo(done: Any) -> None:
            self.log.append(f"undo {done}, attempt {current.job.attempt}")
            if current.job.attempt < 3:
                raise ConnectionError("again")

        @app.task(name="gated")
        async def gated(name: str, *values: Any) -> str:
            self.log.append(f"{name} started")
            while not self.gates[name].is_set():
                await asyncio.sleep(0.005)
            self.log.append(f"{name} ended")
            return name

        @app.task(name="handle")
        async def handle(failure: Any) -> str:
            self.log.append(f"handled {failure.node}")
            return "handled"

        self.step, self.take_back, self.number, self.text = step, take_back, number, text
        self.any_, self.data, self.flaky, self.flaky_undo = any_, data, flaky, flaky_undo
        self.gated, self.handle = gated, handle

    def declare(self, function: Callable[..., Any], **options: Any) -> Workflow[..., Any]:
        """Declare a workflow with a name that no other test uses."""
        options.setdefault("name", f"w{fresh_id()[-6:]}")
        return self.app.workflow(**options)(function)

    # --- asking --------------------------------------------------------------------------------

    def ask(self, question: Callable[[Operations], Awaitable[T]]) -> T:
        """Return the answer of the operations, on new connections."""

        async def answer() -> T:
            operations = self.app.operations()
            try:
                return await question(operations)
            finally:
                await operations.close()

        return asyncio.run(answer())  # type: ignore[arg-type]

    def ended(self, handle: Handle[Any]) -> Graph:
        """Wait until the graph has ended with all of its nodes, and return it."""
        until(lambda: handle.state.finished, f"graph {handle.id} to end")
        until(lambda: all(node.has_ended for node in handle.graph.nodes), f"nodes of {handle.id}")
        return handle.graph


class VirtualWorld(WorkflowWorld):
    """It runs the jobs of workflows in virtual time, without a worker."""

    jobs: InMemoryJobs

    def run(self, seconds: float = 1.0) -> list[str]:
        """Run what is due within so many seconds. Return what was noted meanwhile."""
        begun, until = len(self.log), self.app.clock.now() + seconds
        self.jobs.drain(within=seconds, errors="collect")
        self.jobs.advance(max(until - self.app.clock.now(), 0.0))
        return self.log[begun:]

    def ask(self, question: Callable[[Operations], Awaitable[T]]) -> T:
        async def answer() -> T:
            return await question(self.app.operations())

        return asyncio.run(answer())


@contextmanager
def virtual_world() -> Iterator[VirtualWorld]:
    """Open an application on SQLite in memory, in virtual time."""
    app = Umbel("sqlite:///:memory:")
    world = VirtualWorld(app)
    with in_memory(app) as jobs:
        world.jobs = jobs
        yield world
    app.close()


@contextmanager
def working_world(url: str, **settings: Any) -> Iterator[WorkflowWorld]:
    """Run a worker for a new application until the block ends."""
    app = Umbel(url, **{"namespace": f"t{fresh_id()}", "deadline": 30.0, **settings})
    world = WorkflowWorld(app)
    try:
        with working(app, io=20, cpu=2):
            try:
                yield world
            finally:
                for gate in [*world.gates.values()]:
                    gate.set()
    finally:
        app.close()


def states(graph: Graph) -> dict[str, str]:
    """Return the state of each node that is shown, by its path."""
    return {node.path: str(node.state) for node in graph.tasks()}


def node_at(graph: Graph, path: str) -> GraphNode:
    """Return the node with this path."""
    return graph.find(path)


__all__ = [
    "State", "VirtualWorld", "WorkflowWorld", "node_at", "states", "virtual_world",
    "working_world",
]  # fmt: skip

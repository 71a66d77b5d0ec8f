"""A worker inside the test's own process, and ways to wait for what happens in it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from umbel import Handle, State, Umbel
from umbel.messages import Record, fresh_id
from umbel.operations import Operations
from umbel.telemetry import events
from umbel.worker import Worker, WorkerOptions

POSTGRES = os.environ.get("UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
DEADLINE = 60.0
"""Seconds after which a test is taken to hang. Nothing else is ever measured."""

E = TypeVar("E", bound=events.Event)
T = TypeVar("T")


# --- applications ----------------------------------------------------------------------------


@cache
def _postgres_refuses() -> str:
    import psycopg

    try:
        psycopg.connect(POSTGRES, connect_timeout=2).close()
    except psycopg.OperationalError as error:
        return str(error).strip().splitlines()[0]
    return ""


@contextmanager
def postgres_schema() -> Iterator[str]:
    """The URL of a schema of a module's own, dropped at the end. Skips without a server."""
    if refused := _postgres_refuses():
        pytest.skip(f"not run on PostgreSQL: {POSTGRES} does not answer ({refused})")
    import psycopg

    name = f"umbel_it_{os.getpid()}_{fresh_id()[-6:]}"
    url = f"{POSTGRES}?schema={name}"
    asyncio.run(Umbel(url).site.migrate())
    yield url
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute(f'drop schema "{name}" cascade')


class Places:
    """Where a module's tests run: in memory, in a file, in a PostgreSQL schema made on demand."""

    def __init__(self) -> None:
        self._schema: Any = None
        self._url = ""

    def url(self, place: str, folder: Path) -> str:
        if place == "memory":
            return "sqlite:///:memory:"
        if place == "file":
            return f"sqlite:///{folder}/umbel.db?synchronous=off"
        if self._schema is None:
            schema = postgres_schema()
            self._url = schema.__enter__()
            self._schema = schema
        return self._url

    @contextmanager
    def app(self, place: str, folder: Path, **settings: Any) -> Iterator[Umbel]:
        """An application of one test's own: nobody else uses its namespace."""
        given = {"namespace": f"t{fresh_id()}", "deadline": 20.0, **settings}
        app = Umbel(self.url(place, folder), **given)
        yield app
        app.close()

    def close(self) -> None:
        if self._schema is not None:
            self._schema.__exit__(None, None, None)


# --- waiting ---------------------------------------------------------------------------------


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition; fail when it does not come true in a time that means a hang."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {DEADLINE:g} s for {what}")
        time.sleep(0.01)


class Signal:
    """Something that happens once, in a task or in the test, and is waited for in the other."""

    def __init__(self, name: str = "signal") -> None:
        self._name = name
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self) -> None:
        """Block until it is set; holds no lock, so a stop raised in the thread is heard soon."""
        deadline = time.monotonic() + DEADLINE
        while not self._event.wait(0.02):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {DEADLINE:g} s for {self._name}")

    async def seen(self) -> None:
        """The same for a coroutine."""
        deadline = time.monotonic() + DEADLINE
        while not self._event.is_set():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {DEADLINE:g} s for {self._name}")
            await asyncio.sleep(0.005)


class Gauge:
    """Counts who is inside a block, and the most that ever were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = 0
        self.most = 0
        self.entered = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.entered += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


class Heard:
    """Everything an application tells, to be waited for."""

    def __init__(self, app: Umbel) -> None:
        self._changed = threading.Condition()
        self._events: list[events.Event] = []
        app.telemetry.subscribe(self._hear)

    def _hear(self, event: events.Event) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def all(self, kind: type[E], **fields: Any) -> list[E]:
        """What was told so far of one kind, with these fields."""
        with self._changed:
            return [
                event
                for event in self._events
                if isinstance(event, kind)
                and all(getattr(event, name) == value for name, value in fields.items())
            ]

    def wait(self, kind: type[E], count: int = 1, **fields: Any) -> E:
        """The so-manyth event of a kind, waited for."""
        deadline = time.monotonic() + DEADLINE
        with self._changed:
            while len(found := self.all(kind, **fields)) < count:
                left = deadline - time.monotonic()
                if left <= 0:
                    told = [type(event).__name__ for event in self._events[-20:]]
                    raise AssertionError(f"{kind.__name__} {fields} never came; last: {told}")
                self._changed.wait(left)
        return found[count - 1]

    # ``all`` is called inside ``wait``: the condition's lock is re-entrant.


# --- the worker ------------------------------------------------------------------------------


class Running:
    """A worker that runs in a thread of the test's process."""

    def __init__(
        self,
        app: Umbel,
        options: WorkerOptions,
        prepare: Callable[[Worker], object] | None = None,
    ) -> None:
        self.app = app
        self.worker: Worker
        self._options = options
        self._prepare = prepare
        self._loop: asyncio.AbstractEventLoop
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="worker under test", daemon=True)
        self._thread.start()
        self._ready.wait(DEADLINE)
        if self._error is not None:
            raise self._error

    def _serve(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.worker = self.app.worker(self._options)
        if self._prepare is not None:
            self._prepare(self.worker)
        started = asyncio.create_task(self._tell_start())
        try:
            await self.worker.run()
        finally:
            started.cancel()

    async def _tell_start(self) -> None:
        await self.worker.started.wait()
        self._ready.set()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask it to stop, as a signal would; a second time: now."""
        if self.alive:
            self._loop.call_soon_threadsafe(self.worker.stop)

    def join(self) -> None:
        """Wait for its end; a worker that crashed raises here."""
        self._thread.join(DEADLINE)
        if self._error is not None:
            raise self._error
        assert not self.alive, f"the worker did not stop within {DEADLINE:g} s"

    def end(self) -> None:
        """Stop at once, and wait."""
        self.stop()
        self.stop()
        self.join()


@contextmanager
def working(
    app: Umbel,
    *,
    prepare: Callable[[Worker], object] | None = None,
    **options: Any,
) -> Iterator[Running]:
    """A worker for the time of the block: it is alive at the end, and stops when told to."""
    given = {"queues": tuple(app.registry.queues()), "name": "worker", "io": 10, "cpu": 4}
    running = Running(app, WorkerOptions(**{**given, **options}), prepare)
    try:
        yield running
    except BaseException:
        running.stop()
        running.stop()
        raise
    running.end()


def ask(app: Umbel, question: Callable[[Operations], Awaitable[T]]) -> T:
    """Ask or tell the store something, as an operator."""

    async def answer() -> T:
        operations = app.operations()
        try:
            return await question(operations)
        finally:
            await operations.close()

    return asyncio.run(answer())


def finished(handle: Handle[Any]) -> Record:
    """The record of a job that has to end."""
    until(lambda: handle.state.finished, f"job {handle.id} to finish")
    return handle.record()


def ended(record: Record) -> list[str]:
    """How each attempt of a job ended."""
    return [attempt.ended for attempt in record.attempts]


def in_state(handles: list[Handle[Any]], state: State) -> int:
    """How many of these jobs are in a state now."""
    return sum(handle.state is state for handle in handles)

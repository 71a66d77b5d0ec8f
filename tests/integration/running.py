"""A worker in the process of the test, and functions that wait for its events."""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
from msgspec.structs import astuple

from umbel import Handle, State, Umbel
from umbel.app.upkeep import open_upkeep
from umbel.backends import Roles
from umbel.messages import Record, fresh_id
from umbel.operations import Operations
from umbel.router import DuplicateFilter, Router
from umbel.telemetry import events
from umbel.worker import Worker, WorkerOptions

POSTGRES = os.environ.get("UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
DEADLINE = float(os.environ.get("UMBEL_TEST_DEADLINE", "60"))
"""Seconds after which a test is considered to hang. Tests measure no other time."""

E = TypeVar("E", bound=events.Event)
T = TypeVar("T")
HOST = "127.0.0.1"


# --- time -------------------------------------------------------------------------------------


class Delays:
    """How late the threads of this process were woken by a busy machine, in seconds in all.

    A test that measures a call subtracts them.
    """

    _STEP = 0.02

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._measure)

    def __enter__(self) -> Delays:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _measure(self) -> None:
        begun = time.monotonic()
        while not self._ended.wait(self._STEP):
            now = time.monotonic()
            self.seconds += max(0.0, now - begun - self._STEP)
            begun = now


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
    """Yield the URL of a new schema, and drop it afterwards. Skip the test if no server answers."""
    if refused := _postgres_refuses():
        pytest.skip(f"not run on PostgreSQL: {POSTGRES} does not answer ({refused})")
    import psycopg

    name = f"umbel_worker_{os.getpid()}_{fresh_id()[-6:]}"
    url = f"{POSTGRES}?schema={name}"
    asyncio.run(Umbel(url).backend.migrate())
    yield url
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute(f'drop schema "{name}" cascade')


class Places:
    """The stores of a module's tests: in memory, a file, and a PostgreSQL schema made on demand."""

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
        """Open an application in a namespace that only this test uses."""
        given = {"namespace": f"t{fresh_id()}", "deadline": 20.0, **settings}
        app = Umbel(self.url(place, folder), **given)
        yield app
        app.close()

    def close(self) -> None:
        if self._schema is not None:
            self._schema.__exit__(None, None, None)


# --- servers ---------------------------------------------------------------------------------


def needs(port: int, what: str) -> None:
    try:
        socket.create_connection((HOST, port), timeout=2).close()
    except OSError:
        pytest.skip(f"not run: tests on {what}; no server listens on port {port}")


@contextmanager
def rabbitmq() -> Iterator[str]:
    """Yield the URL of a virtual host for one test, which is deleted when this process ends."""
    needs(5672, "RabbitMQ")
    if shutil.which("rabbitmqctl") is None:
        pytest.skip("not run: tests on RabbitMQ; no rabbitmqctl to make a virtual host with")
    vhost = f"umbel-it-{os.getpid()}-{fresh_id()[-6:]}"
    if not _VHOSTS:
        atexit.register(_delete_vhosts)
    _VHOSTS.append(vhost)
    _evaluate(
        f'rabbit_vhost:add(<<"{vhost}">>, <<"tests">>),'
        f' rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"{vhost}">>, <<".*">>,'
        ' <<".*">>, <<".*">>, <<"tests">>).'
    )
    yield f"amqp://guest:guest@{HOST}:5672/{quote(vhost, safe='')}"


_VHOSTS: list[str] = []
"""The virtual hosts of this process's tests. Each call of rabbitmqctl starts a virtual machine, so
one call deletes all of them."""


def _delete_vhosts() -> None:
    _evaluate(", ".join(f'rabbit_vhost:delete(<<"{one}">>, <<"tests">>)' for one in _VHOSTS) + ".")


def _evaluate(expression: str) -> None:
    command = ["rabbitmqctl", "-q", "eval", expression]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr


@contextmanager
def nats(namespace: str) -> Iterator[str]:
    """Yield the URL of the server, and delete the streams of the namespace afterwards."""
    needs(4222, "NATS")
    import nats as library

    async def clean() -> None:
        client = await library.connect(f"nats://{HOST}:4222")
        manager = client.jetstream()
        for found in await manager.streams_info():
            if found.config.name.partition("+")[0] == namespace:
                await manager.delete_stream(found.config.name)
        await client.close()

    yield f"nats://{HOST}:4222"
    asyncio.run(clean())


@contextmanager
def redis(namespace: str) -> Iterator[str]:
    """Yield the URL of the server, and delete the keys of the namespace afterwards."""
    needs(6379, "Redis")
    library = pytest.importorskip("redis")
    yield f"redis://{HOST}:6379/0"
    with closing(library.Redis(HOST, 6379)) as client:
        for key in client.scan_iter(match=f"umbel:{{{namespace}}}*", count=1000):
            client.delete(key)


# --- waiting ---------------------------------------------------------------------------------


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition. Fail if it is not met within the time that counts as a hang."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {DEADLINE:g} s for {what}")
        time.sleep(0.01)


class Signal:
    """An event that is set once, in a task or in the test, while the other waits for it.

    It waits longer than everything else: a task must not give up before the test does.
    """

    def __init__(self, name: str = "signal") -> None:
        self._name = name
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self) -> None:
        """Block until it is set. It holds no lock, so that a stop ends the wait soon."""
        deadline = time.monotonic() + 4 * DEADLINE
        while not self._event.wait(0.02):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for {self._name}")

    async def seen(self) -> None:
        """``wait`` for a coroutine."""
        deadline = time.monotonic() + 4 * DEADLINE
        while not self._event.is_set():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for {self._name}")
            await asyncio.sleep(0.005)


class Gauge:
    """Counts how many callers are inside a block, and the maximum so far."""

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
    """Records the events of an application, and waits for them."""

    def __init__(self, app: Umbel) -> None:
        self._changed = threading.Condition()
        self._events: list[events.Event] = []
        app.telemetry.subscribe(self._hear)

    def _hear(self, event: events.Event) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def all(self, kind: type[E], **fields: Any) -> list[E]:
        """Return the events of one kind so far that have these fields."""
        with self._changed:
            return [
                event
                for event in self._events
                if isinstance(event, kind)
                and all(getattr(event, name) == value for name, value in fields.items())
            ]

    def wait(self, kind: type[E], count: int = 1, **fields: Any) -> E:
        """Wait for the n-th event of a kind, and return it."""
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
        build: Callable[[Umbel, WorkerOptions], Worker] = Umbel.worker,
    ) -> None:
        self.app = app
        self.worker: Worker
        self._options = options
        self._build = build
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
        self.worker = self._build(self.app, self._options)
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
        """Ask it to stop, as a signal does. The second call skips the grace period."""
        if self.alive:
            self._loop.call_soon_threadsafe(self.worker.stop)

    def join(self, seconds: float = DEADLINE) -> None:
        """Wait until it has ended. Raise the error of a worker that crashed."""
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        assert not self.alive, f"the worker did not stop within {seconds:g} s"

    def end(self) -> None:
        """Stop it without a grace period, and wait."""
        self.stop()
        self.stop()
        self.join()


@contextmanager
def working(
    app: Umbel,
    *,
    build: Callable[[Umbel, WorkerOptions], Worker] = Umbel.worker,
    **options: Any,
) -> Iterator[Running]:
    """Run a worker until the block ends. It must still run then, and must stop when asked to."""
    given = {"queues": tuple(app.registry.queues()), "name": "worker", "io": 10, "cpu": 4}
    running = Running(app, WorkerOptions(**{**given, **options}), build)
    try:
        yield running
    except BaseException:
        running.stop()
        running.stop()
        raise
    running.end()


# --- faults ----------------------------------------------------------------------------------

Fault = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""A function that gets the real call, and decides whether to make it."""


class Faulty:
    """An intake or a role with faults in some of its methods."""

    def __init__(self, inner: Any, faults: dict[str, Fault]) -> None:
        self._inner = inner
        self._faults = faults
        if isinstance(inner, Router):
            self.roles = Roles(*(Faulty(role, faults) for role in astuple(inner.roles)))

    def __getattr__(self, name: str) -> Any:
        real, fault = getattr(self._inner, name), self._faults.get(name)
        if fault is None:
            return real

        async def faulty(*args: Any, **kwargs: Any) -> Any:
            return await fault(lambda: real(*args, **kwargs))

        return faulty


def with_faults(
    faults: dict[str, Fault], kind: type[Worker] = Worker
) -> Callable[[Umbel, WorkerOptions], Worker]:
    """Return a function that builds a worker with these faults. The dict may change later."""

    def build(app: Umbel, options: WorkerOptions) -> Worker:
        duplicates = DuplicateFilter(options.remember)

        def open_intake() -> Any:
            router = Router(
                app.backend.open(),
                queues=options.queues,
                duplicates=duplicates,
                clock=app.clock,
                telemetry=app.telemetry,
            )
            return Faulty(router, faults)

        return kind(
            open_intake,
            app.registry,
            options,
            codec=app.codec,
            clock=app.clock,
            telemetry=app.telemetry,
            open_upkeep=partial(open_upkeep, app.backend, app.settings, app.clock, app.telemetry),
        )

    return build


class Mortal(Worker):
    """A worker that reports a forced exit instead of ending the process of the test."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.died = Signal("its end")

    def exit_stalled(self, reason: str) -> None:
        self.died.set()


class Proxy:
    """A TCP proxy that a test can cut, freeze and restore."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open = True
        self._silent = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        """No connection is added while all are dropped: it would survive the outage."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self) -> None:
        """Drop every connection and refuse new ones."""
        with self._lock:
            self._open = False
            self._drop()

    def silence(self) -> None:
        """Keep all connections and accept new ones, but forward nothing."""
        self._silent = True

    def mend(self) -> None:
        """Forward again. Connections from the silent time are dropped."""
        with self._lock:
            if self._silent:
                self._drop()
            self._open, self._silent = True, False

    def close(self) -> None:
        self._listener.close()
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if not self._open:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._pairs.append((client, server))
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                while self._silent:
                    time.sleep(0.01)
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def execute(app: Umbel, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run SQL as a user of a database shell does. ``$schema`` and ``?`` are filled in."""
    url = app.settings.broker
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///").partition("?")[0]
        with closing(sqlite3.connect(path, timeout=20)) as connection, connection:
            return connection.execute(statement.replace("$schema.", ""), values).fetchall()
    import psycopg

    base, _, schema = url.partition("?schema=")
    text = statement.replace("$schema", f'"{schema}"').replace("?", "%s")
    with psycopg.connect(base) as server:
        cursor = server.execute(text, values)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []


def insert_job(app: Umbel, **columns: Any) -> Handle[Any]:
    """Insert a row into the job table directly."""
    row = {
        "id": fresh_id(),
        "namespace": app.settings.namespace,
        "queue": "default",
        "task": "work",
        "body": b'{"args": [], "kwargs": {}}',
        **columns,
    }
    if app.settings.broker.startswith("sqlite"):
        row.setdefault("created", time.time())
    marks = ", ".join("?" * len(row))
    names = ", ".join(row)
    execute(app, f"insert into $schema.job ({names}) values ({marks})", *row.values())
    return app.handle(row["id"])


# --- the store -------------------------------------------------------------------------------


def ask(app: Umbel, question: Callable[[Operations], Awaitable[T]]) -> T:
    """Query or change the store through the operations."""

    async def answer() -> T:
        operations = app.operations()
        try:
            return await question(operations)
        finally:
            await operations.close()

    return asyncio.run(answer())


def ask_backend(app: Umbel, question: Callable[[Roles], Awaitable[T]]) -> T:
    """Query or change the store through its ports, on new connections."""

    async def answer() -> T:
        roles = app.backend.open()
        try:
            return await question(roles)
        finally:
            await roles.close()

    return asyncio.run(answer())


def beats_pass(app: Umbel, count: int) -> None:
    """Wait until the only worker has sent this many more heartbeats, in one incarnation."""

    def beats() -> int:
        members = ask_backend(app, lambda roles: roles.registry.workers())
        return max(member.heartbeats for member in members)

    first = beats()
    until(lambda: beats() >= first + count, f"{count} heartbeats")


def finished(handle: Handle[Any]) -> Record:
    """Wait until a job has ended, and return its record."""
    until(lambda: handle.state.finished, f"job {handle.id} to finish")
    return handle.record()


def ended(record: Record) -> list[str]:
    """Return how each attempt of a job ended."""
    return [attempt.ended for attempt in record.attempts]


def in_state(handles: list[Handle[Any]], state: State) -> int:
    """Return how many of these jobs are in a state now."""
    return sum(handle.state is state for handle in handles)

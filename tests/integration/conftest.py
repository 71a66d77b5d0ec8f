"""Integration tests run on a SQLite file and on PostgreSQL. Each test has its own namespace.

``place`` is one of the two; ``sqlite`` and ``postgres`` are for tests that are about one of them.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import msgspec
import psycopg
import pytest
from servers import PrivatePostgres, private_postgres

from integration.canvas_world import CanvasWorld, running_world
from integration.command_line import Shell
from integration.running import Proxy, redis
from umbel import Umbel, WorkerOptions
from umbel.app.backends import open_backend
from umbel.backends import Backend, JobFilter, Roles
from umbel.clock import Clock
from umbel.configuration import Settings
from umbel.messages import Record, fresh_id
from umbel.operations import Operations
from umbel.telemetry import Telemetry
from umbel.worker import Worker

T = TypeVar("T")

POSTGRES = os.environ.get("UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
PATIENCE = 3600.0
"""Seconds between safety polls: so many that a test passes only if a notification arrives."""
HANG = 60.0
"""Seconds after which a call is considered to hang."""


class PatientBackend:
    """A backend whose adapters do not poll in practice: only a notification ends their waits."""

    def __init__(self, place: Place, inner: Backend, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self._inner = inner

    def open(self, *, is_loop_dedicated: bool = False) -> Roles:
        looks: Any = {
            "namespace": self._place.namespace,
            "clock": self._clock,
            "safety_poll": PATIENCE,
        }
        roles = self._inner.open(is_loop_dedicated=is_loop_dedicated)
        if self._place.kind == "sqlite":
            from umbel.backends.sqlite.broker import SqliteBroker
            from umbel.backends.sqlite.database import Database, SqliteFile
            from umbel.backends.sqlite.records import SqliteRecords

            file = Database(SqliteFile(self._place.path), is_loop_dedicated=is_loop_dedicated)
            broker, records = SqliteBroker(file, **looks), SqliteRecords(file, **looks)
            return msgspec.structs.replace(roles, broker=broker, records=records)
        from umbel.backends.postgres.address import PostgresAddress
        from umbel.backends.postgres.broker import PostgresBroker
        from umbel.backends.postgres.database import Database as Server
        from umbel.backends.postgres.records import PostgresRecords

        server = Server(PostgresAddress(self._place.url))
        return msgspec.structs.replace(
            roles,
            broker=PostgresBroker(server, **looks),
            records=PostgresRecords(server, **looks),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@dataclass
class Place:
    """The store and the namespace of one test."""

    kind: str
    url: str
    namespace: str = field(default_factory=lambda: f"t{fresh_id()}")
    path: str = ""
    """The path of the SQLite file; empty on PostgreSQL."""
    _closing: ExitStack = field(default_factory=ExitStack)

    def app(self, **settings: Any) -> Umbel:
        """Return an application on this store. It is closed when the test ends."""
        settings = {"namespace": self.namespace, "deadline": 15.0, "backlog": "none", **settings}
        app = Umbel(self.url, **settings)
        self._closing.callback(app.close)
        return app

    def patient_app(self) -> Umbel:
        """Return an application whose handles and workers do not poll, in practice."""

        def open_patiently(settings: Settings, clock: Clock, telemetry: Telemetry) -> Any:
            return PatientBackend(self, open_backend(settings, clock, telemetry), clock)

        with patch("umbel.app.umbel.open_backend", open_patiently):
            return self.app()

    def ask(self, question: Callable[[Operations], Any]) -> Any:
        """Return the answer of the operations, on new connections."""

        async def answer() -> Any:
            operations = Umbel(self.url, namespace=self.namespace).operations()
            try:
                return await question(operations)
            finally:
                await operations.close()

        return asyncio.run(answer())

    def jobs(self) -> list[Record]:
        """Return all jobs, live and finished."""
        found: list[Record] = self.ask(lambda o: o.jobs(JobFilter(limit=1_000_000)))
        return found

    def ids(self) -> list[str]:
        """Return the ids of all jobs, sorted."""
        return sorted(job.id for job in self.jobs())

    def connect(self) -> Any:
        """Return a connection of the caller, with its driver's default transaction mode."""
        if self.kind == "sqlite":
            import sqlite3

            connection = sqlite3.connect(self.path, check_same_thread=False)
            # A commit is seen a moment after its write: here not a matter of the disk's speed.
            connection.execute("pragma synchronous = off")
            return connection
        return psycopg.connect(self.url.partition("?")[0])

    @property
    def sqlalchemy_url(self) -> str:
        if self.kind == "sqlite":
            return f"sqlite:///{self.path}"
        return self.url.partition("?")[0].replace("postgresql://", "postgresql+psycopg://")

    @property
    def schema(self) -> str:
        return self.url.rpartition("schema=")[2]

    def script(self, code: str, *arguments: str, seconds: float = HANG) -> str:
        """Run code in another Python process, with ``app`` and ``add``. Return what it prints."""
        command = [sys.executable, "-c", PROLOGUE + code, self.url, self.namespace, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, cwd="/"
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def close(self) -> None:
        self._closing.close()


PROLOGUE = """
import os, sys, threading
from umbel import Umbel
app = Umbel(sys.argv[1], namespace=sys.argv[2], deadline=15)
@app.task(name="add")
def add(a: int, b: int) -> int:
    return a + b
"""


@contextmanager
def _sqlite(folder: Path) -> Iterator[Place]:
    path = str(folder / "umbel.db")
    place = Place("sqlite", f"sqlite:///{path}", path=path)
    try:
        asyncio.run(Umbel(place.url).backend.migrate())
        yield place
    finally:
        place.close()


@contextmanager
def _postgres(url: str) -> Iterator[Place]:
    place = Place("postgres", url)
    try:
        yield place
    finally:
        place.close()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a schema that this process uses for the whole run."""
    try:
        psycopg.connect(POSTGRES, connect_timeout=2).close()
    except psycopg.OperationalError as error:
        pytest.skip(f"not run: integration tests on PostgreSQL ({error})")
    schema = f"umbel_it_{os.getpid()}_{fresh_id()[-6:]}"
    url = f"{POSTGRES}?schema={schema}"
    try:
        asyncio.run(Umbel(url).backend.migrate())
        yield url
    finally:
        with psycopg.connect(POSTGRES, autocommit=True) as connection:
            connection.execute(f'drop schema if exists "{schema}" cascade')


@pytest.fixture
def new_schema() -> Iterator[str]:
    """The URL of a PostgreSQL schema that does not exist yet."""
    schema = f"umbel_it_{os.getpid()}_{fresh_id()[-6:]}"
    try:
        connection = psycopg.connect(POSTGRES, autocommit=True, connect_timeout=2)
    except psycopg.OperationalError as error:
        pytest.skip(f"not run: integration tests on PostgreSQL ({error})")
    with connection:
        try:
            yield f"{POSTGRES}?schema={schema}"
        finally:
            connection.execute(f'drop schema if exists "{schema}" cascade')


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Place]:
    with _sqlite(tmp_path) as place:
        yield place


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Place]:
    with _postgres(postgres_url) as place:
        yield place


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def server() -> Iterator[PrivatePostgres]:
    """A PostgreSQL server with a schema that only this test uses, and may stop."""
    with private_postgres() as server:
        asyncio.run(Umbel(server.url).backend.migrate())
        yield server


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CanvasWorld]:
    """A worker on SQLite with tasks for canvases, for all tests of a module."""
    path = tmp_path_factory.mktemp("canvases") / "umbel.db"
    with running_world(f"sqlite:///{path}?synchronous=off") as world:
        yield world


@contextmanager
def working(app: Umbel, **options: Any) -> Iterator[Worker]:
    """Run a worker for the application in another thread until the block ends."""
    found: list[tuple[asyncio.AbstractEventLoop, Worker]] = []
    failed: list[BaseException] = []
    started = threading.Event()

    async def work() -> None:
        queues = options.pop("queues", tuple(app.registry.queues()))
        worker = app.worker(WorkerOptions(queues=queues, grace=1, **options))
        found.append((asyncio.get_running_loop(), worker))
        running = asyncio.ensure_future(worker.run())
        ready = asyncio.ensure_future(worker.started.wait())
        await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
        started.set()
        ready.cancel()
        await running

    def serve() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=serve, name="worker under test")
    thread.start()
    try:
        assert started.wait(HANG), "the worker does not start"
        if not failed:
            yield found[0][1]
    finally:
        if thread.is_alive():
            loop, worker = found[0]
            loop.call_soon_threadsafe(worker.stop)
        thread.join(HANG)
        assert not thread.is_alive(), "the worker does not stop"
        if failed:
            raise failed[0]


def in_threads(work: Callable[[int], T], count: int = 16) -> list[T | BaseException]:
    """Call the function with each number at the same time. Return the results or errors."""
    barrier = threading.Barrier(count)
    answers: list[Any] = [None] * count

    def one(number: int) -> None:
        barrier.wait(HANG)
        try:
            answers[number] = work(number)
        except BaseException as error:
            answers[number] = error

    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert not any(thread.is_alive() for thread in threads), "a publishing thread hangs"
    return answers


def in_child(work: Callable[[], object], seconds: float = HANG) -> str:
    """Call the function in a forked child. Return ``+`` and its result, or ``-`` and its error."""
    read, write = os.pipe()
    with warnings.catch_warnings():  # newer Pythons warn of forks beside threads: the very point
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            answer = f"+{work()}"
        except BaseException as error:
            answer = f"-{type(error).__name__}: {error}"
        os.write(write, answer.encode()[:4000])
        os._exit(0)
    os.close(write)
    heard, _, _ = select.select([read], [], [], seconds)
    if not heard:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    said = os.read(read, 5000).decode()
    os.close(read)
    assert heard, "the child hangs"
    return said


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    info = psycopg.conninfo.conninfo_to_dict(POSTGRES)
    proxy = Proxy(str(info["host"]), int(str(info.get("port") or 5432)))
    yield proxy
    proxy.close()


@pytest.fixture
def distant(postgres: Place, proxy: Proxy) -> Iterator[Place]:
    """PostgreSQL behind a proxy that can cut connections."""
    info = psycopg.conninfo.conninfo_to_dict(POSTGRES)
    where = f"postgresql://{info['user']}@127.0.0.1:{proxy.port}/{info['dbname']}"
    place = Place("postgres", f"{where}?schema={postgres.schema}", postgres.namespace)
    yield place
    proxy.mend()
    place.close()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A folder with an application, and commands run in it."""
    return Shell(tmp_path)


# --- an application with tasks that succeed, fail and wait ---------------------------------------


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def app(request: pytest.FixtureRequest) -> Iterator[Umbel]:
    """The shop on each store that is broker and store in one."""
    from integration.browsing import declare

    if request.param == "redis":
        namespace = f"t{fresh_id()}"
        with redis(namespace) as url:
            app = Umbel(url, namespace=namespace, backlog="none", deadline=15)
            yield declare(app)
            app.close()
    else:
        place: Place = request.getfixturevalue(request.param)
        yield declare(place.app())


@pytest.fixture
def shop(sqlite: Place) -> Umbel:
    """The shop on SQLite."""
    from integration.browsing import declare

    return declare(sqlite.app())

"""The backends that chaos runs on: a file, a server, or a broker and a store."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from scenario_client import Client

from chaos.append_log import AppendLog
from chaos.audit import Audit
from chaos.disk import Disk, Quota, SmallDisk
from chaos.proxy import Proxy
from chaos.server_processes import (
    HOST,
    Nats,
    NotAvailable,
    Postgres,
    Program,
    Rabbit,
    Redis,
    ServerProcess,
)
from chaos.transport_queues import NatsStreams, RabbitQueues, TransportQueues
from umbel import Umbel

_MEGABYTES = 512
_SMALL = """
max_connections = 300
shared_buffers = 32MB
min_wal_size = 32MB
max_wal_size = 64MB
"""
P = TypeVar("P", bound="BackendUnderTest")
StartStore = Callable[[ExitStack, int, str], "BackendUnderTest"]
"""Starts the server that is the job store."""

_NO_DISK = "not tried: a full disk (no small file system can be mounted)"


class ProxiedServer:
    """A private server and the proxied connection to it."""

    def __init__(self, what: str, server: ServerProcess, seed: int) -> None:
        self.what = what
        """Its role in the run: server, broker or store."""
        self.server = server
        self.proxy = Proxy(server.port, seed)

    @property
    def connection_name(self) -> str:
        return "connection" if self.what == "server" else f"{self.what} connection"

    def through(self, url: str) -> str:
        """Return the same address, through the proxy."""
        return url.replace(f"{HOST}:{self.server.port}", f"{HOST}:{self.proxy.port}")

    def restore(self) -> None:
        """Make it available again after any fault."""
        self.proxy.set_state("fine")
        self.server.start()

    def close(self) -> None:
        self.proxy.close()
        with suppress(RuntimeError):  # it may be down already
            self.server.stop(self.server.stop_modes[-1])


class BackendUnderTest:
    """A SQLite file. It has no server to restart and no connection to cut."""

    name = "sqlite"
    one_clock = True
    """Whether the workers' clocks decide what is due. If so, all have the same wrong clock."""

    def __init__(self, url: str, disk: Disk | None) -> None:
        self.url = url
        self.disk = disk
        self.proxied_servers: list[ProxiedServer] = []
        self.transport_queues: TransportQueues | None = None

    @property
    def environments(self) -> list[dict[str, str]]:
        """The environment variables of workers, then those of publishers that bypass the proxy."""
        return [{"UMBEL_URL": self.url}]

    @property
    def without(self) -> str:
        """Return one line that names the faults that cannot be injected on this machine."""
        return ""

    @property
    def store(self) -> ProxiedServer | None:
        """The server that stores the records, on the disk that fills up."""
        return self.proxied_servers[-1] if self.proxied_servers else None

    @property
    def audit(self) -> Audit | AppendLog:
        """The store's record of its own changes."""
        return Audit(self.url)

    def client(self) -> Client:
        return Client(self.url)

    def restore(self) -> None:
        """Make it available again after any fault."""
        for proxied in self.proxied_servers:
            proxied.restore()


class PostgresUnderTest(BackendUnderTest):
    """A private PostgreSQL server. All workers reach it through a proxy."""

    name = "postgres"
    one_clock = False

    def __init__(self, server: Postgres, disk: Disk | None, seed: int, what: str) -> None:
        super().__init__(server.url, disk)
        self.proxied_servers = [ProxiedServer(what, server, seed)]

    @property
    def environments(self) -> list[dict[str, str]]:
        near = {"UMBEL_URL": self.url}
        return [{"UMBEL_URL": self.proxied_servers[0].through(self.url)}, near]

    @property
    def without(self) -> str:
        return "" if self.disk else _NO_DISK


class RedisUnderTest(PostgresUnderTest):
    """A private Redis server. All workers reach it through a proxy."""

    name = "redis"
    one_clock = False

    def __init__(self, server: Redis, disk: Disk | None, seed: int, what: str) -> None:
        BackendUnderTest.__init__(self, server.url, disk)
        self.proxied_servers = [ProxiedServer(what, server, seed)]
        self._log = AppendLog(self.url, server.log)

    @property
    def audit(self) -> AppendLog:
        return self._log


class PairUnderTest(BackendUnderTest):
    """A broker that only transports messages, and a job store. Both have faults."""

    def __init__(
        self, name: str, broker: tuple[str, ServerProcess], store: BackendUnderTest, seed: int
    ) -> None:
        super().__init__(store.url, store.disk)
        self.name, self.one_clock = name, store.one_clock
        self.broker, server = broker
        self.proxied_servers = [ProxiedServer("broker", server, seed + 1), *store.proxied_servers]
        self._store = store

    @property
    def environments(self) -> list[dict[str, str]]:
        broker, store = self.proxied_servers
        return [
            {"UMBEL_URL": broker.through(self.broker), "UMBEL_STORE": store.through(self.url)},
            {"UMBEL_URL": self.broker, "UMBEL_STORE": self.url},
        ]

    @property
    def without(self) -> str:
        return self._store.without

    @property
    def audit(self) -> Audit | AppendLog:
        return self._store.audit

    def client(self) -> Client:
        client = Client(self.url)
        how = {"namespace": "scenario", "deadline": 20.0, "backlog": "none"}
        client.app = Umbel(self.broker, store=self.url, **how)  # type: ignore[arg-type]
        return client


@contextmanager
def open_backend(name: str, seed: int) -> Iterator[BackendUnderTest]:
    """Start a backend and create its schema, for the duration of the block.

    Raises NotAvailable.
    """
    with BACKENDS[name](seed) as backend:
        yield backend


@contextmanager
def _sqlite(seed: int) -> Iterator[BackendUnderTest]:
    disk = _small_disk() or Quota()
    backend = BackendUnderTest(f"sqlite:///{disk.folder}/umbel.db", disk)
    try:
        asyncio.run(Umbel(backend.url).backend.migrate())
        yield backend
    finally:
        disk.remove()


@contextmanager
def _postgres(seed: int) -> Iterator[BackendUnderTest]:
    with ExitStack() as stack:
        yield _started_postgres(stack, seed, "server")


@contextmanager
def _redis(seed: int) -> Iterator[BackendUnderTest]:
    with ExitStack() as stack:
        yield _started_redis(stack, seed, "server")


@contextmanager
def _rabbitmq(seed: int, store: StartStore) -> Iterator[BackendUnderTest]:
    queue_name = _adapter("umbel.backends.rabbitmq.queue_names").queue_name
    with ExitStack() as stack:
        node = Rabbit(_readable_folder(stack))
        url = f"amqp://guest:guest@{HOST}:{node.port}/?connect_timeout=2&heartbeat=3"
        backend = _pair(stack, "rabbitmq", (url, node), store, seed)
        backend.transport_queues = RabbitQueues(node.port, queue_name)
        yield backend


@contextmanager
def _nats(seed: int, store: StartStore) -> Iterator[BackendUnderTest]:
    _adapter("umbel.backends.nats.backend")
    with ExitStack() as stack:
        server = Nats(_folder(stack, None))
        backend = _pair(stack, "nats", (server.url, server), store, seed)
        backend.transport_queues = NatsStreams(server.url)
        yield backend


@contextmanager
def _amqp(seed: int, store: StartStore) -> Iterator[BackendUnderTest]:
    queue_name = _adapter("umbel.backends.amqp.queue_names").queue_name
    with ExitStack() as stack:
        node = Rabbit(_readable_folder(stack), "rabbitmq_amqp1_0")
        url = f"amqp1://guest:guest@{HOST}:{node.port}?connect_timeout=2"
        backend = _pair(stack, "amqp", (url, node), store, seed)
        backend.transport_queues = RabbitQueues(node.port, queue_name)
        yield backend


def _adapter(name: str) -> Any:
    """Import a module that needs a server's library. Raises NotAvailable."""
    try:
        return import_module(name)
    except ImportError as error:
        raise NotAvailable(f"not run: {error}") from None


def _pair(
    stack: ExitStack, name: str, broker: tuple[str, Program], store: StartStore, seed: int
) -> PairUnderTest:
    backend = PairUnderTest(name, broker, store(stack, seed, "store"), seed)
    stack.callback(backend.proxied_servers[0].close)
    broker[1].start()
    return backend


def _started_postgres(stack: ExitStack, seed: int, what: str) -> PostgresUnderTest:
    disk = _small_disk()
    server = Postgres(_folder(stack, disk), _SMALL)
    server.start()
    asyncio.run(Umbel(server.url).backend.migrate())
    return _closed_at_the_end(stack, PostgresUnderTest(server, disk, seed, what))


def _started_redis(stack: ExitStack, seed: int, what: str) -> RedisUnderTest:
    _adapter("umbel.backends.redis.backend")
    disk = _small_disk()
    server = Redis(_folder(stack, disk))
    backend = _closed_at_the_end(stack, RedisUnderTest(server, disk, seed, what))
    server.start()
    return backend


def _closed_at_the_end(stack: ExitStack, backend: P) -> P:
    stack.callback(backend.proxied_servers[0].close)
    return backend


def _folder(stack: ExitStack, disk: Disk | None) -> Path:
    if disk is not None:
        stack.callback(disk.remove)
        return disk.folder
    folder = Path(tempfile.mkdtemp(prefix="umbel-chaos-server-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _readable_folder(stack: ExitStack) -> Path:
    """Return a folder that the server's user can read."""
    folder = _folder(stack, None)
    folder.chmod(0o755)
    return folder


def _small_disk() -> SmallDisk | None:
    try:
        return SmallDisk(_MEGABYTES)
    except PermissionError:
        return None


BACKENDS: dict[str, Callable[[int], AbstractContextManager[BackendUnderTest]]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "redis": _redis,
    "rabbitmq": partial(_rabbitmq, store=_started_postgres),
    "nats": partial(_nats, store=_started_postgres),
    "amqp": partial(_amqp, store=_started_postgres),
    "rabbitmq+redis": partial(_rabbitmq, store=_started_redis),
    "nats+redis": partial(_nats, store=_started_redis),
    "amqp+redis": partial(_amqp, store=_started_redis),
}
"""A broker that only transports messages has PostgreSQL as its store, unless another is named."""

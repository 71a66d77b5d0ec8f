"""Where a chaos run keeps its data, and what may happen to that: a file, a server, or two."""

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

from desk import Client

from chaos.append_log import AppendLog
from chaos.audit import Audit
from chaos.carriers import Carrier, NatsStreams, RabbitQueues
from chaos.disk import Disk, Quota, SmallDisk
from chaos.machines import HOST, Machine, Nats, NotHere, Postgres, Program, Rabbit, Redis
from chaos.proxy import Proxy
from umbel import Umbel

_MEGABYTES = 512
_SMALL = """
max_connections = 300
shared_buffers = 32MB
min_wal_size = 32MB
max_wal_size = 64MB
"""
P = TypeVar("P", bound="Place")
Books = Callable[[ExitStack, int, str], "Place"]
"""Starts what keeps the books."""

_NO_DISK = "not tried: a full disk (no small file system can be mounted)"


class Station:
    """A server of the run's own, and the line to it."""

    def __init__(self, what: str, machine: Machine, seed: int) -> None:
        self.what = what
        """What it is to the run: the server, the broker or the store."""
        self.machine = machine
        self.proxy = Proxy(machine.port, seed)

    @property
    def line(self) -> str:
        return "line" if self.what == "server" else f"{self.what}'s line"

    def through(self, url: str) -> str:
        """The same address by way of the line."""
        return url.replace(f"{HOST}:{self.machine.port}", f"{HOST}:{self.proxy.port}")

    def get_up(self) -> None:
        """Be there again, whatever has happened."""
        self.proxy.be("fine")
        self.machine.start()

    def close(self) -> None:
        self.proxy.close()
        with suppress(RuntimeError):  # it may be down already
            self.machine.stop(self.machine.ways[-1])


class Place:
    """A SQLite file. It has no server to restart and no line to cut."""

    name = "sqlite"
    one_clock = True
    """Whether workers' own clocks say what is due: then all of them are wrong by the same."""

    def __init__(self, url: str, disk: Disk | None) -> None:
        self.url = url
        self.disk = disk
        self.stations: list[Station] = []
        self.carrier: Carrier | None = None

    @property
    def environments(self) -> list[dict[str, str]]:
        """How workers are told where everything is, and publishers, some of which know a
        shorter way."""
        return [{"UMBEL_URL": self.url}]

    @property
    def without(self) -> str:
        """What cannot be tried here, in one line."""
        return ""

    @property
    def store(self) -> Station | None:
        """What keeps the records, and is on the disk that fills up."""
        return self.stations[-1] if self.stations else None

    @property
    def audit(self) -> Audit | AppendLog:
        """What the store notes of itself."""
        return Audit(self.url)

    def desk(self) -> Client:
        return Client(self.url)

    def get_up(self) -> None:
        """Be there again, whatever has happened."""
        for station in self.stations:
            station.get_up()


class PostgresPlace(Place):
    """A server of the run's own, reached through a proxy by all workers."""

    name = "postgres"
    one_clock = False

    def __init__(self, server: Postgres, disk: Disk | None, seed: int, what: str) -> None:
        super().__init__(server.url, disk)
        self.stations = [Station(what, server, seed)]

    @property
    def environments(self) -> list[dict[str, str]]:
        near = {"UMBEL_URL": self.url}
        return [{"UMBEL_URL": self.stations[0].through(self.url)}, near]

    @property
    def without(self) -> str:
        return "" if self.disk else _NO_DISK


class RedisPlace(PostgresPlace):
    """The same with a Redis."""

    name = "redis"
    one_clock = False

    def __init__(self, server: Redis, disk: Disk | None, seed: int, what: str) -> None:
        Place.__init__(self, server.url, disk)
        self.stations = [Station(what, server, seed)]
        self._log = AppendLog(self.url, server.log)

    @property
    def audit(self) -> AppendLog:
        return self._log


class PairPlace(Place):
    """A broker that only carries, and a server that keeps the books. Both have faults."""

    def __init__(self, name: str, broker: tuple[str, Machine], books: Place, seed: int) -> None:
        super().__init__(books.url, books.disk)
        self.name, self.one_clock = name, books.one_clock
        self.broker, machine = broker
        self.stations = [Station("broker", machine, seed + 1), *books.stations]
        self._books = books

    @property
    def environments(self) -> list[dict[str, str]]:
        broker, store = self.stations
        return [
            {"UMBEL_URL": broker.through(self.broker), "UMBEL_STORE": store.through(self.url)},
            {"UMBEL_URL": self.broker, "UMBEL_STORE": self.url},
        ]

    @property
    def without(self) -> str:
        return self._books.without

    @property
    def audit(self) -> Audit | AppendLog:
        return self._books.audit

    def desk(self) -> Client:
        desk = Client(self.url)
        how = {"namespace": "scenario", "deadline": 20.0, "backlog": "none"}
        desk.app = Umbel(self.broker, store=self.url, **how)  # type: ignore[arg-type]
        return desk


@contextmanager
def open_place(name: str, seed: int) -> Iterator[Place]:
    """A place with its schema, for the time of the block. Raises NotHere."""
    with PLACES[name](seed) as place:
        yield place


@contextmanager
def _sqlite(seed: int) -> Iterator[Place]:
    disk = _small_disk() or Quota()
    place = Place(f"sqlite:///{disk.folder}/umbel.db", disk)
    try:
        asyncio.run(Umbel(place.url).backend.migrate())
        yield place
    finally:
        disk.remove()


@contextmanager
def _postgres(seed: int) -> Iterator[Place]:
    with ExitStack() as stack:
        yield _started_postgres(stack, seed, "server")


@contextmanager
def _redis(seed: int) -> Iterator[Place]:
    with ExitStack() as stack:
        yield _started_redis(stack, seed, "server")


@contextmanager
def _rabbitmq(seed: int, books: Books) -> Iterator[Place]:
    queue_name = _adapter("umbel.backends.rabbitmq.queue_names").queue_name
    with ExitStack() as stack:
        node = Rabbit(_readable_folder(stack))
        url = f"amqp://guest:guest@{HOST}:{node.port}/?connect_timeout=2&heartbeat=3"
        place = _pair(stack, "rabbitmq", (url, node), books, seed)
        place.carrier = RabbitQueues(node.port, queue_name)
        yield place


@contextmanager
def _nats(seed: int, books: Books) -> Iterator[Place]:
    _adapter("umbel.backends.nats.backend")
    with ExitStack() as stack:
        server = Nats(_folder(stack, None))
        place = _pair(stack, "nats", (server.url, server), books, seed)
        place.carrier = NatsStreams(server.url)
        yield place


@contextmanager
def _amqp(seed: int, books: Books) -> Iterator[Place]:
    queue_name = _adapter("umbel.backends.amqp.queue_names").queue_name
    with ExitStack() as stack:
        node = Rabbit(_readable_folder(stack), "rabbitmq_amqp1_0")
        url = f"amqp1://guest:guest@{HOST}:{node.port}?connect_timeout=2"
        place = _pair(stack, "amqp", (url, node), books, seed)
        place.carrier = RabbitQueues(node.port, queue_name)
        yield place


def _adapter(name: str) -> Any:
    """A module that needs a server's library. Raises NotHere."""
    try:
        return import_module(name)
    except ImportError as error:
        raise NotHere(f"not run: {error}") from None


def _pair(
    stack: ExitStack, name: str, broker: tuple[str, Program], books: Books, seed: int
) -> PairPlace:
    place = PairPlace(name, broker, books(stack, seed, "store"), seed)
    stack.callback(place.stations[0].close)
    broker[1].start()
    return place


def _started_postgres(stack: ExitStack, seed: int, what: str) -> PostgresPlace:
    disk = _small_disk()
    server = Postgres(_folder(stack, disk), _SMALL)
    server.start()
    asyncio.run(Umbel(server.url).backend.migrate())
    return _closed_at_the_end(stack, PostgresPlace(server, disk, seed, what))


def _started_redis(stack: ExitStack, seed: int, what: str) -> RedisPlace:
    _adapter("umbel.backends.redis.backend")
    disk = _small_disk()
    server = Redis(_folder(stack, disk))
    place = _closed_at_the_end(stack, RedisPlace(server, disk, seed, what))
    server.start()
    return place


def _closed_at_the_end(stack: ExitStack, place: P) -> P:
    stack.callback(place.stations[0].close)
    return place


def _folder(stack: ExitStack, disk: Disk | None) -> Path:
    if disk is not None:
        stack.callback(disk.remove)
        return disk.folder
    folder = Path(tempfile.mkdtemp(prefix="umbel-chaos-server-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _readable_folder(stack: ExitStack) -> Path:
    """One that the server's user may enter."""
    folder = _folder(stack, None)
    folder.chmod(0o755)
    return folder


def _small_disk() -> SmallDisk | None:
    try:
        return SmallDisk(_MEGABYTES)
    except PermissionError:
        return None


PLACES: dict[str, Callable[[int], AbstractContextManager[Place]]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "redis": _redis,
    "rabbitmq": partial(_rabbitmq, books=_started_postgres),
    "nats": partial(_nats, books=_started_postgres),
    "amqp": partial(_amqp, books=_started_postgres),
    "rabbitmq+redis": partial(_rabbitmq, books=_started_redis),
    "nats+redis": partial(_nats, books=_started_redis),
    "amqp+redis": partial(_amqp, books=_started_redis),
}
"""A broker that carries has PostgreSQL for its books, unless it says otherwise."""

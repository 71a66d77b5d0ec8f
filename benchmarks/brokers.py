"""Places on Redis, RabbitMQ and NATS, and places that are two servers.

The servers may be others' too: each run has a database, a virtual host or streams of its own there.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import nats
import pika  # type: ignore[import-untyped]
import psutil
import redis

from benchmarks import meters
from benchmarks.meters import Used
from benchmarks.places import OURS, Place, name_of
from benchmarks.processes import Failed

PORTS = {"redis": 6379, "amqp": 5672, "nats": 4222}
_HERE = ("localhost", "127.0.0.1", "::1")
_MARK = "umbel-bench"
"""The key that says whose a Redis database is."""
_TAKE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1"""
_DATABASES = 16
_RABBITMQCTL = 60.0


class _OnBroker:
    """What all three have in common: one server process, no tables, no transactions."""

    name = OURS

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        port = parts.port or PORTS[parts.scheme]
        self._server = meters.listening(port) if parts.hostname in _HERE else []

    @property
    def settings(self) -> Mapping[str, str]:
        return {"BENCH_URL": self.url, "BENCH_NAME": self.name}

    def ask(self, query: str) -> int:
        raise LookupError(f"{self.url}: no queries here")

    def execute(self, statement: str) -> None:
        raise LookupError(f"{self.url}: no statements here")

    def server_time(self) -> Used | None:
        return meters.of_threads(self._server)

    def written(self) -> int | None:
        return None

    def transactions(self) -> int | None:
        return None


class OnRedis(_OnBroker):
    """A database of the server that was empty. All systems of a run have it, one after another."""

    def __init__(self, server: str) -> None:
        self._client, url = _reserved(server)
        super().__init__(url)

    def fresh(self, install: Callable[[], object]) -> None:
        with self._client.pipeline() as steps:
            steps.flushdb().set(_MARK, _owner(os.getpid()))
            steps.execute()

    def ask(self, query: str) -> int:
        """What a script in Lua gives."""
        return int(self._client.eval(query, 0))

    def drop(self) -> None:
        self._client.flushdb()
        self._client.close()


def _reserved(server: str) -> tuple[Any, str]:
    """A client of a database that nobody else is in, and its address. Raises Failed."""
    for number in range(_DATABASES - 1, -1, -1):
        url = urlunsplit(urlsplit(server)._replace(path=f"/{number}"))
        client = redis.Redis.from_url(url)
        if _is_taken(client):
            return client, url
        client.close()
    raise Failed(
        f"{server}: none of its {_DATABASES} databases is empty; start a server of its own"
    )


def _is_taken(client: Any) -> bool:
    """Whether the database is ours now: it was empty, or belonged to a run that has died."""
    mine, mark = _owner(os.getpid()), client.get(_MARK)
    if mark is None:
        return client.dbsize() == 0 and bool(client.set(_MARK, mine, nx=True))
    host, _, pid = mark.decode().rpartition(":")
    if host != socket.gethostname() or psutil.pid_exists(int(pid)):
        return False
    return bool(client.eval(_TAKE, 1, _MARK, mark, mine))


def _owner(pid: int) -> str:
    return f"{socket.gethostname()}:{pid}"


@contextmanager
def virtual_host(server: str) -> Iterator[str]:
    """The address of a virtual host that is there for this run. Raises Failed."""
    name, parts = name_of("rabbitmq"), urlsplit(server)
    _rabbitmqctl("add_vhost", name)
    try:
        _rabbitmqctl("set_permissions", "-p", name, parts.username or "guest", ".*", ".*", ".*")
        yield urlunsplit(parts._replace(path=f"/{quote(name, safe='')}"))
    finally:
        _rabbitmqctl("delete_vhost", name)


def _rabbitmqctl(*words: str) -> None:
    command = ["rabbitmqctl", "-q", *words]
    try:
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            cwd="/",
            timeout=_RABBITMQCTL,
            start_new_session=True,
        )
    except OSError as error:
        raise Failed(f"a virtual host needs rabbitmqctl: {error}") from None
    except subprocess.CalledProcessError as error:
        raise Failed(f"{' '.join(command)}: {error.stderr.strip() or error.stdout}") from None


class OnRabbit(_OnBroker):
    """A virtual host that all systems of a run share, each with queues of its own."""

    def __init__(self, url: str, queues: Sequence[str]) -> None:
        super().__init__(url)
        self._queues = queues

    def fresh(self, install: Callable[[], object]) -> None:
        self.drop()

    def drop(self) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            channel = connection.channel()
            for queue in self._queues:
                channel.queue_delete(queue)
        finally:
            connection.close()


class OnNats(_OnBroker):
    """Streams whose names begin as no others do."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.name = name_of("nats")

    def fresh(self, install: Callable[[], object]) -> None:
        self.drop()

    def drop(self) -> None:
        asyncio.run(self._clear())

    async def _clear(self) -> None:
        client = await nats.connect(self.url)
        try:
            streams = client.jetstream()
            for found in await streams.streams_info():
                if str(found.config.name).startswith(self.name):
                    await streams.delete_stream(str(found.config.name))
        finally:
            await client.close()


class Pair:
    """A broker that carries jobs, and a place elsewhere for their records or results.

    ``counted``: whether the second server has a part in every row. One that only keeps the results
    of round trips has none.
    """

    def __init__(self, carrier: Place, store: Place, *, counted: bool) -> None:
        self.url, self.name = carrier.url, carrier.name
        self._carrier, self._store = carrier, store
        self._counted = (carrier, store) if counted else (carrier,)

    @property
    def settings(self) -> Mapping[str, str]:
        return {**self._carrier.settings, "BENCH_STORE": self._store.url}

    def fresh(self, install: Callable[[], object]) -> None:
        self._carrier.fresh(install)
        self._store.fresh(install)

    def ask(self, query: str) -> int:
        return self._store.ask(query)

    def execute(self, statement: str) -> None:
        self._store.execute(statement)

    def server_time(self) -> Used | None:
        """Of both; not known if it is not known of one of them."""
        found: dict[int, float] = {}
        for place in self._counted:
            used = place.server_time()
            if used is None:
                return None
            found |= used
        return found

    def written(self) -> int | None:
        return self._store.written()

    def transactions(self) -> int | None:
        return self._store.transactions()

    def drop(self) -> None:
        """Each of them is dropped by whoever made it."""

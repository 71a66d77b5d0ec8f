"""Fixtures of the contract tests: stores, transports, and servers that a test starts itself."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from local_servers import HOST, NATS_URL, PORTS, POSTGRES_URL, REDIS_URL, needs

from umbel.backends import Lane, OnLaneMissing, OpenTransport
from umbel.backends.transport import report_missing_lane
from umbel.messages import fresh_id
from umbel.testing import FakeClock, OpenAdapters, wrong_clocks

if TYPE_CHECKING:  # each server's library may be missing
    from amqp_broker import AmqpNode
    from nats_server import NatsServer
    from pair_adapters import OpenTransportOf
    from redis_server import RedisServer

    from umbel.backends.postgres.address import PostgresAddress

# --- stores ----------------------------------------------------------------------------------


@pytest.fixture
def sqlite(tmp_path: Path) -> OpenAdapters:
    """SQLite as the store."""
    from sqlite_adapters import open_sqlite

    from umbel.backends.sqlite.database import SqliteFile

    clock, name = FakeClock(), f"t{fresh_id()}"
    return lambda: open_sqlite(lambda: SqliteFile(str(tmp_path / "store.db")), clock, name)


@pytest.fixture(scope="module")
def postgres() -> Iterator[OpenAdapters]:
    """PostgreSQL as the store."""
    needs("postgres")
    from postgres_adapters import new_schema, open_postgres

    with new_schema("stores") as url:
        yield lambda: open_postgres(url, f"t{fresh_id()}", wrong_clocks("PostgreSQL as the store"))


@pytest.fixture
def redis_store(redis_prefix: str) -> OpenAdapters:
    """Redis as the store."""
    from redis_adapters import open_redis

    clocks = "Redis as the store"
    return lambda: open_redis(fresh_id(), wrong_clocks(clocks), prefix=redis_prefix)


@pytest.fixture(scope="module")
def redis_prefix() -> Iterator[str]:
    """The start of all namespaces of this module on Redis; their keys are deleted afterwards."""
    needs("redis")
    import redis as library

    prefix = f"test-{os.getpid()}-{fresh_id()[-6:]}-"
    yield prefix
    with library.Redis.from_url(REDIS_URL) as client:
        for key in client.scan_iter(match=f"umbel:{{{prefix}*", count=1000):
            client.delete(key)


@pytest.fixture
def redis_client() -> Iterator[Any]:
    """A client of redis-py."""
    import redis as library

    with library.Redis.from_url(REDIS_URL, socket_connect_timeout=2) as client:
        try:
            client.ping()
        except library.RedisError:
            pytest.skip(f"not run: no Redis at {REDIS_URL}")
        yield client


@pytest.fixture
def redis_namespace(redis_client: Any) -> Iterator[str]:
    """A namespace for one test; its keys are deleted afterwards."""
    from umbel.backends.redis.scripts import root_of

    name = f"test-{fresh_id()}"
    yield name
    for key in redis_client.scan_iter(match=f"{root_of(name)}*", count=1000):
        redis_client.delete(key)


@pytest.fixture
def address() -> Iterator[PostgresAddress]:
    """The address of a migrated PostgreSQL schema for one test, dropped afterwards."""
    import psycopg
    from postgres_broker import connect

    from umbel.backends.postgres.address import PostgresAddress
    from umbel.backends.postgres.schema import migrate

    try:
        connect().close()
    except psycopg.OperationalError:
        pytest.skip(f"no PostgreSQL at {POSTGRES_URL}")
    address = PostgresAddress(f"{POSTGRES_URL}?schema=umbel_test_{secrets.token_hex(4)}")
    asyncio.run(migrate(address))
    yield address
    with connect() as connection:
        connection.execute(f"drop schema {address.schema} cascade")


@pytest.fixture
def slow_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every full scan counts as slow, and is repeated four times a second."""
    from umbel.backends.postgres import scan_cursor

    record = scan_cursor.ScanPosition.record_full_scan

    def record_as_slow(position: Any, _: float, *rest: Any) -> Any:
        return record(position, 0.25 / scan_cursor.FULL_SCAN_FACTOR, *rest)

    monkeypatch.setattr(scan_cursor, "SLOW_SCAN_SECONDS", -1.0)
    monkeypatch.setattr(scan_cursor.ScanPosition, "record_full_scan", record_as_slow)


# --- transports ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vhost() -> Iterator[str]:
    """A virtual host of RabbitMQ for this module."""
    needs("rabbitmq")
    from rabbitmq_transports import virtual_host

    with virtual_host("test") as name:
        yield name


@pytest.fixture
def rabbitmq(vhost: str) -> Iterator[OpenTransportOf]:
    """RabbitMQ as the transport."""
    import pika

    from umbel.backends.rabbitmq.address import RabbitAddress
    from umbel.backends.rabbitmq.queue_names import queue_name
    from umbel.backends.rabbitmq.transport import RabbitTransport

    url = f"amqp://guest:guest@{HOST}:{PORTS['rabbitmq']}/{quote(vhost, safe='')}"
    address, made = RabbitAddress(url), set[str]()

    def transport_of(namespace: str) -> OpenTransport:
        def open_transport(on_lane_missing: OnLaneMissing) -> RabbitTransport:
            async def record(lane: Lane) -> None:
                made.add(queue_name(namespace, lane))
                await report_missing_lane(on_lane_missing, lane)

            return RabbitTransport(address, namespace=namespace, on_lane_missing=record)

        return open_transport

    yield transport_of
    # After each test: a replicated queue takes five of the server's file handles, and a server
    # without free file handles does not answer any more.
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for name in made:
            channel.queue_delete(name)


@pytest.fixture
def nats() -> Iterator[OpenTransportOf]:
    """NATS as the transport."""
    needs("nats")
    import nats as library

    from umbel.backends.nats.address import NatsAddress
    from umbel.backends.nats.transport import NatsTransport

    address, namespaces = NatsAddress(NATS_URL), set[str]()

    def transport_of(namespace: str) -> OpenTransport:
        namespaces.add(namespace)
        return lambda lost: NatsTransport(address, namespace=namespace, on_lane_missing=lost)

    async def delete_streams() -> None:
        client = await library.connect(NATS_URL)
        manager = client.jetstream()
        for found in await manager.streams_info():
            if found.config.name.partition("+")[0] in namespaces:
                await manager.delete_stream(found.config.name)
        await client.close()

    yield transport_of
    asyncio.run(delete_streams())


@pytest.fixture
def redis(redis_prefix: str) -> OpenTransportOf:
    """Redis as the transport."""
    from umbel.backends.redis.address import RedisAddress
    from umbel.backends.redis.transport import RedisTransport

    address = RedisAddress(f"redis://{HOST}:{PORTS['redis']}")

    def transport_of(namespace: str) -> OpenTransport:
        own = redis_prefix + namespace
        return lambda lost: RedisTransport(address, namespace=own, on_lane_missing=lost)

    return transport_of


# --- servers that a test starts itself -------------------------------------------------------


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Starts Redis servers, which are stopped after the test."""
    from redis_server import RedisServer

    servers: list[RedisServer] = []

    def start(*options: str) -> RedisServer:
        folder = tmp_path / str(len(servers))
        folder.mkdir()
        servers.append(RedisServer(folder, "--save", "", *options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A NATS server, which the test starts; it is killed after the test."""
    from nats_server import BINARY, NatsServer

    if BINARY is None:
        pytest.skip("not run: NATS servers of our own; there is no nats-server")
    server = NatsServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture(scope="module")
def amqp_node() -> Iterator[AmqpNode]:
    """A RabbitMQ node that speaks AMQP 1.0."""
    from amqp_broker import running_node

    with running_node() as node:
        yield node

"""Everything that belongs to a namespace is deleted, on every store and with every broker."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from local_servers import HOST, NATS_URL, PORTS, POSTGRES_URL, REDIS_URL, needs

from umbel.app.backends import open_backend
from umbel.backends import NamespaceEraser
from umbel.backends.sql.erasing import TABLES
from umbel.clock import SystemClock
from umbel.configuration import Settings
from umbel.messages import Failed, Rule, State, Succeeded, fresh_id, route_gate
from umbel.telemetry import Telemetry
from umbel.testing import Adapters
from umbel.testing.actions import (
    FAILURE,
    FAR,
    RESULT,
    claim,
    publish,
    publish_many,
    register,
    settle,
)
from umbel.testing.brokers.namespaces import step
from umbel.testing.stores.graphs import Graph

Rows = Callable[[str], dict[str, int]]
"""Returns what a server holds of a namespace, read without the adapter."""


@dataclass(frozen=True)
class Place:
    """A store, perhaps with a broker beside it."""

    settings: dict[str, str]
    read: Rows

    def rows(self, namespace: str) -> dict[str, int]:
        return {name: count for name, count in self.read(namespace).items() if count}

    @asynccontextmanager
    async def open(self, namespace: str) -> AsyncIterator[tuple[Adapters, NamespaceEraser]]:
        settings = Settings(**self.settings, namespace=namespace)  # type: ignore[arg-type]
        backend = open_backend(settings, SystemClock(), Telemetry())
        await backend.migrate()
        roles, eraser = backend.open(), backend.eraser()
        same: Any = {field: getattr(roles, field) for field in roles.__struct_fields__}
        try:
            yield (
                Adapters(
                    **same, clock=SystemClock(), namespace=namespace, another=lambda name: None
                ),
                eraser,
            )
        finally:
            await eraser.close()
            await roles.close()


def rows_of_sqlite(path: Path, namespace: str) -> dict[str, int]:
    """Return the number of rows in every table that has a namespace."""
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute(
            "select m.name from sqlite_master m, pragma_table_info(m.name) c"
            " where m.type = 'table' and c.name = 'namespace'"
        ).fetchall()
        return {
            table: connection.execute(
                f"select count(*) from {table} where namespace = ?", (namespace,)
            ).fetchone()[0]
            for (table,) in tables
        }


def rows_of_postgres(schema: str, namespace: str) -> dict[str, int]:
    """Return the number of rows in every table that has a namespace."""
    import psycopg

    with psycopg.connect(POSTGRES_URL) as connection:
        tables = connection.execute(
            "select c.table_name from information_schema.columns c join information_schema.tables t"
            " using (table_schema, table_name)"
            " where c.table_schema = %s and column_name = 'namespace'"
            " and table_type = 'BASE TABLE'",
            (schema,),
        ).fetchall()
        return {
            table: connection.execute(
                f'select count(*) from "{schema}".{table} where namespace = %s', (namespace,)
            ).fetchone()[0]
            for (table,) in tables
        }


def rows_of_redis(namespace: str) -> dict[str, int]:
    import redis as library

    with library.Redis.from_url(REDIS_URL) as client:
        return {key.decode(): 1 for key in client.scan_iter(f"umbel:{{{namespace}}}:*", count=1000)}


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Place:
    path = tmp_path / "umbel.db"
    return Place({"broker": f"sqlite:///{path}"}, lambda name: rows_of_sqlite(path, name))


@pytest.fixture
def postgres_place() -> Iterator[Place]:
    needs("postgres")
    from postgres_adapters import new_schema

    with new_schema("erasing") as url:
        schema = url.rpartition("=")[2]
        yield Place({"broker": url}, lambda name: rows_of_postgres(schema, name))


@pytest.fixture
def redis_place() -> Place:
    needs("redis")
    return Place({"broker": REDIS_URL}, rows_of_redis)


@pytest.fixture
def rabbitmq_place(sqlite_place: Place, vhost: str) -> Place:
    import pika

    url = f"amqp://guest:guest@{HOST}:{PORTS['rabbitmq']}/{quote(vhost, safe='')}"

    def queues(namespace: str) -> dict[str, int]:
        found = {}
        for queue in ("default.io", "default.cpu", "mail.io"):
            with pika.BlockingConnection(pika.URLParameters(url)) as connection:
                name = f"{namespace}.{queue}"
                try:
                    connection.channel().queue_declare(name, passive=True)
                except pika.exceptions.ChannelClosedByBroker:
                    continue
                found[name] = 1
        return found

    settings = {"broker": url, "store": sqlite_place.settings["broker"]}
    return Place(settings, lambda name: queues(name) | sqlite_place.rows(name))


@pytest.fixture
def nats_place(sqlite_place: Place) -> Place:
    needs("nats")
    import nats

    async def streams(namespace: str) -> dict[str, int]:
        client = await nats.connect(NATS_URL)
        try:
            names = [one.config.name for one in await client.jetstream().streams_info()]
        finally:
            await client.close()
        return {name: 1 for name in names if name and name.startswith(f"{namespace}+")}

    settings = {"broker": NATS_URL, "store": sqlite_place.settings["broker"]}
    return Place(settings, lambda name: asyncio.run(streams(name)) | sqlite_place.rows(name))


@pytest.fixture
def redis_transport_place(sqlite_place: Place) -> Place:
    needs("redis")
    settings = {"broker": REDIS_URL, "store": sqlite_place.settings["broker"]}
    return Place(settings, lambda name: rows_of_redis(name) | sqlite_place.rows(name))


STORES = ["sqlite_place", "postgres_place", "redis_place"]
PAIRS = ["rabbitmq_place", "nats_place", "redis_transport_place"]


async def fill(b: Adapters) -> None:
    """Leave something of every kind in a namespace."""
    rules = [Rule(name="limit:few", capacity=1), Rule(name="rate:slow", rates=((1, FAR),))]
    await b.gates.declare([*rules, Rule(name="pool:p", kind="pool")])
    await b.gates.add_members("p", {"a": {}})
    owner = await register(b)
    await publish_many(b, 3, gates=("limit:few",))
    await publish(b, gates=("rate:slow",))
    await publish(b, gates=(route_gate("key"),))
    await publish(b, unique="k", gates=("pool:p",))
    held = await claim(b, owner)
    await b.steps.keep([step(one, b"1") for one in held])
    await b.registry.record_inbox_receipts({held[0].id: b.clock.now() + 60})
    await settle(b, held[0], Succeeded(RESULT))
    await settle(b, held[1], Failed(FAILURE))
    await publish(b, queue="mail")
    await publish(b, not_before=b.clock.now() + FAR)
    await b.pauses.pause("queue", "mail", "a reason")
    graph = Graph(b)
    graph.job(after=graph.join(*graph.jobs(3)))
    await graph.add()


async def erase(eraser: NamespaceEraser, batch: int) -> int:
    """Delete the namespace in batches; return how many rows."""
    await eraser.remove_queues(["default", "mail", "never"])
    total = 0
    while (some := await eraser.delete(batch)) >= batch:
        total += some
    return total + some


@pytest.mark.parametrize("name", STORES)
def test_nothing_of_a_namespace_is_left_and_others_are_not_changed(
    name: str, request: pytest.FixtureRequest
) -> None:
    place: Place = request.getfixturevalue(name)
    doomed, other = f"t{fresh_id()}", f"t{fresh_id()}"

    async def scenario() -> None:
        async with place.open(other) as (kept, survivor):
            await fill(kept)
            before = place.rows(other)
            async with place.open(doomed) as (b, eraser):
                assert await eraser.count() == {}
                await fill(b)
                stored, rows = await eraser.count(), place.rows(doomed)
                assert sum(stored.values()) == sum(rows.values()) > 20
                assert await erase(eraser, 7) >= len(rows)
                assert place.rows(doomed) == {}
                assert await eraser.count() == {}
                assert await erase(eraser, 7) == 0, "it may be repeated"
            assert place.rows(other) == before
            await erase(survivor, 1000)

    asyncio.run(scenario())


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_loses_its_queues_too(name: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(name)
    namespace = f"t{fresh_id()}"

    async def scenario() -> None:
        async with place.open(namespace) as (b, eraser):
            await publish_many(b, 3)
            await publish(b, queue="mail")
            await publish(b, kind="cpu")
            assert len(await asyncio.to_thread(place.rows, namespace)) > 3
            await erase(eraser, 1000)
        assert await asyncio.to_thread(place.rows, namespace) == {}

    asyncio.run(scenario())


@pytest.mark.parametrize("name", STORES)
def test_a_namespace_can_be_used_again(name: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(name)
    namespace = f"t{fresh_id()}"

    async def scenario() -> None:
        async with place.open(namespace) as (b, eraser):
            await fill(b)
            await erase(eraser, 1000)
        async with place.open(namespace) as (b, eraser):
            sent = await publish(b, unique="k")
            (held,) = await claim(b, await register(b))
            assert held.id == sent.id
            assert await settle(b, held, Succeeded(RESULT)) == []
            assert (await b.records.find(sent.id)).state is State.SUCCEEDED
            await erase(eraser, 1000)

    asyncio.run(scenario())


async def until_blocked(observer: Any, schema: str) -> None:
    """Return when a statement on the schema waits for a lock."""
    query = (
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        " and position(%s in query) > 0 and pid <> pg_backend_pid()"
    )
    while (await (await observer.execute(query, (schema,))).fetchone())[0] == 0:
        pass


def test_a_deletion_that_meets_another_one_does_not_end_before_it(postgres_place: Place) -> None:
    """The other one may be interrupted then; nothing may be left when this one returns."""
    import psycopg

    schema, namespace = postgres_place.settings["broker"].rpartition("=")[2], f"t{fresh_id()}"
    delete_some = (
        f'delete from "{schema}".job where id in'
        f' (select id from "{schema}".job where namespace = %s limit 3)'
    )

    async def scenario() -> None:
        async with (
            postgres_place.open(namespace) as (b, eraser),
            await psycopg.AsyncConnection.connect(POSTGRES_URL) as other,
            await psycopg.AsyncConnection.connect(POSTGRES_URL, autocommit=True) as observer,
        ):
            await publish_many(b, 8)
            await other.execute(delete_some, (namespace,))
            erasing = asyncio.create_task(erase(eraser, 3))
            async with asyncio.timeout(60):
                await until_blocked(observer, schema)
            await other.commit()
            await erasing
            assert postgres_place.rows(namespace) == {}

    asyncio.run(scenario())


async def prepare(place: Place) -> None:
    async with place.open("any"):
        pass


@pytest.mark.parametrize("name", ["sqlite_place", "postgres_place"])
def test_every_table_with_a_namespace_is_erased(name: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(name)
    from umbel.backends.postgres.erasing import PostgresEraser
    from umbel.backends.sqlite.erasing import SqliteEraser

    erased = SqliteEraser if name == "sqlite_place" else PostgresEraser
    asyncio.run(prepare(place))
    assert {*place.read("any")} == {*TABLES, *erased.more_tables}

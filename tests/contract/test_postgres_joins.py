"""Races of joins and entries on PostgreSQL, forced by a second connection that locks a row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("psycopg")

import psycopg
from local_servers import POSTGRES_URL
from postgres_adapters import async_transaction, open_postgres

from umbel.backends import Put
from umbel.backends.postgres.address import PostgresAddress
from umbel.backends.postgres.database import Database
from umbel.errors import UnknownJob
from umbel.messages import Failed, Growth, State, Succeeded, fresh_id
from umbel.testing import Adapters, wrong_clocks
from umbel.testing.actions import FAILURE, FAR, RESULT, publish, publish_and_settle, settle
from umbel.testing.stores.graphs import Graph, OneWorker, advance, parts, state, states

BLOCKED, QUEUED, CANCELLED = State.BLOCKED, State.QUEUED, State.CANCELLED
MAX_QUERIES = 10
"""It checks twice a second whether the entry can be deleted, with two queries each time."""


class Server:
    """The schema of a test, and what other connections do in it."""

    def __init__(self, address: PostgresAddress) -> None:
        self.schema = address.schema
        self.url = f"{POSTGRES_URL}?schema={address.schema}"

    @asynccontextmanager
    async def lock(self, table: str, **columns: Any) -> AsyncIterator[None]:
        """Hold the lock of one row, as a transaction that takes long does."""
        where = " and ".join(f"{column} = %({column})s" for column in columns)
        query = f"select 1 from {self.schema}.{table} where {where} for update"
        async with await psycopg.AsyncConnection.connect(POSTGRES_URL) as connection:
            cursor = await connection.execute(query.encode(), columns)
            assert len(await cursor.fetchall()) == 1
            yield
            await connection.rollback()

    async def wait_for_blocked(self, count: int) -> None:
        """Wait until so many statements of this schema wait for a lock."""
        query = (
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            " and position(%s in query) > 0"
        )
        connecting = psycopg.AsyncConnection.connect(POSTGRES_URL, autocommit=True)
        async with await connecting as connection:
            while True:
                cursor = await connection.execute(query, [self.schema])
                if (await cursor.fetchall())[0][0] >= count:
                    return
                await asyncio.sleep(0.02)


Scenario = Callable[[Adapters, Server], Awaitable[None]]


def run(address: PostgresAddress, scenario: Scenario) -> None:
    """Run a test with the adapters of one process."""
    server = Server(address)

    async def main() -> None:
        async with asyncio.timeout(45.0):
            clocks = wrong_clocks("joins on PostgreSQL")
            async with open_postgres(server.url, f"t{fresh_id()}", clocks) as b:
                await scenario(b, server)

    asyncio.run(main())


async def held_join(b: Adapters) -> Graph:
    """Add a join that is held and has no parts yet."""
    g = Graph(b)
    g.join(held=True)
    await g.add()
    return g


def chunk_with(b: Adapters, g: Graph, part: str) -> Graph:
    """Return a further publication: a part of the held join, and a job that waits for it."""
    more = Graph(b, g.group)
    more.edge(g.joins[0], part)
    more.job(after=g.joins[0], queue="after")
    return more


def test_a_part_that_is_removed_while_it_is_added_is_unknown_or_counted(
    address: PostgresAddress,
) -> None:
    async def scenario(b: Adapters, server: Server) -> None:
        part = await publish_and_settle(b)
        g = await held_join(b)
        more = chunk_with(b, g, part)
        async with server.lock("job_join", namespace=b.namespace, id=g.joins[0].id):
            adding = asyncio.create_task(more.add())
            await server.wait_for_blocked(1)
            removing = asyncio.create_task(b.records.remove([part]))
            await asyncio.wait([removing], timeout=0.3)
        await removing
        try:
            await adding
        except UnknownJob:
            return
        await b.joins.seal([g.joins[0].id])
        await advance(b)
        assert await state(b, more.envelopes[0]) is QUEUED

    run(address, scenario)


def test_a_part_that_is_replayed_while_it_is_added_is_counted_at_its_next_end(
    address: PostgresAddress,
) -> None:
    async def scenario(b: Adapters, server: Server) -> None:
        part = await publish(b)
        await b.control.cancel([part.id], "")
        g = await held_join(b)
        more = chunk_with(b, g, part.id)
        async with server.lock("job_join", namespace=b.namespace, id=g.joins[0].id):
            adding = asyncio.create_task(more.add())
            await server.wait_for_blocked(1)
            replaying = asyncio.create_task(b.records.replay([part.id]))
            await asyncio.wait([replaying], timeout=0.3)
        await adding
        assert await replaying == [part.id]
        await (await OneWorker.start(b)).end(part)
        await b.joins.seal([g.joins[0].id])
        await advance(b)
        assert await state(b, more.envelopes[0]) is QUEUED

    run(address, scenario)


def test_a_job_that_is_queued_while_its_part_is_reopened_waits_again(
    address: PostgresAddress,
) -> None:
    async def scenario(b: Adapters, server: Server) -> None:
        g = Graph(b)
        first, second = g.job(), g.job()
        waiter = g.job(after=(join := g.join(first, second)))
        await g.add()
        worker = await OneWorker.start(b)
        (_, held) = await worker.holds(first, second)
        await worker.end(first, Failed(FAILURE))
        async with b.another() as other:
            async with server.lock("job_join", namespace=b.namespace, id=join.id):
                settling = asyncio.create_task(settle(b, held, Succeeded(RESULT)))
                await server.wait_for_blocked(1)
                reopening = asyncio.create_task(other.joins.reopen([first.id]))
                await server.wait_for_blocked(2)
            assert await settling == []
            assert await reopening == [first.id]
        assert await states(b, first, waiter) == [QUEUED, BLOCKED]
        await worker.end(first)
        assert await state(b, waiter) is QUEUED

    run(address, scenario)


def test_a_join_that_is_added_while_its_part_is_reopened_waits_for_all_parts(
    address: PostgresAddress,
) -> None:
    async def scenario(b: Adapters, server: Server) -> None:
        earlier = Graph(b)
        earlier.join(part := earlier.job())
        await earlier.add()
        worker = await OneWorker.start(b)
        await worker.end(part, Failed(FAILURE))
        async with b.another() as other:
            g = Graph(other)
            waiter = g.job(after=g.join(part, second := g.job(queue="other")))
            async with server.lock("record", namespace=b.namespace, id=part.id):
                reopening = asyncio.create_task(b.joins.reopen([part.id]))
                await server.wait_for_blocked(1)
                adding = asyncio.create_task(g.add())
                await asyncio.wait([adding], timeout=0.3)
            assert await reopening == [part.id]
            await adding
        await worker.end(part)
        await advance(b)
        assert await states(b, second, waiter) == [QUEUED, BLOCKED]
        await b.broker.purge("other")
        assert await state(b, waiter) is QUEUED

    run(address, scenario)


def test_a_group_to_which_a_chunk_is_being_added_is_not_dropped(address: PostgresAddress) -> None:
    async def scenario(b: Adapters, server: Server) -> None:
        g = Graph(b)
        join = g.join(part := g.job(), held=True)
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(part)
        more = Graph(b, g.group)
        more.edge(join, second := more.job(), first=1)
        waiter = more.job(after=join)
        async with async_transaction() as connection:
            await b.joins.add(more.publication(), within=connection)
            dropping = asyncio.create_task(b.joins.drop(g.group))
            await server.wait_for_blocked(1)
        assert not await dropping
        assert [one[1] for one in await parts(b, join)] == [part.id, second.id]
        await worker.end(second)
        assert await b.joins.seal([join.id]) == 1
        assert await worker.end(waiter) == []

    run(address, scenario)


def test_a_cancellation_that_is_requested_while_a_settlement_waits_prevents_growth(
    address: PostgresAddress,
) -> None:
    async def scenario(b: Adapters, server: Server) -> None:
        g = Graph(b)
        join = g.join(grows := g.job())
        await g.add()
        (held,) = await (await OneWorker.start(b)).holds(grows)
        more = Graph(b, g.group)
        place = more.job()
        growth = Growth(more.publication(), place.id)
        async with b.another() as other:
            async with server.lock("job", namespace=b.namespace, id=grows.id):
                cancelling = asyncio.create_task(other.control.cancel([grows.id], ""))
                await server.wait_for_blocked(1)
                settling = asyncio.create_task(settle(b, held, Succeeded(RESULT), growth=growth))
                await server.wait_for_blocked(2)
            assert await cancelling == {grows.id: State.RUNNING}
            assert await settling == []
        assert await parts(b, join) == [(0, grows.id, State.CANCELLED)]
        with pytest.raises(UnknownJob):
            await b.records.find(place.id)

    run(address, scenario)


def test_pauses_are_read_and_changed_while_a_cancellation_waits_for_a_job(
    address: PostgresAddress,
) -> None:
    async def scenario(b: Adapters, server: Server) -> None:
        await b.pauses.pause("queue", "other", "")
        job = await publish(b)
        async with b.another() as other:
            # A lapsed entry, so that reading has something to delete.
            await b.coordination.commit({}, [Put("pauses/queue//gone", b"", 0.05)])
            await asyncio.sleep(0.1)
            async with server.lock("job", namespace=b.namespace, id=job.id):
                cancelling = asyncio.create_task(b.control.cancel([job.id], ""))
                await server.wait_for_blocked(1)
                async with asyncio.timeout(5.0):
                    assert len((await other.pauses.state()).pauses) == 1
                    await other.pauses.pause("queue", "third", "")
                    assert len((await other.pauses.state()).pauses) == 2
                assert not cancelling.done()
            assert await cancelling == {job.id: CANCELLED}

    run(address, scenario)


@pytest.mark.parametrize("section", ["elsewhere/", "w/"])
def test_waiting_a_second_for_changes_asks_rarely_while_a_lapsed_entry_is_locked(
    address: PostgresAddress, monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    async def scenario(b: Adapters, server: Server) -> None:
        await b.coordination.commit({}, [Put("w/x", b"")])
        queries = count_queries(monkeypatch)
        await b.coordination.commit({}, [Put(key := f"{section}lapses", b"", 0.05)])
        async with server.lock("entry", namespace=b.namespace, key=key):
            await asyncio.sleep(0.1)
            seen = {"w/": await section_revision(b, server)}
            queries.clear()
            assert await b.coordination.changed(seen, 1.0) == {}
            assert 0 < len(queries) <= MAX_QUERIES
        assert [*await b.coordination.changed({"w/": 0}, FAR)] == ["w/"]

    run(address, scenario)


async def section_revision(b: Adapters, server: Server) -> int:
    """Return the revision of the section, without deleting what has lapsed."""
    query = f"select revision from {server.schema}.section where namespace = %s and name = 'w/'"
    async with async_transaction() as connection:
        cursor = await connection.execute(query.encode(), [b.namespace])
        return int((await cursor.fetchall())[0][0])


def count_queries(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that grows with each statement or transaction of this process."""
    run_once: Any = Database.run
    found: list[None] = []

    async def run_and_count(database: Database, *args: Any, **options: Any) -> Any:
        found.append(None)
        return await run_once(database, *args, **options)

    monkeypatch.setattr(Database, "run", run_and_count)
    return found

"""Tokens that were used once are deleted when their rate delays no more jobs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from local_servers import POSTGRES_URL
from sqlite_adapters import open_sqlite

from umbel.backends.postgres.address import PostgresAddress
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.gates import PostgresGates
from umbel.backends.postgres.records import PostgresRecords
from umbel.backends.sqlite.database import SqliteFile
from umbel.clock import SystemClock
from umbel.messages import Rule, Succeeded
from umbel.testing import Adapters, FakeClock
from umbel.testing.actions import claim, publish, register, settlement

RATE = "rate:t/user"
MANY = 2500
KEPT = 1_000_000
RULE = Rule(name=RATE, kind="rate", rates=((10, 1.0), (100, 3600.0)))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "umbel.db")


def tell(path: str, scenario: Callable[[Adapters], Awaitable[None]]) -> None:
    async def told() -> None:
        async with open_sqlite(lambda: SqliteFile(path, synchronous="off"), FakeClock()) as backend:
            await backend.gates.declare([RULE])
            await scenario(backend)

    asyncio.run(told())


def kept(path: str) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [key for (key,) in connection.execute("select key from gate order by key")]


def put(path: str, rows: list[tuple[str, int, str]]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany("insert into gate values ('umbel', ?, ?, ?)", rows)


async def prune(b: Adapters) -> None:
    assert await b.records.prune(older_than=1e9, keep=KEPT, limit=KEPT) == 0


def test_fifty_tokens_used_once_leave_no_row(path: str) -> None:
    async def scenario(b: Adapters) -> None:
        owner = await register(b)
        for user in range(50):
            await publish(b, gates=(f"{RATE}#{user}",))
        held = await claim(b, owner)
        await b.broker.settle([settlement(one, Succeeded()) for one in held])
        await prune(b)
        assert len(kept(path)) == 50, "their rate is still felt"
        b.advance(36.0)
        await prune(b)
        assert len(kept(path)) == 50, "and a hundredth of the period may be caught up"
        b.advance(40.0)
        await prune(b)
        assert kept(path) == []

    tell(path, scenario)


def test_what_is_held_stays_and_so_does_a_rate_without_tokens(path: str) -> None:
    async def scenario(b: Adapters) -> None:
        put(path, [(f"{RATE}#ann", 1, "[1.0, 1.0]"), (RATE, 0, "[1.0, 1.0]")])
        await prune(b)
        assert kept(path) == [RATE, f"{RATE}#ann"]

    tell(path, scenario)


def test_a_rate_that_the_code_no_longer_has_is_kept_for_some_hours(path: str) -> None:
    async def scenario(b: Adapters) -> None:
        await b.gates.declare([], [RATE])
        put(path, [(f"{RATE}#ann", 0, f"[{b.clock.now()}, {b.clock.now()}]")])
        b.advance(3600.0)
        await prune(b)
        assert kept(path) == [f"{RATE}#ann"]
        b.advance(86_400.0)
        await prune(b)
        assert kept(path) == []

    tell(path, scenario)


def test_rows_written_manually_do_not_stop_pruning(path: str) -> None:
    async def scenario(b: Adapters) -> None:
        put(path, [(f"{RATE}#{n}", 0, text) for n, text in enumerate(("", "{", '["x"]', "7"))])
        put(path, [("#", 0, "[1.0]"), (f"{RATE}#z", 0, "[1.0, 1.0]")])
        await prune(b)
        assert f"{RATE}#z" not in kept(path)

    tell(path, scenario)


def test_very_many_go_at_once_and_those_in_use_cost_one_look_at_a_portion(path: str) -> None:
    async def scenario(b: Adapters) -> None:
        past, ahead = "[1.0, 1.0]", f"[{b.clock.now() + 60}, 1.0]"
        put(path, [(f"{RATE}#{n:05}", 0, past) for n in range(MANY)])
        await prune(b)
        assert kept(path) == []
        put(path, [(f"{RATE}#a{n:05}", 0, ahead) for n in range(MANY)])
        put(path, [(f"{RATE}#b{n:05}", 0, past) for n in range(MANY)])
        looks = 0
        while len(kept(path)) > MANY:
            await prune(b)
            looks += 1
        assert looks == 3, "one for each thousand that is in use"
        b.advance(3600.0)
        while kept(path):
            await prune(b)

    tell(path, scenario)


def test_on_postgres_tokens_are_pruned_while_jobs_pass_the_gate(address: PostgresAddress) -> None:
    """Pruning does not wait for locked rows. The next pruning deletes them."""

    async def scenario() -> None:
        database = Database(address)
        how = {"namespace": "umbel", "clock": SystemClock()}
        records = PostgresRecords(database, **how)
        await PostgresGates(database, **how).declare([RULE])
        table = f"{address.schema}.gate"
        async with await psycopg.AsyncConnection.connect(POSTGRES_URL, autocommit=True) as other:
            await other.execute(
                f"""insert into {table}
                    select 'umbel', '{RATE}#' || n, 0, '{{1, 1}}' from generate_series(1, 1500) n
                    union all values
                      ('umbel', '{RATE}', 0, '{{1, 1}}'), ('umbel', '{RATE}#held', 1, '{{1, 1}}'),
                      ('umbel', 'limit:t#ann', 0, '{{}}'), ('theirs', '{RATE}#1', 0, '{{1, 1}}'),
                      ('umbel', '{RATE}#soon', 0,
                       array[1, date_part('epoch', now()) - 3])"""
            )
            async with other.transaction():
                await other.execute(f"select from {table} where key = '{RATE}#7' for update")
                await records.prune(older_than=1e9, keep=KEPT, limit=KEPT)
            first = await _keys(other, table)
            await records.prune(older_than=1e9, keep=KEPT, limit=KEPT)
            then = await _keys(other, table)
        await database.close()
        assert set(first) - set(then) == {f"umbel {RATE}#7"}
        assert then == [
            f"theirs {RATE}#1",
            "umbel limit:t#ann",
            f"umbel {RATE}",
            f"umbel {RATE}#held",
            f"umbel {RATE}#soon",
        ]

    asyncio.run(asyncio.wait_for(scenario(), 30))


async def _keys(connection: psycopg.AsyncConnection, table: str) -> list[str]:
    found = await connection.execute(
        f"select namespace || ' ' || key from {table} order by namespace, key"
    )
    return [key for (key,) in await found.fetchall()]

"""Several migrations of a schema: from a folder of the test, because Umbel has one so far."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

psycopg = pytest.importorskip("psycopg")

from umbel.backends.postgres import schema  # noqa: E402
from umbel.backends.postgres.address import PostgresAddress  # noqa: E402
from umbel.errors import SchemaError, UmbelError  # noqa: E402

SERVER = os.environ.get("UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")


@pytest.fixture
def address() -> Iterator[PostgresAddress]:
    address = PostgresAddress(f"{SERVER}?schema=umbel_test_{secrets.token_hex(4)}")
    try:
        connection = psycopg.connect(SERVER, autocommit=True, connect_timeout=2)
    except psycopg.OperationalError:
        pytest.skip(f"no PostgreSQL at {SERVER}")
    yield address
    with connection:
        connection.execute(f"drop schema if exists {address.schema} cascade")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "0001_first.sql").write_text("create table $schema.item (name text)")
    monkeypatch.setattr(schema, "MIGRATIONS", tmp_path)
    return tmp_path


def query(address: PostgresAddress, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(SERVER) as connection:
        cursor = connection.execute(sql.replace("$schema", address.schema))
        return cursor.fetchall() if cursor.description else []


def test_new_migrations_are_applied_in_order_and_once(
    folder: Path, address: PostgresAddress
) -> None:
    assert asyncio.run(schema.schema_version(address)) is None
    assert asyncio.run(schema.migrate(address)) == [1]
    query(address, "insert into $schema.item values ('old')")
    (folder / "0010_third.sql").write_text("update $schema.item set color = 'red'")
    (folder / "0002_second.sql").write_text("alter table $schema.item add column color text")
    assert asyncio.run(schema.migrate(address)) == [2, 10]
    assert asyncio.run(schema.migrate(address)) == []
    assert query(address, "select name, color from $schema.item") == [("old", "red")]
    assert asyncio.run(schema.schema_version(address)) == 10


def test_a_migration_that_fails_leaves_the_version_before(
    folder: Path, address: PostgresAddress
) -> None:
    (folder / "0002_second.sql").write_text("create table $schema.other (name text)")
    (folder / "0003_third.sql").write_text("create table $schema.item (name text)")
    with pytest.raises(UmbelError, match="already exists"):
        asyncio.run(schema.migrate(address))
    assert asyncio.run(schema.schema_version(address)) == 2
    assert query(address, "select number from $schema.migration order by 1") == [(1,), (2,)]


def test_processes_that_migrate_at_once_apply_each_migration_once(
    folder: Path, address: PostgresAddress
) -> None:
    (folder / "0002_second.sql").write_text("create table $schema.other (name text)")

    async def scenario() -> list[list[int]]:
        return await asyncio.gather(*(schema.migrate(address) for _ in range(4)))

    assert sorted(number for applied in asyncio.run(scenario()) for number in applied) == [1, 2]


def test_a_newer_schema_is_refused(folder: Path, address: PostgresAddress) -> None:
    asyncio.run(schema.migrate(address))
    query(address, "insert into $schema.migration (number) values (7)")
    with pytest.raises(SchemaError, match="has version 7, this Umbel knows 1"):
        asyncio.run(schema.migrate(address))

"""The migrations of the schema: numbered, each one transaction, never edited after release."""

from __future__ import annotations

from pathlib import Path

from umbel.backends.postgres.address import PostgresAddress
from umbel.backends.postgres.connections import Connection
from umbel.backends.postgres.errors import translate_errors
from umbel.backends.queries import numbered
from umbel.errors import SchemaError

MIGRATIONS = Path(__file__).parent / "migrations"


def migrations() -> list[tuple[int, str]]:
    """Return the number and SQL of every migration, in order."""
    return numbered(MIGRATIONS)


def newest() -> int:
    """Return the number of the newest migration of this version of Umbel."""
    return migrations()[-1][0]


async def schema_version(address: PostgresAddress) -> int | None:
    """Return the number of the last migration applied; None if there is no schema.

    Raises:
        Unavailable: the server cannot be reached.
    """
    with translate_errors(address.label):
        connection = await address.connect()
        try:
            return await _version(connection, address)
        finally:
            await connection.close()


async def migrate(address: PostgresAddress) -> list[int]:
    """Bring the schema up to date and return the numbers of the migrations applied.

    Wait for another process that is doing so. A crash leaves the schema at one of its versions.

    Raises:
        SchemaError: the schema is newer than this Umbel.
        Unavailable: the server cannot be reached.
    """
    applied: list[int] = []
    with translate_errors(address.label):
        connection = await address.connect()
        try:
            for number, sql in migrations():
                async with connection.transaction():
                    if await _apply(connection, address, number, sql):
                        applied.append(number)
        finally:
            await connection.close()
    return applied


async def _apply(connection: Connection, address: PostgresAddress, number: int, sql: str) -> bool:
    await connection.execute(address.sql["lock_migrations"], prepare=False)
    current = await _prepared_version(connection, address)
    if current > newest():
        raise SchemaError(
            f"schema {address.schema} has version {current}, this Umbel knows {newest()};"
            " upgrade it"
        )
    if number <= current:
        return False
    await connection.execute(address.fill(sql), prepare=False)
    await connection.execute(address.sql["applied"], {"number": number}, prepare=False)
    return True


async def _prepared_version(connection: Connection, address: PostgresAddress) -> int:
    has_schema, has_list = await _known(connection, address)
    if not has_schema:
        await connection.execute(address.sql["create_schema"], prepare=False)
    if not has_list:
        await connection.execute(address.sql["create_migration"], prepare=False)
    return await _version(connection, address) or 0


async def _version(connection: Connection, address: PostgresAddress) -> int | None:
    if not all(await _known(connection, address)):
        return None
    cursor = await connection.execute(address.sql["version"], prepare=False)
    row = await cursor.fetchone()
    return row[0] if row else None


async def _known(connection: Connection, address: PostgresAddress) -> tuple[bool, bool]:
    cursor = await connection.execute(address.sql["known_schema"], prepare=False)
    row = await cursor.fetchone()
    assert row is not None
    return row[0], row[1]

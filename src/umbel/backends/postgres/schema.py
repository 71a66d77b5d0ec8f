"""The schema's migrations: numbered, never edited once released, each one transaction."""

from __future__ import annotations

from pathlib import Path

from umbel.backends.postgres.address import Home
from umbel.backends.postgres.connections import Connection
from umbel.backends.postgres.errors import explaining
from umbel.backends.queries import numbered
from umbel.errors import SchemaError


def migrations() -> list[tuple[int, str]]:
    """Every migration's number and SQL, in order."""
    return numbered(Path(__file__).parent / "migrations")


def newest() -> int:
    """The number of the newest migration this Umbel knows."""
    return migrations()[-1][0]


async def schema_version(home: Home) -> int | None:
    """The number of the newest migration applied; None when there is no schema.

    Raises:
        Unavailable: the server cannot be reached.
    """
    with explaining(home.address):
        connection = await home.connect()
        try:
            return await _version(connection, home)
        finally:
            await connection.close()


async def migrate(home: Home) -> list[int]:
    """Bring the schema up to date; another process doing the same is waited for.

    Returns the numbers applied. A crash leaves the schema at one of its versions.

    Raises:
        SchemaError: the schema is newer than this Umbel.
        Unavailable: the server cannot be reached.
    """
    applied: list[int] = []
    with explaining(home.address):
        connection = await home.connect()
        try:
            for number, sql in migrations():
                async with connection.transaction():
                    if await _apply(connection, home, number, sql):
                        applied.append(number)
        finally:
            await connection.close()
    return applied


async def _apply(connection: Connection, home: Home, number: int, sql: str) -> bool:
    await connection.execute(home.sql["lock_migrations"], prepare=False)
    current = await _prepared_version(connection, home)
    if current > newest():
        raise SchemaError(
            f"schema {home.schema} has version {current}, this Umbel knows {newest()}; upgrade it"
        )
    if number <= current:
        return False
    await connection.execute(home.fill(sql), prepare=False)
    await connection.execute(home.sql["applied"], {"number": number}, prepare=False)
    return True


async def _prepared_version(connection: Connection, home: Home) -> int:
    has_schema, has_list = await _known(connection, home)
    if not has_schema:
        await connection.execute(home.sql["create_schema"], prepare=False)
    if not has_list:
        await connection.execute(home.sql["create_migration"], prepare=False)
    return await _version(connection, home) or 0


async def _version(connection: Connection, home: Home) -> int | None:
    if not all(await _known(connection, home)):
        return None
    cursor = await connection.execute(home.sql["version"], prepare=False)
    row = await cursor.fetchone()
    return row[0] if row else None


async def _known(connection: Connection, home: Home) -> tuple[bool, bool]:
    cursor = await connection.execute(home.sql["known_schema"], prepare=False)
    row = await cursor.fetchone()
    assert row is not None
    return row[0], row[1]

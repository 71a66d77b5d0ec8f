"""The schema of a file: numbered migrations, applied when it is opened."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from umbel.drivers.queries import numbered
from umbel.drivers.sqlite.faults import explain
from umbel.drivers.sqlite.transactions import writing
from umbel.errors import SchemaError


def migrations() -> list[tuple[int, str]]:
    """Every migration's number and SQL, in order. They are never edited once released."""
    return numbered(Path(__file__).parent / "migrations")


def version(connection: sqlite3.Connection) -> int:
    """The number of the newest migration the file has seen."""
    found: int = connection.execute("pragma user_version").fetchone()[0]
    return found


def version_of(path: str) -> int:
    """The schema's version in a file, without touching it; 0 when there is none."""
    if path == ":memory:" or not Path(path).exists():
        return 0
    try:
        address = f"{Path(path).absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            return version(connection)
    except sqlite3.Error as error:
        raise explain(error, path) from error


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the file's schema up to date; another process doing the same is waited for."""
    known = migrations()
    newest = known[-1][0]
    if version(connection) == newest:
        return
    with writing(connection) as cursor:
        current = version(connection)
        if current > newest:
            raise SchemaError(f"{path} has schema {current}, this Umbel knows {newest}; upgrade it")
        for number, sql in known:
            if number > current:
                for statement in _statements(sql):
                    cursor.execute(statement)
                cursor.execute(f"pragma user_version = {number}")


def _statements(sql: str) -> Iterator[str]:
    """Single statements: ``executescript`` would commit the transaction we are in."""
    pending = ""
    for line in sql.splitlines():
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""

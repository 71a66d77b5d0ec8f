"""The schema of a file: numbered migrations, applied when the file is opened."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from umbel.backends.queries import numbered
from umbel.backends.sqlite.errors import translate_error
from umbel.errors import SchemaError

MIGRATIONS = Path(__file__).parent / "migrations"


def migrations() -> list[tuple[int, str]]:
    """Return the number and SQL of every migration, in order. Released ones are never edited."""
    return numbered(MIGRATIONS)


def version(connection: sqlite3.Connection) -> int:
    """Return the number of the last migration that was applied to the file."""
    found: int = connection.execute("pragma user_version").fetchone()[0]
    return found


def version_of(path: str) -> int:
    """Return the version of a file's schema without changing the file; 0 if there is none."""
    if path == ":memory:" or not Path(path).exists():
        return 0
    try:
        address = f"{Path(path).absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            return version(connection)
    except sqlite3.Error as error:
        raise translate_error(error, path) from error


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the file's schema up to date. Wait for another process that is doing so.

    All migrations are one call into SQLite. So a signal handler that publishes never finds the file
    locked by the thread that it has interrupted.
    """
    newest = migrations()[-1][0]
    while (current := version(connection)) != newest:
        if current > newest:
            raise SchemaError(f"{path} has schema {current}, this Umbel knows {newest}; upgrade it")
        try:
            connection.executescript(_script(current))
        except sqlite3.Error:
            if connection.in_transaction:
                connection.rollback()
            if version(connection) == current:  # otherwise another process has migrated it
                raise


def _script(current: int) -> str:
    """Return the SQL that brings a schema of this version up to date, as one transaction."""
    steps = [
        f"{sql}\n;pragma user_version = {number};"
        for number, sql in migrations()
        if number > current
    ]
    return "\n".join(["begin immediate;", *steps, "commit;"])

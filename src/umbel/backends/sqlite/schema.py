"""The schema of a file: numbered migrations, applied when it is opened."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from umbel.backends.queries import numbered
from umbel.backends.sqlite.errors import explain
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
    """Bring the file's schema up to date; another process doing the same is waited for.

    It is one call into SQLite: a signal handler that publishes, too, cannot come in the middle of
    it, and so never finds the file locked by the thread that it has suspended.
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
            if version(connection) == current:  # else another process has done it meanwhile
                raise


def _script(current: int) -> str:
    """What brings a schema of this version up to date, as one transaction."""
    steps = [
        f"{sql}\n;pragma user_version = {number};"
        for number, sql in migrations()
        if number > current
    ]
    return "\n".join(["begin immediate;", *steps, "commit;"])

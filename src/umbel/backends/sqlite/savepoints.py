"""Transactions of our own, and savepoints in the caller's."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

_MOMENT = 0.005


def write_ahead(connection: sqlite3.Connection, busy: float) -> None:
    """Keep a write-ahead log. Somebody else who does something to the file is waited for.

    SQLite itself does not wait: of two that open a new file in the same moment, one is refused.
    """
    until = time.monotonic() + busy
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
            time.sleep(_MOMENT)


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[sqlite3.Cursor]:
    """A write transaction: takes the write lock first, so it never fails half-way for it.

    Within one that is open already it is a part of that: see ``together``.
    """
    cursor = connection.cursor()
    if connection.in_transaction:
        yield cursor
        return
    cursor.execute("begin immediate")
    try:
        yield cursor
        cursor.execute("commit")
    except BaseException:
        if connection.in_transaction:
            cursor.execute("rollback")
        raise


@contextmanager
def all_or_nothing(connection: sqlite3.Connection, cursor: sqlite3.Cursor) -> Iterator[None]:
    """A savepoint in the caller's transaction, which is begun as the caller's next write would."""
    if not connection.in_transaction and connection.isolation_level is not None:
        cursor.execute("begin")
    cursor.execute("savepoint umbel_publish")
    try:
        yield
    except BaseException:
        cursor.execute("rollback to umbel_publish")
        raise
    finally:
        cursor.execute("release umbel_publish")

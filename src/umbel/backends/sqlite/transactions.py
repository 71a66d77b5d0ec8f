"""Transactions of Umbel's own, and savepoints in a caller's transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from umbel.backends.sql.statements import Steps

T = TypeVar("T")

_RETRY_SECONDS = 0.005


def enable_wal(connection: sqlite3.Connection, busy: float) -> None:
    """Turn on the write-ahead log. Wait up to ``busy`` seconds while another process is doing so.

    SQLite itself does not wait: of two processes that open a new file at once, it refuses one.
    """
    until = time.monotonic() + busy
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
            time.sleep(_RETRY_SECONDS)


def perform(cursor: sqlite3.Cursor, steps: Steps[T]) -> T:
    """Run the steps and return their result."""
    try:
        query, values = next(steps)
        while True:
            query, values = steps.send(cursor.execute(query, values or {}).fetchall())
    except StopIteration as done:
        result: T = done.value
        return result


@contextmanager
def write_transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Cursor]:
    """Open a write transaction. It takes the write lock first, so no later statement waits for it.

    Inside an open transaction it becomes part of that one: see ``run_in_one_transaction``.
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
def savepoint(connection: sqlite3.Connection, cursor: sqlite3.Cursor) -> Iterator[None]:
    """Open a savepoint in the caller's transaction, which begins here if it has not yet."""
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

"""Transactions of our own, and savepoints in the caller's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager


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

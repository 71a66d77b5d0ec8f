"""Running steps on psycopg's connections.

The same steps run on Umbel's own connections and on a caller's connection, blocking or async.
Besides rows, a step may be thrown ``KeyTaken``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from psycopg import AsyncCursor, Cursor
from psycopg.errors import UniqueViolation

from umbel.backends.sql.statements import Row, Steps
from umbel.errors import UmbelError

T = TypeVar("T")

KeyTaken: TypeAlias = UniqueViolation

MAX_TRIES = 3
"""How often steps are started that meet a deadlock or a serialization failure."""


class Block(NamedTuple):
    """The statements that begin, commit and roll back several steps as one."""

    begin: bytes
    commit: bytes
    rollback: bytes


TRANSACTION = Block(b"begin", b"commit", b"rollback")
SAVEPOINT = Block(b"savepoint umbel", b"release savepoint umbel", b"rollback to savepoint umbel")


def atomically(steps: Steps[T], block: Block = TRANSACTION) -> Steps[T]:
    """Run all of the steps, or none if they raise an UmbelError."""
    yield block.begin, None
    try:
        result = yield from steps
    except UmbelError:
        yield block.rollback, None
        raise
    yield block.commit, None
    return result


def single_statement(query: bytes, values: Mapping[str, Any] | None) -> Steps[list[Row]]:
    """Run a single statement and return its rows."""
    return (yield query, values)


def preceded_by(query: bytes, values: Mapping[str, Any], steps: Steps[T]) -> Steps[T]:
    """Run another statement before the steps."""
    yield query, values
    return (yield from steps)


async def perform(cursor: AsyncCursor[Row], steps: Steps[T]) -> T:
    """Run the steps on an asynchronous connection."""
    try:
        query, values = next(steps)
        while True:
            try:
                await cursor.execute(query, values)
            except KeyTaken as error:
                query, values = steps.throw(error)
                continue
            rows = await cursor.fetchall() if _has_rows(cursor) else []
            query, values = steps.send(rows)
    except StopIteration as done:
        result: T = done.value
        return result


def perform_sync(cursor: Cursor[Row], steps: Steps[T]) -> T:
    """Run the steps on a blocking connection."""
    try:
        query, values = next(steps)
        while True:
            try:
                cursor.execute(query, values)
            except KeyTaken as error:
                query, values = steps.throw(error)
                continue
            query, values = steps.send(cursor.fetchall() if _has_rows(cursor) else [])
    except StopIteration as done:
        result: T = done.value
        return result


def _has_rows(cursor: AsyncCursor[Row] | Cursor[Row]) -> bool:
    """Whether the statement returned rows. ``cursor.description`` would describe every column."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0

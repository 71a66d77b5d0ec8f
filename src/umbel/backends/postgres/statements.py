"""Statements as a generator: written once, run over any kind of connection.

A generator yields statements and is sent the rows of each, or thrown ``KeyTaken``. So publishing
within a caller's transaction is the same code for our own connections, for sync ones and for
async ones.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from psycopg import AsyncCursor, Cursor
from psycopg.errors import UniqueViolation

from umbel.errors import UmbelError

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]
Statement: TypeAlias = tuple[bytes, Mapping[str, Any] | None]
Steps: TypeAlias = Generator[Statement, list[Row], T]

KeyTaken: TypeAlias = UniqueViolation

TRIES = 3
"""How often steps are begun that meet a deadlock or a conflict."""


class Block(NamedTuple):
    """How steps are made one."""

    open: bytes
    keep: bytes
    undo: bytes


TRANSACTION = Block(b"begin", b"commit", b"rollback")
SAVEPOINT = Block(b"savepoint umbel", b"release savepoint umbel", b"rollback to savepoint umbel")


def atomically(steps: Steps[T], block: Block = TRANSACTION) -> Steps[T]:
    """All of the steps, or none when they raise an error of ours."""
    yield block.open, None
    try:
        result = yield from steps
    except UmbelError:
        yield block.undo, None
        raise
    yield block.keep, None
    return result


def one(query: bytes, values: Mapping[str, Any] | None) -> Steps[list[Row]]:
    """A single statement. Gives its rows."""
    return (yield query, values)


def after(query: bytes, values: Mapping[str, Any], steps: Steps[T]) -> Steps[T]:
    """One statement more, before the steps."""
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
    """Whether the statement answered with rows; ``cursor.description`` would describe them all."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0

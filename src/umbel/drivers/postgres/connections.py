"""Connections: our own, and those of callers."""

from __future__ import annotations

import asyncio
import select
from typing import Any, TypeGuard, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from umbel.drivers.postgres.steps import (
    SAVEPOINT,
    TRANSACTION,
    Block,
    Row,
    Steps,
    perform,
    perform_sync,
)

T = TypeVar("T")


class Connection(psycopg.AsyncConnection[Row]):
    """A connection that never keeps whoever gave up on it waiting.

    psycopg asks the server to cancel and waits for the answer, up to ten seconds when the server
    is out of reach. Every statement here is safe to repeat, so the connection is dropped instead.
    """

    async def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=interval)
        except (asyncio.CancelledError, KeyboardInterrupt):
            self.pgconn.finish()
            raise


def is_idle(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether it may be used by somebody else: open, and not within a transaction."""
    idle = TransactionStatus.IDLE
    return not connection.closed and connection.pgconn.transaction_status == idle


def is_fresh(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether the server has left it alone. A server that goes away says so, unasked."""
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return not poll.poll(0)


def is_sync_connection(value: Any) -> TypeGuard[psycopg.Connection[Any]]:
    """Whether a caller's connection is psycopg's blocking one."""
    return isinstance(value, psycopg.Connection)


def is_async_connection(value: Any) -> TypeGuard[psycopg.AsyncConnection[Any]]:
    """Whether a caller's connection is psycopg's asynchronous one."""
    return isinstance(value, psycopg.AsyncConnection)


def block_within(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Block:
    """How to make several steps one on a caller's connection, leaving its transaction open."""
    return TRANSACTION if joins_nothing(connection) else SAVEPOINT


def joins_nothing(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether each statement is a transaction of its own there."""
    idle = connection.info.transaction_status == TransactionStatus.IDLE
    return idle and connection.autocommit


def perform_within(connection: psycopg.Connection[Any], steps: Steps[T]) -> T:
    """Run the steps as part of a caller's transaction, in the caller's own thread."""
    # The caller's rows and cursors may be of any shape.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        return perform_sync(cursor, steps)


async def aperform_within(connection: psycopg.AsyncConnection[Any], steps: Steps[T]) -> T:
    """Run the steps as part of a caller's transaction."""
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        return await perform(cursor, steps)

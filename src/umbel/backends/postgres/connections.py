"""Connections of our own."""

from __future__ import annotations

import asyncio
import select
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

from umbel.backends.postgres.statements import Row

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

"""Umbel's own async connections."""

from __future__ import annotations

import asyncio
import select
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

from umbel.backends.sql.statements import Row

T = TypeVar("T")


class Connection(psycopg.AsyncConnection[Row]):
    """A connection that is dropped when its caller is cancelled.

    psycopg would ask the server to cancel the statement and wait for the answer, up to ten seconds
    if the server cannot be reached. Every statement here is safe to repeat, so that is not needed.
    """

    async def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=interval)
        except (asyncio.CancelledError, KeyboardInterrupt):
            self.pgconn.finish()
            raise


def is_idle(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return whether a connection can be reused: it is open and in no transaction."""
    idle = TransactionStatus.IDLE
    return not connection.closed and connection.pgconn.transaction_status == idle


def is_fresh(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return whether the server has sent nothing. A server that shuts down sends a message."""
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return not poll.poll(0)

"""A blocking connection for the caller's own thread, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psycopg
from psycopg import errors, waiting
from psycopg.abc import PQGen

from umbel.backends.connecting import connect_before
from umbel.backends.postgres.connections import is_fresh, is_idle
from umbel.backends.postgres.errors import CONFLICTS, translate_errors
from umbel.backends.postgres.statements import MAX_TRIES, perform_sync
from umbel.backends.sql.statements import Row, Steps

T = TypeVar("T")


class DeadlineConnection(psycopg.Connection[Row]):
    """Gives up at a deadline and drops the connection. Every statement is safe to repeat."""

    until = float("inf")

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        left = max(self.until - time.monotonic(), 0.0)
        try:
            return waiting.wait(gen, self.pgconn.socket, interval=interval, timeout=left)
        except errors._WaitTimeout:  # what psycopg's wait raises has no public name
            self.pgconn.finish()
            raise TimeoutError from None
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C, or a stopped task
                self.pgconn.finish()
            raise


class BlockingConnection:
    """Runs steps on one connection in the calling thread, one caller at a time."""

    def __init__(self, connect: Callable[[], DeadlineConnection], label: str) -> None:
        self._connect = connect
        self._label = label
        self._lock = threading.Lock()
        self._connection: DeadlineConnection | None = None

    def perform(self, steps: Callable[[], Steps[T]], timeout: float) -> T:
        """Run the steps and return their result. Raise the errors of ``Database.run``."""
        until = time.monotonic() + timeout
        with translate_errors(self._label):
            for _ in range(MAX_TRIES - 1):
                with suppress(*CONFLICTS):
                    return self._once(steps, until)
            return self._once(steps, until)

    @property
    def is_busy(self) -> bool:
        """Whether the connection is in use now."""
        return self._lock.locked()

    def close(self) -> None:
        """Close the connection. Closing twice is fine. The next use connects again."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _once(self, steps: Callable[[], Steps[T]], until: float) -> T:
        if not self._lock.acquire(timeout=max(until - time.monotonic(), 0.0)):
            raise TimeoutError
        try:
            connection = self._take_free() or self._connected(until)
            connection.until = until
            try:
                return perform_sync(connection.cursor(binary=True), steps())
            finally:
                if is_idle(connection):
                    self._connection = connection
                else:
                    connection.pgconn.finish()
        finally:
            self._lock.release()

    def _take_free(self) -> DeadlineConnection | None:
        connection, self._connection = self._connection, None
        if connection is not None and not is_fresh(connection):
            connection.pgconn.finish()
            return None
        return connection

    def _connected(self, until: float) -> DeadlineConnection:
        return connect_before(until, self._connect, lambda connection: connection.close())

"""A blocking connection for callers' own threads, which keeps a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psycopg
from psycopg import errors, waiting
from psycopg.abc import PQGen

from umbel.backends.connecting import connected_by
from umbel.backends.postgres.connections import is_fresh, is_idle
from umbel.backends.postgres.errors import CONFLICTS, explaining
from umbel.backends.postgres.statements import TRIES, Row, Steps, perform_sync

T = TypeVar("T")


class Blocking(psycopg.Connection[Row]):
    """Gives up at a moment, and drops the connection then: every statement may be repeated."""

    until = float("inf")

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        left = max(self.until - time.monotonic(), 0.0)
        try:
            return waiting.wait(gen, self.pgconn.socket, interval=interval, timeout=left)
        except errors._WaitTimeout:
            self.pgconn.finish()
            raise TimeoutError from None
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C, a task that is stopped: mid-answer
                self.pgconn.finish()
            raise


class Direct:
    """Runs steps on one connection, in whatever thread calls; one at a time."""

    def __init__(self, connect: Callable[[], Blocking], address: str) -> None:
        self._connect = connect
        self._address = address
        self._lock = threading.Lock()
        self._connection: Blocking | None = None

    def perform(self, steps: Callable[[], Steps[T]], timeout: float) -> T:
        """What these steps return. Errors are those of ``Database.run``."""
        until = time.monotonic() + timeout
        with explaining(self._address):
            for _ in range(TRIES - 1):
                with suppress(*CONFLICTS):
                    return self._once(steps, until)
            return self._once(steps, until)

    @property
    def is_busy(self) -> bool:
        """Whether somebody uses it this moment."""
        return self._lock.locked()

    def close(self) -> None:
        """Close the connection. Twice is fine, and using it again opens another."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _once(self, steps: Callable[[], Steps[T]], until: float) -> T:
        if not self._lock.acquire(timeout=max(until - time.monotonic(), 0.0)):
            raise TimeoutError
        try:
            connection = self._take() or self._connected(until)
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

    def _take(self) -> Blocking | None:
        connection, self._connection = self._connection, None
        if connection is not None and not is_fresh(connection):
            connection.pgconn.finish()
            return None
        return connection

    def _connected(self, until: float) -> Blocking:
        return connected_by(until, self._connect, lambda connection: connection.close())

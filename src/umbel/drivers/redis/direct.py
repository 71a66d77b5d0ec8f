"""A blocking connection for callers' own threads, which keeps a deadline."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import ResponseError

from umbel.drivers.connecting import connected_by
from umbel.drivers.redis.connections import Blocking, run_blocking
from umbel.drivers.redis.faults import explaining
from umbel.drivers.redis.scripts import Script

_all: weakref.WeakSet[Direct] = weakref.WeakSet()
_inherited: list[Blocking | None] = []
"""Connections of a parent process: never used again here, and never closed by collection."""


def _part_in_child() -> None:
    # The parent goes on talking over its connection, and a thread of it may have held the lock.
    for direct in list(_all):
        _inherited.append(direct.start_over())


os.register_at_fork(after_in_child=_part_in_child)


class Direct:
    """Runs scripts on one connection, in whatever thread calls; one at a time."""

    def __init__(self, connect: Callable[[], Blocking], address: str) -> None:
        self._connect = connect
        self._address = address
        self._lock = threading.Lock()
        self._connection: Blocking | None = None
        _all.add(self)

    def start_over(self) -> Blocking | None:
        """Be as new; gives the connection that was there."""
        connection, self._connection = self._connection, None
        self._lock = threading.Lock()
        return connection

    def run(self, script: Script, root: str, packed: bytes, timeout: float) -> Any:
        """What a script answers. Errors are those of ``Database.run``."""
        until = time.monotonic() + timeout
        with explaining(self._address):
            lock = self._lock
            if not lock.acquire(timeout=max(timeout, 0.0)):
                raise TimeoutError
            try:
                connection = self._take() or self._connected(until)
                try:
                    answer = run_blocking(connection, script, root, packed, until)
                except ResponseError:  # an answer like any other
                    self._connection = connection
                    raise
                except BaseException:
                    connection.disconnect()
                    raise
                self._connection = connection
                return answer
            finally:
                lock.release()

    def close(self) -> None:
        """Close the connection. Twice is fine, and using it again opens another."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _take(self) -> Blocking | None:
        connection, self._connection = self._connection, None
        if connection is None:
            return None
        with suppress(Exception):
            if not connection.can_read(0):  # else the server has closed it
                return connection
        connection.disconnect()
        return None

    def _connected(self, until: float) -> Blocking:
        return connected_by(until, self._connect, lambda connection: connection.disconnect())

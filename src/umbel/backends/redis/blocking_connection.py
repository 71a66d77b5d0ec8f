"""A blocking connection that a caller uses in its own thread, with a deadline for each call."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from redis.exceptions import ReadOnlyError, ResponseError

from umbel.backends.connecting import connect_before
from umbel.backends.redis.connections import SyncConnection
from umbel.backends.redis.errors import DRIVER_ERRORS, translate_error
from umbel.backends.redis.raw_connection import RawConnection, ReadAnswer
from umbel.backends.redis.scripts import Arguments, Script
from umbel.errors import UmbelError

_all: weakref.WeakSet[BlockingConnection] = weakref.WeakSet()
_inherited: list[RawConnection | None] = []
"""Connections of the parent process. Garbage collection must not close them, so they are kept."""


def _reset_in_child() -> None:
    # The parent continues to use its connection, and one of its threads may have held the lock.
    for connection in list(_all):
        _inherited.append(connection.reset())


os.register_at_fork(after_in_child=_reset_in_child)


class BlockingConnection:
    """Runs scripts on one connection, one at a time, in the thread of the caller."""

    def __init__(self, connect: Callable[[], SyncConnection], label: str) -> None:
        self._connect = connect
        self._label = label
        self._lock = threading.Lock()
        self._raw: RawConnection | None = None
        _all.add(self)

    def reset(self) -> RawConnection | None:
        """Forget the connection and the lock. Return the connection."""
        raw, self._raw = self._raw, None
        self._lock = threading.Lock()
        return raw

    def run(self, script: Script, root: str, arguments: Arguments, timeout: float) -> Any:
        """Return a script's answer. Raises the errors of ``Database.run``."""
        with self.start(script, root, arguments, timeout) as pending:
            return pending.read()

    def start(
        self, script: Script, root: str, arguments: Arguments, timeout: float
    ) -> PendingReply:
        """Send a script; its answer can be read later. Raises the errors of ``Database.run``.

        No other caller can use the connection until the ``with`` block of the reply ends.
        """
        until, lock = time.monotonic() + timeout, self._lock
        try:
            if not lock.acquire(timeout=max(timeout, 0.0)):
                raise TimeoutError
            try:
                raw = self._take() or self._open(until)
                try:
                    return PendingReply(self, lock, raw, raw.start(script, root, arguments, until))
                except BaseException:
                    raw.close()
                    raise
            except BaseException:
                lock.release()
                raise
        except UmbelError:
            raise
        except DRIVER_ERRORS as error:
            raise translate_error(error, self._label) from error

    @property
    def is_busy(self) -> bool:
        """Whether a thread is using the connection."""
        return self._lock.locked()

    def close(self) -> None:
        """Close the connection. May be called twice; the next call opens a new connection."""
        with self._lock:
            raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()

    def give_back(self, raw: RawConnection) -> None:
        """Keep the connection for the next call."""
        self._raw = raw

    def translate_error(self, error: Exception) -> UmbelError:
        """Return Umbel's error for one of redis-py."""
        return translate_error(error, self._label)

    def _take(self) -> RawConnection | None:
        raw, self._raw = self._raw, None
        if raw is None or raw.is_usable(time.monotonic()):
            return raw
        raw.close()
        return None

    def _open(self, until: float) -> RawConnection:
        return RawConnection(
            connect_before(until, self._connect, lambda connection: connection.disconnect())
        )


class PendingReply:
    """The answer of a script that was sent; it can be read once. The connection is in use."""

    __slots__ = ("_connection", "_is_usable", "_lock", "_raw", "_read_answer")

    def __init__(
        self,
        connection: BlockingConnection,
        lock: threading.Lock,
        raw: RawConnection,
        read_answer: ReadAnswer,
    ) -> None:
        self._connection = connection
        self._lock = lock
        self._raw = raw
        self._read_answer = read_answer
        self._is_usable = False

    def read(self) -> Any:
        """Return the script's answer. Raises the errors of ``Database.run``."""
        try:
            answer = self._read_answer()
        except DRIVER_ERRORS as error:
            # An error answer leaves the connection usable. But a server that is no longer the
            # primary is left, because a new connection may find the new primary.
            self._is_usable = isinstance(error, ResponseError) and not isinstance(
                error, ReadOnlyError
            )
            raise self._connection.translate_error(error) from error
        self._is_usable = True
        return answer

    def __enter__(self) -> PendingReply:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_usable:
            self._connection.give_back(self._raw)
        else:
            self._raw.close()
        self._lock.release()

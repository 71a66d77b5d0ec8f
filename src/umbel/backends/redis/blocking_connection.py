"""A blocking connection for callers' own threads, which keeps a deadline."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from redis.exceptions import ReadOnlyError, ResponseError

from umbel.backends.connecting import connected_by
from umbel.backends.redis.connections import Blocking
from umbel.backends.redis.errors import FAULTS, explained
from umbel.backends.redis.raw_connection import Answer, Line
from umbel.backends.redis.scripts import Arguments, Script
from umbel.errors import UmbelError

_all: weakref.WeakSet[Direct] = weakref.WeakSet()
_inherited: list[Line | None] = []
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
        self._line: Line | None = None
        _all.add(self)

    def start_over(self) -> Line | None:
        """Be as new; gives the connection that was there."""
        line, self._line = self._line, None
        self._lock = threading.Lock()
        return line

    def run(self, script: Script, root: str, arguments: Arguments, timeout: float) -> Any:
        """What a script answers. Errors are those of ``Database.run``."""
        with self.ask(script, root, arguments, timeout) as asked:
            return asked.answer()

    def ask(self, script: Script, root: str, arguments: Arguments, timeout: float) -> Asked:
        """``run`` in two parts: the server is asked, its answer can be waited for later.

        Until the block of what this gives ends, the connection is nobody else's.
        """
        until, lock = time.monotonic() + timeout, self._lock
        try:
            if not lock.acquire(timeout=max(timeout, 0.0)):
                raise TimeoutError
            try:
                line = self._take() or self._connected(until)
                try:
                    return Asked(self, lock, line, line.ask(script, root, arguments, until))
                except BaseException:
                    line.close()
                    raise
            except BaseException:
                lock.release()
                raise
        except UmbelError:
            raise
        except FAULTS as error:
            raise explained(error, self._address) from error

    @property
    def is_busy(self) -> bool:
        """Whether somebody uses it this moment."""
        return self._lock.locked()

    def close(self) -> None:
        """Close the connection. Twice is fine, and using it again opens another."""
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            line.close()

    def take_back(self, line: Line) -> None:
        """Whoever asks next may use it."""
        self._line = line

    def explained(self, error: Exception) -> UmbelError:
        """Ours for theirs."""
        return explained(error, self._address)

    def _take(self) -> Line | None:
        line, self._line = self._line, None
        if line is None or line.is_fresh(time.monotonic()):
            return line
        line.close()
        return None

    def _connected(self, until: float) -> Line:
        return Line(connected_by(until, self._connect, lambda connection: connection.disconnect()))


class Asked:
    """A script that was sent; its answer may be waited for, once. The connection is held."""

    __slots__ = ("_direct", "_fine", "_line", "_lock", "_wait")

    def __init__(self, direct: Direct, lock: threading.Lock, line: Line, wait: Answer) -> None:
        self._direct = direct
        self._lock = lock
        self._line = line
        self._wait = wait
        self._fine = False

    def answer(self) -> Any:
        """What the script answers. Errors are those of ``Database.run``."""
        try:
            found = self._wait()
        except FAULTS as error:
            # An answer like any other; but where there is no primary any more, another connection
            # may find it.
            self._fine = isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError)
            raise self._direct.explained(error) from error
        self._fine = True
        return found

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fine:
            self._direct.take_back(self._line)
        else:
            self._line.close()
        self._lock.release()

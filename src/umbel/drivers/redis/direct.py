"""A blocking connection for callers' own threads, which keeps a deadline."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from redis.exceptions import ReadOnlyError, ResponseError

from umbel.drivers.connecting import connected_by
from umbel.drivers.redis.connections import Blocking
from umbel.drivers.redis.faults import FAULTS, explained
from umbel.drivers.redis.line import Line
from umbel.drivers.redis.scripts import Arguments, Script
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
        now = time.monotonic()
        try:
            lock = self._lock
            if not lock.acquire(timeout=max(timeout, 0.0)):
                raise TimeoutError
            try:
                return self._run(script, root, arguments, now + timeout)
            finally:
                lock.release()
        except UmbelError:
            raise
        except FAULTS as error:
            raise explained(error, self._address) from error

    def close(self) -> None:
        """Close the connection. Twice is fine, and using it again opens another."""
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            line.close()

    def _run(self, script: Script, root: str, arguments: Arguments, until: float) -> Any:
        line = self._take() or self._connected(until)
        try:
            answer = line.run(script, root, arguments, until)
        except ReadOnlyError:  # no primary any more: another connection may find that
            line.close()
            raise
        except ResponseError:  # an answer like any other
            self._line = line
            raise
        except BaseException:
            line.close()
            raise
        self._line = line
        return answer

    def _take(self) -> Line | None:
        line, self._line = self._line, None
        if line is None or line.is_fresh(time.monotonic()):
            return line
        line.close()
        return None

    def _connected(self, until: float) -> Line:
        return Line(connected_by(until, self._connect, lambda connection: connection.disconnect()))

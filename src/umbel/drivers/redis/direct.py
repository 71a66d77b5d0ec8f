"""A blocking connection for callers' own threads, which keeps a deadline."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ReadOnlyError, ResponseError

from umbel.drivers.connecting import connected_by
from umbel.drivers.redis.connections import Blocking
from umbel.drivers.redis.faults import explained, explaining
from umbel.drivers.redis.line import Answer, Line
from umbel.drivers.redis.scripts import Arguments, Script

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
        with self.asking(script, root, arguments, timeout) as answer:
            return answer()

    @contextmanager
    def asking(
        self, script: Script, root: str, arguments: Arguments, timeout: float
    ) -> Iterator[Answer]:
        """``run`` in two parts: the server is asked at once, the answer waited for when called.

        Until the block ends, the connection is nobody else's.
        """
        until = time.monotonic() + timeout
        with self._turn(timeout):
            with explaining(self._address):
                line = self._take() or self._connected(until)
            fine = False

            def answer() -> Any:
                nonlocal fine
                with explaining(self._address):
                    try:
                        found = waiting()
                    except ReadOnlyError:  # no primary any more: another connection may find that
                        raise
                    except ResponseError:  # an answer like any other
                        fine = True
                        raise
                fine = True
                return found

            try:
                with explaining(self._address):
                    waiting = line.ask(script, root, arguments, until)
                yield answer
            finally:
                if fine:
                    self._line = line
                else:
                    line.close()

    @contextmanager
    def _turn(self, timeout: float) -> Iterator[None]:
        lock = self._lock
        if not lock.acquire(timeout=max(timeout, 0.0)):
            raise explained(TimeoutError(), self._address)
        try:
            yield
        finally:
            lock.release()

    def close(self) -> None:
        """Close the connection. Twice is fine, and using it again opens another."""
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            line.close()

    def _take(self) -> Line | None:
        line, self._line = self._line, None
        if line is None or line.is_fresh(time.monotonic()):
            return line
        line.close()
        return None

    def _connected(self, until: float) -> Line:
        return Line(connected_by(until, self._connect, lambda connection: connection.disconnect()))

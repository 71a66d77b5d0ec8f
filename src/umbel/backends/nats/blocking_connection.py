"""A connection for callers' own threads, which keeps a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from random import sample
from typing import Any, TypeVar

from nats import errors

from umbel.backends.connecting import connected_by
from umbel.backends.nats.address import Home
from umbel.backends.nats.errors import Refused, explaining
from umbel.backends.nats.raw_connection import Line

T = TypeVar("T")

_HELLO = 2.0


class Direct:
    """One connection, in whatever thread calls; one at a time."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._line: Line | None = None

    @contextmanager
    def using(self, until: float) -> Iterator[Line]:
        """The connection, nobody else's until then. What leaves it in doubt ends it.

        Raises:
            Unavailable: no server could be reached, or what it was used for failed.
        """
        with explaining(self._home.address):
            if not self._lock.acquire(timeout=max(until - time.monotonic(), 0.0)):
                raise TimeoutError
            try:
                line = self._fresh(until) or self._connected(until)
                try:
                    yield line
                except Refused:  # an answer like any other
                    self._line = line
                    raise
                except BaseException:
                    line.drop()
                    raise
                self._line = line
            finally:
                self._lock.release()

    def close(self) -> None:
        """Close the connection. Twice is fine, and using it again opens another."""
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            line.drop()

    def _fresh(self, until: float) -> Line | None:
        line, self._line = self._line, None
        if line is not None:
            line.until = until
            with suppress(errors.Error, OSError):
                line.catch_up()
                return line
            line.drop()
        return None

    def _connected(self, until: float) -> Line:
        problem: Exception = errors.NoServersError()
        for server in sample(self._home.servers, len(self._home.servers)):
            soon = min(until, time.monotonic() + _HELLO)
            try:
                line = connected_by(soon, partial(Line, self._home, server, soon), Line.drop)
            except (errors.Error, OSError) as error:  # a TimeoutError is an OSError
                problem = error
            else:
                line.until = until
                return line
        raise problem


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What comes of work that never waits, as it has a ``Line`` for its connection."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("it waits for an event loop")

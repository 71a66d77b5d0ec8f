"""Open connections of one event loop that are not in use. Those that stay unused are closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

C = TypeVar("C")

_IDLE_SECONDS = 10.0


class FreeConnections(Generic[C]):
    """Gives out the connection that was used last, so that the others become idle."""

    def __init__(self, close: Callable[[C], None], *, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._close = close
        self._idle_seconds = idle_seconds
        self._free: list[C] = []
        self._unused = 0
        """How many of the connections were not used since the last check: the first ones."""
        self._check: asyncio.TimerHandle | None = None

    def take(self) -> C | None:
        """Return a connection, or None if none is free."""
        if not self._free:
            return None
        connection = self._free.pop()
        self._unused = min(self._unused, len(self._free))
        return connection

    def put(self, connection: C) -> None:
        """Keep a connection for the next user. It is closed if it stays unused for long."""
        self._free.append(connection)
        if self._check is None:
            self._check_later()

    def close_all(self) -> None:
        """Close all of them. Connections that are put back later are kept again."""
        if self._check is not None:
            self._check.cancel()
            self._check = None
        while self._free:
            self._close(self._free.pop())

    def _check_later(self) -> None:
        self._unused = len(self._free)
        loop = asyncio.get_running_loop()
        self._check = loop.call_later(self._idle_seconds, self._close_unused)

    def _close_unused(self) -> None:
        unused, self._free = self._free[: self._unused], self._free[self._unused :]
        for connection in unused:
            self._close(connection)
        self._check = None
        if self._free:
            self._check_later()

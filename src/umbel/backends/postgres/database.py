"""One event loop's connections to one schema: few, opened on use, replaced when broken."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from psycopg import AsyncCursor

from umbel.backends.postgres.address import Home
from umbel.backends.postgres.blocking_connection import Direct
from umbel.backends.postgres.connections import Connection, is_fresh, is_idle
from umbel.backends.postgres.errors import CONFLICTS, explaining
from umbel.backends.postgres.listener import Listener
from umbel.backends.postgres.statements import TRIES, Row, Steps, one, perform

T = TypeVar("T")
Work: TypeAlias = Callable[[AsyncCursor[Row]], Awaitable[T]]

_inherited: list[Any] = []
"""Connections of a parent process: never used again here, and never closed by collection."""


class Database:
    """Runs statements on up to ``size`` connections. Nothing takes longer than ``timeout``."""

    def __init__(self, home: Home, *, size: int = 2, timeout: float = 10.0) -> None:
        self.home = home
        self._size = size
        self._timeout = timeout
        self._free: list[Connection] = []
        self._turn = asyncio.Semaphore(size)
        self._here: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._listener: Listener | None = None
        self.direct = Direct(home.connect_blocking, home.address)
        """For callers that may block."""

    async def run(self, work: Work[T], timeout: float | None = None) -> T:
        """Run ``work`` with a cursor. PostgreSQL's errors come out as ours.

        Work that met a deadlock or a conflict is done again from the start. What looks through a
        whole history may be given another ``timeout`` than usual.

        Raises:
            Unavailable: out of reach, refused, too slow. SchemaError: ``umbel db migrate``.
            BadMessage: a value does not fit its column.
        """
        with explaining(self.home.address):
            for _ in range(TRIES - 1):
                with suppress(*CONFLICTS):
                    return await self._once(work, timeout)
            return await self._once(work, timeout)

    async def rows(
        self, query: bytes, values: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> list[Row]:
        """What one statement returns; it is a transaction of its own, and one round trip."""
        return await self.run(lambda cursor: perform(cursor, one(query, values)), timeout)

    async def perform(self, steps: Callable[[], Steps[T]]) -> T:
        """What these steps return."""
        return await self.run(lambda cursor: perform(cursor, steps()))

    def listener(self) -> Listener:
        """Where hints are heard; shared with the other databases of this home and event loop."""
        self._arrive()
        if self._listener is None:
            self._listener = self.home.listener()
            self._listener.join(self)
        return self._listener

    async def close(self) -> None:
        """Close the connections; stop listening when nobody else does. Twice is fine."""
        self._arrive()
        self.direct.close()
        while self._free:
            await self._free.pop().close()
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.leave(self)

    async def _once(self, work: Work[T], timeout: float | None) -> T:
        self._arrive()
        async with asyncio.timeout(timeout or self._timeout), self._turn:
            connection = self._take() or await self.home.connect()
            try:
                return await work(connection.cursor(binary=True))
            finally:
                if is_idle(connection):
                    self._free.append(connection)
                else:
                    connection.pgconn.finish()

    def _take(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if is_fresh(connection):
                return connection
            connection.pgconn.finish()
        return None

    def _arrive(self) -> None:
        """Start over in a new process or event loop."""
        here = (os.getpid(), asyncio.get_running_loop())
        if here == self._here:
            return
        if self._here is not None and self._here[0] != here[0]:
            _inherited.append((self._free, self._listener))
        else:
            for connection in self._free:
                connection.pgconn.finish()
        self._free, self._listener = [], None
        self._turn = asyncio.Semaphore(self._size)
        self._here = here

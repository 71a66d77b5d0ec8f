"""Connections on loan: the user's code works in a transaction that is ours to end.

They are plain ones, without our settings. Inside psycopg's own transaction block ``commit`` and
``rollback`` are refused, so the borrower cannot end it by mistake.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import tuple_row

from umbel.backends.postgres.address import Home
from umbel.backends.postgres.connections import Connection, is_fresh, is_idle
from umbel.backends.postgres.errors import explaining
from umbel.backends.postgres.statements import Row

T = TypeVar("T")


class Lent(psycopg.Connection[Row]):
    """Dropped when its borrower is stopped in the middle of a statement."""

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        try:
            return super().wait(gen, interval=interval)
        except BaseException as error:
            if not isinstance(error, Exception):
                self.pgconn.finish()
            raise


class Lending:
    """Opens connections as they are needed, and keeps those that come back in good order."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._free: list[Lent] = []
        self._async_free: dict[asyncio.AbstractEventLoop, list[Connection]] = {}

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Row]]:
        """A connection in a transaction, committed at the end of the block unless it raises.

        What the block raises comes out as it is. Raises Unavailable where ours is the fault.
        """
        with explaining(self._home.address):
            connection = self._take() or Lent.connect(self._home.conninfo, **self._how())
            self._home.joined.add(connection)
            block = connection.transaction()
            block.__enter__()
        try:
            try:
                yield connection
            except BaseException as error:
                block.__exit__(type(error), error, error.__traceback__)
                raise
            with explaining(self._home.address):
                block.__exit__(None, None, None)
        finally:
            self._give_back(connection)

    @asynccontextmanager
    async def atransaction(self) -> AsyncIterator[psycopg.AsyncConnection[Row]]:
        """The same on the running event loop."""
        loop = asyncio.get_running_loop()
        with explaining(self._home.address):
            connection = self._take_async(loop)
            if connection is None:
                connection = await Connection.connect(self._home.conninfo, **self._how())
                self._home.joined.add(connection)
            block = connection.transaction()
            await block.__aenter__()
        try:
            try:
                yield connection
            except BaseException as error:
                await block.__aexit__(type(error), error, error.__traceback__)
                raise
            with explaining(self._home.address):
                await block.__aexit__(None, None, None)
        finally:
            self._give_back_async(loop, connection)

    def close(self) -> None:
        """Close what is not on loan. Twice is fine."""
        with self._lock:
            lent: list[Lent | Connection] = [*self._free]
            lent += [one for free in self._async_free.values() for one in free]
            self._free, self._async_free = [], {}
        for connection in lent:
            connection.pgconn.finish()

    def _how(self) -> dict[str, Any]:
        # Behind a pooler that hands connections around, nothing may be prepared.
        return {"autocommit": True} | ({} if self._home.listens else {"prepare_threshold": None})

    def _take(self) -> Lent | None:
        while True:
            with self._lock:
                if not self._free:
                    return None
                connection = self._free.pop()
            if is_fresh(connection):
                return connection
            connection.pgconn.finish()

    def _give_back(self, connection: Lent) -> None:
        if not is_idle(connection):
            connection.pgconn.finish()
            return
        connection.row_factory = tuple_row
        with self._lock:
            self._free.append(connection)

    def _take_async(self, loop: asyncio.AbstractEventLoop) -> Connection | None:
        free = self._async_free.get(loop, [])
        while free:
            connection = free.pop()
            if is_fresh(connection):
                return connection
            connection.pgconn.finish()
        return None

    def _give_back_async(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        for other in [known for known in self._async_free if known.is_closed()]:
            for left in self._async_free.pop(other):
                left.pgconn.finish()
        if not is_idle(connection):
            connection.pgconn.finish()
            return
        connection.row_factory = tuple_row
        self._async_free.setdefault(loop, []).append(connection)

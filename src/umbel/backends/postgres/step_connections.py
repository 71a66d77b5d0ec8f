"""Connections for step transactions: user code works in a transaction that Umbel ends.

They are plain connections without Umbel's settings. Inside psycopg's transaction block, psycopg
refuses ``commit`` and ``rollback``, so user code cannot end the transaction by mistake.
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

from umbel.backends.postgres.address import PostgresAddress
from umbel.backends.postgres.connections import Connection, is_fresh, is_idle
from umbel.backends.postgres.errors import translate_errors
from umbel.backends.sql.statements import Row

T = TypeVar("T")


class StepConnection(psycopg.Connection[Row]):
    """A connection that is dropped when user code is stopped during a statement."""

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        try:
            return super().wait(gen, interval=interval)
        except BaseException as error:
            if not isinstance(error, Exception):
                self.pgconn.finish()
            raise


class StepConnections:
    """Opens connections as needed and keeps those that can be reused."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._free: list[StepConnection] = []
        self._async_free: dict[asyncio.AbstractEventLoop, list[Connection]] = {}

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Row]]:
        """Open a transaction, and commit it at the end of the block unless the block raises.

        Errors of the block are not translated. Raise Unavailable if connecting or committing fails.
        """
        with translate_errors(self._address.label):
            connection = self._take_free() or StepConnection.connect(
                self._address.conninfo, **self._connect_options()
            )
            self._address.verified.add(connection)
            block = connection.transaction()
            block.__enter__()
        try:
            try:
                yield connection
            except BaseException as error:
                block.__exit__(type(error), error, error.__traceback__)
                raise
            with translate_errors(self._address.label):
                block.__exit__(None, None, None)
        finally:
            self._give_back(connection)

    @asynccontextmanager
    async def atransaction(self) -> AsyncIterator[psycopg.AsyncConnection[Row]]:
        """Do the same on the running event loop."""
        loop = asyncio.get_running_loop()
        with translate_errors(self._address.label):
            connection = self._take_async(loop)
            if connection is None:
                connection = await Connection.connect(
                    self._address.conninfo, **self._connect_options()
                )
                self._address.verified.add(connection)
            block = connection.transaction()
            await block.__aenter__()
        try:
            try:
                yield connection
            except BaseException as error:
                await block.__aexit__(type(error), error, error.__traceback__)
                raise
            with translate_errors(self._address.label):
                await block.__aexit__(None, None, None)
        finally:
            self._give_back_async(loop, connection)

    def close(self) -> None:
        """Close the connections that are not in use. Closing twice is fine."""
        with self._lock:
            lent: list[StepConnection | Connection] = [*self._free]
            lent += [one for free in self._async_free.values() for one in free]
            self._free, self._async_free = [], {}
        for connection in lent:
            connection.pgconn.finish()

    def _connect_options(self) -> dict[str, Any]:
        # Behind a pooler, statements must not be prepared.
        return {"autocommit": True} | ({} if self._address.listens else {"prepare_threshold": None})

    def _take_free(self) -> StepConnection | None:
        while True:
            with self._lock:
                if not self._free:
                    return None
                connection = self._free.pop()
            if is_fresh(connection):
                return connection
            connection.pgconn.finish()

    def _give_back(self, connection: StepConnection) -> None:
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

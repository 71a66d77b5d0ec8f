"""The connections of one event loop to one schema, opened on use and replaced when broken."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from psycopg import AsyncCursor

from umbel.backends.free_connections import FreeConnections
from umbel.backends.notifier import WakeUpListener
from umbel.backends.postgres.address import PostgresAddress
from umbel.backends.postgres.arrays import json_text, numbers, texts, without_nul
from umbel.backends.postgres.blocking_connection import BlockingConnection
from umbel.backends.postgres.connections import Connection, is_fresh, is_idle
from umbel.backends.postgres.errors import CONFLICTS, translate_errors
from umbel.backends.postgres.listener import Listener
from umbel.backends.postgres.statements import MAX_TRIES, atomically, perform, single_statement
from umbel.backends.sql.role import unknown_job
from umbel.backends.sql.statements import Row, Steps

T = TypeVar("T")
Work: TypeAlias = Callable[[AsyncCursor[Row]], Awaitable[T]]

_inherited: list[Any] = []
"""Connections of a parent process. Kept, so that garbage collection does not close them here."""

_SAFETY_POLL_SECONDS = 10.0
_POLL_SECONDS = 1.0


class Database:
    """Runs statements on up to ``size`` connections. Nothing takes longer than ``timeout``.

    If there is a listener, its connection runs statements, too. Other connections are opened while
    that one is in use, and closed when they are idle.
    """

    def __init__(self, address: PostgresAddress, *, size: int = 2, timeout: float = 10.0) -> None:
        self.address = address
        self._size = size
        self._timeout = timeout
        self._free = FreeConnections[Connection](_finish)
        self._slots = asyncio.Semaphore(size)
        self._here: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._listener: Listener | None = None
        self.blocking = BlockingConnection(address.connect_blocking, address.label)
        """The connection for callers that block their own thread."""

    async def run(self, work: Work[T], timeout: float | None = None) -> T:
        """Run ``work`` with a cursor and return its result. psycopg's errors are translated.

        Work that meets a deadlock or a serialization failure is started again. A query that reads
        the whole history may have another ``timeout`` than usual.

        Raises:
            Unavailable: the server cannot be reached, refuses, or is too slow.
            SchemaError: the schema is missing or old.
            BadMessage: a value does not fit its column.
        """
        with translate_errors(self.address.label):
            for _ in range(MAX_TRIES - 1):
                with suppress(*CONFLICTS):
                    return await self._once(work, timeout)
            return await self._once(work, timeout)

    async def rows(
        self, query: bytes, values: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> list[Row]:
        """Return the rows of one statement: one transaction and one round trip."""
        return await self.run(
            lambda cursor: perform(cursor, single_statement(query, values)), timeout
        )

    async def perform(self, steps: Callable[[], Steps[T]]) -> T:
        """Run the steps on one connection and return their result."""
        return await self.run(lambda cursor: perform(cursor, steps()))

    async def transaction(self, steps: Callable[[], Steps[T]]) -> T:
        """Run the steps in one transaction and return their result."""
        return await self.perform(lambda: atomically(steps()))

    async def open(self) -> None:
        """Do nothing: ``wake_ups`` connects by itself."""

    def wake_ups(self, topic: str) -> AbstractContextManager[WakeUpListener]:
        """Return a listener for one topic."""
        return self.listener().notifier.listen([topic])

    @property
    def max_wait(self) -> float:
        """Seconds after which to check again even if no wake-up has come."""
        return _SAFETY_POLL_SECONDS if self.listener().is_listening else _POLL_SECONDS

    def queries(self, *files: str) -> dict[str, bytes]:
        """Return the named queries of these files, and those of ``shared.sql``."""
        found = dict(self.address.sql)
        for file in files:
            found |= self.address.queries(file)
        return found

    def substitute(self, query: bytes, name: str, text: str) -> bytes:
        """Return the query with ``$name`` replaced by SQL text."""
        return query.replace(f"${name}".encode(), text.encode())

    def stored_id(self, job: str) -> str:
        """Return a job id as PostgreSQL writes it. Raise UnknownJob if it is not a UUID."""
        try:
            return str(UUID(job))
        except (ValueError, AttributeError, TypeError):
            raise unknown_job(job) from None

    def text(self, value: str) -> str:
        """Return the text without NUL, which PostgreSQL cannot store."""
        return without_nul(value)

    def texts(self, values: Sequence[str]) -> str:
        """Return the texts as an array literal."""
        return texts(values)

    def numbers(self, values: Sequence[float | None]) -> str:
        """Return the numbers as an array literal."""
        return numbers([*values])

    def json(self, value: Any) -> str:
        """Return the value as JSON for a ``jsonb`` column."""
        return json_text(value)

    def listener(self) -> Listener:
        """Return the listener that all databases of this address and event loop share."""
        self._reset_if_moved()
        if self._listener is None:
            self._listener = self.address.listener()
            self._listener.join(self)
        return self._listener

    async def close(self) -> None:
        """Close the connections, and stop listening with the last user. Closing twice is fine."""
        self._reset_if_moved()
        self.blocking.close()
        self._free.close_all()
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.leave(self)

    async def _once(self, work: Work[T], timeout: float | None) -> T:
        self._reset_if_moved()
        async with asyncio.timeout(timeout or self._timeout), self._slots:
            listener = self._listener
            lent = listener.lend() if listener is not None else None
            connection = lent or self._take_free() or await self.address.connect()
            try:
                return await work(connection.cursor(binary=True))
            finally:
                self._put_back(connection, listener if lent else None)

    def _put_back(self, connection: Connection, listener: Listener | None) -> None:
        if listener is not None:
            listener.give_back(connection)
        elif is_idle(connection):
            self._free.put(connection)
        else:
            _finish(connection)

    def _take_free(self) -> Connection | None:
        while (connection := self._free.take()) is not None:
            if is_fresh(connection):
                return connection
            _finish(connection)
        return None

    def _reset_if_moved(self) -> None:
        """Drop all connections if this is another process or event loop than before."""
        here = (os.getpid(), asyncio.get_running_loop())
        if here == self._here:
            return
        if self._here is not None and self._here[0] != here[0]:
            _inherited.append((self._free, self._listener))
        else:
            self._free.close_all()
        self._free, self._listener = FreeConnections[Connection](_finish), None
        self._slots = asyncio.Semaphore(self._size)
        self._here = here


def _finish(connection: Connection) -> None:
    connection.pgconn.finish()

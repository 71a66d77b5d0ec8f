"""Connections that callers pass in: of psycopg, psycopg2 or asyncpg.

Each runs the same steps in the caller's transaction. Errors of the other libraries become
psycopg's, so that one place translates them. psycopg2 and asyncpg are imported only when a
connection of theirs is passed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg import errors, sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from umbel.backends.caller_connections import made_by
from umbel.backends.postgres.statements import SAVEPOINT, TRANSACTION, Block, perform, perform_sync
from umbel.backends.sql.statements import Row, Steps
from umbel.errors import ConfigurationError

T = TypeVar("T")

_PLACEHOLDER = re.compile(rb"%(?:\((\w+)\)s|%)")


class CallerConnection(Protocol):
    """A caller's connection. It never commits or rolls back the caller's transaction."""

    connection: Any
    is_async: bool

    @property
    def is_autocommit(self) -> bool:
        """Whether no transaction is open and each statement commits by itself."""

    def perform(self, steps: Steps[T]) -> T:
        """Run the steps in the caller's transaction and thread. Raise psycopg's errors."""

    async def aperform(self, steps: Steps[T]) -> T:
        """Run the steps for async code. A blocking connection blocks the event loop."""


def block_within(caller: CallerConnection) -> Block:
    """Return how to run several steps as one without ending the caller's transaction."""
    return TRANSACTION if caller.is_autocommit else SAVEPOINT


def wrap_connection(connection: Any) -> CallerConnection:
    """Return the wrapper for a connection.

    Raises:
        ConfigurationError: the connection is of an unknown library.
    """
    if isinstance(connection, psycopg.Connection):
        return PsycopgCaller(connection)
    if isinstance(connection, psycopg.AsyncConnection):
        return AsyncPsycopgCaller(connection)
    if made_by(connection, "psycopg2.") and hasattr(connection, "cursor"):
        return Psycopg2Caller(connection)
    if made_by(connection, "asyncpg.") and hasattr(connection, "is_in_transaction"):
        return AsyncpgCaller(connection)
    raise ConfigurationError(
        f"connection={type(connection).__name__}: this application uses PostgreSQL; give a"
        " connection to it of psycopg, psycopg2 or asyncpg, a SQLAlchemy connection or session"
        " that uses one of these, or Django's connection"
    )


class _BlockingCaller(ABC):
    is_async = False

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @abstractmethod
    def perform(self, steps: Steps[T]) -> T:
        """Run these steps on the connection."""

    async def aperform(self, steps: Steps[T]) -> T:
        return self.perform(steps)


class PsycopgCaller(_BlockingCaller):
    """psycopg's blocking connection."""

    @property
    def is_autocommit(self) -> bool:
        return _is_autocommit(self.connection)

    def perform(self, steps: Steps[T]) -> T:
        # The caller's connection may have other row and cursor factories.
        with psycopg.Cursor(self.connection, row_factory=tuple_row) as cursor:
            return perform_sync(cursor, steps)


class Psycopg2Caller(_BlockingCaller):
    """psycopg2's connection. It has the same placeholders as psycopg."""

    @property
    def is_autocommit(self) -> bool:
        idle = self.connection.info.transaction_status == TransactionStatus.IDLE
        return idle and bool(self.connection.autocommit)

    def perform(self, steps: Steps[T]) -> T:
        from psycopg2 import Error
        from psycopg2.extensions import cursor as plain_cursor

        def run(query: bytes, values: Mapping[str, Any] | None) -> list[Row]:
            cursor.execute(query, values)
            return list(cursor.fetchall()) if cursor.description else []

        with _as_psycopg(Error), self.connection.cursor(cursor_factory=plain_cursor) as cursor:
            try:
                query, values = next(steps)
                while True:
                    query, values = steps.send(run(query, values))
            except StopIteration as done:
                result: T = done.value
                return result


class _AsyncCaller:
    is_async = True

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def perform(self, steps: Steps[T]) -> T:
        steps.close()
        raise ConfigurationError(
            "connection: an async connection is for async code: adelay, and steps of async def"
            " tasks; give a blocking one here"
        )


class AsyncPsycopgCaller(_AsyncCaller):
    """psycopg's asynchronous connection."""

    @property
    def is_autocommit(self) -> bool:
        return _is_autocommit(self.connection)

    async def aperform(self, steps: Steps[T]) -> T:
        async with psycopg.AsyncCursor(self.connection, row_factory=tuple_row) as cursor:
            return await perform(cursor, steps)


class AsyncpgCaller(_AsyncCaller):
    """asyncpg's connection, also from a pool.

    asyncpg numbers its parameters and wants each in the server's type. So psycopg writes the values
    into the statements here. These are prepared outside asyncpg's cache, which belongs to the
    caller.
    """

    @property
    def is_autocommit(self) -> bool:
        return not self.connection.is_in_transaction()

    async def aperform(self, steps: Steps[T]) -> T:
        from asyncpg import InterfaceError, PostgresError

        with _as_psycopg(PostgresError, InterfaceError):
            try:
                query, values = next(steps)
                while True:
                    query, values = steps.send(await self._run(query, values))
            except StopIteration as done:
                result: T = done.value
                return result

    async def _run(self, query: bytes, values: Mapping[str, Any] | None) -> list[Row]:
        text = _written(query, values).decode()
        if values is None:  # savepoints cannot be prepared
            await self.connection.execute(text)
            return []
        prepared = await self.connection.prepare(text)
        return [tuple(row) for row in await prepared.fetch()]


def _is_autocommit(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    idle = connection.info.transaction_status == TransactionStatus.IDLE
    return idle and connection.autocommit


def _written(query: bytes, values: Mapping[str, Any] | None) -> bytes:
    """Return a statement with its values written into it."""
    if values is None:
        return query

    def one(found: re.Match[bytes]) -> bytes:
        name = found[1]
        return b"%" if name is None else sql.Literal(values[name.decode()]).as_bytes(None)

    return _PLACEHOLDER.sub(one, query)


@contextmanager
def _as_psycopg(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        try:
            kind = errors.lookup(code or "")
        except KeyError:
            kind = psycopg.OperationalError
        raise kind(str(error).strip() or type(error).__name__) from error

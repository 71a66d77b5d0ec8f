"""Connections that callers bring: of psycopg, psycopg2 or asyncpg.

Each runs the same steps in the caller's transaction. Where a library is not psycopg, its errors
become psycopg's, so that they are explained in one place. psycopg2 and asyncpg are imported only
when a connection of theirs is given.
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
from umbel.backends.postgres.statements import (
    SAVEPOINT,
    TRANSACTION,
    Block,
    Row,
    Steps,
    perform,
    perform_sync,
)
from umbel.errors import ConfigurationError

T = TypeVar("T")

_PLACEHOLDER = re.compile(rb"%(?:\((\w+)\)s|%)")


class Caller(Protocol):
    """A caller's connection. Never commits or rolls back for the caller."""

    connection: Any
    is_async: bool

    @property
    def joins_nothing(self) -> bool:
        """Whether each statement is a transaction of its own there."""

    def perform(self, steps: Steps[T]) -> T:
        """Run the steps in the caller's transaction and thread. Raises psycopg's errors."""

    async def aperform(self, steps: Steps[T]) -> T:
        """The same for async code; a blocking connection blocks."""


def block_within(caller: Caller) -> Block:
    """How to make several steps one on a caller's connection, leaving its transaction open."""
    return TRANSACTION if caller.joins_nothing else SAVEPOINT


def recognised(connection: Any) -> Caller:
    """The caller whose connection this is.

    Raises:
        ConfigurationError: it is of none of the libraries that are known here.
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


class _Blocking(ABC):
    is_async = False

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @abstractmethod
    def perform(self, steps: Steps[T]) -> T:
        """Run these steps on the connection."""

    async def aperform(self, steps: Steps[T]) -> T:
        return self.perform(steps)


class PsycopgCaller(_Blocking):
    """psycopg's blocking connection."""

    @property
    def joins_nothing(self) -> bool:
        return _joins_nothing(self.connection)

    def perform(self, steps: Steps[T]) -> T:
        # The caller's rows and cursors may be of any shape.
        with psycopg.Cursor(self.connection, row_factory=tuple_row) as cursor:
            return perform_sync(cursor, steps)


class Psycopg2Caller(_Blocking):
    """psycopg2's connection. Its parameters are written as psycopg's are."""

    @property
    def joins_nothing(self) -> bool:
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


class _Async:
    is_async = True

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def perform(self, steps: Steps[T]) -> T:
        steps.close()
        raise ConfigurationError(
            "connection: an async connection is for async code: adelay, and steps of async def"
            " tasks; give a blocking one here"
        )


class AsyncPsycopgCaller(_Async):
    """psycopg's asynchronous connection."""

    @property
    def joins_nothing(self) -> bool:
        return _joins_nothing(self.connection)

    async def aperform(self, steps: Steps[T]) -> T:
        async with psycopg.AsyncCursor(self.connection, row_factory=tuple_row) as cursor:
            return await perform(cursor, steps)


class AsyncpgCaller(_Async):
    """asyncpg's connection, also out of a pool.

    asyncpg numbers its parameters and wants each as the server's type, so the values are written
    into the statements here, by psycopg. They are prepared beside asyncpg's own cache, whose places
    are the caller's.
    """

    @property
    def joins_nothing(self) -> bool:
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
        if values is None:  # savepoints, which nothing can prepare
            await self.connection.execute(text)
            return []
        prepared = await self.connection.prepare(text)
        return [tuple(row) for row in await prepared.fetch()]


def _joins_nothing(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    idle = connection.info.transaction_status == TransactionStatus.IDLE
    return idle and connection.autocommit


def _written(query: bytes, values: Mapping[str, Any] | None) -> bytes:
    """A statement with its values in their places."""
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

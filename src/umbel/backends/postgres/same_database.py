"""Checking that a caller's connection leads to the application's own database.

A database is identified by the start time of its server, in microseconds, and its number there. A
copy of a database has the same data, but another server or another number. The result is remembered
for each connection.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any, NamedTuple

import anyio.to_thread
from psycopg.rows import tuple_row

from umbel.backends.postgres.address import PostgresAddress
from umbel.backends.postgres.caller_connections import CallerConnection, wrap_connection
from umbel.backends.postgres.statements import perform_sync
from umbel.backends.sql.statements import Steps
from umbel.errors import ConfigurationError, SchemaError


class DatabaseIdentity(NamedTuple):
    """The database that a connection leads to, as its server reports it."""

    started: int
    """When the server started, in microseconds since 1970."""
    number: int
    """The database's number in that server."""
    name: str
    host: str | None
    """None for a local socket."""
    port: int
    role: str
    may_write: bool | None
    """Whether the role may write Umbel's tables; None if there are none."""

    @property
    def database(self) -> tuple[int, int]:
        """What identifies the database."""
        return self.started, self.number

    def __str__(self) -> str:
        place = f"at {self.host}" if self.host else "on this machine"
        return f"database {self.name} of the PostgreSQL server {place}, port {self.port}"


class DatabaseCheck:
    """Accepts callers' connections that lead to the database of an address, and no others."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._known_identity: DatabaseIdentity | None = None

    def accept(self, connection: Any) -> CallerConnection:
        """Return the wrapper of a caller's connection after checking its database.

        Raises:
            ConfigurationError: it is no connection, it leads to another database, or its role may
            not write.
            SchemaError: the database has no Umbel tables.
        """
        caller = wrap_connection(connection)
        if not self._is_known(caller.connection):
            identity = caller.perform(self._identify_steps())
            if identity.database != self._own_identity(identity).database:
                raise self._wrong_database(identity)
            self._remember(caller.connection, identity)
        return caller

    async def aaccept(self, connection: Any) -> CallerConnection:
        """Return the same for async code."""
        caller = wrap_connection(connection)
        if not self._is_known(caller.connection):
            identity = await caller.aperform(self._identify_steps())
            own_identity = await anyio.to_thread.run_sync(self._own_identity, identity)
            if identity.database != own_identity.database:
                raise self._wrong_database(identity)
            self._remember(caller.connection, identity)
        return caller

    def _is_known(self, connection: Any) -> bool:
        try:
            return connection in self._address.verified
        except TypeError:  # a proxy of a pool, which cannot be hashed
            return False

    def _remember(self, connection: Any, identity: DatabaseIdentity) -> None:
        if identity.may_write is None:
            raise SchemaError(
                f"{self._address.label} has no Umbel schema {self._address.schema}; run: umbel db"
                " migrate"
            )
        if not identity.may_write:
            raise ConfigurationError(
                f"connection: its role {identity.role} may not write to schema"
                f" {self._address.schema} of {identity}; grant that role usage of the schema and"
                " select, insert, update and delete on its tables"
            )
        with suppress(TypeError):
            self._address.verified.add(connection)

    def _own_identity(self, identity: DatabaseIdentity) -> DatabaseIdentity:
        """Return the identity of our own database.

        It is queried again if it differs, because the server may have been restarted.
        """
        if self._known_identity is None or self._known_identity.database != identity.database:
            with (
                closing(self._address.connect_blocking()) as connection,
                connection.cursor(row_factory=tuple_row) as cursor,
            ):
                self._known_identity = perform_sync(cursor, self._identify_steps())
        return self._known_identity

    def _identify_steps(self) -> Steps[DatabaseIdentity]:
        rows = yield self._address.sql["origin"], {"schema": self._address.schema}
        return DatabaseIdentity(*rows[0])

    def _wrong_database(self, identity: DatabaseIdentity) -> ConfigurationError:
        return ConfigurationError(
            f"connection: it leads to {identity}, and this application uses"
            f" {self._known_identity}; give a connection to that one, or leave connection out and"
            " publish at once"
        )

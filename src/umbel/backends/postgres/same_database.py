"""Whether a caller's connection leads to the application's own database.

What identifies it is the server's start, to the microsecond, and the database's number in it: a
copy of a database has all its data in common with it, but is served by another server, or has
another number there. The answer is remembered with each connection.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any, NamedTuple

import anyio.to_thread
from psycopg.rows import tuple_row

from umbel.backends.postgres.address import Home
from umbel.backends.postgres.caller_connections import Caller, recognised
from umbel.backends.postgres.statements import Steps, perform_sync
from umbel.errors import ConfigurationError, SchemaError


class Origin(NamedTuple):
    """Where a connection leads to, as its server says."""

    started: int
    """When the server started: microseconds since 1970."""
    number: int
    """The database's number in that server."""
    name: str
    host: str | None
    """None: a local socket."""
    port: int
    role: str
    may_write: bool | None
    """Whether the role may write our tables; None: there are none."""

    @property
    def database(self) -> tuple[int, int]:
        """What no two databases have in common."""
        return self.started, self.number

    def __str__(self) -> str:
        place = f"at {self.host}" if self.host else "on this machine"
        return f"database {self.name} of the PostgreSQL server {place}, port {self.port}"


class Origins:
    """Takes callers' connections that lead to one home, and refuses all others."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._ours: Origin | None = None

    def take(self, connection: Any) -> Caller:
        """A caller's connection, once it is known to lead here.

        Raises:
            ConfigurationError: it is none, it leads elsewhere, or its role may not write.
            SchemaError: it leads here, and here are no tables.
        """
        caller = recognised(connection)
        if not self._is_known(caller.connection):
            theirs = caller.perform(self._look())
            if theirs.database != self._own(theirs).database:
                raise self._elsewhere(theirs)
            self._remember(caller.connection, theirs)
        return caller

    async def atake(self, connection: Any) -> Caller:
        """The same for async code."""
        caller = recognised(connection)
        if not self._is_known(caller.connection):
            theirs = await caller.aperform(self._look())
            ours = await anyio.to_thread.run_sync(self._own, theirs)
            if theirs.database != ours.database:
                raise self._elsewhere(theirs)
            self._remember(caller.connection, theirs)
        return caller

    def _is_known(self, connection: Any) -> bool:
        try:
            return connection in self._home.joined
        except TypeError:  # of a pool: a proxy for the time it is lent, which cannot be kept
            return False

    def _remember(self, connection: Any, theirs: Origin) -> None:
        if theirs.may_write is None:
            raise SchemaError(
                f"{self._home.address} has no Umbel schema {self._home.schema}; run: umbel db"
                " migrate"
            )
        if not theirs.may_write:
            raise ConfigurationError(
                f"connection: its role {theirs.role} may not write to schema {self._home.schema} of"
                f" {theirs}; grant that role usage of the schema and select, insert, update and"
                " delete on its tables"
            )
        with suppress(TypeError):
            self._home.joined.add(connection)

    def _own(self, theirs: Origin) -> Origin:
        """Our own, looked up again if it differs: the server may have been restarted since."""
        if self._ours is None or self._ours.database != theirs.database:
            with (
                closing(self._home.connect_blocking()) as connection,
                connection.cursor(row_factory=tuple_row) as cursor,
            ):
                self._ours = perform_sync(cursor, self._look())
        return self._ours

    def _look(self) -> Steps[Origin]:
        rows = yield self._home.sql["origin"], {"schema": self._home.schema}
        return Origin(*rows[0])

    def _elsewhere(self, theirs: Origin) -> ConfigurationError:
        return ConfigurationError(
            f"connection: it leads to {theirs}, and this application uses {self._ours}; give a"
            " connection to that one, or leave connection out and publish at once"
        )

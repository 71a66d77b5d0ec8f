"""The address of the data: server, database and schema."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode
from weakref import WeakSet

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from umbel.backends.postgres.blocking_connection import DeadlineConnection
from umbel.backends.postgres.connections import Connection
from umbel.backends.postgres.listener import Listener
from umbel.backends.queries import load
from umbel.backends.url_options import parse_flag, parse_seconds
from umbel.errors import ConfigurationError
from umbel.urls import unknown_options

_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_OWN_PARAMETERS = ("schema", "listen", "poll")
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 2,
    "application_name": "umbel",
    # A server that disappears without closing the connection is noticed within ten seconds.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class PostgresAddress:
    """The address of a schema. All ``Database`` objects of an application share it.

    ``postgresql://user@host/db?schema=umbel``; libpq's own parameters are passed on.
    ``listen=false`` is for pgbouncer in transaction mode: no LISTEN, no prepared statements, and a
    check every ``poll`` seconds instead.

    Raises:
        ConfigurationError: the URL is wrong. The error names the parameter.
    """

    def __init__(self, url: str) -> None:
        plain, own = _split(url)
        self.schema = _schema(own.get("schema", "umbel"))
        self.listens = parse_flag("listen", own.get("listen", "true"))
        self.poll = parse_seconds("poll", own.get("poll", "0.25"))
        # Names have at most 63 bytes. If two long schemas share a channel, wake-ups are spurious.
        self.channel = f"umbel_{self.schema}"[:63]
        self.conninfo, self.label = _conninfo(plain)
        self.sql = self.queries("shared.sql")
        self.verified: WeakSet[Any] = WeakSet()
        """Connections of callers and of steps that are known to lead to this database."""
        self._listeners: dict[tuple[int, asyncio.AbstractEventLoop], Listener] = {}

    def queries(self, file: str) -> dict[str, bytes]:
        """Return the named queries of a file, for the tables of this schema."""
        return {name: self.fill(sql) for name, sql in load("umbel.backends.postgres", file).items()}

    def fill(self, sql: str) -> bytes:
        """Return the SQL for this schema. All names are qualified, so no search path matters."""
        named = sql.replace("$schema", f'"{self.schema}"').replace("$channel", self.channel)
        return named.encode()

    async def connect(self) -> Connection:
        """Return a new connection. Raise psycopg's errors."""
        threshold = 0 if self.listens else None
        connection = await Connection.connect(
            self.conninfo, autocommit=True, prepare_threshold=threshold
        )
        if self.listens:  # a pooler would pass settings on to other clients
            await connection.execute(self.sql["settings"], {"local": False}, prepare=False)
        return connection

    def connect_blocking(self) -> DeadlineConnection:
        """Return a new blocking connection. Raise psycopg's errors."""
        threshold = 0 if self.listens else None
        connection = DeadlineConnection.connect(
            self.conninfo, autocommit=True, prepare_threshold=threshold
        )
        if self.listens:
            connection.execute(self.sql["settings"], {"local": False}, prepare=False)
        return connection

    def listener(self) -> Listener:
        """Return the listener of the running event loop."""
        # By process, too: a child must not use the listener that it inherited.
        here = (os.getpid(), asyncio.get_running_loop())
        if here not in self._listeners:
            connect = self.connect if self.listens else None
            self._listeners[here] = Listener(connect, self.sql, lambda: self._forget(here))
        return self._listeners[here]

    def _forget(self, here: tuple[int, asyncio.AbstractEventLoop]) -> None:
        self._listeners.pop(here, None)


def _split(url: str) -> tuple[str, dict[str, str]]:
    """Split a URL into the URL without Umbel's own parameters, and these parameters."""
    base, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    rest = [(name, value) for name, value in pairs if name not in _OWN_PARAMETERS]
    own = {name: value for name, value in pairs if name in _OWN_PARAMETERS}
    # libpq reads %20 as a space, but a plus as a plus.
    return base + ("?" + urlencode(rest, quote_via=quote) if rest else ""), own


def _conninfo(url: str) -> tuple[str, str]:
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # The text that libpq quotes may be part of a password in the options.
        why = unknown_options([str(error).strip()], url)
        raise ConfigurationError(f"the PostgreSQL URL cannot be read: {why}") from None
    name = given.get("dbname") or given.get("user") or ""
    host = given.get("host") or given.get("hostaddr") or "the local socket"
    defaults = dict(_DEFAULTS)
    if host in _LOOPBACK and "PGSSLMODE" not in os.environ:
        # On one machine, encryption doubles the cost of a small statement, on both sides. A server
        # that requires encryption still gets it.
        defaults["sslmode"] = "allow"
    return make_conninfo("", **(defaults | given)), f"PostgreSQL {name} at {host}"


def _schema(name: str) -> str:
    if not _SCHEMA.fullmatch(name):
        raise ConfigurationError(
            f"schema={name!r}: give lower-case letters, digits and underscores, at most 63,"
            " not starting with a digit or pg_"
        )
    return name

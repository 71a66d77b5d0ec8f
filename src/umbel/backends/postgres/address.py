"""Where the data is: the server, the database in it and the schema in that."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode
from weakref import WeakSet

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from umbel.backends.postgres.blocking_connection import Blocking
from umbel.backends.postgres.connections import Connection
from umbel.backends.postgres.listener import Listener
from umbel.backends.queries import load
from umbel.errors import ConfigurationError
from umbel.urls import unknown_options

_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_OURS = ("schema", "listen", "poll")
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 2,
    "application_name": "umbel",
    # A peer that vanished without a word is noticed within ten seconds.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Home:
    """The address of a schema. Shared by every ``Database`` of an application.

    ``postgresql://user@host/db?schema=umbel``, with libpq's own parameters as they are.
    ``listen=false`` is for pgbouncer in transaction mode: no LISTEN, no prepared statements, a
    look every ``poll`` seconds instead.

    Raises:
        ConfigurationError: the URL is wrong; it names the parameter.
    """

    def __init__(self, url: str) -> None:
        plain, ours = _split(url)
        self.schema = _schema(ours.get("schema", "umbel"))
        self.listens = _flag("listen", ours.get("listen", "true"))
        self.poll = _seconds("poll", ours.get("poll", "0.25"))
        # PostgreSQL's names have 63 bytes; two long schemas may share a channel: hints only.
        self.channel = f"umbel_{self.schema}"[:63]
        self.conninfo, self.address = _conninfo(plain)
        self.sql = self.queries("shared.sql")
        self.joined: WeakSet[Any] = WeakSet()
        """Connections of callers, and those on loan, that are known to lead here."""
        self._listeners: dict[tuple[int, asyncio.AbstractEventLoop], Listener] = {}

    def queries(self, file: str) -> dict[str, bytes]:
        """The named queries of a file, for the tables of this schema."""
        return {name: self.fill(sql) for name, sql in load("umbel.backends.postgres", file).items()}

    def fill(self, sql: str) -> bytes:
        """SQL for this schema. Names are qualified, so no search path is relied upon."""
        named = sql.replace("$schema", f'"{self.schema}"').replace("$channel", self.channel)
        return named.encode()

    async def connect(self) -> Connection:
        """A new connection, ready for use. Raises psycopg's errors."""
        threshold = 0 if self.listens else None
        connection = await Connection.connect(
            self.conninfo, autocommit=True, prepare_threshold=threshold
        )
        if self.listens:  # a pooler would hand settings on to somebody else
            await connection.execute(self.sql["settings"], {"local": False}, prepare=False)
        return connection

    def connect_blocking(self) -> Blocking:
        """The same for a thread that may wait."""
        threshold = 0 if self.listens else None
        connection = Blocking.connect(self.conninfo, autocommit=True, prepare_threshold=threshold)
        if self.listens:
            connection.execute(self.sql["settings"], {"local": False}, prepare=False)
        return connection

    def listener(self) -> Listener:
        """The one listener of this process's running event loop."""
        # Keyed by the process: a child must not touch the listener it inherited.
        here = (os.getpid(), asyncio.get_running_loop())
        if here not in self._listeners:
            connect = self.connect if self.listens else None
            self._listeners[here] = Listener(connect, self.sql, lambda: self._forget(here))
        return self._listeners[here]

    def _forget(self, here: tuple[int, asyncio.AbstractEventLoop]) -> None:
        self._listeners.pop(here, None)


def _split(url: str) -> tuple[str, dict[str, str]]:
    """A URL without our own parameters, and those."""
    base, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    rest = [(name, value) for name, value in pairs if name not in _OURS]
    ours = {name: value for name, value in pairs if name in _OURS}
    # libpq reads %20 as a space, but a plus as a plus.
    return base + ("?" + urlencode(rest, quote_via=quote) if rest else ""), ours


def _conninfo(url: str) -> tuple[str, str]:
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # What libpq quotes may be a part of a password in the options.
        why = unknown_options([str(error).strip()], url)
        raise ConfigurationError(f"the PostgreSQL URL cannot be read: {why}") from None
    name = given.get("dbname") or given.get("user") or ""
    host = given.get("host") or given.get("hostaddr") or "the local socket"
    defaults = dict(_DEFAULTS)
    if host in _LOOPBACK and "PGSSLMODE" not in os.environ:
        # Encrypting what never leaves the machine doubles the cost of a small statement, on both
        # sides. A server that insists still gets it.
        defaults["sslmode"] = "allow"
    return make_conninfo("", **(defaults | given)), f"PostgreSQL {name} at {host}"


def _schema(name: str) -> str:
    if not _SCHEMA.fullmatch(name):
        raise ConfigurationError(
            f"schema={name!r}: give lower-case letters, digits and underscores, at most 63,"
            " not starting with a digit or pg_"
        )
    return name


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise ConfigurationError(f"{name}={value!r}: give true or false")
    return value == "true"


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 3600:
        raise ConfigurationError(f"{name}={value!r}: give seconds, 0.01 or more")
    return seconds

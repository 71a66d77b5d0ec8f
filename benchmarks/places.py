"""Where a system works: a place of its own, made for the run and dropped at its end."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from benchmarks import meters
from benchmarks.meters import Used

OURS = "umbel"
"""A name that will do wherever a place is a system's own."""
_PATIENCE = 10.0


class Place(Protocol):
    """Where one system works: a database, a broker, or both."""

    url: str
    name: str
    """What a system calls what it makes there, where it shares the server with others."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Variables by which a system's processes find it."""

    def fresh(self, install: Callable[[], object]) -> None:
        """Have the system's tables, if it has any, and nothing in them."""

    def ask(self, query: str) -> int:
        """The one number that a query gives."""

    def execute(self, statement: str) -> None:
        """Do as it says, and commit."""

    def server_time(self) -> Used | None:
        """What the server has used of the processor for it."""

    def written(self) -> int | None:
        """Bytes of write-ahead log so far."""

    def transactions(self) -> int | None:
        """How many have ended; exact once every connection is closed."""

    def drop(self) -> None:
        """Leave nothing behind."""


_TABLES = """
select format('%I.%I', schemaname, tablename) from pg_tables
where schemaname not in ('pg_catalog', 'information_schema')"""


class OnPostgres:
    """A database on the server.

    It is emptied rather than made anew: dropping one makes the whole server write a checkpoint.
    """

    name = OURS

    def __init__(self, server: str, database: str) -> None:
        self._server = psycopg.connect(server, autocommit=True)
        self._database = database
        self._jobs: list[str] | None = None
        self.url = urlunsplit(urlsplit(server)._replace(path=f"/{database}"))

    @property
    def settings(self) -> Mapping[str, str]:
        return {"BENCH_URL": self.url}

    def fresh(self, install: Callable[[], object]) -> None:
        if self._jobs is None:
            self._do("drop database if exists {} with (force)", self._database)
            self._do("create database {}", self._database)
            install()
            self._jobs = self._empty_tables()
        elif self._jobs:
            self._quiet()
            self.execute(f"truncate {', '.join(self._jobs)} restart identity cascade")

    def _empty_tables(self) -> list[str]:
        """Those that jobs will go to: what a system writes there when it is installed, stays."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            tables = [name for (name,) in connection.execute(_TABLES)]
            return [
                name
                for name in tables
                if not _first(connection.execute(f"select exists (select from {name})"))
            ]

    def ask(self, query: str) -> int:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return int(_first(connection.execute(query)))

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)

    def server_time(self) -> Used | None:
        return meters.by_id(self._backends())

    def written(self) -> int | None:
        return int(_first(self._server.execute("select pg_current_wal_lsn() - '0/0'::pg_lsn")))

    def transactions(self) -> int | None:
        self._quiet()
        query = "select xact_commit + xact_rollback from pg_stat_database where datname = %s"
        return int(_first(self._server.execute(query, [self._database])))

    def _quiet(self) -> None:
        """Wait until every client has gone: only then are its statistics whole."""
        until = time.monotonic() + _PATIENCE
        while self._backends("client backend") and time.monotonic() < until:
            time.sleep(0.01)

    def drop(self) -> None:
        self._do("drop database if exists {} with (force)", self._database)
        self._server.close()

    def _backends(self, kind: str = "%") -> list[int]:
        query = "select pid from pg_stat_activity where datname = %s and backend_type like %s"
        return [pid for (pid,) in self._server.execute(query, [self._database, kind])]

    def _do(self, command: str, *names: str) -> None:
        text = sql.SQL(command).format(*map(sql.Identifier, names))
        self._server.execute(text)


class OnSqlite:
    """A file in a folder of its own, on the disk of the checkout."""

    name = OURS

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="sqlite-", dir=folder))
        self._file = self._folder / "jobs.db"
        self.url = f"sqlite:///{self._file}"

    @property
    def settings(self) -> Mapping[str, str]:
        return {"BENCH_URL": self.url}

    def fresh(self, install: Callable[[], object]) -> None:
        for file in self._folder.iterdir():
            file.unlink()
        install()

    def ask(self, query: str) -> int:
        connection = sqlite3.connect(self._file, timeout=10)
        try:
            return int(_first(connection.execute(query)))
        finally:
            connection.close()

    def execute(self, statement: str) -> None:
        connection = sqlite3.connect(self._file, timeout=10)
        try:
            with connection:
                connection.execute(statement)
        finally:
            connection.close()

    def server_time(self) -> Used | None:
        return {}

    def written(self) -> int | None:
        return None

    def transactions(self) -> int | None:
        return None

    def drop(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _first(cursor: Any) -> Any:
    (value,) = cursor.fetchone()
    return value


def name_of(peer: str) -> str:
    """A name on a server that no other run has."""
    return f"umbel_bench_{os.getpid()}_{peer}"

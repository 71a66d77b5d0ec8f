"""Steps in transactions on SQLite: in a connection of ours on loan, or in the caller's own."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio.to_thread

from umbel.backends.caller_connections import aunwrap, unwrap
from umbel.backends.sqlite.database import Home, parts_at_fork
from umbel.backends.sqlite.errors import explaining
from umbel.backends.sqlite.lent_connections import Lent, begin, lent_out
from umbel.backends.sqlite.steps import keep
from umbel.errors import ConfigurationError, LeaseLost
from umbel.messages import Kept

_BUSY = 5.0
_COURTESY = 0.15
"""Seconds that those who wait for the file are let go first: SQLite looks every tenth of one."""
_SHARE = 0.1


class SqliteTransactions:
    """See ``stores.steps.Transactions`` for what each method promises."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._free: list[Lent] = []
        self._lock = threading.Lock()
        self._begun = self._ended = 0.0
        parts_at_fork(self)

    def part(self) -> None:
        """Before a fork: hold no connection but those on loan."""
        self._lock.acquire()
        free, self._free = self._free, []
        for connection in free:
            connection.close()

    def go_on(self) -> None:
        """After it, on either side: the next use connects anew."""
        self._lock.release()

    def run(self, work: Callable[[Any], Kept]) -> Kept:
        self._let_others_in()
        with self._home.exclusive():
            connection = self._begin()
            try:
                with lent_out(connection):
                    kept = work(connection)
            except BaseException:
                self._give_back(connection)
                raise
            self._commit(connection, kept)
            return kept

    async def arun(self, work: Callable[[Any], Awaitable[Kept]]) -> Kept:
        if self._home.in_memory:
            # Everybody shares its one connection: whoever awaits would keep all others waiting.
            raise ConfigurationError(
                "step.transaction: a database in memory lends its connection to plain functions"
                " only; give a def function, or use a file: sqlite:///umbel.db"
            )
        connection = await self._begin_elsewhere()
        try:
            with lent_out(connection):
                kept = await work(connection)
        except BaseException:
            self._give_back(connection)
            raise
        # Whoever is cancelled here leaves the thread to finish what it has begun.
        await anyio.to_thread.run_sync(self._commit, connection, kept)
        return kept

    def join(self, connection: Any) -> sqlite3.Connection:
        return self._joined(unwrap(connection))

    async def ajoin(self, connection: Any) -> sqlite3.Connection:
        return self._joined(await aunwrap(connection))

    def _joined(self, connection: Any) -> sqlite3.Connection:
        if not isinstance(connection, sqlite3.Connection):
            raise ConfigurationError(
                f"connection={type(connection).__name__}: this application uses a SQLite file; give"
                " a sqlite3 connection to it, a SQLAlchemy connection or session on one, or"
                " Django's connection"
            )
        with explaining(self._home.path):
            self._home.check(connection)
            begin(connection)
        return connection

    def keep_within(self, kept: Kept, connection: sqlite3.Connection) -> None:
        with explaining(self._home.path):
            cursor = connection.cursor()
            cursor.row_factory = None  # the caller's rows may be of any shape
            if not keep(cursor, kept):
                raise LeaseLost(f"job {kept.lease.job} was taken from this worker")

    async def akeep_within(self, kept: Kept, connection: sqlite3.Connection) -> None:
        self.keep_within(kept, connection)

    def close(self) -> None:
        with self._lock:
            free, self._free = self._free, []
        for connection in free:
            connection.close()

    def _begin(self) -> Lent:
        with explaining(self._home.path):
            with self._lock:
                connection = self._free.pop() if self._free else None
            connection = connection or self._home.connect(_BUSY)
            connection.execute("begin immediate")
            self._begun = time.monotonic()
            return connection

    def _let_others_in(self) -> None:
        """One transaction after the other would keep everybody else waiting, hearts for one.

        SQLite has no line: who waits looks now and then, and finds the file locked again. So those
        of this process go first, and others have a tenth of the time.
        """
        until = time.monotonic() + _COURTESY
        while self._home.at_work and time.monotonic() < until:
            time.sleep(0.001)
        rest = min(_SHARE * (self._ended - self._begun), _COURTESY)
        left = self._ended + rest - time.monotonic()
        if left > 0:
            time.sleep(left)

    async def _begin_elsewhere(self) -> Lent:
        """In a thread: waiting for the file's lock is not for the event loop.

        Whoever is cancelled meanwhile must not leave a lock behind that nobody knows of.
        """
        lock, begun_by_now, given_up = threading.Lock(), list[Lent](), False

        def begin_it() -> Lent:
            self._let_others_in()
            connection = self._begin()
            with lock:
                if given_up:
                    self._give_back(connection)
                begun_by_now.append(connection)
            return connection

        try:
            return await anyio.to_thread.run_sync(begin_it)
        except BaseException:
            with lock:
                given_up = True
                for connection in begun_by_now:
                    self._give_back(connection)
            raise

    def _commit(self, connection: Lent, kept: Kept) -> None:
        try:
            with explaining(self._home.path):
                if not keep(connection.cursor(), kept):
                    raise LeaseLost(f"job {kept.lease.job} was taken from this worker")
                connection.execute("commit")
        finally:
            self._give_back(connection)

    def _give_back(self, connection: Lent) -> None:
        self._ended = time.monotonic()
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("rollback")
            if self._home.in_memory:
                return
            with self._lock:
                self._free.append(connection)

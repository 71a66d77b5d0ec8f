"""Steps in transactions on SQLite: on a connection of Umbel, or on the caller's."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio.to_thread

from umbel.backends.caller_connections import aunwrap, unwrap
from umbel.backends.sqlite.database import SqliteFile, register_at_fork
from umbel.backends.sqlite.errors import translate_errors
from umbel.backends.sqlite.step_connections import StepConnection, begin, lend
from umbel.backends.sqlite.steps import keep
from umbel.errors import ConfigurationError, LeaseLost
from umbel.messages import KeptStep

_BUSY_TIMEOUT_SECONDS = 5.0
_MAX_YIELD_SECONDS = 0.15
"""How long to let others use the file first. A waiting SQLite retries every tenth of a second."""
_YIELD_FRACTION = 0.1


class SqliteTransactions:
    """See ``umbel.backends.steps.Transactions`` for what each method promises."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._free: list[StepConnection] = []
        self._lock = threading.Lock()
        self._began_at = self._ended_at = 0.0
        register_at_fork(self)

    def before_fork(self) -> None:
        """Close all connections that are not in use."""
        self._lock.acquire()
        free, self._free = self._free, []
        for connection in free:
            connection.close()

    def after_fork(self) -> None:
        """Allow connections again. The next use connects."""
        self._lock.release()

    def run(self, work: Callable[[Any], KeptStep]) -> KeptStep:
        self._yield_to_others()
        with self._file.exclusive():
            connection = self._begin()
            try:
                with lend(connection):
                    kept = work(connection)
            except BaseException:
                self._return_connection(connection)
                raise
            self._commit(connection, kept)
            return kept

    async def arun(self, work: Callable[[Any], Awaitable[KeptStep]]) -> KeptStep:
        if self._file.in_memory:
            # All share its one connection: a coroutine that awaits would block all others.
            raise ConfigurationError(
                "step.transaction: a database in memory lends its connection to plain functions"
                " only; give a def function, or use a file: sqlite:///umbel.db"
            )
        connection = await self._begin_in_thread()
        try:
            with lend(connection):
                kept = await work(connection)
        except BaseException:
            self._return_connection(connection)
            raise
        # If the caller is cancelled here, the thread still finishes the commit.
        await anyio.to_thread.run_sync(self._commit, connection, kept)
        return kept

    def join(self, connection: Any) -> sqlite3.Connection:
        return self._join(unwrap(connection))

    async def ajoin(self, connection: Any) -> sqlite3.Connection:
        return self._join(await aunwrap(connection))

    def _join(self, connection: Any) -> sqlite3.Connection:
        if not isinstance(connection, sqlite3.Connection):
            raise ConfigurationError(
                f"connection={type(connection).__name__}: this application uses a SQLite file; give"
                " a sqlite3 connection to it, a SQLAlchemy connection or session on one, or"
                " Django's connection"
            )
        with translate_errors(self._file.path):
            self._file.check(connection)
            begin(connection)
        return connection

    def keep_within(self, kept: KeptStep, connection: sqlite3.Connection) -> None:
        with translate_errors(self._file.path):
            cursor = connection.cursor()
            cursor.row_factory = None  # the caller's connection may have another row factory
            if not keep(cursor, kept):
                raise LeaseLost(f"job {kept.lease.job} was taken from this worker")

    async def akeep_within(self, kept: KeptStep, connection: sqlite3.Connection) -> None:
        self.keep_within(kept, connection)

    def close(self) -> None:
        with self._lock:
            free, self._free = self._free, []
        for connection in free:
            connection.close()

    def _begin(self) -> StepConnection:
        with translate_errors(self._file.path):
            with self._lock:
                connection = self._free.pop() if self._free else None
            connection = connection or self._file.connect(_BUSY_TIMEOUT_SECONDS)
            connection.execute("begin immediate")
            self._began_at = time.monotonic()
            return connection

    def _yield_to_others(self) -> None:
        """Wait a moment, so that other users of the file, such as heartbeats, get their turn.

        SQLite has no queue for its lock: a waiting connection retries now and then, and would find
        the file locked by the next step. So other users in this process go first, and processes
        beside it get a tenth of the time.
        """
        until = time.monotonic() + _MAX_YIELD_SECONDS
        while self._file.users and time.monotonic() < until:
            time.sleep(0.001)
        rest = min(_YIELD_FRACTION * (self._ended_at - self._began_at), _MAX_YIELD_SECONDS)
        left = self._ended_at + rest - time.monotonic()
        if left > 0:
            time.sleep(left)

    async def _begin_in_thread(self) -> StepConnection:
        """Begin in a thread, because waiting for the file's lock would block the event loop.

        If the caller is cancelled meanwhile, the transaction is rolled back.
        """
        lock, begun, is_cancelled = threading.Lock(), list[StepConnection](), False

        def begin_unless_cancelled() -> StepConnection:
            self._yield_to_others()
            connection = self._begin()
            with lock:
                if is_cancelled:
                    self._return_connection(connection)
                begun.append(connection)
            return connection

        try:
            return await anyio.to_thread.run_sync(begin_unless_cancelled)
        except BaseException:
            with lock:
                is_cancelled = True
                for connection in begun:
                    self._return_connection(connection)
            raise

    def _commit(self, connection: StepConnection, kept: KeptStep) -> None:
        try:
            with translate_errors(self._file.path):
                if not keep(connection.cursor(), kept):
                    raise LeaseLost(f"job {kept.lease.job} was taken from this worker")
                connection.execute("commit")
        finally:
            self._return_connection(connection)

    def _return_connection(self, connection: StepConnection) -> None:
        self._ended_at = time.monotonic()
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("rollback")
            if self._file.in_memory:
                return
            with self._lock:
                self._free.append(connection)

"""The access of one process to one SQLite file, or to one database in memory."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from umbel.backends.notifier import Notifier, WakeUpListener
from umbel.backends.queries import load
from umbel.backends.sql.statements import Row, Steps
from umbel.backends.sqlite.errors import translate_error, translate_errors
from umbel.backends.sqlite.log_watch import LogWatch, touch
from umbel.backends.sqlite.private_files import create_private
from umbel.backends.sqlite.schema import migrate
from umbel.backends.sqlite.step_connections import StepConnection, is_same_file, main_file
from umbel.backends.sqlite.transactions import enable_wal, perform, write_transaction
from umbel.backends.sqlite.write_batch import WorkItem, deliver_results, run_in_one_transaction
from umbel.errors import ConfigurationError, Unavailable

T = TypeVar("T")

CHANGE = "change"
SYNCHRONOUS = ("off", "normal", "full", "extra")

_TIMEOUT_TOLERANCE = 0.9
"""A busy timeout of at least this part of the wanted one is kept: setting it takes a statement."""

_queries = cache(partial(load, "umbel.backends.sqlite"))


class ForkAware(Protocol):
    """An object with connections to SQLite files."""

    def before_fork(self) -> None:
        """Finish what is running, and hold no connection until ``after_fork``."""

    def after_fork(self) -> None:
        """Allow connections again, in the parent and in the child."""


_fork_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def register_at_fork(owner: ForkAware) -> None:
    """Make sure that no connection of this object is open in two processes."""
    _fork_aware.add(owner)


def _before_fork() -> None:
    # For each process and file, SQLite keeps a table of the locks that it holds. A child would
    # inherit the parent's table and believe that it holds these locks, too. Then a parent that
    # closes the file deletes the log under the child's writes, or the child waits forever for a
    # lock that a thread of the parent held during the fork.
    for owner in list(_fork_aware):
        owner.before_fork()


def _after_fork() -> None:
    for owner in list(_fork_aware):
        owner.after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class SqliteFile:
    """Where the data is. All ``Database`` objects of an application share it.

    A database in memory has one connection that all of them share behind a lock. With a file, each
    of them has its own connection.
    """

    def __init__(self, path: str, *, synchronous: str = "full") -> None:
        if synchronous not in SYNCHRONOUS:
            raise ConfigurationError(
                f"synchronous={synchronous!r}: give one of {', '.join(SYNCHRONOUS)}"
            )
        self.path = path
        self.log = f"{path}-wal"
        self.synchronous = synchronous
        self.in_memory = path == ":memory:"
        self._shared: StepConnection | None = None
        self._names: set[str] = set()
        """The paths by which callers' connections name the file."""
        self._lock = threading.RLock()
        self._notifiers: list[tuple[asyncio.AbstractEventLoop, Notifier]] = []
        self.users: dict[Database, None] = {}
        """The databases of this process that use the file now, or wait for its lock."""

    def connect(self, busy: float) -> StepConnection:
        """Return a connection whose schema is up to date. Raise SchemaError."""
        if not self.in_memory:
            return _open(self.path, self.synchronous, busy)
        with self._lock:
            if self._shared is None:
                self._shared = _open(":memory:", "off", busy)
            return self._shared

    def close(self) -> None:
        """Delete a database in memory: close its connection. For a file, do nothing."""
        with self._lock:
            if self._shared is not None:
                self._shared.close()

    def check(self, connection: sqlite3.Connection) -> None:
        """Refuse a caller's connection whose main database is another one.

        A database in memory can be reached only by its one connection.

        Raises:
            ConfigurationError: it is another database. The caller's transaction is unchanged.
        """
        if connection is self._shared:
            return
        file = main_file(connection)
        if file and file in self._names:
            return
        if not file or self.in_memory or not is_same_file(file, self.path):
            theirs = file or "a database in memory"
            ours = "a database in memory of its own" if self.in_memory else self.path
            raise ConfigurationError(
                f"connection: it leads to {theirs}, and this application uses {ours}; give a"
                " sqlite3 connection that has this file as its main database, or leave connection"
                " out and publish at once"
            )
        self._names.add(file)

    @contextmanager
    def exclusive(self, timeout: float = -1) -> Iterator[None]:
        """Hold the one connection of a database in memory. For a file, do nothing."""
        if not self.in_memory:
            yield
            return
        if not self._lock.acquire(timeout=timeout):
            raise Unavailable("the database in memory is in use by another thread")
        try:
            yield
        finally:
            self._lock.release()

    def attach(self, loop: asyncio.AbstractEventLoop, notifier: Notifier) -> None:
        """Notify after each write to a database in memory."""
        if self.in_memory:
            self._notifiers.append((loop, notifier))

    def detach(self, notifier: Notifier) -> None:
        """Undo ``attach``."""
        self._notifiers = [
            (loop, known) for loop, known in self._notifiers if known is not notifier
        ]

    def announce_commit(self) -> None:
        """Wake up all listeners, in this process and in others."""
        if not self.in_memory:
            touch(self.log)
        for loop, notifier in self._notifiers:
            if not loop.is_closed():
                loop.call_soon_threadsafe(notifier.notify_all)


class Database:
    """Runs blocking functions on a connection, for one event loop.

    With ``is_loop_dedicated`` they run in the loop's own thread, which runs nothing else.
    """

    max_wait = float("inf")

    def __init__(
        self, file: SqliteFile, *, is_loop_dedicated: bool = False, busy: float = 5.0
    ) -> None:
        self.file = file
        self.notifier = Notifier()
        self._busy = self._busy_timeout = busy
        self._connection: sqlite3.Connection | None = None
        self._in_use = threading.Lock()
        self._attached = False
        self._watch: LogWatch | None = None
        self._thread = None if is_loop_dedicated else ThreadPoolExecutor(1, "umbel-sqlite")
        self._pending: deque[WorkItem[Any]] = deque()
        self._is_scheduled = False
        self._is_closed = False
        register_at_fork(self)

    def before_fork(self) -> None:
        """Finish what is running, and hold no connection until ``after_fork``."""
        self._in_use.acquire()
        if not self.file.in_memory and self._connection is not None:
            self._connection.close()
            self._connection = None

    def after_fork(self) -> None:
        """Allow connections again. The next use connects."""
        self._in_use.release()

    async def run(self, work: Callable[[sqlite3.Connection], T], *, writes: bool = False) -> T:
        """Run ``work`` with the connection and return its result. SQLite's errors are translated.

        Work that ``writes`` may share its transaction with other such work.

        Raises:
            Unavailable: the file is locked, full, not writable or damaged.
            SchemaError: the schema has another version.
        """
        loop = asyncio.get_running_loop()
        if not self._attached:
            self.file.attach(loop, self.notifier)
            self._attached = True
        if self._thread is None:
            return self._run_locked(work)
        item = WorkItem(work, loop, writes)
        self._pending.append(item)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._thread.submit(self._run_pending)
        return await item.future

    async def write(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Run ``work`` in a write transaction, perhaps together with other such work."""

        def write(connection: sqlite3.Connection) -> T:
            with write_transaction(connection) as cursor:
                return work(cursor)

        return await self.run(write, writes=True)

    async def rows(
        self, query: str, values: Mapping[str, Any], timeout: float | None = None
    ) -> list[Row]:
        """Return the rows of one statement. SQLite ignores the timeout."""
        return await self.run(lambda connection: connection.execute(query, values).fetchall())

    async def perform(self, steps: Callable[[], Steps[T]]) -> T:
        """Run the steps, each statement as its own transaction, and return their result."""
        return await self.run(lambda connection: perform(connection.cursor(), steps()))

    async def transaction(self, steps: Callable[[], Steps[T]]) -> T:
        """Run the steps in one transaction and return their result."""
        return await self.write(lambda cursor: perform(cursor, steps()))

    def queries(self, *files: str) -> dict[str, str]:
        """Return the named queries of these files."""
        return {name: sql for file in files for name, sql in _queries(file).items()}

    def substitute(self, query: str, name: str, text: str) -> str:
        """Return the query with ``$name`` replaced by SQL text."""
        return query.replace(f"${name}", text)

    def stored_id(self, job: str) -> str:
        """Return the id as it is: ids are texts here."""
        return job

    def text(self, value: str) -> str:
        """Return the text as it is: SQLite stores every text."""
        return value

    def texts(self, values: Sequence[str]) -> str:
        """Return the texts as a JSON array."""
        return msgspec.json.encode([*values]).decode()

    def numbers(self, values: Sequence[float | None]) -> str:
        """Return the numbers as a JSON array."""
        return msgspec.json.encode([*values]).decode()

    def json(self, value: Any) -> str:
        """Return the value as JSON."""
        return msgspec.json.encode(value).decode()

    def run_blocking(self, work: Callable[[sqlite3.Connection], T], timeout: float) -> T:
        """Run ``work`` in the calling thread. Wait up to ``timeout`` for others to finish."""
        until = time.monotonic() + timeout
        if not self._in_use.acquire(timeout=max(timeout, 0.0)):
            raise Unavailable(f"{self.file.path} is in use by another thread of this process")
        try:
            left = max(until - time.monotonic(), 0.001)
            with self.file.exclusive(left):
                if self.file.in_memory and self._is_writing():
                    raise Unavailable("the database in memory is in use by an outer call")
                return self._run(work, left)
        finally:
            self._in_use.release()

    async def open(self) -> None:
        """Connect, so that there is a log to watch."""
        if self._connection is None:
            await self.run(lambda connection: None)

    @contextmanager
    def listening(self) -> Iterator[WakeUpListener]:
        """Return a listener that wakes up after every commit of this or another process."""
        if self._watch is None and self._connection is not None and not self.file.in_memory:
            self._watch = LogWatch(self.file.log, self.notifier.notify_all)
        if self._watch is not None:
            self._watch.attach()
        try:
            with self.notifier.listen([CHANGE]) as wake_ups:
                yield wake_ups
        finally:
            if self._watch is not None:
                self._watch.detach()

    def wake_ups(self, topic: str) -> AbstractContextManager[WakeUpListener]:
        """Return a listener that wakes up after every commit, whatever its topic."""
        return self.listening()

    async def close(self) -> None:
        """Close the connection, unless it is shared, and the watch. Closing twice is fine."""
        self.file.detach(self.notifier)
        if self._thread is None:
            self._close_connection()
        elif not self._is_closed:
            self._is_closed = True
            # In the database's thread, after work that is running: that would connect again.
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close_connection)
            self._thread.shutdown(wait=False)
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def translate_errors(self) -> AbstractContextManager[None]:
        """Translate SQLite's errors, for work on a caller's connection."""
        return translate_errors(self.file.path)

    def _close_connection(self) -> None:
        with self._in_use:  # a caller's thread may be using it
            connection, self._connection = self._connection, None
            if connection is not None and not self.file.in_memory:
                connection.close()

    def _run_locked(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._in_use:
            return self._run(work, self._busy)

    def _run(self, work: Callable[[sqlite3.Connection], T], busy: float) -> T:
        self.file.users[self] = None
        try:
            with self.translate_errors(), self.file.exclusive():
                connection = self._connected(busy)
                before = connection.total_changes
                result = _run_readable(work, connection)
                if connection.total_changes != before:
                    self.file.announce_commit()
                return result
        finally:
            self.file.users.pop(self, None)

    def _is_writing(self) -> bool:
        return self._connection is not None and self._connection.in_transaction

    def _run_pending(self) -> None:
        """Run all pending work in the database's own thread, all writers in one transaction."""
        self._is_scheduled = False  # first: work that is added from here on schedules another run
        items = [self._pending.popleft() for _ in range(len(self._pending))]
        items = [item for item in items if not item.future.cancelled()]
        writers = [item for item in items if item.writes]
        groups = [[item] for item in items if not item.writes]
        for group in (writers, *groups) if writers else groups:
            self._run_group(group)
            deliver_results(group)

    def _run_group(self, items: list[WorkItem[Any]]) -> None:
        try:
            if len(items) > 1:
                self._run_locked(partial(run_in_one_transaction, items))
            else:
                items[0].result = self._run_locked(items[0].work)
        except BaseException as error:  # noqa: BLE001 - the callers handle it
            for item in items:
                item.error = item.error or error
        for item in items:
            if isinstance(item.error, sqlite3.Error):
                item.error = translate_error(item.error, self.file.path)

    def _connected(self, busy: float) -> sqlite3.Connection:
        """Return the connection. It waits for the file's lock no longer than ``busy`` seconds."""
        if self._connection is None:
            self._connection = self.file.connect(busy)
            self._busy_timeout = 0.0
            if self._watch is not None:
                self._watch.renew()
        if not _TIMEOUT_TOLERANCE * busy <= self._busy_timeout <= busy:
            self._busy_timeout = (1 + _TIMEOUT_TOLERANCE) / 2 * busy
            self._connection.execute(f"pragma busy_timeout = {int(1000 * self._busy_timeout)}")
        return self._connection


def _run_readable(work: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
    try:
        return work(connection)
    except sqlite3.OperationalError as error:
        if "decode to UTF-8" not in str(error):
            raise
        # Another program wrote a row that is not UTF-8. Decoding is slower from here on.
        connection.text_factory = _decode
        return work(connection)


def _decode(text: bytes) -> str:
    return text.decode(errors="replace")


def _open(path: str, synchronous: str, busy: float) -> StepConnection:
    folder = Path(path).parent
    if path != ":memory:" and not folder.is_dir():
        raise ConfigurationError(f"the folder {folder} does not exist; create it")
    if path != ":memory:":
        create_private(path)
    until = time.monotonic() + busy
    connection = sqlite3.connect(
        path, timeout=busy, isolation_level=None, check_same_thread=False, factory=StepConnection
    )
    enable_wal(connection, busy)
    connection.execute(f"pragma busy_timeout = {int(1000 * max(until - time.monotonic(), 0.001))}")
    connection.execute(f"pragma synchronous = {synchronous}")
    connection.execute("pragma foreign_keys = on")
    connection.execute("pragma temp_store = memory")
    migrate(connection, path)
    return connection

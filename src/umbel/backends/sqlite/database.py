"""One process's access to one SQLite file (or to one database in memory)."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from umbel.backends.notifier import Notifier, WakeUpListener
from umbel.backends.sqlite.errors import explain, explaining
from umbel.backends.sqlite.lent_connections import Lent, is_same_file, main_file
from umbel.backends.sqlite.log_watch import LogWatch, touch
from umbel.backends.sqlite.private_files import create_private
from umbel.backends.sqlite.savepoints import write_ahead
from umbel.backends.sqlite.schema import migrate
from umbel.backends.sqlite.write_batch import Errand, tell, together
from umbel.errors import ConfigurationError, Unavailable

T = TypeVar("T")

CHANGE = "change"
_ROUGHLY = 0.9
"""Of the time that is left, so much is as good as all: setting it anew takes a statement."""
SYNCHRONOUS = ("off", "normal", "full", "extra")


class Parting(Protocol):
    """Something with connections to files."""

    def part(self) -> None:
        """Before a fork: finish what is under way, and hold no connection while it happens."""

    def go_on(self) -> None:
        """After it, on either side."""


_databases: weakref.WeakSet[Parting] = weakref.WeakSet()


def parts_at_fork(thing: Parting) -> None:
    """See to it that no connection of this is open in two processes."""
    _databases.add(thing)


def _part_before_fork() -> None:
    # SQLite keeps, per process and file, a table of the locks it holds. A child would inherit the
    # parent's: it would think that it holds them too, so that a parent that closes takes the log
    # away under the child's writes; or wait for ever for one that a thread held during the fork.
    for database in list(_databases):
        database.part()


def _go_on() -> None:
    for database in list(_databases):
        database.go_on()


os.register_at_fork(before=_part_before_fork, after_in_parent=_go_on, after_in_child=_go_on)


class Home:
    """Where the data is. Shared by every ``Database`` of an application.

    A database in memory has one connection that all share behind a lock; a file has one each.
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
        self._shared: Lent | None = None
        self._names: set[str] = set()
        """What callers' connections call the file."""
        self._lock = threading.RLock()
        self._bells: list[tuple[asyncio.AbstractEventLoop, Notifier]] = []
        self.at_work: dict[Database, None] = {}
        """Who in this process uses the file at this moment, or waits for its lock."""

    def connect(self, busy: float) -> Lent:
        """A connection ready for use, its schema up to date. Raises SchemaError."""
        if not self.in_memory:
            return _open(self.path, self.synchronous, busy)
        with self._lock:
            if self._shared is None:
                self._shared = _open(":memory:", "off", busy)
            return self._shared

    def check(self, connection: sqlite3.Connection) -> None:
        """Refuse a caller's connection whose main database is another one.

        A database in memory has one connection; no other can lead to it.

        Raises:
            ConfigurationError: it leads elsewhere. Nothing has happened to its transaction.
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
        """Hold the one connection of a database in memory; free of cost for a file."""
        if not self.in_memory:
            yield
            return
        if not self._lock.acquire(timeout=timeout):
            raise Unavailable("the database in memory is in use by another thread")
        try:
            yield
        finally:
            self._lock.release()

    def attach(self, loop: asyncio.AbstractEventLoop, bell: Notifier) -> None:
        """Ring this bell after writes to a database in memory."""
        if self.in_memory:
            self._bells.append((loop, bell))

    def detach(self, bell: Notifier) -> None:
        """Ring it no more."""
        self._bells = [(loop, known) for loop, known in self._bells if known is not bell]

    def wrote(self) -> None:
        """Wake whoever listens, here or in another process."""
        if not self.in_memory:
            touch(self.log)
        for loop, bell in self._bells:
            if not loop.is_closed():
                loop.call_soon_threadsafe(bell.ring_all)


class Database:
    """Runs blocking functions on a connection, from one event loop.

    ``inline`` runs them in the loop's own thread: right for a loop that has nothing else to do.
    """

    def __init__(self, home: Home, *, inline: bool = False, busy: float = 5.0) -> None:
        self.home = home
        self.bell = Notifier()
        self._busy = self._allowed = busy
        self._inline = inline
        self._connection: sqlite3.Connection | None = None
        self._using = threading.Lock()
        self._attached = False
        self._watch: LogWatch | None = None
        self._thread = None if inline else ThreadPoolExecutor(1, "umbel-sqlite")
        self._errands: deque[Errand[Any]] = deque()
        self._called = False
        self._ended = False
        parts_at_fork(self)

    def part(self) -> None:
        """Before a fork: finish what is under way, and hold no connection while it happens."""
        self._using.acquire()
        if not self.home.in_memory and self._connection is not None:
            self._connection.close()
            self._connection = None

    def go_on(self) -> None:
        """After it, on either side: the next use connects anew."""
        self._using.release()

    async def run(self, work: Callable[[sqlite3.Connection], T], *, writes: bool = False) -> T:
        """Run ``work`` with the connection. SQLite's errors come out as ours.

        Work that ``writes`` may share its transaction with other such work.

        Raises:
            Unavailable: locked, full, not writable, damaged. SchemaError: of another version.
        """
        loop = asyncio.get_running_loop()
        if not self._attached:
            self.home.attach(loop, self.bell)
            self._attached = True
        if self._thread is None:
            return self._guarded(work)
        errand = Errand(work, loop, writes)
        self._errands.append(errand)
        if not self._called:
            self._called = True
            self._thread.submit(self._serve)
        return await errand.answer

    def run_here(self, work: Callable[[sqlite3.Connection], T], timeout: float) -> T:
        """Run ``work`` in the calling thread. Others who use the file are waited for up to then."""
        until = time.monotonic() + timeout
        if not self._using.acquire(timeout=max(timeout, 0.0)):
            raise Unavailable(f"{self.home.path} is in use by another thread of this process")
        try:
            left = max(until - time.monotonic(), 0.001)
            with self.home.exclusive(left):
                if self.home.in_memory and self._is_writing():
                    raise Unavailable("the database in memory is in use by an outer call")
                return self._do(work, left)
        finally:
            self._using.release()

    async def open(self) -> None:
        """Have a connection, and so a log to listen to."""
        if self._connection is None:
            await self.run(lambda connection: None)

    @contextmanager
    def listening(self) -> Iterator[WakeUpListener]:
        """An ear that hears of every commit, by this process or another."""
        if self._watch is None and self._connection is not None and not self.home.in_memory:
            self._watch = LogWatch(self.home.log, self.bell.ring_all)
        if self._watch is not None:
            self._watch.attach()
        try:
            with self.bell.listen([CHANGE]) as ear:
                yield ear
        finally:
            if self._watch is not None:
                self._watch.detach()

    async def close(self) -> None:
        """Close the connection (a shared one stays) and the watch. Twice is fine."""
        self.home.detach(self.bell)
        if self._thread is None:
            self._drop()
        elif not self._ended:
            self._ended = True
            # In its turn: what is under way would open another connection.
            await asyncio.get_running_loop().run_in_executor(self._thread, self._drop)
            self._thread.shutdown(wait=False)
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _drop(self) -> None:
        with self._using:  # a caller's thread may be at work
            connection, self._connection = self._connection, None
            if connection is not None and not self.home.in_memory:
                connection.close()

    def explaining(self) -> AbstractContextManager[None]:
        """SQLite's errors come out as ours: for work on a connection of the caller's."""
        return explaining(self.home.path)

    def _guarded(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._using:
            return self._do(work, self._busy)

    def _do(self, work: Callable[[sqlite3.Connection], T], busy: float) -> T:
        self.home.at_work[self] = None
        try:
            return self._work(work, busy)
        finally:
            self.home.at_work.pop(self, None)

    def _work(self, work: Callable[[sqlite3.Connection], T], busy: float) -> T:
        with self.explaining(), self.home.exclusive():
            connection = self._ready(busy)
            before = connection.total_changes
            try:
                result = work(connection)
            except sqlite3.OperationalError as error:
                if "decode to UTF-8" not in str(error):
                    raise
                # A row that somebody wrote by hand. Slower from here on, but it can be read.
                connection.text_factory = _readable
                result = work(connection)
            if connection.total_changes != before:
                self.home.wrote()
            return result

    def _is_writing(self) -> bool:
        return self._connection is not None and self._connection.in_transaction

    def _serve(self) -> None:
        """Run what waits, in the database's own thread: writers in one transaction."""
        self._called = False  # before looking: what is added from here on calls again
        errands = [self._errands.popleft() for _ in range(len(self._errands))]
        errands = [errand for errand in errands if not errand.answer.cancelled()]
        writers = [errand for errand in errands if errand.writes]
        groups = [[errand] for errand in errands if not errand.writes]
        for group in (writers, *groups) if writers else groups:
            self._run_group(group)
            tell(group)

    def _run_group(self, errands: list[Errand[Any]]) -> None:
        try:
            if len(errands) > 1:
                self._guarded(partial(together, errands))
            else:
                errands[0].result = self._guarded(errands[0].work)
        except BaseException as error:  # noqa: BLE001 - it is the callers' to handle
            for errand in errands:
                errand.error = errand.error or error
        for errand in errands:
            if isinstance(errand.error, sqlite3.Error):
                errand.error = explain(errand.error, self.home.path)

    def _ready(self, busy: float) -> sqlite3.Connection:
        """The connection. It waits no longer than this for the file's lock."""
        if self._connection is None:
            self._connection = self.home.connect(busy)
            self._allowed = 0.0
            if self._watch is not None:
                self._watch.renew()
        if not _ROUGHLY * busy <= self._allowed <= busy:
            self._allowed = (1 + _ROUGHLY) / 2 * busy
            self._connection.execute(f"pragma busy_timeout = {int(1000 * self._allowed)}")
        return self._connection


def _readable(text: bytes) -> str:
    return text.decode(errors="replace")


def _open(path: str, synchronous: str, busy: float) -> Lent:
    folder = Path(path).parent
    if path != ":memory:" and not folder.is_dir():
        raise ConfigurationError(f"the folder {folder} does not exist; create it")
    if path != ":memory:":
        create_private(path)
    until = time.monotonic() + busy
    connection = sqlite3.connect(
        path, timeout=busy, isolation_level=None, check_same_thread=False, factory=Lent
    )
    write_ahead(connection, busy)
    connection.execute(f"pragma busy_timeout = {int(1000 * max(until - time.monotonic(), 0.001))}")
    connection.execute(f"pragma synchronous = {synchronous}")
    connection.execute("pragma foreign_keys = on")
    connection.execute("pragma temp_store = memory")
    migrate(connection, path)
    return connection

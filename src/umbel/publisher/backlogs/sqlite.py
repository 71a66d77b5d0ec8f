"""A backlog in a SQLite file: it survives its process, and the machine's power."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from umbel.clock import Clock
from umbel.drivers.sqlite import write_ahead
from umbel.errors import BacklogFull, ConfigurationError, Unavailable
from umbel.messages import Envelope
from umbel.messages.wire import read, write
from umbel.publisher.backlogs.port import Held

T = TypeVar("T")

_TABLE = """
create table if not exists backlog (
  seq integer primary key autoincrement,
  namespace text not null,
  id text not null unique,
  put real not null,
  event blob not null
)"""


class SqliteBacklog:
    """See ``Backlog``. Several processes may share a file; one of them at a time publishes it."""

    durable = True

    def __init__(
        self, path: str, namespace: str, clock: Clock, *, limit: int, busy: float = 1.0
    ) -> None:
        if not Path(path).parent.is_dir():
            raise ConfigurationError(f"backlog: the folder {Path(path).parent} does not exist")
        self._path = path
        self._namespace = namespace
        self._clock = clock
        self._limit = limit
        self._busy = busy
        self._lock = threading.Lock()
        self._opened: tuple[int, sqlite3.Connection] | None = None
        self._forgotten: list[object] = []
        self._leading: int | None = None

    def put(self, envelopes: Sequence[Envelope]) -> None:
        now = self._clock.now()
        rows = [(self._namespace, one.id, now, write(one)) for one in envelopes]

        def work(connection: sqlite3.Connection) -> None:
            count = _one(connection.execute("select count(*) from backlog"))
            if count + len(rows) > self._limit:
                raise BacklogFull(
                    f"the broker is out of reach and {self._path} holds {count:,} of"
                    f" {self._limit:,} messages; raise backlog_limit"
                )
            connection.executemany(
                "insert into backlog (namespace, id, put, event) values (?, ?, ?, ?)"
                " on conflict do nothing",
                rows,
            )

        self._write(work)

    def oldest(self, limit: int) -> list[Envelope]:
        def look(connection: sqlite3.Connection) -> list[Envelope]:
            rows = connection.execute(
                "select event from backlog where namespace = ? order by seq limit ?",
                (self._namespace, limit),
            )
            return [read(event) for (event,) in rows]

        with self._connection() as connection:
            return look(connection)

    def remove(self, jobs: Sequence[str]) -> None:
        rows = [(job,) for job in jobs]
        self._write(lambda c: c.executemany("delete from backlog where id = ?", rows))

    def held(self) -> Held:
        with self._connection() as connection:
            messages, oldest = connection.execute(
                "select count(*), min(put) from backlog where namespace = ?", (self._namespace,)
            ).fetchone()
        return Held(kind=self._path, messages=messages, oldest=oldest, limit=self._limit)

    def mortal(self) -> int:
        return 0

    def lead(self) -> bool:
        with self._lock:
            if self._leading is None:
                handle = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
                try:
                    # Not flock: a child would inherit that and keep it.
                    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(handle)
                    return False
                self._leading = handle
            return True

    def close(self) -> None:
        with self._lock:
            if self._leading is not None:
                os.close(self._leading)
                self._leading = None
            opened, self._opened = self._opened, None
            if opened is not None and opened[0] == os.getpid():
                opened[1].close()

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._connection() as connection:
            connection.execute("begin immediate")
            try:
                result = work(connection)
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise
            return result

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._ready()
            except sqlite3.Error as error:
                raise Unavailable(f"the backlog {self._path}: {error}") from error

    def _ready(self) -> sqlite3.Connection:
        if self._opened is None or self._opened[0] != os.getpid():
            self._forgotten.append(self._opened)  # a parent's is not to be closed here
            connection = sqlite3.connect(
                self._path, timeout=self._busy, isolation_level=None, check_same_thread=False
            )
            write_ahead(connection, self._busy)
            connection.execute("pragma synchronous = full")
            connection.execute(_TABLE)
            self._opened = (os.getpid(), connection)
        return self._opened[1]


def _one(cursor: sqlite3.Cursor) -> int:
    return int(cursor.fetchone()[0])

"""A backlog in a SQLite file. It survives the end of its process and a loss of power."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from umbel.backends.backlog import BacklogStatus, read_stored
from umbel.backends.sqlite.private_files import create_private
from umbel.backends.sqlite.transactions import enable_wal
from umbel.clock import Clock
from umbel.errors import BacklogFull, ConfigurationError, Unavailable
from umbel.messages import Envelope, subtract_wait
from umbel.messages.wire import write

_TABLE = """
create table if not exists backlog (
  seq integer primary key autoincrement,
  namespace text not null,
  id text not null,
  put real not null,
  event blob not null,
  unique (id, namespace)
)"""
_NEW = "create temp table new (namespace text, id text, put real, event blob)"
_PUT = """
insert into backlog (namespace, id, put, event)
select namespace, id, put, event from temp.new where true order by rowid on conflict do nothing"""
_OLDEST = """
select id, event, put from backlog
where namespace = ? and id not in (select value from json_each(?)) order by seq limit ?"""
_REMOVE = """
delete from backlog where id in (select value from json_each(?)) and namespace = ?"""


class SqliteBacklog:
    """See ``Backlog``. Several processes may share a file. For each namespace, one process at a
    time publishes.

    Each change of the file is one statement and therefore one call into SQLite. So a thread that a
    signal handler interrupts never holds the file's lock, and the handler may publish.
    """

    durable = True

    def __init__(
        self, path: str, namespace: str, clock: Clock, *, limit: int, busy: float = 1.0
    ) -> None:
        if not Path(path).parent.is_dir():
            raise ConfigurationError(f"backlog: the folder {Path(path).parent} does not exist")
        self._path = path
        self._namespace = namespace
        self._clock = clock
        self._began = clock.now() - clock.monotonic()
        self._limit = limit
        self._busy = busy
        self._lock = threading.Lock()
        self._opened: tuple[int, sqlite3.Connection] | None = None
        self._inherited: list[object] = []
        self._leading: int | None = None

    def put(self, envelopes: Sequence[Envelope]) -> None:
        now = self._now()
        rows = [(self._namespace, one.id, now, write(one)) for one in envelopes]
        with self._connection() as connection:
            count = _one(
                connection.execute(
                    "select count(*) from backlog where namespace = ?", (self._namespace,)
                )
            )
            if count + len(rows) > self._limit:
                raise BacklogFull(
                    f"the broker is out of reach and {self._path} holds {count:,} of"
                    f" {self._limit:,} messages; raise backlog_limit"
                )
            connection.execute("delete from temp.new")
            connection.executemany("insert into temp.new values (?, ?, ?, ?)", rows)
            connection.execute(_PUT)

    def oldest(self, limit: int, without: Collection[str] = ()) -> list[Envelope]:
        now = self._now()
        with self._connection() as connection:
            rows = connection.execute(_OLDEST, (self._namespace, _json(without), limit)).fetchall()
        return [subtract_wait(read_stored(job, event), now - put) for job, event, put in rows]

    def remove(self, jobs: Sequence[str]) -> None:
        with self._connection() as connection:
            connection.execute(_REMOVE, (_json(jobs), self._namespace))

    def status(self) -> BacklogStatus:
        with self._connection() as connection:
            messages, oldest = connection.execute(
                "select count(*), min(put) from backlog where namespace = ?", (self._namespace,)
            ).fetchone()
        return BacklogStatus(kind=self._path, messages=messages, oldest=oldest, limit=self._limit)

    def has(self, job: str) -> bool:
        with self._connection() as connection:
            row = (self._namespace, job)
            found = connection.execute(
                "select count(*) from backlog where namespace = ? and id = ?", row
            )
            return _one(found) > 0

    def count_volatile(self) -> int:
        return 0

    def acquire_leadership(self) -> bool:
        with self._lock:
            if self._leading is None:
                self._leading = self._locked()
            return self._leading is not None

    def _locked(self) -> int | None:
        """Return the lock file, open; None while another process has it. Raise Unavailable."""
        # One file per namespace: a process that publishes one namespace must not block the others.
        path, handle = f"{self._path}.{self._namespace}.lock", -1
        try:
            create_private(path)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            # Not flock: a child process would inherit the lock and keep it.
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if handle >= 0:
                os.close(handle)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    return None
            raise Unavailable(
                f"{path} cannot be locked ({error.strerror}); this process must be able to create"
                " and write that file"
            ) from error
        return handle

    def open_unlocked(self) -> SqliteBacklog:
        return SqliteBacklog(
            self._path, self._namespace, self._clock, limit=self._limit, busy=self._busy
        )

    def close(self) -> None:
        with self._lock:
            if self._leading is not None:
                os.close(self._leading)
                self._leading = None
            opened, self._opened = self._opened, None
            if opened is not None and opened[0] == os.getpid():
                opened[1].close()

    def _now(self) -> float:
        """Return the time as this process has measured it since it started.

        So setting the machine's clock does not change the age of messages of this process. For
        messages of other processes, the machine's clock counts.
        """
        return self._began + self._clock.monotonic()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._ready()
            except sqlite3.Error as error:
                raise Unavailable(f"the backlog {self._path}: {error}") from error

    def _ready(self) -> sqlite3.Connection:
        if self._opened is None or self._opened[0] != os.getpid():
            self._inherited.append(self._opened)  # the parent closes its own connection
            create_private(self._path)
            connection = sqlite3.connect(
                self._path, timeout=self._busy, isolation_level=None, check_same_thread=False
            )
            enable_wal(connection, self._busy)
            connection.execute("pragma synchronous = full")
            connection.execute(_TABLE)
            connection.execute("pragma temp_store = memory")
            connection.execute(_NEW)
            self._opened = (os.getpid(), connection)
        return self._opened[1]


def _one(cursor: sqlite3.Cursor) -> int:
    return int(cursor.fetchone()[0])


def _json(values: Collection[str]) -> str:
    return msgspec.json.encode([*values]).decode()

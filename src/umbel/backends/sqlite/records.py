"""Job records on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

from umbel.backends.queries import load
from umbel.backends.records import UNCHANGED, Changes, ProgressNote
from umbel.backends.rows import (
    GATE_SCAN_BATCH,
    MAX_RATE_PERIOD_SECONDS,
    change_row,
    next_gate_scan,
    prune_in_batches,
)
from umbel.backends.sql.records import SqlRecords
from umbel.backends.sql.role import unknown_job
from umbel.backends.sqlite.database import Database
from umbel.backends.sqlite.file_time import FileTime
from umbel.backends.sqlite.transactions import write_transaction
from umbel.clock import Clock
from umbel.errors import ResultTimeout
from umbel.messages import Record
from umbel.resilience.pace import CREDIT

SQL = load("umbel.backends.sqlite", "store.sql")


class SqliteRecords(SqlRecords):
    """See ``umbel.backends.records.Records`` for what each method promises."""

    _database: Database

    def __init__(
        self, database: Database, *, namespace: str, clock: Clock, safety_poll: float = 1.0
    ) -> None:
        super().__init__(database, namespace=namespace, clock=clock, safety_poll=safety_poll)
        self._file_time = FileTime(clock.monotonic())

    async def wait_finished(self, job: str, timeout: float | None) -> Record:
        until = None if timeout is None else self._clock.monotonic() + timeout
        await self._database.open()
        with self._database.listening() as wake_ups:
            while True:
                wake_ups.clear()
                rows = await self._rows("is_finished", id=job)
                if not rows:
                    raise unknown_job(job)
                if rows[0][0]:
                    return await self.find(job)
                left = None if until is None else until - self._clock.monotonic()
                if left is not None and left <= 0:
                    raise ResultTimeout(f"job {job} has not finished within {timeout} s")
                await wake_ups.wait(
                    self._safety_poll if left is None else min(left, self._safety_poll)
                )

    async def record_progress(self, notes: Sequence[ProgressNote]) -> None:
        rows = [self._values(id=n.job, fence=n.fence, done=n.done, of=n.of) for n in notes]
        await self._database.write(lambda cursor: cursor.executemany(SQL["progress"], rows))

    async def replay(self, jobs: Sequence[str], changes: Changes = UNCHANGED) -> list[str]:
        row = change_row(changes) | {"is_success_included": False}

        def replay(cursor: sqlite3.Cursor, job: str) -> bool:
            values = self._values(id=job, **row)
            if cursor.execute(SQL["replay"], values).rowcount == 0:
                return False
            cursor.execute(SQL["remove_replayed"], values)
            if changes.from_scratch:
                cursor.execute(SQL["forget_steps"], values)
            return True

        return await self._database.write(
            lambda cursor: [job for job in jobs if replay(cursor, job)]
        )

    async def prune(self, *, older_than: float, keep: int, limit: int) -> int:
        trusted, oldest = await self._oldest(older_than, keep)

        def forget(query: str, row: dict[str, Any], connection: sqlite3.Connection) -> int:
            with write_transaction(connection) as cursor:
                return cursor.execute(SQL[query], row).rowcount

        async def prune(query: str, limit: int, **values: Any) -> int:
            return await prune_in_batches(
                lambda many: self._database.run(
                    partial(forget, query, self._values(limit=many, **values))
                ),
                limit,
            )

        pruned = await prune("prune_kept_until", limit, now=trusted)
        pruned += await prune("prune", limit - pruned, **oldest)
        while await self._database.run(partial(self._forget_gates, trusted)):
            pass
        return pruned

    async def prunable_groups(
        self, *, older_than: float, keep: int, after: str = "", limit: int
    ) -> list[str]:
        _, oldest = await self._oldest(older_than, keep)
        rows = await self._rows("prunable_groups", **oldest, after=after, limit=limit)
        return [row[0] for row in rows]

    async def _oldest(self, older_than: float, keep: int) -> tuple[float, dict[str, Any]]:
        """Return the time by which age is judged, and the parameters that select what is pruned."""
        (finished, state, row), trusted = await self._database.run(
            lambda connection: (self._beyond(connection, keep), self._trusted_time(connection))
        )
        oldest = {"before": trusted - older_than, "finished": finished, "state": state, "row": row}
        return trusted, oldest

    def _trusted_time(self, connection: sqlite3.Connection) -> float:
        """Return the time by which the age of records is judged. See ``FileTime``."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        known = connection.execute(SQL["file_time"], self._values()).fetchone()[0]
        if known is None:  # nothing has finished yet
            return now
        trusted, until = self._file_time.read(known, now, monotonic)
        if until > known:
            connection.execute(SQL["save_time"], self._values(until=until))
        return trusted

    def _forget_gates(self, now: float, connection: sqlite3.Connection) -> bool:
        """Delete gates of one batch that are as good as new. Return whether to go on at once."""
        row = self._values(after=self._last_gate, portion=GATE_SCAN_BATCH)
        last, many = connection.execute(SQL["gate_batch"], row).fetchone()
        gone = 0
        if many:
            row |= {"last": last, "now": now, "credit": CREDIT, "longest": MAX_RATE_PERIOD_SECONDS}
            with write_transaction(connection) as cursor:
                gone = cursor.execute(SQL["forget_gates"], row).rowcount
        self._last_gate, more = next_gate_scan(last, many, gone)
        return more

    def _beyond(self, connection: sqlite3.Connection, keep: int) -> tuple[float, str, int]:
        """Return the newest record that is beyond the count to keep."""
        found = connection.execute(SQL["beyond"], self._values(keep=keep)).fetchone()
        return found or (-1.0, "", 0)

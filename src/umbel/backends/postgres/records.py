"""Job records on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from umbel.backends.postgres.arrays import numbers, texts
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.statements import single_statement
from umbel.backends.records import FIRST_ID, UNCHANGED, Changes, ProgressNote
from umbel.backends.rows import (
    GATE_SCAN_BATCH,
    MAX_RATE_PERIOD_SECONDS,
    change_row,
    next_gate_scan,
    prune_in_batches,
    record,
)
from umbel.backends.sql.records import SqlRecords
from umbel.backends.sql.role import unknown_job
from umbel.errors import ResultTimeout
from umbel.messages import Record
from umbel.resilience import Backoff
from umbel.resilience.pace import CREDIT

_POLL_BACKOFF = Backoff(first=0.05, factor=1.5, cap=0.25, jitter=0.0)
"""Waits between two checks of a job while this process does not LISTEN."""


class PostgresRecords(SqlRecords):
    """See ``umbel.backends.records.Records`` for what each method promises."""

    _database: Database

    async def wait_finished(self, job: str, timeout: float | None) -> Record:
        key = self._database.stored_id(job)
        until = None if timeout is None else self._clock.monotonic() + timeout
        listener = self._database.listener()
        # Marking the job waits for a transaction that settles it at this moment. So either its end
        # is notified, or its record is there to be read.
        mark = "await_live" if self._database.address.listens else "is_live"
        with listener.notifier.listen([f"d:{self._namespace}:{key}"]) as wake_ups:
            tries, is_live = 0, await self._rows(mark, id=key)
            while is_live:
                tries += 1
                pause = self._safety_poll if listener.is_listening else _POLL_BACKOFF.delay(tries)
                left = pause if until is None else until - self._clock.monotonic()
                if left <= 0:
                    raise ResultTimeout(f"job {job} has not finished within {timeout} s")
                has_woken = await wake_ups.wait(min(left, pause))
                wake_ups.clear()
                if has_woken and (rows := await self._rows("find_finished", id=key)):
                    return record(rows[0])
                is_live = await self._rows("is_live", id=key)
        rows = await self._rows("find_finished", id=key)
        if not rows:
            raise unknown_job(job)
        return record(rows[0])

    def find_finished_blocking(self, job: str, timeout: float) -> Record | None:
        if self._database.blocking.is_busy:
            return None
        sql, values = self._sql["find_finished"], self._values(id=self._database.stored_id(job))
        rows = self._database.blocking.perform(lambda: single_statement(sql, values), timeout)
        return record(rows[0]) if rows else None

    async def record_progress(self, notes: Sequence[ProgressNote]) -> None:
        await self._rows(
            "progress",
            id=texts([note.job for note in notes]),
            fence=numbers([note.fence for note in notes]),
            done=numbers([note.done for note in notes]),
            of=numbers([note.of for note in notes]),
        )

    async def replay(self, jobs: Sequence[str], changes: Changes = UNCHANGED) -> list[str]:
        names = self._stored_ids(jobs)
        rows = await self._rows(
            "replay", id=texts([*names]), **change_row(changes), is_success_included=False
        )
        queued = {job for job, _ in rows}
        return [name for key, name in names.items() if key in queued]

    async def prune(self, *, older_than: float, keep: int, limit: int) -> int:
        oldest = await self._oldest(older_than, keep)

        async def forget(query: str, many: int, **values: Any) -> int:
            return int((await self._rows(query, limit=many, **values))[0][0])

        pruned = await prune_in_batches(partial(forget, "prune_kept_until"), limit)
        pruned += await prune_in_batches(partial(forget, "prune", **oldest), limit - pruned)
        more = True
        while more:
            row = {"portion": GATE_SCAN_BATCH, "credit": CREDIT, "longest": MAX_RATE_PERIOD_SECONDS}
            ((last, many, gone),) = await self._rows("forget_gates", after=self._last_gate, **row)
            self._last_gate, more = next_gate_scan(last, many, gone)
        return pruned

    async def prunable_groups(
        self, *, older_than: float, keep: int, after: str = "", limit: int
    ) -> list[str]:
        oldest = await self._oldest(older_than, keep)
        after = self._database.stored_id(after) if after else FIRST_ID
        rows = await self._rows("prunable_groups", **oldest, after=after, limit=limit)
        return [row[0] for row in rows]

    async def _oldest(self, older_than: float, keep: int) -> dict[str, Any]:
        """Return the parameters that select what is pruned."""
        beyond = await self._rows("beyond", keep=keep)
        finished, job = beyond[0] if beyond else (None, None)
        return {"age": float(older_than), "finished": finished, "id": job}

"""Job records: live jobs and finished ones read as one."""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign, inf, isnan
from typing import Any

import msgspec

from umbel.backends.records import (
    FINISHED_JOBS,
    FIRST_ID,
    LAST_ID,
    Cursor,
    JobFilter,
    JobPage,
    Run,
    RunTimes,
    Waiting,
    bad_cursor,
    page_of,
    search_all,
)
from umbel.backends.rows import record, stored_states
from umbel.backends.sql.role import SqlDatabase, SqlRole, unknown_job
from umbel.backends.sql.statements import Steps
from umbel.clock import Clock
from umbel.errors import UnknownJob
from umbel.messages import LIVE, TERMINAL, Record, State

_HISTORY_TIMEOUT_SECONDS = 60.0
"""Limit for a query that reads all records: for a million of them it takes some seconds."""

_BURIED = frozenset({State.BURIED})
_MAX_NUMBER = 2**62
_MAX_SECONDS = 1e11
"""Times of PostgreSQL begin at about -2e11."""


class SqlRecords(SqlRole):
    """The part of ``umbel.backends.records.Records`` that both servers share."""

    files = ("store.sql",)

    def __init__(
        self, database: SqlDatabase, *, namespace: str, clock: Clock, safety_poll: float = 1.0
    ) -> None:
        super().__init__(database, namespace=namespace, clock=clock)
        self._safety_poll = safety_poll
        self._last_gate = ""
        """Where the next search for gates that can be forgotten starts."""

    async def find(self, job: str) -> Record:
        key = self._database.stored_id(job)

        def steps() -> Steps[Record]:
            # A job becomes a record in one transaction, so reading the records last misses none.
            for query in ("find_finished", "find_live", "find_finished"):
                if rows := (yield self._sql[query], self._values(id=key)):
                    return record(rows[0])
            raise unknown_job(job)

        return await self._database.perform(steps)

    async def tasks(self, jobs: Sequence[str]) -> dict[str, str]:
        names = self._stored_ids(jobs)
        rows = await self._rows("tasks", id=self._database.texts([*names]))
        return {names[job]: task for job, task in rows}

    async def scan(self, wanted: JobFilter, *, after: str = "", rows: int) -> JobPage:
        return await self._database.perform(lambda: self._scan_steps(wanted, after, rows))

    async def search(self, wanted: JobFilter) -> list[Record]:
        return await search_all(self.scan, wanted)

    async def remove(self, jobs: Sequence[str]) -> int:
        ids = self._database.texts([*self._stored_ids(jobs)])
        return len(await self._rows("remove", id=ids))

    async def runs(self, owners: Sequence[str]) -> list[Run]:
        rows = await self._rows("runs", owners=self._database.texts([*owners]))
        return [Run(job=j, task=t, queue=q, owner=o, age=max(0.0, a)) for j, t, q, o, a in rows]

    async def count_waiting(self) -> list[Waiting]:
        return [Waiting(*row) for row in await self._rows("count_waiting")]

    async def run_times(
        self, *, since: float, longer: float, but: Sequence[str], worst: int
    ) -> list[RunTimes]:
        without = self._database.texts([*but])
        limits = {"since": float(since), "longer": float(longer), "but": without, "worst": worst}
        rows = await self._database.rows(
            self._sql["run_times"], self._values(**limits), _HISTORY_TIMEOUT_SECONDS
        )
        return [
            RunTimes(
                task=task,
                runs=runs,
                long=long,
                p50=p50,
                p95=p95,
                worst=longest,
                jobs=tuple(job for _, job in sorted(msgspec.json.decode(jobs), reverse=True)),
            )
            for task, runs, long, p50, p95, longest, jobs in rows
        ]

    def _scan_steps(self, wanted: JobFilter, after: str, rows: int) -> Steps[JobPage]:
        start = wanted.start(after)
        states = LIVE if start.is_live else TERMINAL
        following = FINISHED_JOBS if start.is_live else None
        chosen = states & set(wanted.states) if wanted.states else states
        if not chosen:
            return page_of([], wanted.limit, following, 0)
        values = self._scan_values(wanted, start, after) | {"skipped": rows - 1}
        read = 0
        if not start.is_live and _selects(wanted, chosen):
            # Part of the text, so that the planner knows that the index of buried jobs fits.
            indexed = "state = 'buried'" if chosen == _BURIED else "true"
            query = self._database.substitute(self._sql["finished_edge"], "indexed", indexed)
            if edge := (yield query, values):
                ((position, job),) = edge
                values |= {"first": position, "first_id": job}
                following, read = Cursor(False, position, job), rows
        names = ", ".join(f"'{state}'" for state in stored_states(chosen))
        query = self._sql["list_live" if start.is_live else "list_finished"]
        found = yield self._database.substitute(query, "states", names), values
        jobs = [(record(row), Cursor(start.is_live, place, row[0])) for *row, place in found]
        return page_of(jobs, wanted.limit, following, read)

    def _scan_values(self, wanted: JobFilter, start: Cursor, after: str) -> dict[str, Any]:
        since, until = _moment(wanted.since, -inf), _moment(wanted.until, inf)
        place: dict[str, Any] = {"position": int(min(start.position, _MAX_NUMBER))}
        if not start.is_live:
            place = self._finished_range(start, since, until, after)
        return self._values(
            task=wanted.task,
            queue=wanted.queue,
            worker=wanted.worker,
            before=wanted.published_before,
            id_part=wanted.id_part,
            since=since,
            until=until,
            limit=wanted.limit,
            **place,
        )

    def _finished_range(
        self, start: Cursor, since: float, until: float, after: str
    ) -> dict[str, Any]:
        try:
            job = self._database.stored_id(start.job)
        except UnknownJob:
            raise bad_cursor(after) from None
        position = _moment(start.position, inf)
        if until < position:
            position, job = until, LAST_ID
        return {"position": position, "id": job, "first": since, "first_id": FIRST_ID}


def _selects(wanted: JobFilter, chosen: frozenset[State]) -> bool:
    """Return whether some finished jobs in the searched part of the index may not match."""
    values = (wanted.task, wanted.queue, wanted.worker, wanted.published_before, wanted.id_part)
    return any(value is not None for value in values) or chosen not in (TERMINAL, _BURIED)


def _moment(seconds: float | None, default: float) -> float:
    """Return a time that the database can represent: an extreme one becomes infinite."""
    if seconds is None or isnan(seconds):
        return default
    return seconds if abs(seconds) < _MAX_SECONDS else copysign(inf, seconds)

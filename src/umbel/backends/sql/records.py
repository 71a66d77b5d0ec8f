"""Job records: live jobs and finished ones read as one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from umbel.backends.records import JobFilter, Run, RunTimes, Waiting
from umbel.backends.rows import record, stored_states
from umbel.backends.sql.role import SqlDatabase, SqlRole, unknown_job
from umbel.backends.sql.statements import Steps
from umbel.clock import Clock
from umbel.messages import LIVE, TERMINAL, Record

_HISTORY_TIMEOUT_SECONDS = 60.0
"""Limit for a query that reads all records: for a million of them it takes some seconds."""


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

    async def search(self, wanted: JobFilter) -> list[Record]:
        return await self._database.perform(lambda: self._search_steps(wanted))

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

    def _search_steps(self, wanted: JobFilter) -> Steps[list[Record]]:
        found: list[Record] = []
        for query, states in (("list_live", LIVE), ("list_finished", TERMINAL)):
            chosen = states & set(wanted.states) if wanted.states else states
            if not chosen or len(found) >= wanted.limit:
                continue
            # Part of the text, so that the planner knows that the index of buried jobs fits.
            names = ", ".join(f"'{state}'" for state in stored_states(chosen))
            values = self._values(
                task=wanted.task,
                queue=wanted.queue,
                worker=wanted.worker,
                before=wanted.published_before,
                limit=wanted.limit - len(found),
            )
            rows = yield self._database.substitute(self._sql[query], "states", names), values
            found += [record(row) for row in rows]
        return found

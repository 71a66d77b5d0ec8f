"""Job records on PostgreSQL: live jobs and finished ones read as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from umbel.backends.postgres.arrays import numbers, texts
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.ids import by_canonical, canonical, unknown
from umbel.backends.postgres.statements import Row, one
from umbel.backends.records import UNCHANGED, Changes, JobFilter, ProgressNote
from umbel.backends.rows import (
    GATE_PORTION,
    LONGEST,
    change_row,
    in_portions,
    looked_on,
    record,
    stored_states,
)
from umbel.clock import Clock
from umbel.errors import ResultTimeout
from umbel.messages import LIVE, TERMINAL, Record, State
from umbel.resilience import Backoff
from umbel.resilience.pace import CREDIT

_LOOKS = Backoff(first=0.05, factor=1.5, cap=0.25, jitter=0.0)
"""Waits between looks when nobody tells us of a job's end."""


class PostgresRecords:
    """See ``stores.records.Records`` for what each method promises."""

    def __init__(
        self, database: Database, *, namespace: str, clock: Clock, safety_poll: float = 1.0
    ) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock
        self._safety_poll = safety_poll
        self._looked = ""
        self._sql = database.home.queries("store.sql")

    async def find(self, job: str) -> Record:
        key = canonical(job)
        # A job moves from live to finished in one transaction: looking there last misses nothing.
        for query in ("find_finished", "find_live", "find_finished"):
            rows = await self._rows(query, id=key)
            if rows:
                return record(rows[0])
        raise unknown(job)

    async def search(self, wanted: JobFilter) -> list[Record]:
        found: list[Record] = []
        for query, states in (("list_live", LIVE), ("list_finished", TERMINAL)):
            chosen = states & set(wanted.states) if wanted.states else states
            if chosen and len(found) < wanted.limit:
                found += await self._list(query, chosen, wanted, wanted.limit - len(found))
        return found

    async def finished(self, job: str, timeout: float | None) -> Record:
        key = canonical(job)
        until = None if timeout is None else self._clock.monotonic() + timeout
        listener = self._database.listener()
        # Marking waits for whoever settles the job just now; so either its end is told, or it is
        # there to be read.
        mark = "await_live" if self._database.home.listens else "is_live"
        with listener.bell.listen([f"d:{self._namespace}:{key}"]) as ear:
            tries, lives = 0, await self._rows(mark, id=key)
            while lives:
                tries += 1
                pause = self._safety_poll if listener.hearing else _LOOKS.delay(tries)
                left = pause if until is None else until - self._clock.monotonic()
                if left <= 0:
                    raise ResultTimeout(f"job {job} has not finished within {timeout} s")
                rang = await ear.wait(min(left, pause))
                ear.clear()
                if rang and (rows := await self._rows("find_finished", id=key)):
                    return record(rows[0])
                lives = await self._rows("is_live", id=key)
        rows = await self._rows("find_finished", id=key)
        if not rows:
            raise unknown(job)
        return record(rows[0])

    def look(self, job: str, timeout: float) -> Record | None:
        if self._database.direct.is_busy:
            return None
        values = {"namespace": self._namespace, "id": canonical(job)}
        sql = self._sql["find_finished"]
        rows = self._database.direct.perform(lambda: one(sql, values), timeout)
        return record(rows[0]) if rows else None

    async def progress(self, notes: Sequence[ProgressNote]) -> None:
        await self._rows(
            "progress",
            id=texts([note.job for note in notes]),
            fence=numbers([note.fence for note in notes]),
            done=numbers([note.done for note in notes]),
            of=numbers([note.of for note in notes]),
        )

    async def replay(self, jobs: Sequence[str], changes: Changes = UNCHANGED) -> list[str]:
        names = by_canonical(jobs)
        rows = await self._rows("replay", id=_ids(names), **change_row(changes))
        queued = {job for job, _ in rows}
        return [name for key, name in names.items() if key in queued]

    async def prune(self, *, older_than: float, keep: int, limit: int) -> int:
        beyond = await self._rows("beyond", keep=keep)
        finished, job = beyond[0] if beyond else (None, None)

        async def forget(many: int) -> int:
            oldest = {"age": float(older_than), "finished": finished, "id": job, "limit": many}
            return int((await self._rows("prune", **oldest))[0][0])

        pruned = await in_portions(forget, limit)
        more = True
        while more:
            row = {"portion": GATE_PORTION, "credit": CREDIT, "longest": LONGEST}
            ((last, many, gone),) = await self._rows("forget_gates", after=self._looked, **row)
            self._looked, more = looked_on(last, many, gone)
        return pruned

    async def remove(self, jobs: Sequence[str]) -> int:
        return len(await self._rows("remove", id=_ids(by_canonical(jobs))))

    async def close(self) -> None:
        await self._database.close()

    async def _list(
        self, query: str, states: Iterable[State], wanted: JobFilter, limit: int
    ) -> list[Record]:
        # Written into the query, so that the index of buried jobs is known to fit.
        chosen = "{" + ",".join(stored_states(states)) + "}"
        values = {
            "namespace": self._namespace,
            "task": wanted.task,
            "queue": wanted.queue,
            "worker": wanted.worker,
            "before": wanted.published_before,
            "limit": limit,
        }
        sql = self._sql[query].replace(b"$states", chosen.encode())
        return [record(row) for row in await self._database.rows(sql, values)]

    async def _rows(self, query: str, **values: Any) -> list[Row]:
        return await self._database.rows(self._sql[query], {"namespace": self._namespace, **values})


def _ids(jobs: Iterable[str]) -> str:
    return texts([*jobs])

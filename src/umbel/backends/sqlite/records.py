"""Job records on SQLite: live jobs and finished ones read as one."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from umbel.backends.queries import load
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
from umbel.backends.sqlite.database import Database
from umbel.backends.sqlite.file_time import FileTime
from umbel.backends.sqlite.savepoints import writing
from umbel.clock import Clock
from umbel.errors import ResultTimeout, UnknownJob
from umbel.messages import LIVE, TERMINAL, Record
from umbel.resilience.pace import CREDIT

SQL = load("umbel.backends.sqlite", "store.sql")

_json = msgspec.json


class SqliteRecords:
    """See ``stores.records.Records`` for what each method promises."""

    def __init__(
        self, database: Database, *, namespace: str, clock: Clock, safety_poll: float = 1.0
    ) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock
        self._safety_poll = safety_poll
        self._looked = ""
        self._file_time = FileTime(clock.monotonic())

    async def find(self, job: str) -> Record:
        return await self._database.run(partial(self._find, job=job))

    async def search(self, wanted: JobFilter) -> list[Record]:
        return await self._database.run(partial(self._search, wanted=wanted))

    async def finished(self, job: str, timeout: float | None) -> Record:
        until = None if timeout is None else self._clock.monotonic() + timeout
        look = partial(self._is_finished, job=job)
        await self._database.open()
        with self._database.listening() as ear:
            while True:
                ear.clear()
                if await self._database.run(look):
                    return await self.find(job)
                left = None if until is None else until - self._clock.monotonic()
                if left is not None and left <= 0:
                    raise ResultTimeout(f"job {job} has not finished within {timeout} s")
                await ear.wait(self._safety_poll if left is None else min(left, self._safety_poll))

    async def progress(self, notes: Sequence[ProgressNote]) -> None:
        def write(connection: sqlite3.Connection) -> None:
            rows = [
                {**self._key(n.job), "fence": n.fence, "done": n.done, "of": n.of} for n in notes
            ]
            with writing(connection) as cursor:
                cursor.executemany(SQL["progress"], rows)

        await self._database.run(write)

    async def replay(self, jobs: Sequence[str], changes: Changes = UNCHANGED) -> list[str]:
        row = change_row(changes)

        def write(connection: sqlite3.Connection) -> list[str]:
            with writing(connection) as cursor:
                return [job for job in jobs if self._replay(cursor, {**self._key(job), **row})]

        return await self._database.run(write)

    async def prune(self, *, older_than: float, keep: int, limit: int) -> int:
        (finished, state, row), trusted = await self._database.run(partial(self._look, keep=keep))
        oldest = {"before": trusted - older_than, "finished": finished, "state": state, "row": row}

        def write(connection: sqlite3.Connection, many: int) -> int:
            values = {"namespace": self._namespace, "limit": many, **oldest}
            with writing(connection) as cursor:
                return cursor.execute(SQL["prune"], values).rowcount

        pruned = await in_portions(
            lambda many: self._database.run(partial(write, many=many)), limit
        )
        while await self._database.run(partial(self._forget_gates, now=trusted)):
            pass
        return pruned

    async def remove(self, jobs: Sequence[str]) -> int:
        def write(connection: sqlite3.Connection) -> int:
            with writing(connection) as cursor:
                return sum(cursor.execute(SQL["remove"], self._key(job)).rowcount for job in jobs)

        return await self._database.run(write)

    async def close(self) -> None:
        await self._database.close()

    def _key(self, job: str) -> dict[str, Any]:
        return {"namespace": self._namespace, "id": job}

    def _find(self, connection: sqlite3.Connection, job: str) -> Record:
        # A job moves from live to finished in one transaction: looking there last misses nothing.
        for query in ("find_finished", "find_live", "find_finished"):
            row = connection.execute(SQL[query], self._key(job)).fetchone()
            if row is not None:
                return record(row)
        raise UnknownJob(f"no job {job}: never published here, rolled back, or pruned")

    def _trusted_time(self, connection: sqlite3.Connection) -> float:
        """The time by which records are old. See ``FileTime``."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        here = {"namespace": self._namespace}
        known = connection.execute(SQL["last_time"], here).fetchone()[0]
        if known is None:  # nothing has finished yet
            return now
        trusted, until = self._file_time.read(known, now, monotonic)
        if until > known:
            connection.execute(SQL["keep_time"], {**here, "until": until})
        return trusted

    def _forget_gates(self, connection: sqlite3.Connection, now: float) -> bool:
        """A portion of the gates that are as good as new goes. Whether the next is worth a look."""
        row = {"namespace": self._namespace, "after": self._looked, "portion": GATE_PORTION}
        last, many = connection.execute(SQL["some_gates"], row).fetchone()
        gone = 0
        if many:
            row |= {"last": last, "now": now, "credit": CREDIT, "longest": LONGEST}
            with writing(connection) as cursor:
                gone = cursor.execute(SQL["forget_gates"], row).rowcount
        self._looked, more = looked_on(last, many, gone)
        return more

    def _look(
        self, connection: sqlite3.Connection, keep: int
    ) -> tuple[tuple[float, str, int], float]:
        """Which record is the first beyond a count, and the time by which records are old."""
        return self._beyond(connection, keep), self._trusted_time(connection)

    def _beyond(self, connection: sqlite3.Connection, keep: int) -> tuple[float, str, int]:
        row = {"namespace": self._namespace, "keep": keep}
        return connection.execute(SQL["beyond"], row).fetchone() or (-1.0, "", 0)

    def _is_finished(self, connection: sqlite3.Connection, job: str) -> bool:
        row = connection.execute(SQL["is_finished"], self._key(job)).fetchone()
        if row is None:
            raise UnknownJob(f"no job {job}: never published here, rolled back, or pruned")
        return bool(row[0])

    def _search(self, connection: sqlite3.Connection, wanted: JobFilter) -> list[Record]:
        found: list[Record] = []
        for query, states in (("list_live", LIVE), ("list_finished", TERMINAL)):
            chosen = stored_states(state for state in wanted.states if state in states)
            if len(found) >= wanted.limit or (wanted.states and not chosen):
                continue
            row = {
                "namespace": self._namespace,
                "states": _json.encode(chosen).decode() if chosen else None,
                "task": wanted.task,
                "queue": wanted.queue,
                "worker": wanted.worker,
                "before": wanted.published_before,
                "now": self._clock.now(),
                "limit": wanted.limit - len(found),
            }
            found += [record(r) for r in connection.execute(SQL[query], row)]
        return found

    def _replay(self, cursor: sqlite3.Cursor, row: dict[str, Any]) -> bool:
        replayed = cursor.execute(SQL["replay"], row).rowcount == 1
        if replayed:
            cursor.execute(SQL["remove"], row)
            if row["from_scratch"]:
                cursor.execute(SQL["forget_steps"], row)
        return replayed

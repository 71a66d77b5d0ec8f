"""The worker registry on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import msgspec

from umbel.backends.queries import load
from umbel.backends.registry import HEARD_LONGER, Hearing, Member, WorkerEntry, read_members
from umbel.backends.sqlite.database import Database
from umbel.backends.sqlite.lapses import report_lapses
from umbel.backends.sqlite.route_rows import settle_routes
from umbel.backends.sqlite.savepoints import writing
from umbel.clock import Clock
from umbel.errors import IndexTaken

SQL = load("umbel.backends.sqlite", "store.sql")


class SqliteRegistry:
    """See ``stores.registry.Registry`` for what each method promises."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock

    async def enlist(self, worker: WorkerEntry) -> int:
        def write(connection: sqlite3.Connection) -> int:
            with writing(connection) as cursor:
                here = {"namespace": self._namespace, "now": self._clock.now()}
                return _enlist(cursor, worker, here)

        return await self._database.run(write, writes=True)

    async def beat(self, incarnation: str, *, running: int, epoch: int, stopping: bool) -> bool:
        touched = await self._execute(
            "beat", incarnation=incarnation, running=running, epoch=epoch, stopping=int(stopping)
        )
        return touched == 1

    async def members(self) -> list[Member]:
        here = {"namespace": self._namespace, "now": self._clock.now()}

        def read(connection: sqlite3.Connection) -> list[Member]:
            rows = connection.execute(SQL["members"], here)
            return read_members(rows)

        return await self._database.run(read)

    async def remove(self, incarnation: str, beat: int) -> bool:
        return await self._execute("remove_member", incarnation=incarnation, beat=beat) == 1

    async def leave(self, incarnation: str) -> None:
        row = {"namespace": self._namespace, "now": self._clock.now(), "incarnation": incarnation}

        def write(connection: sqlite3.Connection) -> None:
            with writing(connection) as cursor:
                cursor.execute(SQL["keep_seat"], row)
                cursor.execute(SQL["leave"], row)

        await self._database.run(write, writes=True)

    async def witness(self, messages: Mapping[str, float]) -> dict[str, Hearing]:
        def write(connection: sqlite3.Connection) -> dict[str, Hearing]:
            with writing(connection) as cursor:
                now = self._clock.now()
                cursor.execute(SQL["forget_heard"], {"past": now - HEARD_LONGER})
                return {job: self._hear(cursor, job, until, now) for job, until in messages.items()}

        return await self._database.run(write, writes=True)

    def _hear(self, cursor: sqlite3.Cursor, job: str, until: float, now: float) -> Hearing:
        row = {"namespace": self._namespace, "job": job, "until": until}
        if cursor.execute(SQL["was_heard"], row).fetchone() is not None:
            return Hearing.AGAIN
        if until < now:
            return Hearing.LATE
        if cursor.execute(SQL["hear"], row).rowcount == 0:
            return Hearing.COPY
        cursor.execute(SQL["mark_heard"], row)
        return Hearing.FIRST

    async def close(self) -> None:
        await self._database.close()

    async def _execute(self, query: str, **values: Any) -> int:
        row = {"namespace": self._namespace, "now": self._clock.now(), **values}
        return await self._database.run(lambda c: c.execute(SQL[query], row).rowcount)


def _enlist(cursor: sqlite3.Cursor, worker: WorkerEntry, here: dict[str, Any]) -> int:
    row = {**here, "incarnation": worker.incarnation, "name": worker.name}
    if worker.former:
        report_lapses(cursor, here, worker.former)
    if (sits := cursor.execute(SQL["seat_of"], row).fetchone()) is not None:
        return int(sits[0])
    index = worker.index
    if index is None:
        kept = cursor.execute(SQL["kept_seat"], row).fetchone()
        index = kept[0] if kept else cursor.execute(SQL["free_seat"], row).fetchone()[0]
    elif taken := cursor.execute(SQL["holder"], {**row, "idx": index}).fetchone():
        raise IndexTaken(index, taken[0])
    row["idx"] = index
    if cursor.execute(SQL["inherits"], row).fetchone() is not None:
        cursor.execute(SQL["clear_seat"], row)  # its routes were another worker's, and that is gone
        settle_routes(cursor, row)
    cursor.execute(SQL["sit_down"], row)
    entry = msgspec.structs.replace(worker, index=index)
    cursor.execute(SQL["enlist"], {**row, "entry": msgspec.json.encode(entry).decode()})
    return int(index)

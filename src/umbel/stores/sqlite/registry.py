"""The worker registry on SQLite."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from umbel.clock import Clock
from umbel.drivers.queries import load
from umbel.drivers.sqlite import Database
from umbel.stores.registry import Member, WorkerEntry, read_members

SQL = load("umbel.stores.sqlite", "queries.sql")


class SqliteRegistry:
    """See ``stores.registry.Registry`` for what each method promises."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock

    async def enlist(self, worker: WorkerEntry) -> None:
        await self._execute(
            "enlist",
            incarnation=worker.incarnation,
            entry=msgspec.json.encode(worker).decode(),
            name=worker.name,
        )

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
        await self._execute("leave", incarnation=incarnation)

    async def close(self) -> None:
        await self._database.close()

    async def _execute(self, query: str, **values: Any) -> int:
        row = {"namespace": self._namespace, "now": self._clock.now(), **values}
        return await self._database.run(lambda c: c.execute(SQL[query], row).rowcount)

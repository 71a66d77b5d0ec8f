"""The worker registry on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from umbel.backends.postgres.arrays import document, texts
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.statements import Row
from umbel.backends.registry import HEARD_LONGER, Hearing, Member, WorkerEntry, read_members
from umbel.clock import Clock
from umbel.errors import IndexTaken


class PostgresRegistry:
    """See ``stores.registry.Registry`` for what each method promises."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock
        self._sql = database.home.sql | database.home.queries("store.sql")

    async def enlist(self, worker: WorkerEntry) -> int:
        if worker.former:
            await self._rows("report_lapses", former=texts(worker.former))
            await self._rows("take_back_deaths")
        life, index = worker.incarnation, worker.index
        entry = document(worker)
        rows = await self._rows(
            "enlist", incarnation=life, entry=entry, name=worker.name, idx=index
        )
        seat, taken = rows[0]
        if taken is not None:
            raise IndexTaken(seat, taken)
        return int(seat)

    async def beat(self, incarnation: str, *, running: int, epoch: int, stopping: bool) -> bool:
        rows = await self._rows(
            "beat", incarnation=incarnation, running=running, epoch=epoch, stopping=stopping
        )
        return bool(rows)

    async def members(self) -> list[Member]:
        return read_members(await self._rows("members"))

    async def remove(self, incarnation: str, beat: int) -> bool:
        return bool(await self._rows("remove_member", incarnation=incarnation, beat=beat))

    async def leave(self, incarnation: str) -> None:
        await self._rows("leave", incarnation=incarnation)

    async def witness(self, messages: Mapping[str, float]) -> dict[str, Hearing]:
        rows = await self._rows(
            "hear",
            jobs=[*messages],
            untils=[*messages.values()],
            past=HEARD_LONGER,
        )
        return {job: Hearing(found) for job, found in rows}

    async def close(self) -> None:
        await self._database.close()

    async def _rows(self, query: str, **values: Any) -> list[Row]:
        return await self._database.rows(self._sql[query], {"namespace": self._namespace, **values})

"""Steps on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from umbel.backends.postgres.arrays import blobs, numbers, texts
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.ids import canonical
from umbel.clock import Clock
from umbel.errors import UnknownJob
from umbel.messages import Body, Kept, Step

FILE = "steps.sql"


class PostgresSteps:
    """See ``stores.steps.Steps`` for what each method promises."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._sql = database.home.queries(FILE)

    async def keep(self, done: Sequence[Kept]) -> list[Kept]:
        if not done:
            return []
        rows = await self._database.rows(self._sql["keep"], keep_arrays(done))
        return [done[place - 1] for place in rows[0][0] or ()]

    async def steps(self, job: str) -> list[Step]:
        try:
            where = {"namespace": self._namespace, "id": canonical(job)}
        except UnknownJob:
            return []
        return [
            Step(number=number, name=name, result=Body(kind, data), started=began, finished=ended)
            for number, name, kind, data, began, ended in await self._database.rows(
                self._sql["steps"], where
            )
        ]

    async def close(self) -> None:
        await self._database.close()


def keep_arrays(done: Sequence[Kept]) -> dict[str, Any]:
    """The parameters of ``keep``."""
    return {
        "id": texts([one.lease.job for one in done]),
        "owner": texts([one.lease.owner for one in done]),
        "fence": numbers([one.lease.fence for one in done]),
        "number": numbers([one.step.number for one in done]),
        "name": texts([one.step.name for one in done]),
        "content_type": texts([one.step.result.content_type for one in done]),
        "result": blobs([one.step.result.data for one in done]),
        "started": numbers([one.step.started for one in done]),
        "finished": numbers([one.step.finished for one in done]),
    }

"""Steps on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from umbel.backends.queries import load
from umbel.backends.sqlite.database import Database
from umbel.backends.sqlite.savepoints import writing
from umbel.clock import Clock
from umbel.messages import Body, Kept, Step

SQL = load("umbel.backends.sqlite", "steps.sql")


class SqliteSteps:
    """See ``stores.steps.Steps`` for what each method promises."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace

    async def keep(self, done: Sequence[Kept]) -> list[Kept]:
        def write(connection: sqlite3.Connection) -> list[Kept]:
            with writing(connection) as cursor:
                return [one for one in done if not keep(cursor, one)]

        return await self._database.run(write, writes=True)

    async def steps(self, job: str) -> list[Step]:
        def read(connection: sqlite3.Connection) -> list[Step]:
            where = {"id": job, "namespace": self._namespace}
            return [
                Step(
                    number=number, name=name, result=Body(kind, data), started=began, finished=ended
                )
                for number, name, kind, data, began, ended in connection.execute(
                    SQL["steps"], where
                )
            ]

        return await self._database.run(read)

    async def close(self) -> None:
        await self._database.close()


def keep(cursor: sqlite3.Cursor, kept: Kept) -> bool:
    """Keep a step in the transaction that is open. False: its lease is not held."""
    lease, step = kept.lease, kept.step
    row: dict[str, Any] = {
        "id": lease.job,
        "owner": lease.owner,
        "fence": lease.fence,
        "number": step.number,
        "name": step.name,
        "content_type": step.result.content_type,
        "result": step.result.data,
        "started": step.started,
        "finished": step.finished,
    }
    held = cursor.execute(SQL["lease"], row).fetchone()
    if held is None:
        return False
    row["namespace"] = held[1]
    if not held[0]:
        cursor.execute(SQL["gets_on"], row)
    cursor.execute(SQL["keep"], row)
    return True

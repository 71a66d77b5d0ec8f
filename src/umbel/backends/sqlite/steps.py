"""Keeping steps on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from umbel.backends.queries import load
from umbel.backends.sql.steps import SqlSteps
from umbel.backends.sqlite.database import Database
from umbel.messages import KeptStep

SQL = load("umbel.backends.sqlite", "steps.sql")


class SqliteSteps(SqlSteps):
    """See ``umbel.backends.steps.Steps`` for what each method promises."""

    _database: Database

    async def keep(self, done: Sequence[KeptStep]) -> list[KeptStep]:
        return await self._database.write(
            lambda cursor: [kept for kept in done if not keep(cursor, kept)]
        )


def keep(cursor: sqlite3.Cursor, kept: KeptStep) -> bool:
    """Keep a step in the open transaction. Return False if its lease is not held."""
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
    is_marked, row["namespace"] = held
    if not is_marked:
        cursor.execute(SQL["mark_job"], row)
    cursor.execute(SQL["keep"], row)
    return True

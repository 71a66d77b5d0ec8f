"""Deletes a namespace from a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from umbel.backends.sql.role import SqlRole
from umbel.backends.sql.statements import Query

_BATCH_ROWS = 2_000
_TIMEOUT_SECONDS = 60.0
TABLES = {
    # Joins first, so that the end of their parts does not queue other jobs.
    "job_join": "id",
    "job_edge": "join_id, position",
    "job_wait": "join_id, job",
    "job": "id",
    "record": "id",
    "step": "job, number",
    "inbox_receipt": "job",
    "route": "id",
    "member": "pool, name",
    "waiting_list": "key, queue, kind",
    "gate": "key",
    "rule": "name",
    "entry": "key",
    "section": "name",
    "death": "incarnation, job",
    "lapse": "incarnation",
    "worker": "incarnation",
    "worker_index": "idx",
}
"""The tables with a namespace, in the order in which they are emptied, and what names a row."""


class SqlEraser(SqlRole):
    """See ``umbel.backends.erasing.NamespaceEraser``. ``more_tables`` only this server has."""

    files = ("store.sql",)
    more_tables: ClassVar[dict[str, str]] = {}

    async def count(self) -> dict[str, int]:
        found = {}
        for table, key in self._tables().items():
            found[table] = await self._count(table, key)
        return {table: rows for table, rows in found.items() if rows}

    async def delete(self, limit: int) -> int:
        left = limit
        for table, key in self._tables().items():
            query = self._query("delete_rows", table, key)
            while left:
                batch = min(left, _BATCH_ROWS)
                values = self._values(limit=batch)
                gone = len(await self._database.rows(query, values, _TIMEOUT_SECONDS))
                left -= gone
                # If another deletion has taken rows that this one waited for, others are left.
                if gone < batch and not await self._count(table, key):
                    break
        return limit - left

    async def remove_queues(self, queues: Sequence[str]) -> None:
        pass

    async def _count(self, table: str, key: str) -> int:
        query = self._query("count_rows", table, key)
        rows = await self._database.rows(query, self._values(), _TIMEOUT_SECONDS)
        return int(rows[0][0])

    def _tables(self) -> dict[str, str]:
        return TABLES | self.more_tables

    def _query(self, name: str, table: str, key: str) -> Query:
        named = self._database.substitute(self._sql[name], "table", table)
        return self._database.substitute(named, "key", key)

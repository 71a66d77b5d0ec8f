"""The worker registry on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import msgspec

from umbel.backends.queries import load
from umbel.backends.registry import INBOX_RECEIPT_GRACE, InboxReceipt, WorkerEntry
from umbel.backends.sql.registry import SqlRegistry
from umbel.backends.sqlite.database import Database
from umbel.backends.sqlite.lapses import report_lapses
from umbel.backends.sqlite.route_rows import settle_routes
from umbel.errors import IndexTaken

SQL = load("umbel.backends.sqlite", "store.sql")


class SqliteRegistry(SqlRegistry):
    """See ``umbel.backends.registry.Registry`` for what each method promises."""

    _database: Database

    async def register(self, worker: WorkerEntry) -> int:
        return await self._database.write(lambda cursor: _register(cursor, worker, self._values()))

    async def unregister(self, incarnation: str) -> None:
        def write(cursor: sqlite3.Cursor) -> None:
            cursor.execute(SQL["keep_index"], row)
            cursor.execute(SQL["unregister"], row)

        row = self._values(incarnation=incarnation)
        await self._database.write(write)

    async def record_inbox_receipts(self, messages: Mapping[str, float]) -> dict[str, InboxReceipt]:
        def write(cursor: sqlite3.Cursor) -> dict[str, InboxReceipt]:
            now = self._clock.now()
            cursor.execute(SQL["delete_old_receipts"], {"past": now - INBOX_RECEIPT_GRACE})
            return {
                job: self._record_receipt(cursor, job, until, now)
                for job, until in messages.items()
            }

        return await self._database.write(write)

    def _record_receipt(
        self, cursor: sqlite3.Cursor, job: str, until: float, now: float
    ) -> InboxReceipt:
        row = {"namespace": self._namespace, "job": job, "until": until}
        if cursor.execute(SQL["was_received"], row).fetchone() is not None:
            return InboxReceipt.REDELIVERED
        if until < now:
            return InboxReceipt.EXPIRED
        if cursor.execute(SQL["add_receipt"], row).rowcount == 0:
            return InboxReceipt.DUPLICATE
        cursor.execute(SQL["mark_received"], row)
        return InboxReceipt.FIRST


def _register(cursor: sqlite3.Cursor, worker: WorkerEntry, values: dict[str, Any]) -> int:
    row = {**values, "incarnation": worker.incarnation, "name": worker.name}
    if worker.former:
        report_lapses(cursor, values, worker.former)
    if (known := cursor.execute(SQL["index_of"], row).fetchone()) is not None:
        return int(known[0])
    index = worker.index
    if index is None:
        kept = cursor.execute(SQL["kept_index"], row).fetchone()
        index = kept[0] if kept else cursor.execute(SQL["free_index"], row).fetchone()[0]
    elif taken := cursor.execute(SQL["holder"], {**row, "idx": index}).fetchone():
        raise IndexTaken(index, taken[0])
    row["idx"] = index
    if cursor.execute(SQL["has_other_name"], row).fetchone() is not None:
        # The routes of this index belong to another worker, which is gone.
        cursor.execute(SQL["clear_index"], row)
        settle_routes(cursor, row)
    cursor.execute(SQL["take_index"], row)
    entry = msgspec.structs.replace(worker, index=index)
    cursor.execute(SQL["register"], {**row, "entry": msgspec.json.encode(entry).decode()})
    return int(index)

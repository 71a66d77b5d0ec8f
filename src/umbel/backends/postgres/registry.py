"""The worker registry on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping

from umbel.backends.postgres.arrays import json_text, texts
from umbel.backends.registry import INBOX_RECEIPT_GRACE, InboxReceipt, WorkerEntry
from umbel.backends.sql.registry import SqlRegistry
from umbel.errors import IndexTaken


class PostgresRegistry(SqlRegistry):
    """See ``umbel.backends.registry.Registry`` for what each method promises."""

    async def register(self, worker: WorkerEntry) -> int:
        if worker.former:
            await self._rows("report_lapses", former=texts(worker.former))
            await self._rows("take_back_deaths")
        rows = await self._rows(
            "register",
            incarnation=worker.incarnation,
            entry=json_text(worker),
            name=worker.name,
            idx=worker.index,
        )
        index, holder = rows[0]
        if holder is not None:
            raise IndexTaken(index, holder)
        return int(index)

    async def unregister(self, incarnation: str) -> None:
        await self._rows("unregister", incarnation=incarnation)

    async def record_inbox_receipts(self, messages: Mapping[str, float]) -> dict[str, InboxReceipt]:
        rows = await self._rows(
            "record_receipts",
            jobs=[*messages],
            untils=[*messages.values()],
            past=INBOX_RECEIPT_GRACE,
        )
        return {job: InboxReceipt(found) for job, found in rows}

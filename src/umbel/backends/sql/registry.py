"""The worker registry. Registering a worker and inbox receipts differ per server."""

from __future__ import annotations

from umbel.backends.registry import RegisteredWorker, read_workers
from umbel.backends.sql.role import SqlRole


class SqlRegistry(SqlRole):
    """The part of ``umbel.backends.registry.Registry`` that both servers share."""

    files = ("store.sql",)

    async def heartbeat(
        self, incarnation: str, *, running: int, epoch: int, stopping: bool
    ) -> bool:
        rows = await self._rows(
            "heartbeat", incarnation=incarnation, running=running, epoch=epoch, stopping=stopping
        )
        return bool(rows)

    async def workers(self) -> list[RegisteredWorker]:
        return read_workers(await self._rows("workers"))

    async def remove(self, incarnation: str, beat: int) -> bool:
        return bool(await self._rows("remove_worker", incarnation=incarnation, beat=beat))

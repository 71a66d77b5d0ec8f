"""The worker registry on Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from umbel.backends.redis.database import Database
from umbel.backends.redis.scripts import pack, pack_bytes, root_of, scripts
from umbel.backends.redis.values import integer, optional_float, text
from umbel.backends.registry import (
    INBOX_RECEIPT_GRACE,
    InboxReceipt,
    RegisteredWorker,
    WorkerEntry,
    read_workers,
)
from umbel.clock import Clock
from umbel.errors import IndexTaken

LUA = scripts("registry.lua")


_ROUTES_LEFT = -2
"""Answer of ``register`` while it releases the routes of another worker, a portion per call."""


class RedisRegistry:
    """See ``umbel.backends.registry.Registry`` for what each method guarantees."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._root = root_of(namespace)

    async def register(self, worker: WorkerEntry) -> int:
        index, other_worker = _ROUTES_LEFT, []
        while index == _ROUTES_LEFT:
            index, *other_worker = await self._run(
                "register",
                worker.incarnation,
                pack_bytes(msgspec.json.encode(worker)),
                worker.name,
                worker.lease,
                worker.index,
                _search_fields(worker),
                [*worker.former],
            )
        if other_worker:
            raise IndexTaken(worker.index or 0, text(other_worker[0]))
        return integer(index)

    async def heartbeat(
        self, incarnation: str, *, running: int, epoch: int, stopping: bool
    ) -> bool:
        return bool(await self._run("heartbeat", incarnation, running, epoch, int(stopping)))

    async def workers(self) -> list[RegisteredWorker]:
        now, *rows = await self._run("workers")
        workers = [one for row in rows for one in _read_worker(row, optional_float(now) or 0.0)]
        return sorted(workers, key=lambda one: (one.entry.name, -one.age))

    async def remove(self, incarnation: str, beat: int) -> bool:
        return bool(await self._run("remove_worker", incarnation, beat))

    async def unregister(self, incarnation: str) -> None:
        await self._run("unregister", incarnation)

    async def record_inbox_receipts(self, messages: Mapping[str, float]) -> dict[str, InboxReceipt]:
        receipts = [part for job, until in messages.items() for part in (job, float(until))]
        found = await self._run("record_inbox_receipts", int(INBOX_RECEIPT_GRACE), *receipts)
        return {
            job: InboxReceipt(text(answer)) for job, answer in zip(messages, found, strict=True)
        }

    async def close(self) -> None:
        await self._database.close()

    async def _run(self, name: str, *values: Any) -> Any:
        return await self._database.run(LUA[name], self._root, pack(*values))


def _search_fields(worker: WorkerEntry) -> list[str | int]:
    """Return fields of a worker, so that a route can be chosen without reading its whole entry."""
    serves = [f"serves:{queue}" for queue in worker.queues]
    knows = [f"knows:{task}" for task in worker.tasks]
    return [part for name in (*serves, *knows) for part in (name, 1)]


def _read_worker(row: Sequence[Any], now: float) -> list[RegisteredWorker]:
    """Return a worker with its index; an empty list if the entry cannot be read."""
    entry, beat, started, beaten, running, epoch, stopping, index = row
    times = (now - (optional_float(started) or 0.0), now - (optional_float(beaten) or 0.0))
    read = (text(entry), integer(beat), *times, integer(running), integer(epoch), integer(stopping))
    return [
        one if index is None else replace(one, entry=replace(one.entry, index=integer(index)))
        for one in read_workers([read])
    ]

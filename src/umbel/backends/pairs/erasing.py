"""Deletes a namespace from the store and the brokers of a pair."""

from __future__ import annotations

from collections.abc import Sequence

from umbel.backends.erasing import NamespaceEraser
from umbel.backends.transport import Transport


class PairEraser:
    """See ``umbel.backends.erasing.NamespaceEraser``."""

    def __init__(self, store: NamespaceEraser, transport: Transport) -> None:
        self._store = store
        self._transport = transport

    async def count(self) -> dict[str, int]:
        return await self._store.count()

    async def delete(self, limit: int) -> int:
        return await self._store.delete(limit)

    async def remove_queues(self, queues: Sequence[str]) -> None:
        for queue in queues:
            await self._transport.remove(queue)

    async def close(self) -> None:
        await self._transport.close()
        await self._store.close()

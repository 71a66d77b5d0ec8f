"""Deletes a namespace from a Redis server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from umbel.backends.redis.database import Database
from umbel.backends.redis.scripts import root_of
from umbel.backends.redis.values import text

_PORTION = 1_000


class RedisEraser:
    """See ``umbel.backends.erasing.NamespaceEraser``. It reads the names of all keys."""

    def __init__(self, database: Database, *, namespace: str) -> None:
        self._database = database
        self._prefix = f"{root_of(namespace)}:"
        self._cursor: str = "0"
        """Where the next deletion continues."""

    async def count(self) -> dict[str, int]:
        found: dict[str, str] = {}
        cursor = "0"
        while True:
            cursor, keys = await self._scan(cursor)
            # A key may be returned twice.
            found |= {key: key[len(self._prefix) :].partition(":")[0] for key in keys}
            if cursor == "0":
                return dict(Counter(found.values()))

    async def delete(self, limit: int) -> int:
        gone = 0
        while gone < limit:
            self._cursor, keys = await self._scan(self._cursor)
            if keys:
                gone += await self._database.execute("UNLINK", *keys)
            if self._cursor == "0":
                break
        return gone

    async def remove_queues(self, queues: Sequence[str]) -> None:
        pass

    async def close(self) -> None:
        await self._database.close()

    async def _scan(self, cursor: str) -> tuple[str, list[str]]:
        following, keys = await self._database.execute(
            "SCAN", cursor, "MATCH", f"{self._prefix}*", "COUNT", _PORTION
        )
        return text(following), [text(key) for key in keys]

"""Routes and seats on PostgreSQL."""

from __future__ import annotations

from typing import Any

from umbel.backends.postgres.arrays import storable
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.statements import Row
from umbel.backends.routes import HISTORY, Route, Seat, read_route
from umbel.clock import Clock


class PostgresRoutes:
    """See ``stores.routes.Routes`` for what each method promises.

    Each change is one statement, so that nobody who stops half-way keeps the gates shut.
    """

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock
        self._sql = database.home.queries("routes.sql")

    async def find(self, key: str) -> Route | None:
        found = await self.routes(key=key, limit=1)
        return found[0] if found else None

    async def routes(
        self,
        *,
        key: str | None = None,
        index: int | None = None,
        live: bool = True,
        limit: int = 100,
    ) -> list[Route]:
        await self._rows("fold")
        asked = {"key": None if key is None else storable(key), "idx": index}
        rows = await self._rows("routes", **asked, live=live, limit=limit)
        return [read_route(*row) for row in rows]

    async def release(self, key: str, why: str = "") -> Route | None:
        return await self._close(key, why or "released", None)

    async def move(self, key: str, index: int, why: str = "") -> Route | None:
        return await self._close(key, why or f"moved to {index}", index)

    async def _close(self, key: str, why: str, target: int | None) -> Route | None:
        rows = await self._rows("close", key=storable(key), why=storable(why), target=target)
        return read_route(*rows[0]) if rows else None

    async def retire(self, index: int, retiring: bool = True) -> int:
        rows = await self._rows("retire", idx=index, retiring=retiring)
        return int(rows[0][0])

    async def seats(self) -> list[Seat]:
        return [
            Seat(index=index, worker=name, alive=alive, retiring=retiring, routes=many)
            for index, name, alive, retiring, many in await self._rows("seats")
        ]

    async def sweep(self, idle: float | None = None) -> list[Route]:
        if not (await self._rows("any"))[0][0]:
            return []
        released = [read_route(*row) for row in await self._rows("sweep", idle=idle)]
        if released:
            await self._rows("forget", keep=HISTORY)
        return released

    async def close(self) -> None:
        await self._database.close()

    async def _rows(self, query: str, **values: Any) -> list[Row]:
        return await self._database.rows(self._sql[query], {"namespace": self._namespace, **values})

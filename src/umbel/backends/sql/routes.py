"""Routes and worker indexes. How routes are closed differs per server."""

from __future__ import annotations

from abc import ABC, abstractmethod

from umbel.backends.routes import Route, WorkerIndex, read_route
from umbel.backends.sql.role import SqlRole


class SqlRoutes(SqlRole, ABC):
    """The part of ``umbel.backends.routes.Routes`` that both servers share."""

    files = ("routes.sql",)

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
        if "fold" in self._sql:  # PostgreSQL defers the bookkeeping of freed slots
            await self._rows("fold")
        wanted = None if key is None else self._database.text(key)
        rows = await self._rows("routes", key=wanted, idx=index, live=live, limit=limit)
        return [read_route(*row) for row in rows]

    async def release(self, key: str, why: str = "") -> Route | None:
        return await self._close_route(key, why or "released", None)

    async def move(self, key: str, index: int, why: str = "") -> Route | None:
        return await self._close_route(key, why or f"moved to {index}", index)

    async def worker_indexes(self) -> list[WorkerIndex]:
        return [
            WorkerIndex(
                index=index, worker=name, alive=bool(alive), retiring=bool(retiring), routes=routes
            )
            for index, name, alive, retiring, routes in await self._rows("worker_indexes")
        ]

    @abstractmethod
    async def _close_route(self, key: str, why: str, target: int | None) -> Route | None:
        """Mark the key's route for release and release what can be. Return its last route."""

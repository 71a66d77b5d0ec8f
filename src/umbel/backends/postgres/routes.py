"""Routes on PostgreSQL."""

from __future__ import annotations

from umbel.backends.postgres.arrays import without_nul
from umbel.backends.routes import MAX_RELEASED_ROUTES, Route, read_route
from umbel.backends.sql.routes import SqlRoutes


class PostgresRoutes(SqlRoutes):
    """See ``umbel.backends.routes.Routes`` for what each method promises.

    Each change is one statement, so a client that stops in between cannot hold the gates' lock.
    """

    async def retire(self, index: int, retiring: bool = True) -> int:
        rows = await self._rows("retire", idx=index, retiring=retiring)
        return int(rows[0][0])

    async def sweep(self, idle: float | None = None) -> list[Route]:
        if not (await self._rows("any"))[0][0]:
            return []
        released = [read_route(*row) for row in await self._rows("sweep", idle=idle)]
        if released:
            await self._rows("forget", keep=MAX_RELEASED_ROUTES)
        return released

    async def _close_route(self, key: str, why: str, target: int | None) -> Route | None:
        rows = await self._rows("close", key=without_nul(key), why=without_nul(why), target=target)
        return read_route(*rows[0]) if rows else None

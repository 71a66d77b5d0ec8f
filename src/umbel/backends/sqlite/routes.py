"""Routes on SQLite."""

from __future__ import annotations

import sqlite3

from umbel.backends.queries import load
from umbel.backends.routes import MAX_RELEASED_ROUTES, Route, read_route
from umbel.backends.sql.routes import SqlRoutes
from umbel.backends.sqlite import route_rows
from umbel.backends.sqlite.database import Database
from umbel.backends.sqlite.transactions import write_transaction

SQL = load("umbel.backends.sqlite", "routes.sql")


class SqliteRoutes(SqlRoutes):
    """See ``umbel.backends.routes.Routes`` for what each method promises."""

    _database: Database

    async def retire(self, index: int, retiring: bool = True) -> int:
        def write(cursor: sqlite3.Cursor) -> int:
            row = self._values(idx=index, retiring=retiring, why="retired")
            many: int = cursor.execute(SQL["count"], row).fetchone()[0]
            cursor.execute(SQL["retire"], row)
            if retiring:
                cursor.execute(route_rows.SQL["close_all"], row)
                route_rows.settle_routes(cursor, row)
            else:
                cursor.execute(SQL["check_waiting_lists"], row)
            return many

        return await self._database.write(write)

    async def sweep(self, idle: float | None = None) -> list[Route]:
        def write(connection: sqlite3.Connection) -> list[Route]:
            if connection.execute(SQL["any"], self._values()).fetchone() is None:
                return []
            with write_transaction(connection) as cursor:
                released = route_rows.settle_routes(cursor, self._values(), idle)
                cursor.execute(SQL["forget"], self._values(keep=MAX_RELEASED_ROUTES))
                return [read_route(*row) for row in released]

        return await self._database.run(write)

    async def _close_route(self, key: str, why: str, target: int | None) -> Route | None:
        def write(cursor: sqlite3.Cursor) -> Route | None:
            row = self._values(key=key, why=why, target=target)
            if cursor.execute(route_rows.SQL["close"], row).rowcount == 0:
                return None
            route_rows.settle_routes(cursor, row)
            last = {**row, "idx": None, "live": False, "limit": 1}
            return read_route(*cursor.execute(SQL["routes"], last).fetchone())

        return await self._database.write(write)

"""Routes and seats on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from umbel.backends.queries import load
from umbel.backends.routes import HISTORY, Route, Seat, read_route
from umbel.backends.sqlite import route_rows as routing
from umbel.backends.sqlite.database import Database
from umbel.backends.sqlite.savepoints import writing
from umbel.clock import Clock

SQL = load("umbel.backends.sqlite", "routes.sql")

T = TypeVar("T")


class SqliteRoutes:
    """See ``stores.routes.Routes`` for what each method promises."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock

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
        row = {**self._here(), "key": key, "idx": index, "live": live, "limit": limit}
        return await self._database.run(
            lambda connection: [read_route(*one) for one in connection.execute(SQL["routes"], row)]
        )

    async def release(self, key: str, why: str = "") -> Route | None:
        return await self._close(key, why or "released", None)

    async def move(self, key: str, index: int, why: str = "") -> Route | None:
        return await self._close(key, why or f"moved to {index}", index)

    async def _close(self, key: str, why: str, target: int | None) -> Route | None:
        def write(cursor: sqlite3.Cursor) -> Route | None:
            row = {**self._here(), "key": key, "why": why, "target": target}
            if cursor.execute(routing.SQL["close"], row).rowcount == 0:
                return None
            routing.settle_routes(cursor, row)
            last = {**row, "idx": None, "live": False, "limit": 1}
            return read_route(*cursor.execute(SQL["routes"], last).fetchone())

        return await self._write(write)

    async def retire(self, index: int, retiring: bool = True) -> int:
        def write(cursor: sqlite3.Cursor) -> int:
            row = {**self._here(), "idx": index, "retiring": retiring, "why": "retired"}
            many: int = cursor.execute(SQL["count"], row).fetchone()[0]
            cursor.execute(SQL["retire"], row)
            if retiring:
                cursor.execute(routing.SQL["close_all"], row)
                routing.settle_routes(cursor, row)
            else:
                cursor.execute(SQL["look"], row)
            return many

        return await self._write(write)

    async def seats(self) -> list[Seat]:
        def read(connection: sqlite3.Connection) -> list[Seat]:
            rows = connection.execute(SQL["seats"], self._here())
            return [
                Seat(index=index, worker=name, alive=bool(alive), retiring=bool(out), routes=many)
                for index, name, alive, out, many in rows
            ]

        return await self._database.run(read)

    async def sweep(self, idle: float | None = None) -> list[Route]:
        def write(connection: sqlite3.Connection) -> list[Route]:
            if connection.execute(SQL["any"], self._here()).fetchone() is None:
                return []
            with writing(connection) as cursor:
                released = routing.settle_routes(cursor, self._here(), idle)
                cursor.execute(SQL["forget"], {**self._here(), "keep": HISTORY})
                return [read_route(*one) for one in released]

        return await self._database.run(write)

    async def close(self) -> None:
        await self._database.close()

    async def _write(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        def write(connection: sqlite3.Connection) -> T:
            with writing(connection) as cursor:
                return work(cursor)

        return await self._database.run(write, writes=True)

    def _here(self) -> dict[str, Any]:
        return {"namespace": self._namespace, "now": self._clock.now()}

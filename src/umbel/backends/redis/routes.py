"""Routes and worker indexes on Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from umbel.backends.redis.database import Database
from umbel.backends.redis.scripts import pack, root_of, scripts
from umbel.backends.redis.values import integer, optional_float, text
from umbel.backends.routes import MAX_RELEASED_ROUTES, Route, WorkerIndex
from umbel.clock import Clock

LUA = scripts("routes.lua", "route_rows.lua")


class RedisRoutes:
    """See ``umbel.backends.routes.Routes`` for what each method guarantees."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._root = root_of(namespace)

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
        found: list[Route] = []
        before: int | None = None
        while len(found) < limit and before != 0:  # in portions: the history may be long
            remaining = limit - len(found)
            before, *rows = await self._run("routes", key, index, live, before, remaining)
            found += [_route(row) for row in rows]
        return found

    async def release(self, key: str, why: str = "") -> Route | None:
        return await self._close(key, why or "released", None)

    async def move(self, key: str, index: int, why: str = "") -> Route | None:
        return await self._close(key, why or f"moved to {index}", index)

    async def _close(self, key: str, why: str, target: int | None) -> Route | None:
        number: int | None = None
        while True:  # in portions: many jobs may wait there
            answer = await self._run("close", key, number, why, target)
            if not answer:
                return None
            more, row = answer
            route = _route(row)
            if not more:
                return route
            number = route.number

    async def retire(self, index: int, retiring: bool = True) -> int:
        count: int = await self._run("retire", index, retiring)
        after = 0
        while retiring and count:
            after = await self._run("close_all", index, "retired", after)
            if not after:
                break
        return count

    async def worker_indexes(self) -> list[WorkerIndex]:
        rows = await self._run("worker_indexes")
        return [
            WorkerIndex(
                index=integer(index),
                worker=text(name),
                alive=bool(alive),
                retiring=bool(is_retiring),
                routes=count,
            )
            for index, name, alive, is_retiring, count in rows
        ]

    async def sweep(self, idle: float | None = None) -> list[Route]:
        released: list[Route] = []
        more, after = 1, 0
        while more:
            more, after, *rows = await self._run("sweep", idle, MAX_RELEASED_ROUTES, after)
            released += [_route(row) for row in rows]
        return released

    async def close(self) -> None:
        await self._database.close()

    async def _run(self, name: str, *values: Any) -> Any:
        return await self._database.run(LUA[name], self._root, pack(*values))


def _route(row: Sequence[Any]) -> Route:
    number, held, key, index, made, released, why, closing, among = row
    ended = optional_float(released)
    return Route(
        number=integer(number),
        key=text(key),
        index=integer(index),
        made=optional_float(made) or 0.0,
        released=ended,
        why=text(why),
        held=held,
        closing=bool(integer(closing)) and ended is None,
        among=_read_candidates(among),
    )


def _read_candidates(value: bytes | None) -> tuple[tuple[int, int], ...]:
    """Return the candidates of a route; none if they cannot be read, because people edit values."""
    try:
        return msgspec.json.decode(value or b"[]", type=tuple[tuple[int, int], ...])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ()

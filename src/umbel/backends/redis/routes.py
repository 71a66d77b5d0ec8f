"""Routes and seats on Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from umbel.backends.redis.database import Database
from umbel.backends.redis.scripts import pack, root_of, scripts
from umbel.backends.redis.values import moment, text, whole
from umbel.backends.routes import HISTORY, Route, Seat
from umbel.clock import Clock

LUA = scripts("routes.lua", "ways.lua")


class RedisRoutes:
    """See ``stores.routes.Routes`` for what each method promises."""

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
        while len(found) < limit and before != 0:  # in portions: the history is long
            left = limit - len(found)
            before, *rows = await self._run("routes", key, index, live, before, left)
            found += [_route(row) for row in rows]
        return found

    async def release(self, key: str, why: str = "") -> Route | None:
        return await self._close(key, why or "released", None)

    async def move(self, key: str, index: int, why: str = "") -> Route | None:
        return await self._close(key, why or f"moved to {index}", index)

    async def _close(self, key: str, why: str, target: int | None) -> Route | None:
        number: int | None = None
        while True:  # in portions: many may wait there
            answer = await self._run("close", key, number, why, target)
            if not answer:
                return None
            more, row = answer
            route = _route(row)
            if not more:
                return route
            number = route.number

    async def retire(self, index: int, retiring: bool = True) -> int:
        many: int = await self._run("retire", index, retiring)
        after = 0
        while retiring and many:
            after = await self._run("close_all", index, "retired", after)
            if not after:
                break
        return many

    async def seats(self) -> list[Seat]:
        rows = await self._run("seats")
        return [
            Seat(
                index=whole(index),
                worker=text(name),
                alive=bool(alive),
                retiring=bool(out),
                routes=many,
            )
            for index, name, alive, out, many in rows
        ]

    async def sweep(self, idle: float | None = None) -> list[Route]:
        released: list[Route] = []
        more, after = 1, 0
        while more:
            more, after, *rows = await self._run("sweep", idle, HISTORY, after)
            released += [_route(row) for row in rows]
        return released

    async def close(self) -> None:
        await self._database.close()

    async def _run(self, name: str, *values: Any) -> Any:
        return await self._database.run(LUA[name], self._root, pack(*values))


def _route(row: Sequence[Any]) -> Route:
    number, held, key, index, made, released, why, closing, among = row
    ended = moment(released)
    return Route(
        number=whole(number),
        key=text(key),
        index=whole(index),
        made=moment(made) or 0.0,
        released=ended,
        why=text(why),
        held=held,
        closing=bool(whole(closing)) and ended is None,
        among=_among(among),
    )


def _among(written: bytes | None) -> tuple[tuple[int, int], ...]:
    """People edit values by hand: what cannot be read is nothing."""
    try:
        return msgspec.json.decode(written or b"[]", type=tuple[tuple[int, int], ...])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ()

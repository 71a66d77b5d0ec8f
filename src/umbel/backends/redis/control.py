"""Cancellations and burials on Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from umbel.backends.redis.database import Database
from umbel.backends.redis.scripts import pack, root_of, scripts
from umbel.backends.redis.values import text
from umbel.clock import Clock
from umbel.messages import State

LUA = scripts("control.lua")

_STATES = {state.value: state for state in State}


class RedisControl:
    """See ``umbel.backends.control.Control`` for what each method guarantees."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._root = root_of(namespace)

    async def cancel(self, jobs: Sequence[str], reason: str) -> dict[str, State]:
        found = await self._run("cancel", reason, [*jobs])
        pairs = zip(found[::2], found[1::2], strict=True)
        return {text(j): _STATES[text(s)] for j, s in pairs if text(s) in _STATES}

    async def bury(self, jobs: Sequence[str], reason: str) -> list[str]:
        return [text(job) for job in await self._run("bury", reason, [*jobs])]

    async def cancellations(self, jobs: Sequence[str]) -> dict[str, str]:
        found = await self._run("cancellations", *jobs)
        return {text(j): text(why) for j, why in zip(found[::2], found[1::2], strict=True)}

    async def close(self) -> None:
        await self._database.close()

    async def _run(self, name: str, *values: Any) -> Any:
        return await self._database.run(LUA[name], self._root, pack(*values))

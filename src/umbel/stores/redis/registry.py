"""The worker registry on Redis."""

from __future__ import annotations

from typing import Any

import msgspec

from umbel.clock import Clock
from umbel.drivers.redis import Database, moment, octets, pack, root_of, scripts, text, whole
from umbel.stores.registry import Member, WorkerEntry, read_members

LUA = scripts("umbel.stores.redis", "registry.lua")


class RedisRegistry:
    """See ``stores.registry.Registry`` for what each method promises."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._root = root_of(namespace)
        self._clock = clock

    async def enlist(self, worker: WorkerEntry) -> None:
        entry = octets(msgspec.json.encode(worker))
        await self._run("enlist", worker.incarnation, entry, worker.name, self._clock.now())

    async def beat(self, incarnation: str, *, running: int, epoch: int, stopping: bool) -> bool:
        now = self._clock.now()
        return bool(await self._run("beat", incarnation, running, epoch, int(stopping), now))

    async def members(self) -> list[Member]:
        now = self._clock.now()
        found = await self._run("members")
        rows = [
            (
                text(entry),
                whole(beat),
                now - (moment(started) or 0.0),
                now - (moment(beaten) or 0.0),
                whole(running),
                whole(epoch),
                whole(stopping),
            )
            for entry, beat, started, beaten, running, epoch, stopping, _ in found
        ]
        return sorted(read_members(rows), key=lambda one: (one.entry.name, -one.age))

    async def remove(self, incarnation: str, beat: int) -> bool:
        return bool(await self._run("remove_member", incarnation, beat))

    async def leave(self, incarnation: str) -> None:
        await self._run("leave", incarnation)

    async def close(self) -> None:
        await self._database.close()

    async def _run(self, name: str, *values: Any) -> Any:
        return await self._database.run(LUA[name], self._root, pack(*values))

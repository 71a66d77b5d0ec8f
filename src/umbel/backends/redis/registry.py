"""The worker registry on Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from umbel.backends.redis.database import Database
from umbel.backends.redis.scripts import octets, pack, root_of, scripts
from umbel.backends.redis.values import moment, text, whole
from umbel.backends.registry import HEARD_LONGER, Hearing, Member, WorkerEntry, read_members
from umbel.clock import Clock
from umbel.errors import IndexTaken

LUA = scripts("registry.lua")


_UNTIDY = -2


class RedisRegistry:
    """See ``stores.registry.Registry`` for what each method promises."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._root = root_of(namespace)

    async def enlist(self, worker: WorkerEntry) -> int:
        index, taken = _UNTIDY, []
        while index == _UNTIDY:  # another worker's routes are released first, a portion a call
            index, *taken = await self._run(
                "enlist",
                worker.incarnation,
                octets(msgspec.json.encode(worker)),
                worker.name,
                worker.lease,
                worker.index,
                _abilities(worker),
                [*worker.former],
            )
        if taken:
            raise IndexTaken(worker.index or 0, text(taken[0]))
        return whole(index)

    async def beat(self, incarnation: str, *, running: int, epoch: int, stopping: bool) -> bool:
        return bool(await self._run("beat", incarnation, running, epoch, int(stopping)))

    async def members(self) -> list[Member]:
        now, *rows = await self._run("members")
        members = [one for row in rows for one in _member(row, moment(now) or 0.0)]
        return sorted(members, key=lambda one: (one.entry.name, -one.age))

    async def remove(self, incarnation: str, beat: int) -> bool:
        return bool(await self._run("remove_member", incarnation, beat))

    async def leave(self, incarnation: str) -> None:
        await self._run("leave", incarnation)

    async def witness(self, messages: Mapping[str, float]) -> dict[str, Hearing]:
        heard = [part for job, until in messages.items() for part in (job, float(until))]
        found = await self._run("hear", int(HEARD_LONGER), *heard)
        return {job: Hearing(text(word)) for job, word in zip(messages, found, strict=True)}

    async def close(self) -> None:
        await self._database.close()

    async def _run(self, name: str, *values: Any) -> Any:
        return await self._database.run(LUA[name], self._root, pack(*values))


def _abilities(worker: WorkerEntry) -> list[str | int]:
    """Fields of a worker by which somebody who looks for one need not read all of its entry."""
    serves = [f"serves:{queue}" for queue in worker.queues]
    knows = [f"knows:{task}" for task in worker.tasks]
    return [part for name in (*serves, *knows) for part in (name, 1)]


def _member(row: Sequence[Any], now: float) -> list[Member]:
    """A member with its seat; none when no worker wrote it."""
    entry, beat, started, beaten, running, epoch, stopping, index = row
    times = (now - (moment(started) or 0.0), now - (moment(beaten) or 0.0))
    read = (text(entry), whole(beat), *times, whole(running), whole(epoch), whole(stopping))
    return [
        one if index is None else replace(one, entry=replace(one.entry, index=whole(index)))
        for one in read_members([read])
    ]

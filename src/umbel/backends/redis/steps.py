"""Steps on Redis: a hash beside each job that has some."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from umbel.backends.redis.database import Database
from umbel.backends.redis.scripts import octets, pack, root_of, scripts
from umbel.backends.redis.values import whole
from umbel.clock import Clock
from umbel.messages import Body, Kept, Step

LUA = scripts("steps.lua")

_Row = tuple[str, str, bytes, float, float]
_read = msgspec.msgpack.Decoder(_Row).decode
_write = msgspec.msgpack.Encoder().encode


class RedisSteps:
    """See ``stores.steps.Steps`` for what each method promises."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._root = root_of(namespace)

    async def keep(self, done: Sequence[Kept]) -> list[Kept]:
        if not done:
            return []
        values = [part for one in done for part in _parts(one)]
        refused = await self._database.run(LUA["keep"], self._root, pack(*values))
        return [done[place] for place in refused]

    async def steps(self, job: str) -> list[Step]:
        key = f"{self._root}:steps:{job}".encode(errors="replace")
        found = await self._database.ask("HGETALL", key)
        # A list of pairs, or a mapping: it depends on the protocol that was agreed upon.
        flat = (
            found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        )
        steps = [_step(whole(number), row) for number, row in flat]
        return sorted((one for one in steps if one is not None), key=lambda one: one.number)

    async def close(self) -> None:
        await self._database.close()


def _parts(kept: Kept) -> tuple[object, ...]:
    lease, step = kept.lease, kept.step
    row: _Row = (
        *(step.name, step.result.content_type, step.result.data),
        *(step.started, step.finished),
    )
    return lease.job, lease.owner, lease.fence, step.number, octets(_write(row))


def _step(number: int, row: bytes) -> Step | None:
    """People edit values by hand: what cannot be read is none, and is done again."""
    try:
        name, kind, data, started, finished = _read(row)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return Step(
        number=number, name=name, result=Body(kind, data), started=started, finished=finished
    )

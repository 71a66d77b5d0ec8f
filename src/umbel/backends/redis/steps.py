"""Steps on Redis: a hash for each job that has steps."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from umbel.backends.redis.database import Database
from umbel.backends.redis.scripts import pack, pack_bytes, root_of, scripts
from umbel.backends.redis.values import integer
from umbel.clock import Clock
from umbel.messages import Body, KeptStep, Step

LUA = scripts("steps.lua")

_Row = tuple[str, str, bytes, float, float]
_read = msgspec.msgpack.Decoder(_Row).decode
_write = msgspec.msgpack.Encoder().encode


class RedisSteps:
    """See ``umbel.backends.steps.Steps`` for what each method guarantees."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._root = root_of(namespace)

    async def keep(self, done: Sequence[KeptStep]) -> list[KeptStep]:
        if not done:
            return []
        values = [part for one in done for part in _parts(one)]
        refused = await self._database.run(LUA["keep"], self._root, pack(*values))
        return [done[place] for place in refused]

    async def steps(self, job: str) -> list[Step]:
        key = f"{self._root}:steps:{job}".encode(errors="replace")
        found = await self._database.execute("HGETALL", key)
        # A flat list or a mapping, depending on the protocol of the connection.
        flat = (
            found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        )
        steps = [_step(integer(number), row) for number, row in flat]
        return sorted((one for one in steps if one is not None), key=lambda one: one.number)

    async def close(self) -> None:
        await self._database.close()


def _parts(kept: KeptStep) -> tuple[object, ...]:
    lease, step = kept.lease, kept.step
    row: _Row = (
        *(step.name, step.result.content_type, step.result.data),
        *(step.started, step.finished),
    )
    return lease.job, lease.owner, lease.fence, step.number, pack_bytes(_write(row))


def _step(number: int, row: bytes) -> Step | None:
    """Return a step; None if it cannot be read, so that it is repeated: people edit values."""
    try:
        name, kind, data, started, finished = _read(row)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return Step(
        number=number, name=name, result=Body(kind, data), started=started, finished=finished
    )

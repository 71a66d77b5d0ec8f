"""Pauses and cancellations on Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from umbel.backends.control import MISSING, NO_WORKER, ControlState, Pause, Scope
from umbel.backends.deployments import DEPLOY
from umbel.backends.redis.database import Database
from umbel.backends.redis.scripts import pack, root_of, scripts
from umbel.backends.redis.values import integer, text
from umbel.clock import Clock
from umbel.messages import State

LUA = scripts("control.lua")

_STATES = {state.value: state for state in State}
_PAUSE_HOLDERS = ("", DEPLOY, MISSING)


class RedisControl:
    """See ``umbel.backends.control.Control`` for what each method guarantees."""

    def __init__(
        self, database: Database, *, namespace: str, clock: Clock, safety_poll: float = 5.0
    ) -> None:
        self._database = database
        self._root = root_of(namespace)
        self._clock = clock
        self._safety_poll = safety_poll

    async def state(self) -> ControlState:
        epoch, now, *lists = await self._run("state")
        pauses = [
            _pause(text(name), value, holder, float(now))
            for holder, rows in zip(_PAUSE_HOLDERS, lists, strict=True)
            for name, value in zip(rows[::2], rows[1::2], strict=True)
        ]
        known = [pause for pause in pauses if pause is not None]
        known.sort(key=lambda pause: (pause.scope, pause.name, pause.holder))
        return ControlState(integer(epoch), tuple(known))

    async def pause(self, scope: Scope, name: str, reason: str) -> int:
        epoch: int = await self._run("pause", f"{scope}:{name}", reason)
        return epoch

    async def resume(self, scope: Scope, name: str) -> int:
        epoch: int = await self._run("resume", f"{scope}:{name}")
        return epoch

    async def change_missing(self, missing: Sequence[str], found: Sequence[str]) -> None:
        await self._run("change_missing", [*missing], [*found], NO_WORKER)

    async def cancel(self, jobs: Sequence[str], reason: str) -> dict[str, State]:
        found = await self._run("cancel", reason, [*jobs])
        pairs = zip(found[::2], found[1::2], strict=True)
        return {text(j): _STATES[text(s)] for j, s in pairs if text(s) in _STATES}

    async def bury(self, jobs: Sequence[str], reason: str) -> list[str]:
        return [text(job) for job in await self._run("bury", reason, [*jobs])]

    async def cancellations(self, jobs: Sequence[str]) -> dict[str, str]:
        found = await self._run("cancellations", *jobs)
        return {text(j): text(why) for j, why in zip(found[::2], found[1::2], strict=True)}

    async def wait_for_change(self, since: int, wait: float) -> bool:
        until = self._clock.monotonic() + wait
        listener = self._database.listener(self._root)
        with listener.notifier.listen([f"c:{self._root}"]) as wake_up:
            while True:
                wake_up.clear()
                if integer(await self._database.execute("GET", f"{self._root}:epoch")) != since:
                    return True
                left = until - self._clock.monotonic()
                if left <= 0:
                    return False
                is_subscribed = listener.is_subscribed(self._root)
                await wake_up.wait(min(left, self._safety_poll if is_subscribed else 1.0))

    async def close(self) -> None:
        await self._database.close()

    async def _run(self, name: str, *values: Any) -> Any:
        return await self._database.run(LUA[name], self._root, pack(*values))


class _PauseInfo(msgspec.Struct):
    """The stored value of a pause."""

    since: float = 0.0
    reason: str = ""


def _pause(name: str, value: bytes, holder: str, now: float) -> Pause | None:
    """Return a pause, even if its value cannot be read; None if its scope is unknown."""
    scope, _, rest = name.partition(":")
    known: dict[str, Scope] = {one: one for one in get_args(Scope)}
    if scope not in known:
        return None
    try:
        info = msgspec.json.decode(value, type=_PauseInfo)
    except (ValueError, RecursionError):
        info = _PauseInfo(reason="cannot be read")
    return Pause(
        scope=known[scope],
        name=rest,
        since=info.since,
        reason=info.reason,
        holder=holder,
        age=now - info.since,
    )

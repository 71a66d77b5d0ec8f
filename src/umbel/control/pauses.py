"""Pauses: what must not start.

A pause is the entry ``pauses/<scope>/<holder>/<name>``. Claims read these entries in their own
step, so a pause applies to every fetch that starts after it was written. The revision of the
entries is the epoch that workers confirm. A pause under a lease ends when the lease lapses.

The pause of a worker is enforced by that worker: it fetches nothing once it has confirmed the
epoch, and it reads the pauses before its first fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import msgspec

from umbel.backends import PAUSES, Coordination, Entry, Put, json_value
from umbel.backends.coordination import MAX_ENTRIES, check_key
from umbel.errors import ConfigurationError

Scope = Literal["all", "queue", "task", "gate", "worker"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
NO_WORKER = "no running worker has the task"
MISSING = "missing"
"""The holder of pauses of tasks that no running worker has."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """What must not start: all jobs, or those of a queue, a task, a gate or a worker."""

    scope: Scope
    name: str = ""
    since: float = 0.0
    reason: str = ""
    holder: str = ""
    """Empty for operators; else the holder ``DEPLOY`` or ``MISSING``. The pauses of each holder are
    independent of the others."""
    age: float = 0.0
    """Seconds since ``since``, by the store's clock."""


class PauseState(msgspec.Struct, frozen=True):
    """What is paused, and the epoch, which grows with every change."""

    epoch: int
    pauses: tuple[Pause, ...]


class Resumed(msgspec.Struct, frozen=True):
    """What ``resume`` did."""

    epoch: int
    """An epoch from which on the pause does not apply."""
    existed: bool
    """Whether there was a pause to remove."""


class _PauseValue(msgspec.Struct):
    """The value of an entry."""

    since: float = 0.0
    reason: str = ""


def pause_key(scope: Scope, name: str, holder: str = "") -> str:
    """Return the key of a pause."""
    return f"{PAUSES}{scope}/{holder}/{name}"


def pause_value(now: float, reason: str) -> bytes:
    """Return the value of a pause that begins now."""
    return json_value(_PauseValue(now, reason))


class Pauses:
    """Reads and changes pauses."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def state(self) -> PauseState:
        """Return what is paused now."""
        page = await self._coordination.read(PAUSES)
        # The epoch of the first page: a pause that is added while others are read changes it.
        epoch, pauses = page.revision, _read_pauses(page.entries, page.now)
        while page.more:
            page = await self._coordination.read(PAUSES, after=page.entries[-1].key)
            pauses += _read_pauses(page.entries, page.now)
        return PauseState(epoch, tuple(sorted(pauses, key=_order)))

    async def pause(self, scope: Scope, name: str, reason: str) -> int:
        """Add an operator's pause; return an epoch from which on it applies.

        The first reason stays.
        """
        key = pause_key(scope, name)
        while True:
            page = await self._coordination.read(key)
            if any(entry.key == key for entry in page.entries):
                return page.revision
            put = Put(key, pause_value(page.now, reason))
            revision = await self._coordination.commit({key: 0}, [put])
            if revision is not None:
                return revision

    async def resume(self, scope: Scope, name: str) -> Resumed:
        """Remove an operator's pause; return the epoch, and whether there was such a pause."""
        key = pause_key(scope, name)
        page = await self._coordination.read(key)
        if not any(entry.key == key for entry in page.entries):
            return Resumed(page.revision, existed=False)
        revision = await self._coordination.commit({}, deletes=[key])
        assert revision is not None  # it has no checks
        return Resumed(revision, existed=True)

    async def change_missing(self, missing: Sequence[str], found: Sequence[str]) -> None:
        """Pause the tasks ``missing`` with the holder ``MISSING``, and resume the tasks ``found``.

        If a task is in both, its pause begins again now. A name that no entry can have, such as one
        with a NUL, is left out: it must not keep other tasks from being paused. Safe to repeat.
        """
        tasks = [task for task in dict.fromkeys([*missing, *found]) if _can_be_paused(task)]
        for first in range(0, len(tasks), MAX_ENTRIES):
            portion = {*tasks[first : first + MAX_ENTRIES]}
            await self._change_portion(portion & {*missing}, portion & {*found})

    async def _change_portion(self, missing: set[str], found: set[str]) -> None:
        while True:
            page = await self._coordination.read(pause_key("task", "", MISSING), limit=1)
            value = pause_value(page.now, NO_WORKER)
            new, again = missing - found, missing & found
            existing = {pause.name for pause in (await self.state()).pauses if _is_missing(pause)}
            puts = {pause_key("task", task, MISSING): value for task in (new - existing) | again}
            checks = {pause_key("task", task, MISSING): 0 for task in new - existing}
            deletes = [pause_key("task", task, MISSING) for task in found - missing]
            if not puts and not deletes:
                return
            entries = [Put(key, value) for key in puts]
            if await self._coordination.commit(checks, entries, deletes) is not None:
                return


def _can_be_paused(task: str) -> bool:
    try:
        check_key(pause_key("task", task, MISSING))
    except ConfigurationError:
        return False
    return True


def _is_missing(pause: Pause) -> bool:
    return pause.holder == MISSING


def _read_pauses(entries: Iterable[Entry], now: float) -> list[Pause]:
    return [pause for entry in entries if (pause := _read_pause(entry, now)) is not None]


def _read_pause(entry: Entry, now: float) -> Pause | None:
    """Return a pause, even if its value cannot be read; None if its scope is unknown."""
    scope, _, rest = entry.key.removeprefix(PAUSES).partition("/")
    holder, _, name = rest.partition("/")
    known = next((one for one in SCOPES if one == scope), None)
    if known is None:
        return None
    try:
        value = msgspec.json.decode(entry.value, type=_PauseValue)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        value = _PauseValue()
    age = max(0.0, now - value.since)
    return Pause(
        scope=known, name=name, since=value.since, reason=value.reason, holder=holder, age=age
    )


def _order(pause: Pause) -> tuple[str, str, str]:
    return pause.scope, pause.name, pause.holder

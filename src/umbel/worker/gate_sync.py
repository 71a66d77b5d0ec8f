"""Tells the store what this worker's gates go by, and looks after members that were set aside."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import anyio

from umbel.messages import Rule
from umbel.tasks import Pool, Registry
from umbel.telemetry import Telemetry, events
from umbel.worker.intake import Intake

_EVERY = 3.0
"""Seconds between looks at limits that are computed and at members in quarantine."""
_PATIENCE = 30.0
"""Seconds that a check may take before another worker makes it as well."""


class GateSync:
    """Declares gates when the worker starts and whenever a computed limit has changed."""

    name = "gatekeeper"

    def __init__(self, intake: Intake, registry: Registry, telemetry: Telemetry) -> None:
        self._intake = intake
        self._registry = registry
        self._telemetry = telemetry
        self._declared: list[Rule] = []

    async def declare(self) -> None:
        """Say what holds from now on."""
        rules, pools = self._registry.rules(), self._registry.pools()
        tasks = [task.name for task in self._registry]
        members = {pool.name: pool.members for pool in pools.values()}
        await self._intake.declare(rules, tasks, members)
        self._declared = rules

    async def run(self, working: Callable[[], None]) -> None:
        """Look now and then, if there is anything that changes by itself."""
        pools = [pool for pool in self._registry.pools().values() if pool.check is not None]
        if not pools and not self._registry.computed():
            await anyio.sleep_forever()
        while True:
            await anyio.sleep(_EVERY)
            rules = await asyncio.to_thread(self._registry.rules)
            changed = [rule for rule in rules if rule not in self._declared]
            if changed:
                await self._intake.declare(changed, [], {})
                self._declared = rules
            for pool in pools:
                await self._check(pool)
            working()

    async def _check(self, pool: Pool) -> None:
        for member in await self._intake.suspects(pool.name, _PATIENCE):
            if await passes(pool, member.name):
                await self._intake.restore(pool.name, member.name)
                self._telemetry.emit(events.MemberRestored(pool=pool.name, member=member.name))
            else:
                await self._intake.suspect(pool.name, member.name, member.failures)


async def passes(pool: Pool, member: str) -> bool:
    """Whether a member is well, asked from an event loop. A check that raises says no."""
    assert pool.check is not None
    try:
        if inspect.iscoroutinefunction(pool.check):
            return bool(await pool.check(member))
        found = await asyncio.to_thread(pool.check, member)
        return bool(await found if inspect.isawaitable(found) else found)
    except Exception:  # noqa: BLE001 - a function of the user's
        return False


def passes_here(pool: Pool, member: str) -> bool:
    """The same in a thread of its own."""
    assert pool.check is not None
    try:
        found = pool.check(member)
        return bool(asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found)
    except Exception:  # noqa: BLE001
        return False


async def _awaited(found: Any) -> Any:
    return await found

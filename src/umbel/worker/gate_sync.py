"""Keeps the gates in the store in step with this worker's declarations, and checks pool members."""

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

_SYNC_INTERVAL = 3.0
"""Seconds between evaluations of computed limits, and between checks of failed members."""
_CHECK_TIMEOUT = 30.0
"""Seconds that a check may take before another worker makes it, too."""


class GateSync:
    """Declares gates when the worker starts and when a computed limit has changed."""

    name = "gate sync"

    def __init__(self, intake: Intake, registry: Registry, telemetry: Telemetry) -> None:
        self._intake = intake
        self._registry = registry
        self._telemetry = telemetry
        self._declared: list[Rule] = []

    async def declare(self) -> None:
        """Declare all gates and pool members of this worker's tasks."""
        rules, pools = self._registry.rules(), self._registry.pools()
        if ignored := self._registry.ignored_limits():
            self._telemetry.emit(events.LimitIgnored(owners=tuple(ignored)))
        tasks = [task.name for task in self._registry]
        members = {pool.name: pool.members for pool in pools.values()}
        await self._intake.declare(rules, tasks, members)
        self._declared = rules

    async def run(self, working: Callable[[], None]) -> None:
        """Declare changed limits and check failed members, if there are any of either kind."""
        pools = [pool for pool in self._registry.pools().values() if pool.check is not None]
        if not pools and not self._registry.has_computed_limits():
            await anyio.sleep_forever()
        while True:
            await anyio.sleep(_SYNC_INTERVAL)
            rules = await asyncio.to_thread(self._registry.rules)
            changed = [rule for rule in rules if rule not in self._declared]
            if changed:
                await self._intake.declare(changed, [], {})
                self._declared = rules
            for pool in pools:
                await self._check_failed_members(pool)
            working()

    async def _check_failed_members(self, pool: Pool) -> None:
        for member in await self._intake.roles.gates.claim_due_checks(pool.name, _CHECK_TIMEOUT):
            if await check_member(pool, member.name):
                await self._intake.report_passed_check(pool.name, member.name)
                self._telemetry.emit(events.PoolMemberRestored(pool=pool.name, member=member.name))
            else:
                await self._intake.report_failed_check(pool.name, member.name, member.failures)


async def check_member(pool: Pool, member: str) -> bool:
    """Return whether a member passes its check, in an event loop. A check that raises fails."""
    assert pool.check is not None
    try:
        if inspect.iscoroutinefunction(pool.check):
            return bool(await pool.check(member))
        found = await asyncio.to_thread(pool.check, member)
        return bool(await found if inspect.isawaitable(found) else found)
    except Exception:  # noqa: BLE001 - the check is user code
        return False


def check_member_blocking(pool: Pool, member: str) -> bool:
    """``check_member`` in a thread."""
    assert pool.check is not None
    try:
        found = pool.check(member)
        return bool(asyncio.run(_await(found)) if inspect.isawaitable(found) else found)
    except Exception:  # noqa: BLE001
        return False


async def _await(found: Any) -> Any:
    return await found

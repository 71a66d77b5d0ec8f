"""The router in the worker's own process. It implements the worker's Intake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from umbel.backends import (
    Demand,
    JobFilter,
    Roles,
    WorkerEntry,
)
from umbel.clock import Clock
from umbel.control import LimitOverrides, Pauses
from umbel.errors import Unavailable
from umbel.messages import (
    POOL_PREFIX,
    TERMINAL,
    Attempt,
    Cancelled,
    Delivery,
    Lease,
    Parked,
    Rule,
    Settlement,
    is_final,
    rule_of,
)
from umbel.resilience import Backoff
from umbel.router.duplicate_filter import DuplicateFilter
from umbel.router.missing_tasks import pause_missing
from umbel.router.ordering import Load, Ordering, Strategy
from umbel.telemetry import Telemetry, events

_ANY_AGE = -1e9
"""Every job is older than this, even if the clock of the store has jumped."""
RECHECK = Backoff(first=1.0, factor=2.0, cap=300.0)
"""Delays before a pool member that failed its check is checked again."""
_RECENT_JOBS = JobFilter(states=tuple(TERMINAL), limit=500)
_MAX_ORDERED_WAIT = 1.0
"""Maximum seconds of a fetch with a strategy: the next fetch may use another order."""


class Router:
    """Fetches jobs that may run now, and settles their outcomes."""

    def __init__(
        self,
        roles: Roles,
        *,
        queues: Sequence[str],
        duplicates: DuplicateFilter,
        clock: Clock,
        telemetry: Telemetry,
        order: Strategy | None = None,
    ) -> None:
        self.roles = roles
        self._ordering = Ordering(queues, order) if order is not None else None
        self._budget = Demand()
        self._queues = tuple(queues)
        self._receiver = duplicates
        self._clock = clock
        self._telemetry = telemetry

    async def fetch(
        self, owner: str, demand: Demand, wait: float, own: Sequence[str] = ()
    ) -> list[Delivery]:
        """Return jobs that may start now; wait up to ``wait`` seconds for the first."""
        found = await self._admit(await self._claim(owner, demand, wait, own))
        if self._ordering is not None:
            self._ordering.record_started(found)
        return found

    async def pause_worker(self, incarnation: str, reason: str) -> None:
        """Pause the worker of this incarnation, as an operator would."""
        for worker in await self.roles.registry.workers():
            if worker.entry.incarnation == incarnation:
                pauses = Pauses(self.roles.coordination)
                await pauses.pause("worker", worker.entry.name, reason)

    def stop_waiting(self) -> None:
        """Make a waiting fetch return."""
        self.roles.broker.stop_waiting()

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        """Record outcomes and acknowledge; return the refused leases."""
        for settlement in settlements:
            if isinstance(settlement.outcome, Parked):
                await self._quarantine(settlement.outcome.unfit)
        refused = await self._record(settlements)
        if self._ordering is not None:
            self._ordering.record_ended(settlements)
        lost = {(lease.job, lease.fence) for lease in refused}
        for settlement in settlements:
            lease = settlement.lease
            if (lease.job, lease.fence) not in lost and is_final(settlement.outcome):
                self._receiver.remember(lease)
        if any(settlement.group for settlement in settlements):
            with suppress(Unavailable):  # upkeep does what is left
                while await self.roles.joins.advance():
                    pass
        return refused

    async def declare(
        self,
        rules: Sequence[Rule],
        tasks: Sequence[str],
        members: Mapping[str, Mapping[str, dict[str, Any]]],
    ) -> None:
        """Set the rules of gates, and remove the rules that these tasks no longer have."""
        gates, names = self.roles.gates, {rule.name for rule in rules}
        known = {rule_of(gate.key) for gate in await gates.gates(limit=100_000)} if tasks else set()
        lifted = [
            rule
            for rule in known - names
            if rule.partition(":")[2].partition("/")[0] in tasks
            and not rule.startswith(POOL_PREFIX)
        ]
        if rules or lifted:
            await LimitOverrides(self.roles.coordination, gates).declare(rules, lifted)
        for pool, named in members.items():
            await gates.add_members(pool, named, only=True)

    async def _quarantine(self, unfit: Sequence[tuple[str, str]]) -> None:
        """Quarantine members before their jobs wait again and could get the same members."""
        for pool, member in unfit:
            await self.report_failed_check(pool, member, 0)
            self._telemetry.emit(events.PoolMemberFailed(pool=pool, member=member))

    async def report_failed_check(self, pool: str, member: str, failures: int) -> None:
        """Quarantine a member that failed its check, after ``failures`` earlier failures."""
        await self.roles.gates.quarantine(pool, member, RECHECK.delay(failures + 1, member))

    async def report_passed_check(self, pool: str, member: str) -> None:
        """Make a member ready that passed its check."""
        await self.roles.gates.set_condition(pool, [member], "ready")

    async def register(self, worker: WorkerEntry) -> int:
        """Register an incarnation; return the worker's index."""
        index = await self.roles.registry.register(worker)
        if self._ordering is not None and not self._budget:
            self._ordering.learn(await self.roles.records.search(_RECENT_JOBS))
        self._budget = Demand(worker.capacity)
        return index

    async def unregister(self, incarnation: str) -> None:
        """End an incarnation normally, and put back jobs that it was sent but never received."""
        # Of any age: else other workers would find jobs without an owner and count a death.
        await self.roles.broker.extend(incarnation, [], older_than=_ANY_AGE)
        await self.roles.registry.unregister(incarnation)

    async def assign_kinds(self, kinds: Mapping[str, str]) -> int:
        """Set the kind of queued jobs whose sender did not know it."""
        return await self.roles.broker.assign_kinds(self._queues, kinds)

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        """Report which leases are held; return those that are lost."""
        return await self.roles.broker.extend(owner, held, older_than)

    async def has_waiting_jobs(self, kinds: Sequence[str], without: Sequence[str] = ()) -> bool:
        """Return whether a fetch would find a job now that is not of a task in ``without``."""
        return await self.roles.broker.has_waiting_jobs(self._queues, kinds, without)

    async def report_missing_tasks(self, tasks: Sequence[str]) -> list[str]:
        """Pause those of these tasks that no running worker has; return their names."""
        pauses = Pauses(self.roles.coordination)
        return await pause_missing(pauses, self.roles.registry, {*tasks})

    async def close(self) -> None:
        """Close the connections."""
        await self.roles.close()

    async def _claim(
        self, owner: str, demand: Demand, wait: float, own: Sequence[str]
    ) -> list[Delivery]:
        queues: Sequence[str] = self._queues
        if self._ordering is not None:
            queues = self._ordering.order(_load(demand, self._budget))
            wait = min(wait, _MAX_ORDERED_WAIT)
        return await self.roles.broker.fetch([*own, *queues], demand, owner, wait)

    async def _record(self, settlements: Sequence[Settlement]) -> list[Lease]:
        return await self.roles.broker.settle(settlements)

    async def _admit(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Return the deliveries that were not settled here before; discard the others."""
        known = [d for d in deliveries if self._receiver.knows(d.lease)]
        if not known:
            return deliveries
        for delivery in known:
            self._telemetry.emit(
                events.DuplicateDiscarded(
                    job=delivery.id, task=delivery.envelope.subject, attempt=delivery.attempt
                )
            )
        await self.roles.broker.settle([self._discard(d) for d in known])
        return [d for d in deliveries if not self._receiver.knows(d.lease)]

    def _discard(self, delivery: Delivery) -> Settlement:
        now = self._clock.now()
        reason = "a duplicate of a message settled before"
        attempt = Attempt(delivery.attempt, "", now, now, "discarded", reason=reason)
        return Settlement(lease=delivery.lease, outcome=Cancelled(reason), attempt=attempt)


def _load(free: Demand, budget: Demand) -> Load:
    return Load(
        {
            kind: 1 - free.capacity(kind) / total if total else 1.0
            for kind, total in budget.free.items()
        }
    )

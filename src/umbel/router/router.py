"""The router in the worker's own process. It is the worker's Intake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from umbel.backends import (
    ControlState,
    Demand,
    Hearing,
    JobFilter,
    PoolMember,
    ProgressNote,
    Roles,
    WorkerEntry,
)
from umbel.clock import Clock
from umbel.messages import (
    POOL,
    TERMINAL,
    Attempt,
    Cancelled,
    Delivery,
    Kept,
    Lease,
    Parked,
    Rule,
    Settlement,
    Step,
    is_final,
    rule_of,
)
from umbel.resilience import Backoff
from umbel.router.missing import report_missing
from umbel.router.ordering import Load, Ordering, Strategy
from umbel.router.receiver import Receiver
from umbel.telemetry import Telemetry, events

_ANY_AGE = -1e9
RECHECK = Backoff(first=1.0, factor=2.0, cap=300.0)
"""When a pool's member that failed so many checks is checked again."""


_LATELY = JobFilter(states=tuple(TERMINAL), limit=500)
_TURN = 1.0


class Router:
    """Fetches what may run now and settles what came of it."""

    def __init__(
        self,
        backend: Roles,
        *,
        queues: Sequence[str],
        receiver: Receiver,
        clock: Clock,
        telemetry: Telemetry,
        order: Strategy | None = None,
    ) -> None:
        self._backend = backend
        self._ordering = Ordering(queues, order) if order is not None else None
        self._budget = Demand()
        self._queues = tuple(queues)
        self._receiver = receiver
        self._clock = clock
        self._telemetry = telemetry

    async def fetch(
        self, owner: str, demand: Demand, wait: float, own: Sequence[str] = ()
    ) -> list[Delivery]:
        """Deliveries that may start now; waits for them up to ``wait`` seconds."""
        found = await self._admit(await self._claim(owner, demand, wait, own))
        if self._ordering is not None:
            self._ordering.begun(found)
        return found

    async def witness(self, messages: Mapping[str, float]) -> dict[str, Hearing]:
        """Note messages to one worker; was each heard before?"""
        return await self._backend.registry.witness(messages)

    async def hold(self, incarnation: str, reason: str) -> None:
        """Pause the worker whose life this is, as an operator would."""
        for member in await self._backend.registry.members():
            if member.entry.incarnation == incarnation:
                await self._backend.control.pause("worker", member.entry.name, reason)

    def nudge(self) -> None:
        """Make a waiting fetch return."""
        self._backend.broker.nudge()

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        """Record outcomes and acknowledge; returns the refused leases."""
        for settlement in settlements:
            if isinstance(settlement.outcome, Parked):
                await self._set_aside(settlement.outcome.unfit)
        refused = await self._record(settlements)
        if self._ordering is not None:
            self._ordering.ended(settlements)
        lost = {(lease.job, lease.fence) for lease in refused}
        for settlement in settlements:
            lease = settlement.lease
            if (lease.job, lease.fence) not in lost and is_final(settlement.outcome):
                self._receiver.remember(lease)
        return refused

    async def declare(
        self,
        rules: Sequence[Rule],
        tasks: Sequence[str],
        members: Mapping[str, Mapping[str, dict[str, Any]]],
    ) -> None:
        """Say what gates go by from now on, and lift those that these tasks no longer have."""
        gates, names = self._backend.gates, {rule.name for rule in rules}
        known = {rule_of(gate.key) for gate in await gates.gates(limit=100_000)} if tasks else set()
        lifted = [
            rule
            for rule in known - names
            if rule.partition(":")[2].partition("/")[0] in tasks and not rule.startswith(POOL)
        ]
        if rules or lifted:
            await gates.declare(rules, lifted)
        for pool, named in members.items():
            await gates.enrol(pool, named, only=True)

    async def _set_aside(self, unfit: Sequence[tuple[str, str]]) -> None:
        """Before their jobs are back in the line, or they might be given the same ones."""
        for pool, member in unfit:
            await self.suspect(pool, member, 0)
            self._telemetry.emit(events.MemberSuspected(pool=pool, member=member))

    async def suspect(self, pool: str, member: str, failures: int) -> None:
        """A member failed its check, after so many before."""
        await self._backend.gates.suspect(pool, member, RECHECK.delay(failures + 1, member))

    async def suspects(self, pool: str, delay: float) -> list[PoolMember]:
        """Members that are to be checked now."""
        return await self._backend.gates.suspects(pool, delay)

    async def restore(self, pool: str, member: str) -> None:
        """A member passed its check."""
        await self._backend.gates.turn(pool, [member], "ready")

    async def progress(self, notes: Sequence[ProgressNote]) -> None:
        """Note how far running jobs are."""
        await self._backend.records.progress(notes)

    async def steps(self, job: str) -> list[Step]:
        """What is kept of a job that ran before."""
        return await self._backend.steps.steps(job)

    async def keep(self, done: Sequence[Kept]) -> list[Kept]:
        """Keep steps; returns those whose lease is lost."""
        return await self._backend.steps.keep(done)

    async def enlist(self, worker: WorkerEntry) -> int:
        """Begin a life; returns the worker's index."""
        index = await self._backend.registry.enlist(worker)
        if self._ordering is not None and not self._budget:
            self._ordering.learn(await self._backend.records.search(_LATELY))
        self._budget = Demand(worker.io, worker.cpu)
        return index

    async def leave(self, incarnation: str) -> None:
        """End a life in good order, and give back what it was given but never received."""
        # Whatever its clock says. Else others would find these jobs orphaned and count a death.
        await self._backend.broker.extend(incarnation, [], older_than=_ANY_AGE)
        await self._backend.registry.leave(incarnation)

    async def beat(self, incarnation: str, *, running: int, epoch: int, stopping: bool) -> bool:
        """One heartbeat; False when the life is over."""
        return await self._backend.registry.beat(
            incarnation, running=running, epoch=epoch, stopping=stopping
        )

    async def sort(self, kinds: Mapping[str, str]) -> int:
        """Tell what kind each task is, for jobs whose sender did not know."""
        return await self._backend.broker.sort(self._queues, kinds)

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        """Say what is held, learn what is lost."""
        return await self._backend.broker.extend(owner, held, older_than)

    async def cancellations(self, jobs: Sequence[str]) -> dict[str, str]:
        """Which of these running jobs are to be stopped, and why."""
        return await self._backend.control.cancellations(jobs)

    async def control(self) -> ControlState:
        """What is paused."""
        return await self._backend.control.state()

    async def control_changed(self, since: int, wait: float) -> bool:
        """Wait for a pause, a resume or a cancellation since that epoch."""
        return await self._backend.control.changed(since, wait)

    async def waiting(self, kinds: Sequence[str], without: Sequence[str] = ()) -> bool:
        """Whether a fetch of these kinds, apart from some tasks, would find something."""
        return await self._backend.broker.waiting(self._queues, kinds, without)

    async def lacks(self, tasks: Sequence[str]) -> list[str]:
        """A worker does not have these tasks; returns those that no running worker has."""
        return await report_missing(self._backend.control, self._backend.registry, {*tasks})

    async def close(self) -> None:
        """Close the connections."""
        await self._backend.close()

    async def _claim(
        self, owner: str, demand: Demand, wait: float, own: Sequence[str]
    ) -> list[Delivery]:
        queues: Sequence[str] = self._queues
        if self._ordering is not None:
            queues = self._ordering.now(_load(demand, self._budget))
            wait = min(wait, _TURN)  # a look again may be in another order
        return await self._backend.broker.fetch([*own, *queues], demand, owner, wait)

    async def _record(self, settlements: Sequence[Settlement]) -> list[Lease]:
        return await self._backend.broker.settle(settlements)

    async def _admit(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Those that may run: not what was settled here before."""
        known = [d for d in deliveries if self._receiver.knows(d.lease)]
        if not known:
            return deliveries
        for delivery in known:
            self._telemetry.emit(
                events.DuplicateDiscarded(
                    job=delivery.id, task=delivery.envelope.subject, attempt=delivery.attempt
                )
            )
        await self._backend.broker.settle([self._discard(d) for d in known])
        return [d for d in deliveries if not self._receiver.knows(d.lease)]

    def _discard(self, delivery: Delivery) -> Settlement:
        now = self._clock.now()
        reason = "a duplicate of a message settled before"
        story = Attempt(delivery.attempt, "", now, now, "discarded", reason=reason)
        return Settlement(lease=delivery.lease, outcome=Cancelled(reason), attempt=story)


def _load(free: Demand, budget: Demand) -> Load:
    return Load(
        *(
            1 - of / all_ if all_ else 1.0
            for of, all_ in zip((free.io, free.cpu), (budget.io, budget.cpu), strict=True)
        )
    )

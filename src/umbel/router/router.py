"""The router in the worker's own process. It is the worker's Intake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from umbel.brokers import Broker, Demand
from umbel.clock import Clock
from umbel.messages import (
    Attempt,
    Cancelled,
    Delivery,
    Lease,
    Settlement,
    is_final,
)
from umbel.router.receiver import Receiver
from umbel.stores import Control, ControlState, ProgressNote, Records, Registry, WorkerEntry
from umbel.telemetry import Telemetry, events

_ANY_AGE = -1e9


class Backend(msgspec.Struct, frozen=True):
    """One event loop's adapters: where messages move and where things are remembered."""

    broker: Broker
    records: Records
    registry: Registry
    control: Control

    async def close(self) -> None:
        """Close all of them."""
        for part in (self.broker, self.records, self.registry, self.control):
            await part.close()


class Router:
    """Fetches what may run now and settles what came of it."""

    def __init__(
        self,
        backend: Backend,
        *,
        queues: Sequence[str],
        receiver: Receiver,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._backend = backend
        self._queues = tuple(queues)
        self._receiver = receiver
        self._clock = clock
        self._telemetry = telemetry

    async def fetch(self, owner: str, demand: Demand, wait: float) -> list[Delivery]:
        """Deliveries that may start now; waits for them up to ``wait`` seconds."""
        deliveries = await self._backend.broker.fetch(self._queues, demand, owner, wait)
        return await self._admit(deliveries)

    def nudge(self) -> None:
        """Make a waiting fetch return."""
        self._backend.broker.nudge()

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        """Record outcomes and acknowledge; returns the refused leases."""
        refused = await self._backend.broker.settle(settlements)
        lost = {(lease.job, lease.fence) for lease in refused}
        for settlement in settlements:
            lease = settlement.lease
            if (lease.job, lease.fence) not in lost and is_final(settlement.outcome):
                self._receiver.remember(lease)
        return refused

    async def progress(self, notes: Sequence[ProgressNote]) -> None:
        """Note how far running jobs are."""
        await self._backend.records.progress(notes)

    async def enlist(self, worker: WorkerEntry) -> None:
        """Begin a life."""
        await self._backend.registry.enlist(worker)

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

    async def control_changed(self, wait: float) -> bool:
        """Wait for a pause, a resume or a cancellation."""
        return await self._backend.control.changed(wait)

    async def waiting(self, kinds: Sequence[str]) -> bool:
        """Whether a fetch of these kinds would find something."""
        return await self._backend.broker.waiting(self._queues, kinds)

    async def close(self) -> None:
        """Close the connections."""
        await self._backend.close()

    async def _admit(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Those that may run. Gates come here; today only duplicates are held back."""
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

"""Nodes of graphs that were claimed: what they get is read before they start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from umbel.errors import Unavailable
from umbel.graphs import NodePreparer, PreparedNode
from umbel.messages import Delivery, Failed, Lease
from umbel.resilience import Backoff
from umbel.tasks.failures import describe
from umbel.telemetry import Telemetry, events
from umbel.worker.waiting_deliveries import WaitingDeliveries

if TYPE_CHECKING:
    from umbel.worker.task_runner import TaskRunner

_MAX_AT_ONCE = 16
"""How many nodes are prepared at once."""
_RETRIES = Backoff(first=0.1, factor=2.0, cap=2.0)


class NodeQueue(WaitingDeliveries):
    """Deliveries that wait until what they get was read."""

    def __init__(self) -> None:
        super().__init__()
        self._new: list[Delivery] = []

    def put(self, delivery: Delivery) -> None:
        """Add a delivery."""
        self._new.append(delivery)
        super().put(delivery)

    async def next(self) -> Delivery:
        """Return the next delivery that was not returned before. It still counts as waiting."""
        while not self._new:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self._new.pop(0)

    def remove(self, lease: Lease) -> bool:
        """Remove a delivery. Return False if it does not wait any more: its lease is lost."""
        return self._waiting.pop(lease, None) is not None

    def holds(self, lease: Lease) -> bool:
        """Return whether a delivery still waits."""
        return lease in self._waiting

    def start_again(self) -> None:
        """Let ``next`` return all deliveries that wait, also those that it has returned."""
        self._new = [*self._waiting.values()]
        self._arrived.set()

    def clear(self) -> list[Delivery]:
        """Remove all deliveries, and return them."""
        self._new = []
        return super().clear()


class NodeStarter:
    """The service that prepares nodes and starts or settles them."""

    name = "graph nodes"

    def __init__(
        self,
        queue: NodeQueue,
        preparer: NodePreparer,
        task_runner: TaskRunner,
        telemetry: Telemetry,
    ) -> None:
        self._queue = queue
        self._preparer = preparer
        self._task_runner = task_runner
        self._telemetry = telemetry

    async def run(self, working: object) -> None:
        """Prepare nodes until cancelled. A node for which much has to be read delays no other."""
        self._queue.start_again()
        limiter = anyio.Semaphore(_MAX_AT_ONCE)
        async with anyio.create_task_group() as group:
            while True:
                delivery = await self._queue.next()
                await limiter.acquire()
                group.start_soon(self._start, delivery, limiter)

    async def _start(self, delivery: Delivery, limiter: anyio.Semaphore) -> None:
        try:
            prepared = await self._prepare(delivery)
            if prepared is not None and self._queue.remove(delivery.lease):
                self._task_runner.admit_prepared(delivery, prepared)
        finally:
            limiter.release()

    async def _prepare(self, delivery: Delivery) -> PreparedNode | None:
        """Return the node; None if its lease is lost while the store does not answer."""
        tries = 0
        while self._queue.holds(delivery.lease):
            try:
                return await self._preparer.prepare(delivery)
            except Unavailable as error:
                tries += 1
                delay = _RETRIES.delay(tries)
                self._telemetry.emit(
                    events.ServiceFailed(service=self.name, error=repr(error), delay=delay)
                )
                await anyio.sleep(delay)
            except Exception as error:  # noqa: BLE001 - a malformed node must not end the service
                return PreparedNode([], Failed(describe(error)))
        return None

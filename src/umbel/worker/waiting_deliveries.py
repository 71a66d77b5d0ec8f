"""Deliveries that were claimed and wait for something before they start."""

from __future__ import annotations

from collections.abc import Collection

import anyio

from umbel.messages import Delivery, Lease


class WaitingDeliveries:
    """Deliveries in the order in which they came, until a service takes them out."""

    def __init__(self) -> None:
        self._waiting: dict[Lease, Delivery] = {}
        self._arrived = anyio.Event()

    def put(self, delivery: Delivery) -> None:
        """Add a delivery."""
        self._waiting[delivery.lease] = delivery
        self._arrived.set()

    def clear(self) -> list[Delivery]:
        """Remove all deliveries, and return them."""
        waiting, self._waiting = self._waiting, {}
        return [*waiting.values()]

    def drop(self, leases: Collection[Lease]) -> None:
        """Remove deliveries whose leases are lost."""
        for lease in leases:
            self._waiting.pop(lease, None)

    def waiting(self, kind: str) -> int:
        """Return how many deliveries wait that may need a slot of this kind."""
        return sum(delivery.envelope.kind in ("", kind) for delivery in self._waiting.values())

"""A workflow that waits for a person, and what tests ask of its runs."""

from __future__ import annotations

from typing import Any

from integration.running import ask, until
from umbel import Retry, Signal, Umbel
from umbel.graphs import Graph


class Orders:
    """Orders that wait for a person; the bank declines cards until it is told otherwise."""

    def __init__(self, app: Umbel) -> None:
        self.app = app
        self.is_declining = False
        self.charged: list[int] = []

        @app.task(name="order.charge", retry=Retry(0))
        async def charge(order: int, card: str = "") -> dict[str, Any]:
            self.charged.append(order)
            if self.is_declining:
                raise ValueError(f"card {card} was declined")
            return {"order": order, "card": card}

        @app.task(name="order.ship", retry=Retry(0))
        async def ship(paid: dict[str, Any], approved: bool) -> str:
            return f"order {paid['order']} {'shipped' if approved else 'kept'}"

        @app.task(name="order.double")
        async def double(number: int) -> int:
            return 2 * number

        @app.task(name="order.total")
        async def total(numbers: list[int]) -> int:
            return sum(numbers)

        @app.workflow(name="order.fulfil")
        def fulfil(order: int, card: str = "4711") -> Any:
            """Charge, ask a person, ship."""
            paid = charge.s(order, card)
            approved = Signal("approved", type=bool).after(paid)
            return ship.s(paid, approved)

        self.fulfil, self.double, self.total = fulfil, double, total
        self.charge, self.ship = charge, ship

    def graph(self, run: Any) -> Graph:
        """Return a graph as it is now."""
        found: Graph = ask(self.app, lambda operations: operations.graphs.show(run.id))
        return found

    def wait_for(self, run: Any, **states: str) -> Graph:
        """Wait until the nodes with these paths have these states."""

        def has_states() -> bool:
            found = {node.path: str(node.state) for node in self.graph(run).nodes}
            return states.items() <= found.items()

        until(has_states, f"the nodes to be {states}")
        return self.graph(run)


def declare_fulfilment(app: Umbel, send_receipt: Any) -> Any:
    """Declare a workflow of six nodes, for pictures."""

    @app.task(name="shop.reserve")
    def reserve(order: int) -> int:
        return order

    @app.task(name="shop.bill")
    def bill(order: int) -> str:
        return f"paid {order}"

    @app.task(name="shop.pack")
    def pack(order: int) -> None: ...

    @app.task(name="shop.ship")
    def ship(order: int, payment: str, approved: bool) -> None: ...

    @app.workflow(name="shop.fulfil")
    def fulfil(order: int) -> Any:
        reserved, paid = reserve.s(order), bill.s(order)
        approved = Signal("approved", timeout=86_400, default=False, type=bool)
        packed, receipt = pack.s(order).after(reserved), send_receipt.s(order).after(paid)
        return ship.s(order, paid, approved.after(reserved, paid)).after(packed, receipt)

    return fulfil

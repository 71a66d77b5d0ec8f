"""An order as a workflow: reserve, charge, let a person approve, ship; and undo what was done.

In one terminal:   umbel -A 10_order worker
In another:        python 10_order.py
"""

import time
from typing import Any

from umbel import Signal, Umbel

app = Umbel()


@app.task
def reserve(order: dict[str, Any]) -> str:
    return f"{order['count']} {order['item']}"


@app.task
def put_back(stock: str) -> str:
    return f"put back {stock}"


@app.task
def charge(order: dict[str, Any], stock: str) -> int:
    return int(order["count"] * order["price"])


@app.task
def refund(paid: int) -> str:
    return f"refunded {paid}"


@app.task
def add_gift(order: dict[str, Any]) -> str:
    return "a gift"


@app.task(retry=0)
def ship(stock: str, paid: int, gift: str | None, approved: bool) -> str:
    if not approved:
        raise PermissionError("the order was not approved")
    return f"shipped {stock} for {paid}" + (f", with {gift}" if gift else "")


@app.workflow
def fulfil(order: dict[str, Any]) -> Any:
    stock = reserve.s(order).compensate(put_back.s())
    paid = charge.s(order, stock.result).compensate(refund.s())
    gift = add_gift.s(order).when(order["price"] > 100)
    approved = Signal("approved", timeout=86_400, default=False, type=bool).after(paid)
    return ship.s(stock.result, paid.result, gift.result, approved.result)


def show(handle: Any) -> None:
    """Wait until all nodes have ended, and print them."""
    while not all(node.has_ended for node in handle.graph.nodes):
        time.sleep(0.05)
    for node in handle.graph.tasks():
        print(f"  {node.path:15} {node.state}")


if __name__ == "__main__":
    print(fulfil.draw())

    good = fulfil.delay({"item": "lamps", "count": 2, "price": 150})
    good.signal("approved", True, sender="Ann")
    print(good.get(timeout=60))
    show(good)

    refused = fulfil.delay({"item": "books", "count": 3, "price": 20})
    refused.signal("approved", False, sender="Ann")
    try:
        refused.get(timeout=60)
    except PermissionError as error:
        print(error)
    show(refused)

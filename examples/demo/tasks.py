"""Example tasks for ``make run``: jobs of a small shop, some of which fail."""

import asyncio
import os
import signal
import time
from typing import Any

from umbel import Retry, Signal, Snooze, Umbel, Unique, current

app = Umbel(os.environ.get("UMBEL_URL", "sqlite:///umbel-demo.db"))


@app.task
async def send_receipt(order: int) -> str:
    await asyncio.sleep(0.2)
    return f"receipt for {order}"


@app.task
def resize_image(width: int) -> int:
    time.sleep(0.1)
    return width * 3 // 4


@app.task(retry=Retry(5, first=1))
async def charge_card(order: int) -> str:
    """Fail once for every third order; the retry succeeds."""
    await asyncio.sleep(0.1)
    if order % 3 == 0 and current.job.attempt == 1:
        raise ConnectionError("the bank did not answer")
    return f"order {order} paid"


@app.task(every=10)
async def reorder_stock() -> str:
    """Run by itself every ten seconds: it has a schedule."""
    return f"ordered at {current.job.nominal:%H:%M:%S}"


@app.task(limit=1)
async def count_stock(shelf: int) -> int:
    """Run alone, in all workers: the others wait."""
    await asyncio.sleep(1)
    return shelf


@app.task
def print_invoice(order: int) -> str:
    """Kill the worker at the first delivery, as a crash or a lack of memory would."""
    time.sleep(0.5)
    if current.job.deaths == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"invoice for {order}"


@app.task(limit=1)
async def pack_box(order: int) -> int:
    """Run alone, so that of two boxes one waits."""
    await asyncio.sleep(2)
    return order


@app.task(retry=Retry(0))
def ship_parcel(order: int, address: str) -> None:
    """Fail for good: the job is buried, and can be edited and run again."""
    if not address:
        raise ValueError(f"order {order} has no address")


@app.task
async def send_goods(order: int, payment: str, approved: bool) -> str:
    """Run after a person has approved the order on the dashboard."""
    return f"order {order} sent: {payment}" if approved else f"order {order} kept"


@app.workflow
def fulfil(order: int) -> Any:
    """Charge the card, ask a person for a day, and send the goods."""
    payment = charge_card.s(order)
    receipt = send_receipt.s(order).after(payment)
    approved = Signal("approved", timeout=86_400, default=False, type=bool).after(payment)
    return send_goods.s(order, payment.result, approved).after(receipt)


@app.task(unique=Unique("traffic", on_conflict="return"), interruptible=True, publishing="now")
async def traffic() -> None:
    """Publish a few jobs, then snooze, so that the demo never ends."""
    order = int(time.time()) // 5
    jobs = [send_receipt.s(order), resize_image.s(640), charge_card.s(order)]
    await app.apublish_many([*jobs, pack_box.s(order), pack_box.s(order)])
    raise Snooze(5.0)


def publish_tour() -> None:
    """Publish the jobs of the first half minute: a retry, a limit, a killed worker, a workflow."""
    charge_card.options(delay=2).delay(3)
    for shelf in (1, 2, 3):
        count_stock.options(delay=5).delay(shelf)
    ship_parcel.options(delay=7).delay(5, "")
    print_invoice.options(delay=9).delay(7)
    fulfil.delay(4)
    traffic.delay()

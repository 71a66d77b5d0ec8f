"""Example tasks for ``make run``: jobs of a small shop, some of which fail."""

import asyncio
import random
import time

from umbel import Retry, Snooze, Umbel, Unique, current

app = Umbel("sqlite:///umbel-demo.db")


@app.task
async def send_receipt(order: int) -> str:
    await asyncio.sleep(random.uniform(0.05, 0.4))
    return f"receipt for {order}"


@app.task
def resize_image(width: int) -> int:
    time.sleep(random.uniform(0.05, 0.3))
    return width * 3 // 4


@app.task(retry=Retry(5, first=0.5))
async def charge_card(order: int) -> str:
    await asyncio.sleep(0.1)
    if random.random() < 0.3:
        raise ConnectionError("the bank did not answer")
    return f"order {order} paid"


@app.task(interruptible=True)
async def nightly_report(rows: int) -> int:
    for row in range(rows):
        current.progress(row, of=rows)
        await asyncio.sleep(0.02)
    return rows


@app.task(unique=Unique("traffic", on_conflict="return"), interruptible=True)
async def traffic() -> None:
    """Publish a few jobs, then snooze for a second, so that the demo never ends."""
    order = int(time.time())
    await app.apublish_many(
        [
            send_receipt.s(order),
            charge_card.s(order),
            *(resize_image.s(width) for width in (320, 640)),
        ]
    )
    if order % 20 == 0:
        await nightly_report.adelay(200)
    raise Snooze(1.0)

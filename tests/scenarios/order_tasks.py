"""The order of ``examples/10_order.py``, with effects in a file, and workers that kill themselves.

``ORDER_VERSION`` chooses the code: version 2 packs the order and has no gift any more.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from umbel import Signal, Umbel

app = Umbel(namespace="scenario")
FOLDER = Path(os.environ.get("ORDER_FOLDER", "."))
VERSION = os.environ.get("ORDER_VERSION", "1")
STEPS = ("reserve", "charge", "gift", "ship", "refund", "put_back")
POINTS = tuple(f"{when} {step}" for step in STEPS for when in ("before", "after"))


def effect(order: str, step: str) -> str:
    """Have an effect once, however often it is tried. Kill the worker once, if asked to."""
    die_once(order, f"before {step}")
    with closing(sqlite3.connect(FOLDER / "effects.db", timeout=60)) as effects, effects:
        effects.execute("insert or ignore into effect values (?, ?)", (order, step))
    die_once(order, f"after {step}")
    return order


def die_once(order: str, point: str) -> None:
    if order.startswith(f"{point}/"):
        marker = FOLDER / order.replace("/", " ").replace(" ", "_")
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="reserve", max_deaths=100)
async def reserve(order: str) -> str:
    return effect(order, "reserve")


@app.task(name="charge", max_deaths=100)
async def charge(order: str) -> str:
    return effect(order, "charge")


@app.task(name="ship", retry=0, max_deaths=100)
async def ship(order: str, gift: Any, approved: bool) -> str:
    effect(order, "ship")
    if not approved:
        raise PermissionError("not approved")
    return f"shipped, version {VERSION}"


@app.task(name="refund", max_deaths=100)
async def refund(order: str) -> None:
    effect(order, "refund")


@app.task(name="put_back", max_deaths=100)
async def put_back(order: str) -> None:
    effect(order, "put_back")


if VERSION == "1":

    @app.task(name="gift", max_deaths=100)
    async def gift(order: str) -> str:
        return effect(order, "gift")

else:

    @app.task(name="pack", max_deaths=100)
    async def gift(order: str) -> str:
        return effect(order, "pack")


@app.workflow(name="fulfil")
def fulfil(order: str) -> Any:
    stock = reserve.s(order).compensate(put_back.s())
    paid = charge.s(stock).compensate(refund.s())
    approved = Signal("approved", type=bool).after(paid)
    return ship.s(paid, gift.s(order).after(approved), approved)

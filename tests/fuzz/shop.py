"""An application for the command line under test."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from zoo import Colour, Point, User

from umbel import Umbel

app = Umbel()


@app.task(name="shop.sell")
def sell(
    item: int, price: Decimal = Decimal(1), *rest: Colour, when: datetime | None = None
) -> None:
    """Sell."""


@app.task(name="shop.greet", queue="mail")
async def greet(user: User, place: Point | None = None, **more: str) -> str:
    return user.name


@app.task(name="shop.loose")
def loose(a, b=None): ...  # type: ignore[no-untyped-def]

"""``app.routes``: which worker has which affinity key."""

from __future__ import annotations

from umbel.app.client import Client
from umbel.backends import Route, Seat


class AppRoutes:
    """Asks and ends routes, from sync code and, with an ``a`` before it, from async code."""

    def __init__(self, desk: Client) -> None:
        self._desk = desk

    def find(self, key: object) -> Route | None:
        """The live route of a key, or None."""
        return self._desk.wait_for(self._desk.routes.find(str(key)))

    async def afind(self, key: object) -> Route | None:
        """``find`` for async code."""
        return await self._desk.hand_over(self._desk.routes.find(str(key)))

    def seats(self) -> list[Seat]:
        """Which worker sits at which index, and how many routes it has."""
        return self._desk.wait_for(self._desk.routes.seats())

    async def aseats(self) -> list[Seat]:
        """``seats`` for async code."""
        return await self._desk.hand_over(self._desk.routes.seats())

    def release(self, key: object, why: str = "") -> Route | None:
        """The worker need not keep this key's jobs together any more.

        At once, or when what runs by it is done: also when it is the running job itself that says
        so. What waits goes on by a new route, maybe elsewhere. None: the key has no route.
        """
        return self._desk.wait_for(self._desk.routes.release(str(key), why))

    async def arelease(self, key: object, why: str = "") -> Route | None:
        """``release`` for async code."""
        return await self._desk.hand_over(self._desk.routes.release(str(key), why))

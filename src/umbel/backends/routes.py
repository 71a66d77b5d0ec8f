"""The role that keeps routes: which worker has which key, and which worker sits at which index.

A route is made by whoever lets the first job with its key pass, in that same step: to the worker
with the fewest live routes, of those the lowest index. So publishers need not agree on anything.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

HISTORY = 10_000
"""So many released routes are remembered, the last ones."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Where the jobs of one key go, or went."""

    number: int
    """Grows with every route that is made."""
    key: str
    index: int
    made: float
    released: float | None = None
    why: str = ""
    """Why it was, or is being, released."""
    held: int = 0
    """Jobs that are in the worker's queue by it, or run there."""
    closing: bool = False
    """It is released as soon as nothing runs there; nobody else goes by it."""
    among: tuple[tuple[int, int], ...] = ()
    """What it was chosen among: indexes, each with its live routes at that moment."""


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """An index, and who has it."""

    index: int
    worker: str
    """The name of the worker that has it, or had it last."""
    alive: bool = False
    """Whether such a worker is enlisted, or left so lately that the seat is kept for it."""
    retiring: bool = False
    """It gets no new routes, and those it has move when what runs by them is done."""
    routes: int = 0
    """How many live ones it has."""


def read_route(number: int, key: str, index: int, made: float, *rest: Any) -> Route:
    """A route from a row."""
    released, why, held, closing, among = rest
    return Route(
        number=number,
        key=key,
        index=index,
        made=made,
        released=released,
        why=why,
        held=held,
        closing=bool(closing) and released is None,
        among=msgspec.json.decode(among, type=tuple[tuple[int, int], ...]),
    )


class Routes(Protocol):
    """A key is never live on two workers. All changes are safe to repeat.

    The index of a worker is its own as long as it is enlisted, and for one lease more if it left in
    good order: whoever comes back in that time finds its routes as they were.
    """

    async def find(self, key: str) -> Route | None:
        """The live route of a key."""

    async def routes(
        self,
        *,
        key: str | None = None,
        index: int | None = None,
        live: bool = True,
        limit: int = 100,
    ) -> list[Route]:
        """Routes by key or index, the newest first; with ``live=False`` also released ones."""

    async def release(self, key: str, why: str = "") -> Route | None:
        """End a key's route: at once, or when what runs by it is done.

        Jobs that wait in the worker's queue go back to the line, in their order. Returns the route
        as it is now; None when the key has none.
        """

    async def move(self, key: str, index: int, why: str = "") -> Route | None:
        """The same, and the next route of this key goes to that index if a worker is there."""

    async def retire(self, index: int, retiring: bool = True) -> int:
        """Give an index no more routes and release those that it has; how many were live."""

    async def seats(self) -> list[Seat]:
        """All indexes that somebody has, or that have live routes, in order."""

    async def sweep(self, idle: float | None = None) -> list[Route]:
        """Release the routes of workers that are lost, those that were to be released and where
        nothing runs any more, and those that nobody has used for ``idle`` seconds; gives them.

        Forgets the oldest released ones beyond ``HISTORY``.
        """

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""

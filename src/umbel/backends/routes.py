"""The role that stores routes: which worker has which key, and which worker has which index.

A route is created in the step in which the first job with its key passes the gate: to the worker
with the fewest live routes, and of those to the lowest index. So publishers need not coordinate.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

MAX_RELEASED_ROUTES = 10_000
"""How many released routes are kept."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The worker index to which the jobs of one key go, or went."""

    number: int
    """Grows with every new route."""
    key: str
    index: int
    made: float
    released: float | None = None
    why: str = ""
    """Why it was, or is being, released."""
    held: int = 0
    """Jobs of this route that wait in the worker's queue or run there."""
    closing: bool = False
    """It is released as soon as none of its jobs is running, and takes no new jobs."""
    among: tuple[tuple[int, int], ...] = ()
    """The indexes that could be chosen, each with its number of live routes at that time."""


class WorkerIndex(msgspec.Struct, frozen=True, kw_only=True):
    """A worker index, and the worker that has it."""

    index: int
    worker: str
    """The name of the worker that has it, or had it last."""
    alive: bool = False
    """Whether the worker is registered, or ended so recently that the index is reserved for it."""
    retiring: bool = False
    """It gets no new routes, and its routes move as soon as none of their jobs is running."""
    routes: int = 0
    """How many live routes it has."""


def read_route(number: int, key: str, index: int, made: float, *rest: Any) -> Route:
    """Return the route of a row."""
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

    A worker has its index as long as it is registered, and for one lease longer if it ended
    normally: a worker that restarts in that time finds its routes unchanged.
    """

    async def find(self, key: str) -> Route | None:
        """Return the live route of a key, or None."""

    async def routes(
        self,
        *,
        key: str | None = None,
        index: int | None = None,
        live: bool = True,
        limit: int = 100,
    ) -> list[Route]:
        """Return routes by key or index, newest first; with ``live=False`` also released ones."""

    async def release(self, key: str, why: str = "") -> Route | None:
        """Release the route of a key: immediately, or when none of its jobs is running.

        Jobs in the worker's queue go back to the waiting list, in order. Returns the route as it is
        now; None if the key has none.
        """

    async def move(self, key: str, index: int, why: str = "") -> Route | None:
        """``release``; the next route of the key then goes to ``index``, if a worker has it."""

    async def retire(self, index: int, retiring: bool = True) -> int:
        """Give an index no new routes and release its routes; return how many were live."""

    async def worker_indexes(self) -> list[WorkerIndex]:
        """Return all indexes that a worker has or that have live routes, in order."""

    async def sweep(self, idle: float | None = None) -> list[Route]:
        """Release routes and return them: those of lost workers, those that were to be released
        and have no running job any more, and those that were not used for ``idle`` seconds.

        Deletes the oldest released routes beyond ``MAX_RELEASED_ROUTES``.
        """

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""

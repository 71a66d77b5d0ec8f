"""Where messages wait that came when nobody could take them: for a moment, then they go back.

A demand covers all queues, and a transport counts lanes: so more may come than there is room for.
Others come just when whoever fetches has got something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from umbel.backends.broker import Demand
from umbel.backends.transport import Arrival, Lane, Transport
from umbel.errors import Unavailable

MOMENT = 1.0
"""Seconds that something is held here without being asked for."""


class PrefetchBuffer:
    """Receives from a transport for one who fetches at a time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._held: list[Arrival] = []
        self._patience: asyncio.TimerHandle | None = None
        self._giving_back: asyncio.Task[None] | None = None

    async def receive(
        self, queues: Sequence[str], demand: Demand, wait: float, unused: frozenset[str]
    ) -> list[Arrival]:
        """Messages that could start now. From ``unused`` queues only what is here already.

        Raises:
            Unavailable: try again.
        """
        came: list[Arrival] = []
        if not admit([one.lane.kind for one in self._held_of(queues)], demand)[0]:
            used = [queue for queue in queues if queue not in unused]
            came = await self._transport.receive(_room(used, demand), wait)
            order = {queue: place for place, queue in enumerate(queues)}
            came.sort(key=lambda one: order[one.lane.queue])
        arrivals = self._held_of(queues) + came
        kept, _ = admit([one.lane.kind for one in arrivals], demand)
        others = [one for one in self._held if one.lane.queue not in queues]
        places = {*kept}
        self._keep(others + [one for at, one in enumerate(arrivals) if at not in places])
        return [arrivals[place] for place in kept]

    def hold(self, arrivals: Sequence[Arrival]) -> None:
        """Keep these for the next who fetches."""
        self._keep([*self._held, *arrivals])

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        """Let these go back, for anybody."""
        with suppress(Unavailable):  # then they go back with their connection
            await self._transport.release(arrivals)

    async def close(self) -> None:
        """Hold nothing any more: it goes back with the transport's end. Twice is fine."""
        self._keep([])
        if self._giving_back is not None:
            self._giving_back.cancel()
            await asyncio.wait([self._giving_back])

    def _held_of(self, queues: Sequence[str]) -> list[Arrival]:
        return [one for one in self._held if one.lane.queue in queues]

    def _keep(self, arrivals: list[Arrival]) -> None:
        self._held = arrivals
        if arrivals and self._patience is None:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(MOMENT, self._give_back)
        elif not arrivals and self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_back(self) -> None:
        self._patience = None
        arrivals, self._held = self._held, []
        self._giving_back = asyncio.create_task(self.release(arrivals))


def _room(queues: Sequence[str], demand: Demand) -> dict[Lane, int]:
    """How much of each lane could start. What nobody knows the kind of may need either room."""
    room = {"": min(demand.io, demand.cpu), "io": demand.io, "cpu": demand.cpu}
    return {Lane(q, kind): many for q in queues for kind, many in room.items() if many > 0}


def admit(kinds: Sequence[str], demand: Demand) -> tuple[list[int], Demand]:
    """The places of those that fit, in their order, and the demand that is left."""
    left, places = {"io": demand.io, "cpu": demand.cpu}, []
    for place, kind in enumerate(kinds):
        needed = (kind,) if kind else ("io", "cpu")
        if all(left[one] > 0 for one in needed):
            places.append(place)
            for one in needed:
                left[one] -= 1
    return places, Demand(left["io"], left["cpu"])

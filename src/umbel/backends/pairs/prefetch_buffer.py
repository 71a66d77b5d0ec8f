"""Receives messages from a transport, and holds those that cannot be claimed yet.

A demand covers all queues, and a transport counts messages per lane: so a transport may deliver
more messages than the worker has capacity for. Messages that no fetch asks for within
``HOLD_SECONDS`` return to the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from umbel.backends.broker import Demand, JobStore
from umbel.backends.transport import Arrival, Lane, Transport
from umbel.errors import Unavailable
from umbel.messages import KINDS, is_inbox

HOLD_SECONDS = 1.0
"""Maximum time for which a message is held."""


class PrefetchBuffer:
    """Receives for one fetch at a time, because a transport counts one receiver's capacity."""

    def __init__(self, transport: Transport, job_store: JobStore) -> None:
        self._transport = transport
        self._job_store = job_store
        self.lock = asyncio.Lock()
        """Held by the fetch that receives."""
        self._inboxes: dict[str, bool] = {}
        """Inboxes of workers, and whether anything was ever sent there. An unused one is not
        received from: few are used, and each costs the transport's server a queue."""
        self._held: list[Arrival] = []
        self._timer: asyncio.TimerHandle | None = None
        self._releasing: asyncio.Task[None] | None = None

    async def check_inboxes(self, queues: Sequence[str]) -> None:
        """Find out whether anything was ever sent to the inboxes among these queues."""
        for queue in queues:
            if is_inbox(queue) and queue not in self._inboxes:
                self._inboxes[queue] = await self._job_store.has_waiting_jobs([queue], KINDS[1:])

    def mark_used(self, queues: set[str]) -> None:
        """Record that something was sent to these queues, and receive from their inboxes, too."""
        unused = {queue for queue in queues if not self._inboxes.get(queue, True)}
        if unused:
            self._inboxes |= dict.fromkeys(unused, True)
            self._transport.stop_waiting()

    async def receive(self, queues: Sequence[str], demand: Demand, wait: float) -> list[Arrival]:
        """Return messages whose jobs could start now; wait up to ``wait`` seconds for the first.

        Raises:
            Unavailable: the caller should try again.
        """
        received: list[Arrival] = []
        if not admit([one.lane.kind for one in self._held_of(queues)], demand)[0]:
            used = [queue for queue in queues if self._inboxes.get(queue, True)]
            received = await self._transport.receive(_lane_capacity(used, demand), wait)
            order = {queue: place for place, queue in enumerate(queues)}
            received.sort(key=lambda one: order[one.lane.queue])
        arrivals = self._held_of(queues) + received
        admitted, _ = admit([one.lane.kind for one in arrivals], demand)
        others = [one for one in self._held if one.lane.queue not in queues]
        places = {*admitted}
        self._set_held(others + [one for at, one in enumerate(arrivals) if at not in places])
        return [arrivals[place] for place in admitted]

    def hold(self, arrivals: Sequence[Arrival]) -> None:
        """Hold messages for the next fetch."""
        self._set_held([*self._held, *arrivals])

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        """Return messages to the transport, for any receiver."""
        with suppress(Unavailable):  # then they return when their connection ends
            await self._transport.release(arrivals)

    async def close(self) -> None:
        """Hold nothing; the messages return when the transport closes. Closing twice is fine."""
        self._set_held([])
        if self._releasing is not None:
            self._releasing.cancel()
            await asyncio.wait([self._releasing])

    def _held_of(self, queues: Sequence[str]) -> list[Arrival]:
        return [one for one in self._held if one.lane.queue in queues]

    def _set_held(self, arrivals: list[Arrival]) -> None:
        self._held = arrivals
        if arrivals and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(HOLD_SECONDS, self._release_held)
        elif not arrivals and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release_held(self) -> None:
        self._timer = None
        arrivals, self._held = self._held, []
        self._releasing = asyncio.create_task(self.release(arrivals))


def _lane_capacity(queues: Sequence[str], demand: Demand) -> dict[Lane, int]:
    """Return how many jobs of each lane could start."""
    by_kind = {kind: demand.capacity(kind) for kind in KINDS}
    return {Lane(q, kind): jobs for q in queues for kind, jobs in by_kind.items() if jobs > 0}


def admit(kinds: Sequence[str], demand: Demand) -> tuple[list[int], Demand]:
    """Return the positions of the jobs that fit, in order, and the demand that is left."""
    places = []
    for place, kind in enumerate(kinds):
        if demand.capacity(kind) > 0:
            places.append(place)
            demand = demand.after([kind])
    return places, Demand(demand.free)

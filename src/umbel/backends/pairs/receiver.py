"""Whoever fetches waits in two places at once: for a message, and at the books for a job.

A transport counts what one receiver has room for, so one fetch is here at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from umbel.backends.broker import Demand, JobStore, StandbyJobStore
from umbel.backends.foreign_messages import id_of
from umbel.backends.pairs.prefetch_buffer import PrefetchBuffer, admit
from umbel.backends.transport import Arrival, Transport
from umbel.clock import Clock
from umbel.messages import Delivery, is_inbox

_STEPS = 3
"""Rounds of the event loop in which what is here already is received."""
_REMEMBERED = 100
"""Jobs that the books gave, whose messages are expected: more than come late at a time."""
_SOON = 0.005
_MANY = 20
"""Messages that come late are seen to when none came for so many seconds, or there are so many."""


class Came(NamedTuple):
    """What there was for a fetch: a job from the books, messages, or nothing."""

    handed: list[Delivery]
    arrivals: list[Arrival]


class _Receiving:
    """A receive under way. It may outlast its fetch, for the next one that has the same room."""

    def __init__(
        self,
        queues: Sequence[str],
        demand: Demand,
        until: float,
        work: Callable[[_Receiving], Coroutine[Any, Any, list[Arrival]]],
    ) -> None:
        self.queues = tuple(queues)
        self.demand = demand
        self.until = until
        self.is_awaited = True
        """Whether somebody fetches. What comes otherwise waits in the hall."""
        self.is_over = False
        """Whether it was told to end, whatever it is doing."""
        self.is_new = True
        self.task = asyncio.create_task(work(self))

    def suits(self, queues: Sequence[str], demand: Demand, until: float) -> bool:
        """Whether another fetch may go on with it: it has no other room, and no more time."""
        same = (self.queues, self.demand) == (tuple(queues), demand) and self.until <= until
        return same and not self.is_over and not self.task.done()

    def result(self) -> list[Arrival]:
        """What came of it; nothing if it was stopped or has failed."""
        failed = self.task.cancelled() or self.task.exception() is not None
        return [] if failed else self.task.result()


class Reception:
    """Receives from a transport, and stands by where the ledger can hand over."""

    def __init__(
        self, transport: Transport, ledger: JobStore, *, namespace: str, clock: Clock
    ) -> None:
        self.hall = PrefetchBuffer(transport)
        self._transport = transport
        self._ledger = ledger
        self._giver = ledger if isinstance(ledger, StandbyJobStore) else None
        self._namespace = namespace
        self._clock = clock
        self.turn = asyncio.Lock()
        """Whose it is to fetch."""
        self._inboxes: dict[str, bool] = {}
        """Workers' own queues, and whether anything was ever sent there: few are used, and a queue
        elsewhere costs its server something."""
        self._under_way: _Receiving | None = None
        """Of the fetch that is here, or of one before that the books were faster for."""
        self._handed: deque[str] = deque(maxlen=_REMEMBERED)
        """Jobs that the books gave without a message: theirs come later."""

    async def see_inboxes(self, queues: Sequence[str]) -> None:
        """Find out whether anything was ever sent to workers' own queues."""
        for queue in queues:
            if is_inbox(queue) and queue not in self._inboxes:
                self._inboxes[queue] = await self._ledger.waiting([queue], ("io", "cpu"))

    async def make_way(self, queues: Sequence[str], demand: Demand, until: float) -> None:
        """Have nothing under way that a fetch cannot go on with. Then ``next`` begins at once, so
        whoever looks for a nudge in between misses none."""
        there = self._under_way
        if there is not None and not there.suits(queues, demand, until):
            await self.clear()

    async def next(self, queues: Sequence[str], demand: Demand, owner: str, until: float) -> Came:
        """What comes first, or nothing until then. Who waits stands by at the books."""
        while True:
            there = self._under_way or _Receiving(queues, demand, until, self._receive_for)
            self._under_way, there.is_awaited = there, True
            try:
                handed = await self._stand_by(there, owner, until)
                if handed:
                    self._keep(there, handed)
                    return Came(handed, [])
                arrivals = await there.task
            except BaseException:
                there.task.cancel()
                await self.clear()
                raise
            self._under_way = None
            if arrivals or there.is_over or there.until >= until:
                return Came([], arrivals)

    async def clear(self) -> None:
        """Receive no more. What has come all the same waits for the next fetch, for a moment."""
        there, self._under_way = self._under_way, None
        if there is None:
            return
        self._end(there)
        try:
            await asyncio.wait([there.task])
        except BaseException:
            there.task.cancel()
            await asyncio.wait([there.task])
            raise
        finally:
            if there.task.done():
                self.hall.hold(there.result())

    async def receive(self, queues: Sequence[str], demand: Demand, wait: float) -> list[Arrival]:
        """Messages that could start now."""
        unused = frozenset(queue for queue, used in self._inboxes.items() if not used)
        return await self.hall.receive(queues, demand, wait, unused)

    def is_expected(self, job: str) -> bool:
        """Whether the books gave it of late, before its message came."""
        return job in self._handed

    def used(self, queues: set[str]) -> None:
        """Something was sent there: whoever waits without one of these queues looks again."""
        unused = {queue for queue in queues if not self._inboxes.get(queue, True)}
        if unused:
            self._inboxes |= dict.fromkeys(unused, True)
            self._transport.nudge()

    def nudge(self) -> None:
        """Make whoever waits here return."""
        if self._under_way is not None:
            self._under_way.is_over = True
        self._transport.nudge()

    async def close(self) -> None:
        """Receive nothing any more; what was not taken goes back. Twice is fine."""
        there, self._under_way = self._under_way, None
        if there is not None:
            there.task.cancel()
            await asyncio.wait([there.task])
            there.result()
        await self.hall.close()

    def _keep(self, there: _Receiving, handed: Sequence[Delivery]) -> None:
        """Go on for the next fetch. Where no room is left nobody may fetch for long."""
        self._handed += [one.id for one in handed]
        if there.task.done():  # both have come at once
            self._under_way = None
            self.hall.hold(there.result())
            return
        there.is_awaited = there.is_new = False
        if not admit([one.envelope.kind for one in handed], there.demand)[1].fits_any:
            self._end(there)

    def _end(self, there: _Receiving) -> None:
        there.is_awaited, there.is_over = False, True
        self._transport.nudge()

    async def _stand_by(self, there: _Receiving, owner: str, until: float) -> list[Delivery]:
        """Be given a job by the books, until a message comes."""
        if self._giver is None or not there.demand.fits_any:
            return []
        for _ in range(_STEPS if there.is_new else 0):
            await asyncio.sleep(0)
        wait = until - self._clock.monotonic()
        if there.task.done():
            return []
        return await self._giver.stand_by(there.queues, owner, wait, there.task)

    async def _receive_for(self, there: _Receiving) -> list[Arrival]:
        found = await self._receive_new(there)
        if there.is_awaited:
            return found
        self.hall.hold(found)
        return []

    async def _receive_new(self, there: _Receiving) -> list[Arrival]:
        """Receive until it is over, or something new has come.

        The message of a job that the books have handed over is late, and a repetition as a rule:
        nobody stops standing by for it. It waits for others, but not for long.
        """
        demand = there.demand
        most = min(_MANY, demand.io, demand.cpu)
        found: list[Arrival] = []
        while not there.is_over and (left := there.until - self._clock.monotonic()) > 0:
            room = replace(demand, io=demand.io - len(found), cpu=demand.cpu - len(found))
            try:
                came = await self.receive(there.queues, room, min(left, _SOON) if found else left)
            except BaseException:
                self.hall.hold(found)
                raise
            found += came
            if not came or len(found) >= most or not self._are_late(came):
                break
        return found

    def _are_late(self, arrivals: Sequence[Arrival]) -> bool:
        """Whether these are messages of what was handed over here of late, and nothing else."""
        return all(id_of(one, self._namespace) in self._handed for one in arrivals)

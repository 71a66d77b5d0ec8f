"""Whoever fetches waits in two places at once: for a message, and at the books for a job.

A transport counts what one receiver has room for, so one fetch is here at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from umbel.brokers.hall import Hall, admit
from umbel.brokers.port import Demand, Ledger, StandbyLedger
from umbel.brokers.strangers import id_of
from umbel.brokers.transport import Arrival, Transport
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

    def __init__(self, queues: Sequence[str], demand: Demand) -> None:
        self.task: asyncio.Task[list[Arrival]]
        self.is_awaited = True
        """Whether somebody fetches. What comes otherwise waits in the hall."""
        self.is_new = True
        self._for = (tuple(queues), demand)

    def suits(self, queues: Sequence[str], demand: Demand) -> bool:
        """Whether it is what another fetch would begin."""
        return not self.task.done() and self._for == (tuple(queues), demand)

    def result(self) -> list[Arrival]:
        """What came of it; nothing if it was stopped or has failed."""
        failed = self.task.cancelled() or self.task.exception() is not None
        return [] if failed else self.task.result()


class Reception:
    """Receives from a transport, and stands by where the ledger can hand over."""

    def __init__(
        self, transport: Transport, ledger: Ledger, *, namespace: str, clock: Clock
    ) -> None:
        self.hall = Hall(transport)
        self._transport = transport
        self._ledger = ledger
        self._giver = ledger if isinstance(ledger, StandbyLedger) else None
        self._namespace = namespace
        self._clock = clock
        self.turn = asyncio.Lock()
        """Whose it is to fetch."""
        self._inboxes: dict[str, bool] = {}
        """Workers' own queues, and whether anything was ever sent there: few are used, and a queue
        elsewhere costs its server something."""
        self._kept: _Receiving | None = None
        """That of a fetch that the books were faster for."""
        self._over = asyncio.Event()
        """Ends the receiving that goes on, whatever it is doing."""
        self._handed: deque[str] = deque(maxlen=_REMEMBERED)
        """Jobs that the books gave without a message: theirs come later."""

    async def see_inboxes(self, queues: Sequence[str]) -> None:
        """Find out whether anything was ever sent to workers' own queues."""
        for queue in queues:
            if is_inbox(queue) and queue not in self._inboxes:
                self._inboxes[queue] = await self._ledger.waiting([queue], ("io", "cpu"))

    async def next(self, queues: Sequence[str], demand: Demand, owner: str, wait: float) -> Came:
        """What comes first. Who waits stands by at the books."""
        there = await self._receiving(queues, demand, wait)
        try:
            handed = await self._stand_by(there, queues, demand, owner, wait)
            if not handed:
                return Came([], await there.task)
            self._handed += [one.id for one in handed]
            self._keep(there, admit([one.envelope.kind for one in handed], demand)[1])
            return Came(handed, [])
        except BaseException:
            there.task.cancel()
            await self._wind_up(there)
            raise

    async def clear(self) -> None:
        """Receive for nobody: who is here does so itself."""
        kept, self._kept = self._kept, None
        if kept is not None:
            await self._wind_up(kept)

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
        self._over.set()
        self._transport.nudge()

    async def close(self) -> None:
        """Receive nothing any more; what was not taken goes back. Twice is fine."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.task.cancel()
            await asyncio.wait([kept.task])
            kept.result()
        await self.hall.close()

    async def _receiving(self, queues: Sequence[str], demand: Demand, wait: float) -> _Receiving:
        """A receive for this fetch: that of the one before, if it would be the same."""
        if self._kept is not None and self._kept.suits(queues, demand):
            found, self._kept = self._kept, None
            found.is_awaited = True
            return found
        await self.clear()
        self._over.clear()
        found = _Receiving(queues, demand)
        found.task = asyncio.create_task(self._receive_for(found, queues, demand, wait))
        return found

    def _keep(self, there: _Receiving, left: Demand) -> None:
        """Go on for the next fetch. Where no room is left nobody may fetch for long."""
        there.is_awaited = there.is_new = False
        self._kept = there
        if not left.fits_any:
            self.nudge()

    async def _stand_by(
        self, there: _Receiving, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        """Be given a job by the books, until a message comes."""
        if self._giver is None or not demand.fits_any:
            return []
        for _ in range(_STEPS if there.is_new else 0):
            await asyncio.sleep(0)
        if there.task.done():
            return []
        return await self._giver.stand_by(queues, owner, wait, there.task)

    async def _receive_for(
        self, receiving: _Receiving, queues: Sequence[str], demand: Demand, wait: float
    ) -> list[Arrival]:
        found = await self._receive_new(queues, demand, wait)
        if receiving.is_awaited:
            return found
        self.hall.hold(found)
        return []

    async def _receive_new(
        self, queues: Sequence[str], demand: Demand, wait: float
    ) -> list[Arrival]:
        """Receive until it is over, or something new has come.

        The message of a job that the books have handed over is late, and a repetition as a rule:
        nobody stops standing by for it. It waits for others, but not for long.
        """
        until = self._clock.monotonic() + wait
        most = min(_MANY, demand.io, demand.cpu)
        found: list[Arrival] = []
        while not self._over.is_set() and (left := until - self._clock.monotonic()) > 0:
            room = replace(demand, io=demand.io - len(found), cpu=demand.cpu - len(found))
            try:
                came = await self.receive(queues, room, min(left, _SOON) if found else left)
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

    async def _wind_up(self, there: _Receiving) -> None:
        """Receive no more. What has come all the same waits for the next fetch, for a moment."""
        there.is_awaited = False
        self.nudge()
        try:
            await asyncio.wait([there.task])
        except BaseException:
            there.task.cancel()
            await asyncio.wait([there.task])
            raise
        finally:
            if there.task.done():
                self.hall.hold(there.result())

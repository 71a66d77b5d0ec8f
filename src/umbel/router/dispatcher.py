"""The router in a process of its own: many workers share its few connections.

It keeps nothing that matters. Leases belong to the workers' lives, the books to the store: it may
die at any moment, and whoever takes its place goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from umbel.backends import Broker, Demand
from umbel.clock import Clock
from umbel.errors import Unavailable
from umbel.messages import Attempt, Delivery, Interrupted, Lease, Settlement
from umbel.router.router import Router

_BATCH = 500
_TURN = 0.05
"""Seconds that one worker asks while another waits for what only that one could have."""


class Asker:
    """A worker that has room and waits."""

    def __init__(self, owner: str, own: Sequence[str], demand: Demand, until: float) -> None:
        self.owner = owner
        self.own = own
        self.demand = demand
        self.until = until
        self.answer: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()

    @property
    def room(self) -> int:
        """How much could start there."""
        return self.demand.io + self.demand.cpu


class Line:
    """The workers that wait for the same queues. One of them at a time asks the broker.

    That is the one with the most room, of several the one that waits longest. It takes what it has
    room for; as long as there is more, the next follows at once. While another could start what
    this one could not, or has a queue of its own, they take turns.
    """

    def __init__(self, broker: Broker, queues: Sequence[str], clock: Clock) -> None:
        self._broker = broker
        self._queues = queues
        self._clock = clock
        self._askers: list[Asker] = []
        self._asking: Asker | None = None
        self._had_turn: set[Asker] = set()
        """Who has asked since everybody had."""
        self._asked = Demand()
        """What the last question was for."""
        self._task: asyncio.Task[None] | None = None

    async def fetch(
        self, owner: str, demand: Demand, wait: float, own: Sequence[str] = ()
    ) -> list[Delivery]:
        """What may start now at this worker. Raises LeaseLost, Unavailable."""
        asker = Asker(owner, own, demand, self._clock.monotonic() + wait)
        self._askers.append(asker)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve(), name="umbel-line")
        elif self._asking is not None and _asks_for_more(demand, self._asking.demand):
            self._broker.nudge()
        try:
            async with asyncio.timeout(max(wait, 0) + 1.0):
                return await asker.answer
        except TimeoutError:
            return []
        finally:
            self.give_up(asker)

    def give_up(self, asker: Asker) -> None:
        """It does not wait any more."""
        self._had_turn.discard(asker)
        if asker in self._askers:
            self._askers.remove(asker)
        if asker is self._asking:
            self._broker.nudge()

    def nudge(self, owner: str) -> None:
        """Answer this worker now, with nothing."""
        for asker in [asker for asker in self._askers if asker.owner == owner]:
            if not asker.answer.done():
                asker.answer.set_result([])
            self.give_up(asker)

    def close(self) -> None:
        """Serve nobody any more."""
        if self._task is not None:
            self._task.cancel()

    async def _serve(self) -> None:
        while self._askers:
            asker, wait = self._next()
            self._asking, self._asked = asker, asker.demand
            try:
                queues = [*asker.own, *self._queues]
                found = await self._broker.fetch(queues, asker.demand, asker.owner, wait)
                await self._hand_over(asker, found)
            except Unavailable as error:
                for one in self._askers:
                    _fail(one, error)
                self._askers.clear()
            except Exception as error:  # noqa: BLE001 - this worker hears it, the others wait on
                _fail(asker, error)
                self._drop(asker)
            finally:
                self._asking = None

    def _next(self) -> tuple[Asker, float]:
        """Who asks, and for how long."""
        if not any(one not in self._had_turn for one in self._askers):
            self._had_turn.clear()
        left = [one for one in self._askers if one not in self._had_turn]
        others = [one for one in left if _asks_for_more(one.demand, self._asked)]
        asker = max(others or left, key=lambda one: one.room)
        self._had_turn.add(asker)
        wait = asker.until - self._clock.monotonic()
        if any(one.own or _asks_for_more(one.demand, asker.demand) for one in self._others(asker)):
            wait = min(wait, _TURN)
        return asker, wait

    def _others(self, asker: Asker) -> list[Asker]:
        return [one for one in self._askers if one is not asker]

    async def _hand_over(self, asker: Asker, found: list[Delivery]) -> None:
        waits = not asker.answer.done()
        if waits and (found or self._clock.monotonic() >= asker.until):
            asker.answer.set_result(found)
            self._drop(asker)
        elif found:  # it went while its jobs were claimed
            await self._put_back(found)

    async def _put_back(self, found: list[Delivery]) -> None:
        now = self._clock.now()
        reason = "its worker did not wait for it"
        back = [
            Settlement(
                lease=one.lease,
                outcome=Interrupted(reason),
                attempt=Attempt(one.attempt, "", now, now, "interrupted", reason=reason),
            )
            for one in found
        ]
        # If not, whoever owns them hears of it with its next heartbeat, and gives them back.
        with suppress(Unavailable):
            await self._broker.settle(back)

    def _drop(self, asker: Asker) -> None:
        self._had_turn.discard(asker)
        if asker in self._askers:
            self._askers.remove(asker)


class Dispatcher:
    """One broker, shared by the routers of many workers."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._lines: dict[tuple[str, ...], Line] = {}
        self._waiting: list[tuple[Sequence[Settlement], asyncio.Future[list[Lease]]]] = []
        self._settling: asyncio.Task[None] | None = None

    def line(self, queues: Sequence[str]) -> Line:
        """Where workers wait that serve these queues."""
        found = self._lines.get(tuple(queues))
        if found is None:
            found = self._lines[tuple(queues)] = Line(self._broker, tuple(queues), self._clock)
        return found

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        """Settle together with what others hand in meanwhile. See ``Broker.settle``."""
        future: asyncio.Future[list[Lease]] = asyncio.get_running_loop().create_future()
        self._waiting.append((settlements, future))
        if self._settling is None or self._settling.done():
            self._settling = asyncio.create_task(self._settle_on(), name="umbel-settling")
        return await future

    async def close(self) -> None:
        """Serve nobody any more."""
        for line in self._lines.values():
            line.close()
        if self._settling is not None:
            await asyncio.wait([self._settling], timeout=1.0)

    async def _settle_on(self) -> None:
        while self._waiting:
            batch, size = [], 0
            while self._waiting and size < _BATCH:
                batch.append(self._waiting.pop(0))
                size += len(batch[-1][0])
            await self._settle_together(batch)

    async def _settle_together(
        self, batch: list[tuple[Sequence[Settlement], asyncio.Future[list[Lease]]]]
    ) -> None:
        try:
            refused = await self._broker.settle([one for part, _ in batch for one in part])
        except Exception as error:  # noqa: BLE001 - it is for those who handed it in
            if len(batch) == 1 or isinstance(error, Unavailable):
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                return
            for one in batch:  # one worker's fault is not the others'
                await self._settle_together([one])
            return
        lost = Counter(refused)
        # Backwards: of a lease that was settled twice, the later one was refused.
        for part, future in reversed(batch):
            own = [one.lease for one in reversed(part) if _take_one(lost, one.lease)]
            if not future.done():
                future.set_result(own[::-1])


class SharedRouter(Router):
    """One worker's router, in a process that routes for many."""

    def __init__(self, dispatcher: Dispatcher, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._dispatcher = dispatcher
        self._owner = ""

    def nudge(self) -> None:
        """Make this worker's fetch return."""
        self._dispatcher.line(self._queues).nudge(self._owner)

    async def close(self) -> None:
        """The connections are the others' too."""
        self.nudge()

    async def _claim(
        self, owner: str, demand: Demand, wait: float, own: Sequence[str]
    ) -> list[Delivery]:
        self._owner = owner
        return await self._dispatcher.line(self._queues).fetch(owner, demand, wait, own)

    async def _record(self, settlements: Sequence[Settlement]) -> list[Lease]:
        return await self._dispatcher.settle(settlements)


def _asks_for_more(demand: Demand, than: Demand) -> bool:
    """Whether it could start what the other one could not."""
    return (demand.io > 0 and than.io == 0) or (demand.cpu > 0 and than.cpu == 0)


def _take_one(lost: Counter[Lease], lease: Lease) -> bool:
    lost[lease] -= 1
    return lost[lease] >= 0


def _fail(asker: Asker, error: Exception) -> None:
    if not asker.answer.done():
        asker.answer.set_exception(error)

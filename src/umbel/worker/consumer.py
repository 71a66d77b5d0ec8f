"""The fetch loop: asks for exactly what could start now, and starts what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio

from umbel.backends import Demand
from umbel.clock import Clock
from umbel.errors import LeaseLost
from umbel.messages import Delivery, inbox
from umbel.worker.heartbeat import FENCE_AT
from umbel.worker.incarnation import Life
from umbel.worker.intake import Intake

_STEPS = 3
"""Rounds of the event loop in which a task that never waits is started, run and reported."""


class Consumer:
    """Fetches while there is room; sleeps while there is none or nothing to do."""

    name = "consumer"

    def __init__(
        self,
        intake: Intake,
        life: Life,
        *,
        lease: float,
        free: Callable[[], Demand],
        start: Callable[[Delivery], None],
        give_back: Callable[[Delivery, str], None],
        look: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._intake = intake
        self._life = life
        self._lease = lease
        self._free = free
        self._start = start
        self._give_back = give_back
        self._look = look
        self._clock = clock
        self._room = anyio.Event()
        self._asked = Demand()
        self._fetching = False
        self._stopping = False
        self.fetches = 0
        """How many fetches have returned, with something or nothing."""
        self.fetched = 0
        """How many deliveries were fetched."""
        self.epoch = 0
        """The control epoch that every fetch from now on respects."""
        self._new_epoch = 0
        self._scope: anyio.CancelScope | None = None
        self.stopped = anyio.Event()
        """Set when nothing more will be fetched."""

    def see_epoch(self, epoch: int) -> None:
        """A pause of this epoch is in the store: fetches that start from now on respect it."""
        self._new_epoch = epoch
        if not self._fetching:
            self.epoch = epoch
        elif epoch != self.epoch:
            self._intake.nudge()

    def slot_freed(self) -> None:
        """There is room again. A fetch that waits without asking for that kind is called back."""
        asked = self._asked
        if not self._fetching:
            self._room.set()
        elif asked.without or not (asked.io and asked.cpu):
            free = self._free()
            more = (free.io and not asked.io) or (free.cpu and not asked.cpu)
            if more or {*asked.without} - {*free.without}:
                self._intake.nudge()

    def stop(self) -> None:
        """Fetch no more."""
        self._stopping = True
        self._room.set()
        self._intake.nudge()

    async def run(self, working: Callable[[], None]) -> None:
        """Fetch and start until stopped."""
        while not self._stopping:
            demand = self._free()
            if not demand:
                self._room = anyio.Event()
                await self._room.wait()
                continue
            with anyio.CancelScope() as self._scope:
                await self._fetch(demand)
                working()
        self.stopped.set()

    def rebuild(self) -> None:
        """Give up the present fetch and begin a new one; what it claimed unseen is given back."""
        if self._scope is not None:
            self._scope.cancel()

    async def _fetch(self, demand: Demand) -> None:
        owner, began = self._life.incarnation, self._clock.monotonic()
        self._asked, self._fetching = demand, True
        self._look()
        try:
            deliveries = await self._intake.fetch(owner, demand, self._lease / 3, self._own())
        except LeaseLost:
            # The heart hears the same and begins a new life; until then there is nothing to do.
            await anyio.sleep(self._lease / 20)
            return
        else:
            late = self._clock.monotonic() - began > self._lease * FENCE_AT
            # An answer as late as that may be about jobs that were taken back already.
            if not late and owner == self._life.incarnation:
                self._begin(deliveries)
                # Tasks that end at once have left their slots before the next fetch asks.
                for _ in range(_STEPS if deliveries else 0):
                    await asyncio.sleep(0)
        finally:
            self._fetching = False
            self.fetches += 1
            # Only now: what was claimed before the pause has started.
            self.epoch = self._new_epoch

    def _own(self) -> tuple[str, ...]:
        """The worker's own queue."""
        index = self._life.index
        return () if index is None else (inbox(index),)

    def _begin(self, deliveries: list[Delivery]) -> None:
        self.fetched += len(deliveries)
        for delivery in deliveries:
            self._life.hold(delivery.lease)
            if self._stopping:
                self._give_back(delivery, "the worker is stopping")
            else:
                self._start(delivery)

"""The consumer: fetches as many jobs as can start now, and hands them to the task runner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio

from umbel.backends import Demand
from umbel.clock import Clock
from umbel.errors import LeaseLost
from umbel.messages import Delivery, inbox
from umbel.tasks.hooks import Hooks
from umbel.worker.activation import job_of
from umbel.worker.heartbeat import FENCE_AT, Heartbeat
from umbel.worker.incarnation import Incarnation
from umbel.worker.intake import Intake
from umbel.worker.task_runner import TaskRunner

_LOOP_ROUNDS = 3
"""Rounds of the event loop in which a task that never waits is started, run and reported."""


class Consumer:
    """Fetches while slots are free; otherwise waits for a free slot."""

    name = "consumer"

    def __init__(
        self,
        intake: Intake,
        incarnation: Incarnation,
        task_runner: TaskRunner,
        heartbeat: Heartbeat,
        *,
        hooks: Hooks,
        lease: float,
        clock: Clock,
    ) -> None:
        self._hooks = hooks
        self._intake = intake
        self._incarnation = incarnation
        self._task_runner = task_runner
        self._heartbeat = heartbeat
        self._lease = lease
        self._clock = clock
        self._slot_free = anyio.Event()
        self._requested = Demand()
        self._is_fetching = False
        self._is_stopping = False
        self.fetches = 0
        """How many fetches have returned, with or without deliveries."""
        self.fetched = 0
        """How many deliveries were fetched."""
        self.epoch = 0
        """The control epoch that every fetch from now on respects."""
        self._new_epoch = 0
        self._scope: anyio.CancelScope | None = None
        self.stopped = anyio.Event()
        """Set when no more fetches will follow."""
        task_runner.when_slot_freed(self.request_more)

    def set_pause_epoch(self, epoch: int) -> None:
        """Record that the store has pauses of this epoch: fetches that start now respect them."""
        self._new_epoch = epoch
        if not self._is_fetching:
            self.epoch = epoch
        elif epoch != self.epoch:
            self._intake.stop_waiting()

    def request_more(self) -> None:
        """Fetch again if more can start than the present fetch has asked for."""
        requested = self._requested
        if not self._is_fetching:
            self._slot_free.set()
        else:
            free = self._task_runner.free()
            more = any(many > 0 >= requested.capacity(kind) for kind, many in free.free.items())
            if more or {*requested.without} - {*free.without}:
                self._intake.stop_waiting()

    def stop(self) -> None:
        """Fetch no more."""
        self._is_stopping = True
        self._slot_free.set()
        self._intake.stop_waiting()

    async def run(self, working: Callable[[], None]) -> None:
        """Fetch and start jobs until stopped."""
        while not self._is_stopping:
            demand = self._task_runner.free()
            if not demand:
                self._slot_free = anyio.Event()
                await self._slot_free.wait()
                continue
            with anyio.CancelScope() as self._scope:
                await self._fetch(demand)
                working()
        self.stopped.set()

    def restart_fetch(self) -> None:
        """Cancel the present fetch and begin a new one.

        Jobs that the cancelled fetch has claimed go back to their queues with a later heartbeat.
        """
        if self._scope is not None:
            self._scope.cancel()

    async def _fetch(self, demand: Demand) -> None:
        owner, began = self._incarnation.id, self._clock.monotonic()
        self._requested, self._is_fetching = demand, True
        self._heartbeat.check_wall_clock()
        try:
            deliveries = await self._intake.fetch(owner, demand, self._lease / 3, self._inbox())
        except LeaseLost:
            # The heartbeat finds the same and starts the next incarnation.
            await anyio.sleep(self._lease / 20)
            return
        else:
            is_late = self._clock.monotonic() - began > self._lease * FENCE_AT
            # The jobs of a late answer may have been taken back already.
            if not is_late and owner == self._incarnation.id:
                if self._hooks.fetches and deliveries:
                    await self._call_hooks(deliveries)
                self._admit(deliveries)
                # Tasks that end at once have freed their slots before the next fetch.
                for _ in range(_LOOP_ROUNDS if deliveries else 0):
                    await asyncio.sleep(0)
        finally:
            self._is_fetching = False
            self.fetches += 1
            # Only now: jobs that were claimed before the pause have started.
            self.epoch = self._new_epoch

    async def _call_hooks(self, deliveries: list[Delivery]) -> None:
        """Call the hooks for fetched jobs. They are held meanwhile, so they must be admitted."""
        for delivery in deliveries:
            self._incarnation.hold(delivery.lease)
        with anyio.CancelScope(shield=True):
            jobs = [job_of(delivery) for delivery in deliveries]
            await self._hooks.call("on_fetch", jobs, limit=self._lease / 3)

    def _inbox(self) -> tuple[str, ...]:
        """Return the name of the worker's own queue, once it has an index."""
        index = self._incarnation.index
        return () if index is None else (inbox(index),)

    def _admit(self, deliveries: list[Delivery]) -> None:
        self.fetched += len(deliveries)
        for delivery in deliveries:
            self._incarnation.hold(delivery.lease)
            if self._is_stopping:
                self._task_runner.give_back(delivery, "the worker is stopping")
            else:
                self._task_runner.admit(delivery)

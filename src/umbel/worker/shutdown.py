"""The end of a worker, in phases and with heartbeats to the last one."""

from __future__ import annotations

from contextlib import suppress

import anyio

from umbel.errors import Unavailable
from umbel.telemetry import Telemetry, events
from umbel.worker.consumer import Consumer
from umbel.worker.inbox_verifier import InboxVerifier
from umbel.worker.incarnation import Life
from umbel.worker.intake import Intake
from umbel.worker.options import WorkerOptions
from umbel.worker.progress import ProgressNotes
from umbel.worker.reports import Settler
from umbel.worker.stops import Stop, Why
from umbel.worker.task_runner import Crew

_LAST_PHASE = 5.0
"""Seconds that interrupted tasks get to end once the grace period is over."""


class Shutdown:
    """Stop fetching → interrupt what is interruptible, let the rest finish → after the grace period
    interrupt all → settle → leave."""

    def __init__(
        self,
        options: WorkerOptions,
        life: Life,
        intake: Intake,
        *,
        consumer: Consumer,
        guard: InboxVerifier,
        crew: Crew,
        settler: Settler,
        progress: ProgressNotes,
        telemetry: Telemetry,
    ) -> None:
        self._options = options
        self._life = life
        self._intake = intake
        self._consumer = consumer
        self._guard = guard
        self._crew = crew
        self._settler = settler
        self._progress = progress
        self._telemetry = telemetry
        self.leaving = False
        """Everything is settled: from now on the life may end."""

    async def run(self, hurry: anyio.Event) -> None:
        """All phases; without the rest of the grace period once somebody is in a hurry."""
        grace, crew = self._options.grace, self._crew
        self._telemetry.emit(
            events.WorkerStopping(worker=self._life.name, running=crew.running, grace=grace)
        )
        self._consumer.stop()
        for delivery in self._guard.clear():
            crew.give_back(delivery, "the worker is stopping")
        crew.stop_all(Stop(Why.INTERRUPT), interruptible=True)
        await self._no_more_fetching()
        await crew.until_idle(grace, hurry)
        crew.stop_all(Stop(Why.INTERRUPT, "the grace period is over"))
        await crew.until_idle(_LAST_PHASE)
        crew.abandon()
        self._progress.stop()
        # After a lease length without the server everything is lost anyway, and put back by others.
        with anyio.move_on_after(self._options.lease), suppress(Unavailable):
            await self._settler.finish()
            self.leaving = True
            await self._intake.leave(self._life.incarnation)
        crew.close()
        self._telemetry.emit(events.WorkerStopped(worker=self._life.name, abandoned=crew.abandoned))

    async def _no_more_fetching(self) -> None:
        """A fetch that does not come back is given up; what it claimed unseen is put back."""
        with anyio.move_on_after(_LAST_PHASE):
            await self._consumer.stopped.wait()
        while not self._consumer.stopped.is_set():
            self._consumer.rebuild()
            await anyio.sleep(0.05)

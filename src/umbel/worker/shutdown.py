"""The shutdown of a worker, in phases. Heartbeats continue until the last phase is over."""

from __future__ import annotations

from contextlib import suppress

import anyio

from umbel.errors import Unavailable
from umbel.telemetry import Telemetry, events
from umbel.worker.consumer import Consumer
from umbel.worker.executors import Executors
from umbel.worker.graph_nodes import NodeQueue
from umbel.worker.inbox_verifier import InboxVerifier
from umbel.worker.incarnation import Incarnation
from umbel.worker.intake import Intake
from umbel.worker.options import WorkerOptions
from umbel.worker.progress import ProgressNotes
from umbel.worker.settler import Settler
from umbel.worker.stops import Stop, StopCause
from umbel.worker.task_runner import TaskRunner

_FORCED_STOP_SECONDS = 5.0
"""Time in which interrupted tasks must end once the grace period is over."""
_RESTART_FETCH_INTERVAL = 0.05


class Shutdown:
    """Stop fetching → interrupt interruptible tasks, let the others finish → after the grace period
    interrupt all → settle → unregister."""

    def __init__(
        self,
        options: WorkerOptions,
        incarnation: Incarnation,
        intake: Intake,
        *,
        consumer: Consumer,
        inbox: InboxVerifier,
        nodes: NodeQueue,
        task_runner: TaskRunner,
        executors: Executors,
        settler: Settler,
        progress: ProgressNotes,
        telemetry: Telemetry,
    ) -> None:
        self._options = options
        self._incarnation = incarnation
        self._intake = intake
        self._consumer = consumer
        self._inbox = inbox
        self._nodes = nodes
        self._task_runner = task_runner
        self._executors = executors
        self._settler = settler
        self._progress = progress
        self._telemetry = telemetry
        self.is_leaving = False
        """Whether everything is settled, so that the loss of the incarnation means nothing."""

    async def run(self, hurry: anyio.Event) -> None:
        """Run all phases. Once ``hurry`` is set, the rest of the grace period is skipped."""
        grace, executors, worker = self._options.grace, self._executors, self._incarnation.name
        self._telemetry.emit(
            events.WorkerStopping(worker=worker, running=executors.running, grace=grace)
        )
        self._consumer.stop()
        for delivery in [*self._inbox.clear(), *self._nodes.clear()]:
            self._task_runner.give_back(delivery, "the worker is stopping")
        executors.stop_all(Stop(StopCause.INTERRUPT), only_interruptible=True)
        await self._wait_for_last_fetch()
        await self._task_runner.wait_until_idle(grace, hurry)
        executors.stop_all(Stop(StopCause.INTERRUPT, "the grace period is over"))
        await self._task_runner.wait_until_idle(_FORCED_STOP_SECONDS)
        self._task_runner.abandon_running()
        self._progress.stop()
        # If the server is away for a whole lease, the leases are lost and others recover the jobs.
        with anyio.move_on_after(self._options.lease), suppress(Unavailable):
            await self._settler.finish()
            self.is_leaving = True
            await self._intake.unregister(self._incarnation.id)
        executors.close()
        self._telemetry.emit(
            events.WorkerStopped(worker=worker, abandoned=self._task_runner.abandoned)
        )

    async def _wait_for_last_fetch(self) -> None:
        """Wait for the present fetch; cancel it if it does not return."""
        with anyio.move_on_after(_FORCED_STOP_SECONDS):
            await self._consumer.stopped.wait()
        while not self._consumer.stopped.is_set():
            self._consumer.restart_fetch()
            await anyio.sleep(_RESTART_FETCH_INTERVAL)

"""One run of a job, step by step: admit → activate → run → decide → settle.

==========  =======================================================================================
admit       Verify a delivery from the worker's own queue, read what a node of a graph gets, and
            admit others at once.
activate    Find the task and decode its arguments, or return the outcome of a job that cannot run.
run         Take a slot of the worker's own limits and hand the activation to its executor.
decide      Turn what the task returned or raised into an outcome.
settle      Free the slots and queue the outcome for the store; the settler writes it.
==========  =======================================================================================

``runs`` has the values that pass from step to step. Every admitted delivery is settled: if a step
cannot go on, the delivery skips to ``settle`` with an outcome that says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio

from umbel.backends import Demand
from umbel.clock import Clock
from umbel.graphs import PreparedNode, Values, must_prepare
from umbel.messages import (
    BodyCodec,
    Cancelled,
    Delivery,
    Failed,
    Interrupted,
    Outcome,
    Parked,
    Reference,
    Rejected,
    Succeeded,
)
from umbel.tasks import Track
from umbel.tasks.failures import describe
from umbel.tasks.replacing import Replacement
from umbel.telemetry import Telemetry, events
from umbel.worker.activation import Activator
from umbel.worker.decide import decide_outcome
from umbel.worker.executors import Executors
from umbel.worker.graph_nodes import NodeQueue
from umbel.worker.inbox_verifier import InboxVerifier
from umbel.worker.local_gates import LocalGates
from umbel.worker.missing_tasks import MissingTasks
from umbel.worker.runs import Activation, EndedRun, Report
from umbel.worker.settler import Settler, trace_of
from umbel.worker.stops import Stop, StopCause


class TaskRunner:
    """Takes each delivery through all steps of its run."""

    name = "inbox verifier"

    def __init__(
        self,
        activator: Activator,
        executors: Executors,
        settler: Settler,
        *,
        inbox: InboxVerifier,
        nodes: NodeQueue,
        local_gates: LocalGates,
        missing: MissingTasks,
        codec: BodyCodec,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._activator = activator
        self._executors = executors
        self._settler = settler
        self._inbox = inbox
        self._nodes = nodes
        self._local_gates = local_gates
        self._missing = missing
        self._codec = codec
        self._clock = clock
        self._telemetry = telemetry
        self._freed_listeners: list[Callable[[], None]] = []
        self._one_ended: anyio.Event | None = None
        self.is_paused = False
        """Whether an operator has paused this worker."""
        self.abandoned = 0
        """How many tasks did not stop when asked to and were abandoned."""

    def begin(self) -> None:
        """Accept deliveries from now on, in the running event loop."""
        self._executors.start(self)

    # --- admit -------------------------------------------------------------------------------

    def admit(self, delivery: Delivery) -> None:
        """Start a delivery; one that must be verified starts after that."""
        if self._inbox.must_verify(delivery):
            self._inbox.put(delivery)
        else:
            self._prepare(delivery)

    def admit_prepared(self, delivery: Delivery, node: PreparedNode) -> None:
        """Start a node of a graph with what it gets, or settle it if it runs no task."""
        if node.outcome is None:
            self._start(delivery, node.values)
        else:
            now = self._clock.now()
            self._settler.put(Report(delivery, node.outcome, now, now, growth=node.growth))
        self._notify_slot_freed()

    def _prepare(self, delivery: Delivery) -> None:
        if must_prepare(delivery):
            self._nodes.put(delivery)
        else:
            self._start(delivery)

    async def run(self, working: Callable[[], None]) -> None:
        """Start or reject the deliveries that the inbox verifier has checked."""
        while True:
            for delivery, refusal in await self._inbox.verify():
                if refusal is None:
                    self._prepare(delivery)
                else:
                    self._settle_at_once(delivery, Rejected(f"inbox: {refusal}"))
            self._notify_slot_freed()
            working()

    # --- activate ----------------------------------------------------------------------------

    def _start(self, delivery: Delivery, results: Values = ()) -> None:
        """Activate and run a delivery, or settle it if it cannot run."""
        try:
            activated = self._activator.activate(delivery, results)
            if not isinstance(activated, Activation):
                self._settle_at_once(delivery, activated)
            elif not self._local_gates or self._enter_local_gates(activated):
                self._run(activated)
        except Exception as error:  # noqa: BLE001 - a malformed message must not end the fetch loop
            self._settle_at_once(delivery, Failed(describe(error)))

    # --- run ---------------------------------------------------------------------------------

    def _enter_local_gates(self, activation: Activation) -> bool:
        """Take slots of this worker's own gates. If there are none, settle the job unstarted.

        Raises:
            Exception: what a token's function raises.
        """
        delivery = activation.delivery
        wait = self._local_gates.enter(
            delivery.lease, activation.task, activation.args, activation.kwargs
        )
        if wait is not None:
            if wait:
                self.give_back(delivery, "no more of its kind may run here now", wait)
            else:  # another worker may take it at once
                self._settle_at_once(delivery, Parked(delivery.envelope.gates))
            return False
        until_next = self._local_gates.next_time()
        if until_next is not None:
            asyncio.get_running_loop().call_later(until_next, self._notify_slot_freed)
        return True

    def _run(self, activation: Activation) -> None:
        """Hand it to the executor of the task's kind, which calls ``decide`` and ``settle``."""
        delivery = activation.delivery
        if self._telemetry.is_needed(events.JobStarted):
            envelope = delivery.envelope
            self._telemetry.emit(
                events.JobStarted(
                    job=delivery.id,
                    task=envelope.subject,
                    attempt=delivery.attempt,
                    trace=trace_of(envelope.traceparent),
                )
            )
        if not self._executors.submit(activation):
            # The sender did not know the task's kind, or the kind has changed since.
            self._local_gates.leave(delivery.lease)
            kind = activation.task.kind
            self.give_back(delivery, f"no free slot for {kind} tasks here", delay=1)

    # --- decide ------------------------------------------------------------------------------

    def decide(self, ended: EndedRun) -> Report:
        """Decide the outcome, in the thread that ran the task: encoding a result takes time."""
        return report_of(ended, self._codec, self._clock)

    # --- settle ------------------------------------------------------------------------------

    def settle(self, report: Report) -> None:
        """Free the slots of a run that has ended and queue its outcome for the store."""
        self._local_gates.leave(report.delivery.lease)
        self._settler.put(report)
        self._notify_slot_freed()
        if self._one_ended is not None:
            self._one_ended.set()

    def give_back(self, delivery: Delivery, reason: str, delay: float = 0.0) -> None:
        """Return a delivery to its queue without starting it."""
        self._settle_at_once(delivery, Interrupted(reason, delay))

    def _settle_at_once(self, delivery: Delivery, outcome: Outcome) -> None:
        """Settle a delivery that took no slot here, or whose run is abandoned."""
        now = self._clock.now()
        self._settler.put(Report(delivery, outcome, now, now))

    # --- free slots --------------------------------------------------------------------------

    def free(self) -> Demand:
        """Return what could start now; nothing while this worker is paused.

        Each delivery that is not admitted yet takes a slot of each kind that it may need.
        """
        if self.is_paused:
            return Demand()
        free = self._executors.free()
        full = self._local_gates.full() if self._local_gates else ()
        return Demand(
            {
                kind: max(many - self._inbox.waiting(kind) - self._nodes.waiting(kind), 0)
                for kind, many in free.items()
            },
            (*full, *self._missing.tasks),
        )

    def when_slot_freed(self, listener: Callable[[], None]) -> None:
        """Call the listener in the event loop each time that more may be able to start."""
        self._freed_listeners.append(listener)

    def _notify_slot_freed(self) -> None:
        for listener in self._freed_listeners:
            listener()

    # --- shutdown ----------------------------------------------------------------------------

    async def wait_until_idle(self, seconds: float, hurry: anyio.Event | None = None) -> None:
        """Wait until no task runs, at most so many seconds, and only until ``hurry`` is set."""
        with anyio.move_on_after(seconds) as scope:
            async with anyio.create_task_group() as group:
                if hurry is not None:
                    group.start_soon(_cancel_when, hurry, scope)
                while self._executors.running:
                    self._one_ended = anyio.Event()
                    await self._one_ended.wait()
                group.cancel_scope.cancel()

    def abandon_running(self) -> None:
        """Settle the jobs of tasks that did not stop when asked to; ignore what these tasks do.

        The delay lets this process end before another worker starts the jobs.
        """
        for activation in self._executors.activations():
            self._executors.abandon(activation.delivery.lease)
            self.abandoned += 1
            stop = activation.run.stop_reason
            outcome: Outcome = Interrupted("it did not stop when told to", delay=1.0)
            if isinstance(stop, Stop) and stop.cause is StopCause.CANCEL:
                outcome = Cancelled(stop.reason)
            self._settle_at_once(activation.delivery, outcome)


def report_of(ended: EndedRun, codec: BodyCodec, clock: Clock) -> Report:
    """Decide the outcome of a run, and return what is to be settled."""
    activation = ended.activation
    if (
        ended.error is None
        and activation.run.fatal is None
        and (isinstance(ended.value, Replacement))
    ):
        return _replaced(ended, ended.value, clock)
    outcome = decide_outcome(ended, codec, clock.now())
    keep = activation.track is not Track.FAILURES
    now, held = clock.now(), activation.run.held(clock.monotonic())
    return Report(activation.delivery, outcome, ended.started, now, keep, held)


def _replaced(ended: EndedRun, replacement: Replacement, clock: Clock) -> Report:
    """Return what is to be settled if a canvas replaces the job."""
    delivery, task = ended.activation.delivery, ended.activation.task
    try:
        growth = task.sender.grow(replacement.canvas, ended.activation.run)
        outcome: Outcome = Succeeded(Reference(job=growth.replacement).body)
        held = ended.activation.run.held(clock.monotonic())
        now = clock.now()
        return Report(delivery, outcome, ended.started, now, follow_ups=held, growth=growth)
    except Exception as error:  # noqa: BLE001 - encoding arguments runs code of users
        return Report(delivery, Failed(describe(error)), ended.started, clock.now())


async def _cancel_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()

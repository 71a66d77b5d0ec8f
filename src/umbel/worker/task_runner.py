"""What runs here: from a delivery to the runner of its kind, and from a runner to its report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio

from umbel.backends import Demand
from umbel.clock import Clock
from umbel.messages import (
    BodyCodec,
    Cancelled,
    Delivery,
    Failed,
    Interrupted,
    Lease,
    Outcome,
    Parked,
    Rejected,
)
from umbel.tasks import Registry
from umbel.tasks.failures import describe
from umbel.telemetry import Telemetry, events
from umbel.worker.activation import Activation
from umbel.worker.coroutines import Call, CoroutineRunner
from umbel.worker.local_gates import LocalGates
from umbel.worker.options import WorkerOptions
from umbel.worker.reports import Report, Settler, trace_of
from umbel.worker.stops import Stop, Why
from umbel.worker.threads import ThreadRunner


class Crew:
    """Starts what may start, coroutines and threads alike; whatever it is given comes to an end."""

    def __init__(
        self,
        options: WorkerOptions,
        registry: Registry,
        settler: Settler,
        *,
        codec: BodyCodec,
        clock: Clock,
        telemetry: Telemetry,
        activate: Callable[[Delivery], Activation | Outcome],
        freed: Callable[[], None],
    ) -> None:
        self._settler = settler
        self._clock = clock
        self._telemetry = telemetry
        self._activate = activate
        self._freed = freed
        self._coroutines = CoroutineRunner(options.io, codec, clock, self._ended)
        self._threads = ThreadRunner(options.cpu, codec, clock, self._ended)
        self._local = LocalGates(registry, clock)
        self._one_ended: anyio.Event | None = None
        self.abandoned = 0
        """How many would not stop, and were left behind."""

    def begin(self) -> None:
        """Be ready for work."""
        self._threads.start()

    def close(self) -> None:
        """Let idle threads go."""
        self._threads.close()

    def use_trio(self, call: Call) -> None:
        """How to run a coroutine that is written for Trio."""
        self._coroutines.call_trio = call

    # --- starting ----------------------------------------------------------------------------

    def start(self, delivery: Delivery) -> None:
        """Start it, or settle at once what cannot start."""
        try:
            activation = self._activate(delivery)
            if isinstance(activation, Activation):
                if not self._local or self._enters(activation):
                    self._dispatch(activation)
            else:
                self._settle(delivery, activation)
        except Exception as error:  # noqa: BLE001 - an odd message must not end the fetch loop
            self._settle(delivery, Failed(describe(error)))

    def give_back(self, delivery: Delivery, reason: str, delay: float = 0.0) -> None:
        """Back to the queue unstarted."""
        self._settle(delivery, Interrupted(reason, delay))

    def refuse(self, delivery: Delivery, reason: str) -> None:
        """It never runs."""
        self._settle(delivery, Rejected(reason))

    def _settle(self, delivery: Delivery, outcome: Outcome) -> None:
        now = self._clock.now()
        self._settler.put(Report(delivery, outcome, now, now))

    def _enters(self, activation: Activation) -> bool:
        """Whether this worker's own gates let it start; else it goes back. Raises user code's."""
        delivery = activation.delivery
        wait = self._local.enter(
            delivery.lease, activation.task, activation.args, activation.kwargs
        )
        if wait is not None:
            if wait:
                self.give_back(delivery, "no more of its kind may run here now", wait)
            else:  # others may take it at once
                self._settle(delivery, Parked(delivery.envelope.gates))
            return False
        until_next = self._local.next_time()
        if until_next is not None:
            asyncio.get_running_loop().call_later(until_next, self._freed)
        return True

    def _dispatch(self, activation: Activation) -> None:
        """To the runner of the task's kind."""
        delivery = activation.delivery
        if self._telemetry.hears(events.JobStarted):
            envelope = delivery.envelope
            self._telemetry.emit(
                events.JobStarted(
                    job=delivery.id,
                    task=envelope.subject,
                    attempt=delivery.attempt,
                    trace=trace_of(envelope.traceparent),
                )
            )
        runner = self._coroutines if activation.task.kind == "io" else self._threads
        if runner.running < runner.budget:
            runner.submit(activation)
        else:  # the sender did not know the task's kind, or it has changed since
            self._local.leave(delivery.lease)
            self.give_back(delivery, f"no room for {activation.task.kind} tasks here", delay=1)

    # --- stopping ----------------------------------------------------------------------------

    def stop(self, lease: Lease, stop: Stop) -> None:
        """Stop one of what runs, if it does."""
        self._coroutines.stop(lease, stop)
        self._threads.stop(lease, stop)

    def stop_all(self, stop: Stop, *, interruptible: bool = False) -> None:
        """Stop everything, or what may be stopped anywhere."""
        for activation in self.activations():
            if activation.task.declared.interruptible or not interruptible:
                self.stop(activation.delivery.lease, stop)

    def abandon(self) -> None:
        """Tasks that do not stop: their jobs go back, a moment later, when we are gone."""
        for activation in self.activations():
            for runner in (self._coroutines, self._threads):
                runner.abandon(activation.delivery.lease)
            self.abandoned += 1
            told = activation.run.stop_reason
            outcome: Outcome = Interrupted("it did not stop when told to", delay=1.0)
            if isinstance(told, Stop) and told.why is Why.CANCEL:
                outcome = Cancelled(told.reason)
            self._settle(activation.delivery, outcome)

    async def until_idle(self, seconds: float, or_until: anyio.Event | None = None) -> None:
        """Wait for everything to end, but no longer than that, and not when asked to hurry."""
        with anyio.move_on_after(seconds) as scope:
            async with anyio.create_task_group() as group:
                if or_until is not None:
                    group.start_soon(_cancel_when, or_until, scope)
                while self.running:
                    self._one_ended = anyio.Event()
                    await self._one_ended.wait()
                group.cancel_scope.cancel()

    def _ended(self, report: Report) -> None:
        self._local.leave(report.delivery.lease)
        self._settler.put(report)
        self._freed()
        if self._one_ended is not None:
            self._one_ended.set()

    # --- state -------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """How many tasks run."""
        return self._coroutines.running + self._threads.running

    def activations(self) -> list[Activation]:
        """What runs."""
        return self._coroutines.activations() + self._threads.activations()

    def free(self, io_to_come: int, cpu_to_come: int) -> Demand:
        """What could start this very moment, but for so many of each kind that are to come."""
        io = self._coroutines.budget - self._coroutines.running - io_to_come
        cpu = self._threads.budget - self._threads.running - cpu_to_come
        return Demand(max(io, 0), max(cpu, 0), self._local.full() if self._local else ())


async def _cancel_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()

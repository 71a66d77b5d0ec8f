"""The worker: parts put together, and the order in which they stop.

::

    fetch ─▶ admit ─▶ dispatch ─▶ run ─▶ decide ─▶ settle
    └─ consumer ────┘ └ worker ┘ └ runners ──────┘ └ settler ┘      heart: beats beside it all

Shutdown in phases, with heartbeats to the end: stop fetching → interrupt what is interruptible,
let the rest finish → after the grace period interrupt all → settle → leave → close.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress

import anyio

from umbel.brokers import Demand
from umbel.clock import Clock
from umbel.errors import Unavailable
from umbel.messages import (
    BodyCodec,
    Cancelled,
    Delivery,
    Failed,
    Interrupted,
    Lease,
    Outcome,
)
from umbel.services import Service, keep_running
from umbel.stores import ControlState, WorkerEntry
from umbel.tasks import Registry
from umbel.tasks.failures import describe
from umbel.telemetry import Telemetry, events
from umbel.worker.activation import Activation, Activator
from umbel.worker.consumer import Consumer
from umbel.worker.coroutines import CoroutineRunner
from umbel.worker.heart import Heart
from umbel.worker.intake import Intake
from umbel.worker.life import Life
from umbel.worker.options import WorkerOptions
from umbel.worker.progress import ProgressNotes
from umbel.worker.reports import Report, Settler, trace_of
from umbel.worker.stops import Stop, Why
from umbel.worker.threads import ThreadRunner

_LAST_PHASE = 5.0
"""Seconds that interrupted tasks get to end once the grace period is over."""

EXIT_STALLED = 75


class Worker:
    """Runs tasks until it is told to stop."""

    def __init__(
        self,
        open_intake: Callable[[], Intake],
        registry: Registry,
        options: WorkerOptions,
        *,
        codec: BodyCodec,
        clock: Clock,
        telemetry: Telemetry,
        open_upkeep: Callable[[], list[Callable[[], Awaitable[object]]]] = list,
        services: Sequence[Service] = (),
        heart: type[Heart] = Heart,
    ) -> None:
        self._registry = registry
        self._options = options
        self._services = services
        self._codec = codec
        self._clock = clock
        self._telemetry = telemetry
        self._life = Life(options.name)
        self._host: asyncio.AbstractEventLoop
        self._stop_asked = anyio.Event()
        self._now_asked = anyio.Event()
        self._changed = anyio.Event()
        self._abandoned = 0
        self._leaving = False
        self._paused: tuple[str, ...] = ()
        self.started = anyio.Event()
        self._coroutines = CoroutineRunner(options.io, codec, clock, self._ended)
        self._threads = ThreadRunner(options.cpu, codec, clock, self._ended)
        self._heart = heart(
            self._life,
            self,
            lease=options.lease,
            stall=options.stall,
            open_intake=open_intake,
            open_upkeep=open_upkeep,
            clock=clock,
            telemetry=telemetry,
        )
        self._intake = open_intake()
        self._settler = Settler(self._intake, self._life, telemetry)
        self._progress = ProgressNotes(self._intake)
        self._activator = Activator(registry, codec, self._progress.note)
        self._consumer = Consumer(
            self._intake,
            self._life,
            lease=options.lease,
            free=self.free,
            start=self._start,
            give_back=self._give_back,
            clock=clock,
        )

    # --- the way through ---------------------------------------------------------------------

    async def run(self) -> None:
        """Work until ``stop`` is called, then stop in phases. Raises what starting up raises."""
        self._host = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._intake.close)
            await self._begin_life()
            if any(task.declared.loop == "trio" for task in self._registry):
                from umbel.worker.trio_guest import trio_guest

                self._coroutines.call_trio = (await stack.enter_async_context(trio_guest())).call
            await self._work()

    async def _begin_life(self) -> None:
        options, life = self._options, self._life
        await self._intake.enlist(self.entry())
        self._telemetry.emit(
            events.WorkerStarted(
                worker=life.name,
                incarnation=life.incarnation,
                queues=options.queues,
                io=options.io,
                cpu=options.cpu,
            )
        )
        if options.cpu > 10:
            self._telemetry.emit(events.ManyThreads(cpu=options.cpu))

    def entry(self) -> WorkerEntry:
        options = self._options
        return WorkerEntry(
            incarnation=self._life.incarnation,
            name=options.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=options.queues,
            io=options.io,
            cpu=options.cpu,
            lease=options.lease,
            tasks=tuple(sorted(task.name for task in self._registry)),
        )

    async def _work(self) -> None:
        async with anyio.create_task_group() as group:
            self._threads.start()
            self._heart.start()
            own: tuple[Service, ...] = (self._settler, self._consumer, self._progress)
            # After an outage outcomes are settled well before others take their jobs for lost.
            soon = self._options.lease / 5
            for service in own:
                group.start_soon(keep_running, service, self._telemetry, soon, name=service.name)
            for service in self._services:
                group.start_soon(keep_running, service, self._telemetry, name=service.name)
            self.started.set()
            try:
                await self._stop_asked.wait()
                await self._stop_in_phases()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._heart.stop()
                group.cancel_scope.cancel()

    async def _stop_in_phases(self) -> None:
        grace = self._options.grace
        self._telemetry.emit(
            events.WorkerStopping(worker=self._life.name, running=self.running, grace=grace)
        )
        self._consumer.stop()
        for activation in self._activations():
            if activation.task.declared.interruptible:
                self._stop_job(activation.delivery.lease, Stop(Why.INTERRUPT))
        await self._no_more_fetching()
        await self._until_idle(grace, self._now_asked)
        over = "the grace period is over"
        for activation in self._activations():
            self._stop_job(activation.delivery.lease, Stop(Why.INTERRUPT, over))
        await self._until_idle(_LAST_PHASE, None)
        self._abandon()
        self._progress.stop()
        # After a lease length without the server everything is lost anyway, and put back by others.
        with anyio.move_on_after(self._options.lease), suppress(Unavailable):
            await self._settler.finish()
            self._leaving = True
            await self._intake.leave(self._life.incarnation)
        self._threads.close()
        self._telemetry.emit(
            events.WorkerStopped(worker=self._life.name, abandoned=self._abandoned)
        )

    async def _no_more_fetching(self) -> None:
        """A fetch that does not come back is given up; what it claimed unseen is put back."""
        with anyio.move_on_after(_LAST_PHASE):
            await self._consumer.stopped.wait()
        while not self._consumer.stopped.is_set():
            self._consumer.rebuild()
            await anyio.sleep(0.05)

    async def _until_idle(self, seconds: float, or_until: anyio.Event | None) -> None:
        """Wait for everything to end, but no longer than that, and not when asked to hurry."""
        with anyio.move_on_after(seconds) as scope:
            async with anyio.create_task_group() as group:
                if or_until is not None:
                    group.start_soon(_cancel_when, or_until, scope)
                while self.running:
                    self._changed = anyio.Event()
                    await self._changed.wait()
                group.cancel_scope.cancel()

    def _abandon(self) -> None:
        """Tasks that do not stop: their jobs go back, a moment later, when we are gone."""
        for activation in self._activations():
            for runner in (self._coroutines, self._threads):
                runner.abandon(activation.delivery.lease)
            self._abandoned += 1
            now, told = self._clock.now(), activation.run.stop_reason
            outcome: Outcome = Interrupted("it did not stop when told to", delay=1.0)
            if isinstance(told, Stop) and told.why is Why.CANCEL:
                outcome = Cancelled(told.reason)
            self._settler.put(Report(activation.delivery, outcome, now, now))

    def _start(self, delivery: Delivery) -> None:
        """Start it, or settle at once what cannot start. What is held must come to an end."""
        now = self._clock.now()
        try:
            activation = self._activator.activate(delivery, now)
            if isinstance(activation, Activation):
                self._dispatch(activation)
            else:
                self._settler.put(Report(delivery, activation, now, now))
        except Exception as error:  # noqa: BLE001 - an odd message must not end the fetch loop
            self._settler.put(Report(delivery, Failed(describe(error)), now, now))

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
            self._give_back(delivery, f"no room for {activation.task.kind} tasks here", delay=1)

    def _give_back(self, delivery: Delivery, reason: str, delay: float = 0.0) -> None:
        """Back to the queue unstarted."""
        now = self._clock.now()
        self._settler.put(Report(delivery, Interrupted(reason, delay), now, now))

    def _ended(self, report: Report) -> None:
        self._settler.put(report)
        self._consumer.slot_freed()
        if self._stop_asked.is_set():
            self._changed.set()

    # --- told by operators and signals -------------------------------------------------------

    def stop(self) -> None:
        """Stop in phases. Asked a second time: skip the grace period."""
        if self._stop_asked.is_set():
            self._now_asked.set()
        self._stop_asked.set()

    # --- asked and told by the heart, from its own thread ------------------------------------

    def lost_everything(self, incarnation: str) -> None:
        self._host.call_soon_threadsafe(self._begin_anew, incarnation)

    def lost_some(self, jobs: list[Lease]) -> None:
        self._host.call_soon_threadsafe(self._stop_jobs, dict.fromkeys(jobs, ""), Why.LOST)

    def cancel(self, wanted: dict[Lease, str]) -> None:
        if wanted:
            self._host.call_soon_threadsafe(self._stop_jobs, wanted, Why.CANCEL)

    def control(self, state: ControlState) -> None:
        self._host.call_soon_threadsafe(self._see_control, state)

    def confirmed_epoch(self) -> int:
        return self._consumer.epoch

    def kinds(self) -> dict[str, str]:
        return {task.name: task.kind for task in self._registry}

    def free_kinds(self) -> list[str]:
        free = self.free()
        return [kind for kind, room in (("io", free.io), ("cpu", free.cpu)) if room]

    def fetched(self) -> int:
        return self._consumer.fetched

    def fetches(self) -> int:
        """How many fetches have returned, with something or nothing."""
        return self._consumer.fetches

    def rebuild(self) -> None:
        self._host.call_soon_threadsafe(self._consumer.rebuild)

    def die(self, why: str) -> None:
        os._exit(EXIT_STALLED)

    def stopping(self) -> bool:
        return self._stop_asked.is_set()

    # --- state -------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The worker's name."""
        return self._life.name

    @property
    def incarnation(self) -> str:
        """The worker's present life."""
        return self._life.incarnation

    @property
    def running(self) -> int:
        """How many tasks run."""
        return self._coroutines.running + self._threads.running

    @property
    def paused(self) -> tuple[str, ...]:
        """What it has been told is paused: ``all``, ``queue mail``, ``task tasks.add``."""
        return self._paused

    @property
    def lease(self) -> float:
        """Seconds without a heartbeat after which others take its jobs."""
        return self._options.lease

    @property
    def heart_alive(self) -> bool:
        """Whether the heart's thread runs."""
        return self._heart.alive

    @property
    def beat_age(self) -> float | None:
        """Seconds since the last heartbeat that got through; None before the first."""
        return self._heart.beat_age

    def free(self) -> Demand:
        """What could start this very moment."""
        io = self._options.io - self._coroutines.running
        cpu = self._options.cpu - self._threads.running
        return Demand(max(io, 0), max(cpu, 0))

    def _activations(self) -> list[Activation]:
        return self._coroutines.activations() + self._threads.activations()

    def _stop_job(self, lease: Lease, stop: Stop) -> None:
        self._coroutines.stop(lease, stop)
        self._threads.stop(lease, stop)

    def _stop_jobs(self, wanted: dict[Lease, str], why: Why) -> None:
        for lease, reason in wanted.items():
            self._stop_job(lease, Stop(why, reason))

    def _see_control(self, state: ControlState) -> None:
        self._consumer.see_epoch(state.epoch)
        paused = tuple(f"{pause.scope} {pause.name}".strip() for pause in state.pauses)
        if paused != self._paused:
            self._paused = paused
            self._telemetry.emit(events.PauseSeen(worker=self._life.name, paused=paused))

    def _begin_anew(self, incarnation: str) -> None:
        if incarnation != self._life.incarnation or self._leaving:
            return
        self._telemetry.emit(events.WorkerAlone(worker=self._life.name, running=self.running))
        self._stop_jobs({a.delivery.lease: "" for a in self._activations()}, Why.LOST)
        # The heart enlists the new life before it beats; until then every fetch says LeaseLost.
        self._life.begin_anew()


async def _cancel_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()

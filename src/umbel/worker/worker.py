"""The worker: parts put together, and what it is told by operators and by its heart.

::

    fetch ─▶ admit ─▶ check ─▶ dispatch ─▶ run ─▶ decide ─▶ settle
    └─ consumer ────┘ └ guard ┘ └ crew, runners ───────────┘ └ settler ┘  and the heart beats
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress

import anyio
from msgspec.structs import replace

from umbel.backends import MISSING, ControlState, Demand, NoTransactions, Transactions, WorkerEntry
from umbel.clock import Clock
from umbel.errors import IndexTaken, UmbelError
from umbel.keys import KeyFile
from umbel.messages import BodyCodec, Delivery, Lease
from umbel.services import Service, keep_running
from umbel.tasks import Registry, Run
from umbel.tasks.fingerprints import fingerprint, python
from umbel.tasks.inbox import InboxTasks
from umbel.telemetry import Telemetry, events
from umbel.worker.activation import Activator
from umbel.worker.commands import Commands
from umbel.worker.consumer import Consumer
from umbel.worker.gate_sync import GateSync
from umbel.worker.heartbeat import Heartbeat
from umbel.worker.inbox_verifier import InboxVerifier
from umbel.worker.incarnation import Life
from umbel.worker.intake import Intake
from umbel.worker.missing import MissingTasks
from umbel.worker.options import WorkerOptions
from umbel.worker.progress import ProgressNotes
from umbel.worker.reports import Settler
from umbel.worker.shutdown import Shutdown
from umbel.worker.stepbook import StepBook
from umbel.worker.steps import RunSteps
from umbel.worker.stops import Stop, Why
from umbel.worker.task_runner import Crew

EXIT_STALLED = 75
NO_TRANSACTIONS = NoTransactions("this worker was not told of a database")


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
        open_upkeep: Callable[[float], list[Callable[[], Awaitable[object]]]] = lambda every: [],
        services: Sequence[Service] = (),
        transactions: Transactions = NO_TRANSACTIONS,
        keys: KeyFile | None = None,
        shared: bool = False,
        heart: type[Heartbeat] = Heartbeat,
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
        self._paused: tuple[str, ...] = ()
        self._held = False
        self.reloading = False
        """Whether it was told to begin anew: whoever runs it starts it again, with new code."""
        # Now: later the files may be newer than what was loaded from them.
        self._code = {task.name: fingerprint(task) for task in registry}
        self.started = anyio.Event()
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
        self._gatekeeper = GateSync(self._intake, registry, telemetry)
        self._steps = StepBook(self._intake, codec, clock, transactions, self._lost_one)
        self._missing = MissingTasks(self._intake, worker=options.name, telemetry=telemetry)
        activator = Activator(
            registry,
            codec,
            self._progress.note,
            self._open_steps,
            lambda: self._life.place,
            self._missing.give_back,
        )
        self._crew = Crew(
            options,
            registry,
            self._settler,
            codec=codec,
            clock=clock,
            telemetry=telemetry,
            activate=activator.activate,
            freed=lambda: self._consumer.slot_freed(),
        )
        commands = Commands(self, self._life, self._crew, self._intake, clock)
        activator.commands = InboxTasks(commands).all()
        self._guard = InboxVerifier(
            self._intake,
            keys=keys if options.signing else None,
            closed=not options.inbox,
            warns=shared or not options.signing,
            admit=self._admitted,
            refuse=self._crew.refuse,
            checked=lambda: self._consumer.slot_freed(),
            clock=clock,
            telemetry=telemetry,
        )
        self._consumer = Consumer(
            self._intake,
            self._life,
            lease=options.lease,
            free=self.free,
            start=self._start,
            give_back=self._crew.give_back,
            look=self._heart.look_at_the_wall,
            clock=clock,
        )
        self._shutdown = Shutdown(
            options,
            self._life,
            self._intake,
            consumer=self._consumer,
            guard=self._guard,
            crew=self._crew,
            settler=self._settler,
            progress=self._progress,
            telemetry=telemetry,
        )

    # --- the way through ---------------------------------------------------------------------

    async def run(self) -> None:
        """Work until ``stop`` is called, then stop in phases. Raises what starting up raises."""
        self._host = asyncio.get_running_loop()
        self._steps.start()
        async with AsyncExitStack() as stack:
            stack.callback(self._steps.transactions.close)
            stack.push_async_callback(self._intake.close)
            await self._begin_life()
            if any(task.declared.loop == "trio" for task in self._registry):
                from umbel.worker.trio_guest import trio_guest

                guest = await stack.enter_async_context(trio_guest(self._telemetry))
                self._crew.use_trio(guest.call)
            await self._work()

    async def _begin_life(self) -> None:
        options, life = self._options, self._life
        await self._guard.announce(life.name)
        await self._gatekeeper.declare()
        await self._enlist()
        await self._look_at_control()
        self._telemetry.emit(
            events.WorkerStarted(
                worker=life.name,
                incarnation=life.incarnation,
                index=life.index,
                queues=options.queues,
                io=options.io,
                cpu=options.cpu,
            )
        )
        if options.cpu > 10:
            self._telemetry.emit(events.ManyThreads(cpu=options.cpu))

    async def _look_at_control(self) -> None:
        """A pause of this worker is kept by itself, so it looks before it fetches."""
        while True:
            try:
                return self._see_control(await self._intake.control())
            except UmbelError:
                raise
            except Exception as error:  # noqa: BLE001 - a bug in an adapter keeps no worker away
                delay = self._options.lease / 10
                self._telemetry.emit(
                    events.ServiceFailed(service="control", error=repr(error), delay=delay)
                )
                await anyio.sleep(delay)

    async def _enlist(self) -> None:
        """Under the index that was asked for; else under that of the replica, if it is free."""
        entry, wish = self.entry(), self._options.ordinal
        if entry.index is None and wish is not None:
            with suppress(IndexTaken):
                self._life.index = await self._intake.enlist(replace(entry, index=wish))
                return
        self._life.index = await self._intake.enlist(entry)

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
            interruptible=tuple(
                sorted(task.name for task in self._registry if task.declared.interruptible)
            ),
            code=self._code,
            python=python(),
            # A later life gets its seat back by its name, unless somebody sits there by then.
            index=options.index,
            former=self._life.former(),
        )

    async def _work(self) -> None:
        async with anyio.create_task_group() as group:
            self._crew.begin()
            self._heart.start()
            own: tuple[Service, ...] = (
                self._settler,
                self._consumer,
                self._progress,
                self._gatekeeper,
                self._guard,
                self._missing,
            )
            # After an outage outcomes are settled well before others take their jobs for lost.
            soon = self._options.lease / 5
            for service in own:
                group.start_soon(keep_running, service, self._telemetry, soon, name=service.name)
            for service in self._services:
                group.start_soon(keep_running, service, self._telemetry, name=service.name)
            self.started.set()
            try:
                await self._stop_asked.wait()
                await self._shutdown.run(self._now_asked)
            finally:
                with anyio.CancelScope(shield=True):
                    await self._heart.stop()
                group.cancel_scope.cancel()

    def _start(self, delivery: Delivery) -> None:
        """Start it, once it may, or settle it at once. What is held must come to an end."""
        if self._guard.concerns(delivery):
            self._guard.put(delivery)
        else:
            self._crew.start(delivery)

    def _admitted(self, delivery: Delivery) -> None:
        """The guard lets it pass."""
        if self._stop_asked.is_set():
            self._crew.give_back(delivery, "the worker is stopping")
        else:
            self._crew.start(delivery)

    # --- told by operators and signals -------------------------------------------------------

    def stop(self) -> None:
        """Stop in phases. Asked a second time: skip the grace period."""
        if self._stop_asked.is_set() and not self.reloading:
            self._now_asked.set()
        self.reloading = False
        self._stop_asked.set()

    def reload(self) -> None:
        """Stop in phases; ``reloading`` says then that it is to begin again."""
        if not self._stop_asked.is_set():
            self.reloading = True
            self._stop_asked.set()

    # --- asked and told by the heart, from its own thread ------------------------------------

    def lost_everything(self, incarnation: str) -> None:
        self._host.call_soon_threadsafe(self._begin_anew, incarnation)

    def lost_some(self, jobs: list[Lease]) -> None:
        self._host.call_soon_threadsafe(self._lose, jobs)

    def cancel(self, wanted: dict[Lease, str]) -> None:
        if wanted:
            self._host.call_soon_threadsafe(self._stop_jobs, wanted, Why.CANCEL)

    def control(self, state: ControlState) -> None:
        self._host.call_soon_threadsafe(self._see_control, state)

    def confirmed_epoch(self) -> int:
        return self._consumer.epoch

    def kinds(self) -> dict[str, str]:
        return {task.name: task.kind for task in self._registry}

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
        return self._crew.running

    @property
    def paused(self) -> tuple[str, ...]:
        """What it has been told is paused: ``all``, ``queue mail``, ``task tasks.add``.

        Of pauses of one worker only its own."""
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
        """What could start this very moment. Nothing while this worker is paused."""
        if self._held:
            return Demand()
        free = self._crew.free(self._guard.waiting("io"), self._guard.waiting("cpu"))
        missing = self._missing.tasks
        return replace(free, without=(*free.without, *missing)) if missing else free

    def _lost_one(self, lease: Lease) -> None:
        self._crew.stop(lease, Stop(Why.LOST))

    def _open_steps(self, run: Run) -> RunSteps:
        return RunSteps(self._steps, run)

    def _lose(self, jobs: list[Lease]) -> None:
        self._guard.drop(jobs)
        self._stop_jobs(dict.fromkeys(jobs, ""), Why.LOST)

    def _stop_jobs(self, wanted: dict[Lease, str], why: Why) -> None:
        for lease, reason in wanted.items():
            self._crew.stop(lease, Stop(why, reason))

    def _see_control(self, state: ControlState) -> None:
        held = any(p.scope == "worker" and p.name == self._life.name for p in state.pauses)
        resumed, self._held = self._held and not held, held
        self._consumer.see_epoch(state.epoch)
        if resumed:
            self._consumer.slot_freed()
        mine = (
            pause
            for pause in state.pauses
            if pause.holder != MISSING
            and (pause.scope != "worker" or pause.name == self._life.name)
        )
        paused = tuple(dict.fromkeys(f"{pause.scope} {pause.name}".strip() for pause in mine))
        if paused != self._paused:
            self._paused = paused
            self._telemetry.emit(events.PauseSeen(worker=self._life.name, paused=paused))

    def _begin_anew(self, incarnation: str) -> None:
        if incarnation != self._life.incarnation or self._shutdown.leaving:
            return
        self._telemetry.emit(events.WorkerAlone(worker=self._life.name, running=self.running))
        self._guard.clear()
        self._crew.stop_all(Stop(Why.LOST))
        # The heart enlists the new life before it beats; until then every fetch says LeaseLost.
        self._life.begin_anew()

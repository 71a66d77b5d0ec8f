"""The worker: builds its parts and runs them until it is stopped.

::

    fetch ──▶ admit ─▶ activate ─▶ run ─▶ decide ─▶ settle
    Consumer  TaskRunner, with InboxVerifier, Activator    Settler
              and Executors

A run is on one page, in ``task_runner``. The heartbeat keeps the leases alive meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress

import anyio
from msgspec.structs import replace

from umbel.backends import Demand, NoTransactions, Roles, Transactions, WorkerEntry
from umbel.charts import Tally
from umbel.clock import Clock
from umbel.control import MISSING, Pauses, PauseState
from umbel.errors import IndexTaken, UmbelError
from umbel.graphs import NodePreparer
from umbel.keys import KeyFile
from umbel.messages import BodyCodec, Lease
from umbel.schedules.zones import zone_data_version
from umbel.services import Service, keep_running
from umbel.tasks import Registry
from umbel.tasks.fingerprints import fingerprint, python_version
from umbel.tasks.hooks import Hooks
from umbel.tasks.inbox import InboxTasks
from umbel.telemetry import Telemetry, events
from umbel.worker.activation import Activator
from umbel.worker.commands import Commands
from umbel.worker.consumer import Consumer
from umbel.worker.executors import Executors
from umbel.worker.gate_sync import GateSync
from umbel.worker.graph_nodes import NodeQueue, NodeStarter
from umbel.worker.heartbeat import Heartbeat
from umbel.worker.inbox_verifier import InboxVerifier
from umbel.worker.incarnation import Incarnation
from umbel.worker.intake import Intake
from umbel.worker.local_gates import LocalGates
from umbel.worker.missing_tasks import MissingTasks
from umbel.worker.options import WorkerOptions
from umbel.worker.progress import ProgressNotes
from umbel.worker.settler import Settler
from umbel.worker.shutdown import Shutdown
from umbel.worker.step_writer import StepWriter
from umbel.worker.stops import Stop, StopCause
from umbel.worker.task_runner import TaskRunner

EXIT_STALLED = 75
NO_TRANSACTIONS = NoTransactions("this worker has no database URL")
_MANY_THREADS = 10
"""Above this number of threads the worker warns that they compete for the interpreter lock."""


class Worker:
    """Runs tasks until it is stopped."""

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
        open_services: Callable[[Roles], Sequence[Service]] = lambda roles: (),
        transactions: Transactions = NO_TRANSACTIONS,
        keys: KeyFile | None = None,
        shared: bool = False,
        hooks: Hooks | None = None,
        heartbeat: type[Heartbeat] = Heartbeat,
        tally: Tally | None = None,
    ) -> None:
        self._hooks = hooks or Hooks(lambda hook, error: None)
        self._registry = registry
        self._options = options
        self._telemetry = telemetry
        self._host: asyncio.AbstractEventLoop
        self._stop_requested = anyio.Event()
        self._hurry_requested = anyio.Event()
        self._paused: tuple[str, ...] = ()
        self.reloading = False
        """Whether the process that runs this worker must start it again, with new code."""
        # Computed now: later the source files may be newer than the code that was loaded.
        self._code = {task.name: fingerprint(task) for task in registry}
        self.started = anyio.Event()
        self._incarnation = Incarnation(options.name)
        self._heartbeat = heartbeat(
            self._incarnation,
            self,
            lease=options.lease,
            stall=options.stall,
            open_intake=open_intake,
            open_upkeep=open_upkeep,
            clock=clock,
            telemetry=telemetry,
        )
        self._intake = open_intake()
        roles = self._intake.roles
        self._services = [*services, *open_services(roles)]
        self._settler = Settler(self._intake, self._incarnation, telemetry, self._hooks, tally)
        self._progress = ProgressNotes(roles.records)
        self._gate_sync = GateSync(self._intake, registry, telemetry)
        self._missing = MissingTasks(self._intake, worker=options.name, telemetry=telemetry)
        self._executors = Executors(options, clock, self._hooks)
        self._steps = StepWriter(roles.steps, codec, clock, transactions, self._executors)
        self._inbox = InboxVerifier(
            roles.registry,
            keys=keys,
            is_closed=not options.inbox,
            is_signing=options.signing,
            is_shared=shared,
            clock=clock,
            telemetry=telemetry,
        )
        self._nodes = NodeQueue()
        commands = Commands(self, self._incarnation, self._executors, self._intake, clock)
        activator = Activator(
            registry,
            codec,
            incarnation=self._incarnation,
            progress=self._progress,
            steps=self._steps,
            missing=self._missing,
            commands=InboxTasks(commands).all(),
        )
        self._task_runner = TaskRunner(
            activator,
            self._executors,
            self._settler,
            inbox=self._inbox,
            nodes=self._nodes,
            local_gates=LocalGates(registry, clock),
            missing=self._missing,
            codec=codec,
            clock=clock,
            telemetry=telemetry,
        )
        preparer = NodePreparer(roles, registry, codec)
        self._node_starter = NodeStarter(self._nodes, preparer, self._task_runner, telemetry)
        self._consumer = Consumer(
            self._intake,
            self._incarnation,
            self._task_runner,
            self._heartbeat,
            hooks=self._hooks,
            lease=options.lease,
            clock=clock,
        )
        self._shutdown = Shutdown(
            options,
            self._incarnation,
            self._intake,
            consumer=self._consumer,
            inbox=self._inbox,
            nodes=self._nodes,
            task_runner=self._task_runner,
            executors=self._executors,
            settler=self._settler,
            progress=self._progress,
            telemetry=telemetry,
        )

    # --- start and run -----------------------------------------------------------------------

    async def run(self) -> None:
        """Work until ``stop`` is called, then stop in phases. Raise what the start raises."""
        self._host = asyncio.get_running_loop()
        self._steps.start()
        async with AsyncExitStack() as stack:
            stack.callback(self._steps.transactions.close)
            stack.push_async_callback(self._intake.close)
            await self._start()
            await self._hooks.call("on_worker_start", self.name)
            if any(task.declared.loop == "trio" for task in self._registry):
                from umbel.worker.trio_guest import trio_guest

                self._executors.use_trio(
                    await stack.enter_async_context(trio_guest(self._telemetry))
                )
            await self._work()
            await self._hooks.call("on_worker_stop", self.name)

    async def _start(self) -> None:
        options, incarnation = self._options, self._incarnation
        await self._inbox.check_keys(incarnation.name)
        await self._gate_sync.declare()
        await self._register()
        await self._read_control()
        self._telemetry.emit(
            events.WorkerStarted(
                worker=incarnation.name,
                incarnation=incarnation.id,
                index=incarnation.index,
                queues=options.queues,
                io=options.io,
                cpu=options.cpu,
            )
        )
        if options.cpu > _MANY_THREADS:
            self._telemetry.emit(events.ManyThreads(cpu=options.cpu))

    async def _register(self) -> None:
        """Register with the given index, else with the replica's ordinal if that is free."""
        entry, ordinal = self.entry(), self._options.ordinal
        if entry.index is None and ordinal is not None:
            with suppress(IndexTaken):
                self._incarnation.index = await self._intake.register(replace(entry, index=ordinal))
                return
        self._incarnation.index = await self._intake.register(entry)

    async def _read_control(self) -> None:
        """Read the pauses before the first fetch: the worker itself enforces its own pause."""
        while True:
            try:
                return self._apply_control(await Pauses(self._intake.roles.coordination).state())
            except UmbelError:
                raise
            except Exception as error:  # noqa: BLE001 - a bug in an adapter must not end the worker
                delay = self._options.lease / 10
                self._telemetry.emit(
                    events.ServiceFailed(service="control", error=repr(error), delay=delay)
                )
                await anyio.sleep(delay)

    async def _work(self) -> None:
        async with anyio.create_task_group() as group:
            self._task_runner.begin()
            self._heartbeat.start()
            own: tuple[Service, ...] = (
                self._settler,
                self._consumer,
                self._progress,
                self._gate_sync,
                self._task_runner,
                self._node_starter,
                self._missing,
            )
            # After an outage, outcomes must be settled well before the leases lapse.
            max_delay = self._options.lease / 5
            for service in own:
                group.start_soon(
                    keep_running, service, self._telemetry, max_delay, name=service.name
                )
            for service in self._services:
                group.start_soon(keep_running, service, self._telemetry, name=service.name)
            self.started.set()
            try:
                await self._stop_requested.wait()
                await self._shutdown.run(self._hurry_requested)
            finally:
                with anyio.CancelScope(shield=True):
                    await self._heartbeat.stop()
                group.cancel_scope.cancel()

    # --- called by operators and signal handlers ---------------------------------------------

    def stop(self) -> None:
        """Stop in phases. The second call skips the grace period."""
        if self._stop_requested.is_set() and not self.reloading:
            self._hurry_requested.set()
        self.reloading = False
        self._stop_requested.set()

    def reload(self) -> None:
        """Stop in phases, with ``reloading`` set."""
        if not self._stop_requested.is_set():
            self.reloading = True
            self._stop_requested.set()

    # --- called by the heartbeat, from its own thread ----------------------------------------

    def entry(self) -> WorkerEntry:
        """Return the registry entry of the present incarnation."""
        options = self._options
        return WorkerEntry(
            incarnation=self._incarnation.id,
            name=options.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=options.queues,
            capacity=options.capacity,
            lease=options.lease,
            tasks=tuple(sorted(task.name for task in self._registry)),
            interruptible=tuple(
                sorted(task.name for task in self._registry if task.declared.interruptible)
            ),
            code=self._code,
            python=python_version(),
            zone_data=zone_data_version(),
            # A later incarnation gets its index back by its name, unless another worker has it.
            index=options.index,
            former=self._incarnation.former(),
        )

    def lost_all_leases(self, incarnation: str) -> None:
        """Stop all runs and start the next incarnation."""
        self._host.call_soon_threadsafe(self._start_next_incarnation, incarnation)

    def lost_leases(self, leases: list[Lease]) -> None:
        """Stop the runs under these leases."""
        self._host.call_soon_threadsafe(self._stop_lost, leases)

    def cancel(self, cancelled: dict[Lease, str]) -> None:
        """Stop these runs, each for the reason given."""
        if cancelled:
            self._host.call_soon_threadsafe(self._stop_runs, cancelled, StopCause.CANCEL)

    def control(self, state: PauseState) -> None:
        """Respect these pauses from now on."""
        self._host.call_soon_threadsafe(self._apply_control, state)

    def confirmed_pause_epoch(self) -> int:
        """Return the control epoch that all fetches respect."""
        return self._consumer.epoch

    def kinds(self) -> dict[str, str]:
        """Return the kind of each task."""
        return {task.name: task.kind for task in self._registry}

    def free(self) -> Demand:
        """Return what could start now."""
        return self._task_runner.free()

    def fetched(self) -> int:
        """Return how many deliveries were fetched so far."""
        return self._consumer.fetched

    def fetches(self) -> int:
        """Return how many fetches have returned, with or without deliveries."""
        return self._consumer.fetches

    def restart_fetch(self) -> None:
        """Cancel the present fetch and begin a new one."""
        self._host.call_soon_threadsafe(self._consumer.restart_fetch)

    def exit_stalled(self, reason: str) -> None:
        """End the process at once, so that its supervisor starts a new one."""
        os._exit(EXIT_STALLED)

    def stopping(self) -> bool:
        """Return whether the worker is stopping."""
        return self._stop_requested.is_set()

    def running_coroutines(self) -> list[tuple[str, str]]:
        """Return the task and the job of the coroutine that runs now; if unknown, of all."""
        found = self._executors.coroutines(asyncio.current_task(self._host))
        return [(one.task.name, one.delivery.id) for one in found]

    # --- state -------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The worker's name."""
        return self._incarnation.name

    @property
    def incarnation(self) -> str:
        """The id of the worker's present incarnation."""
        return self._incarnation.id

    @property
    def running(self) -> int:
        """How many tasks run."""
        return self._executors.running

    @property
    def paused(self) -> tuple[str, ...]:
        """What is paused, as far as this worker knows: ``all``, ``queue mail``, ``task tasks.add``.

        Pauses of other workers are not included."""
        return self._paused

    @property
    def lease(self) -> float:
        """Seconds without a heartbeat after which others take its jobs."""
        return self._options.lease

    @property
    def heartbeat_alive(self) -> bool:
        """Whether the heartbeat's thread runs."""
        return self._heartbeat.alive

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since the last heartbeat that reached the store; None before the first."""
        return self._heartbeat.heartbeat_age

    # --- in the worker's event loop ----------------------------------------------------------

    def _stop_lost(self, leases: list[Lease]) -> None:
        self._inbox.drop(leases)
        self._nodes.drop(leases)
        self._stop_runs(dict.fromkeys(leases, ""), StopCause.LOST)

    def _stop_runs(self, reasons: dict[Lease, str], cause: StopCause) -> None:
        for lease, reason in reasons.items():
            self._executors.stop(lease, Stop(cause, reason))

    def _apply_control(self, state: PauseState) -> None:
        name, was_paused = self._incarnation.name, self._task_runner.is_paused
        is_paused = any(pause.scope == "worker" and pause.name == name for pause in state.pauses)
        self._task_runner.is_paused = is_paused
        self._consumer.set_pause_epoch(state.epoch)
        if was_paused and not is_paused:
            self._consumer.request_more()
        relevant = (
            pause
            for pause in state.pauses
            if pause.holder != MISSING and (pause.scope != "worker" or pause.name == name)
        )
        paused = tuple(dict.fromkeys(f"{pause.scope} {pause.name}".strip() for pause in relevant))
        if paused != self._paused:
            self._paused = paused
            self._telemetry.emit(events.PausesChanged(worker=name, paused=paused))

    def _start_next_incarnation(self, lost: str) -> None:
        if lost != self._incarnation.id or self._shutdown.is_leaving:
            return
        self._telemetry.emit(events.LeasesLost(worker=self._incarnation.name, running=self.running))
        self._inbox.clear()
        self._nodes.clear()
        self._executors.stop_all(Stop(StopCause.LOST))
        # The heartbeat registers the new incarnation; until then every fetch raises LeaseLost.
        self._incarnation.start_next()

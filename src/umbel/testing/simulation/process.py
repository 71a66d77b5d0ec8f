"""One simulated operating system process: a real worker with two event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from umbel.backends import Roles
from umbel.backends.sql.control import SqlControl
from umbel.backends.sqlite.broker import SqliteBroker
from umbel.backends.sqlite.coordination import SqliteCoordination
from umbel.backends.sqlite.gates import SqliteGates
from umbel.backends.sqlite.joins import SqliteJoins
from umbel.backends.sqlite.records import SqliteRecords
from umbel.backends.sqlite.registry import SqliteRegistry
from umbel.backends.sqlite.routes import SqliteRoutes
from umbel.backends.sqlite.steps import SqliteSteps
from umbel.errors import Unavailable
from umbel.router import DeadWorkerReaper, DuplicateFilter, Pruner, Router
from umbel.telemetry import Telemetry, events
from umbel.testing.simulation.database import LabeledAdapter, SimulatedDatabase
from umbel.testing.simulation.loop import Lane, Timeline
from umbel.testing.simulation.tasks import QUEUES
from umbel.worker import Worker, WorkerOptions
from umbel.worker.heartbeat import Heartbeat

if TYPE_CHECKING:
    from umbel.testing.simulation.world import World

_EPOCH = 1_800_000_000.0
_YEAR = 365 * 86_400.0
NAMESPACE = "umbel"


class SimulatedClock:
    """A clock whose wall time can jump. Its monotonic time is the timeline's."""

    def __init__(self, timeline: Timeline) -> None:
        self.ahead = 0.0
        self._timeline = timeline

    def now(self) -> float:
        return _EPOCH + self._timeline.now + self.ahead

    def monotonic(self) -> float:
        return self._timeline.now


class SimulatedHeartbeat(Heartbeat):
    """A heartbeat in its own lane instead of its own thread."""

    _task: asyncio.Task[Any] | None = None

    def _start_thread(self) -> None:
        lane = asyncio.get_running_loop()
        assert isinstance(lane, Lane)
        self._task = lane.owner.heartbeat_lane.create_task(self._main())

    async def _wait_for_thread(self) -> None:
        host = asyncio.get_running_loop()
        assert self._task is not None
        ended = host.create_future()
        tell = lambda _: host.call_soon_threadsafe(_set, ended)  # noqa: E731
        self._task.add_done_callback(tell)
        if self._task.done():
            _set(ended)
        await asyncio.wait([ended], timeout=10)

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()


class SimulatedWorker(Worker):
    """A worker whose simulated process can end without ending this process."""

    process: Process

    def exit_stalled(self, reason: str) -> None:
        self.process.crash(reason)


class Process:
    """A worker's process from its start to its end. A restart creates a new object."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.number = number
        self.main = world.timeline.lane(f"{name} main", self)
        self.heartbeat_lane = world.timeline.lane(f"{name} heartbeat", self)
        self.clock = SimulatedClock(world.timeline)
        self.gone = False
        self.worker: SimulatedWorker | None = None
        self.databases: list[SimulatedDatabase] = []
        self._telemetry = Telemetry(self._on_event)
        self.main.create_task(self._run(), name=name)

    @property
    def last_frozen(self) -> float:
        """When it was last frozen: now if it is frozen, otherwise when it woke up."""
        return min(
            self.world.timeline.now, max(self.main.held_until, self.heartbeat_lane.held_until)
        )

    def crash(self, why: str) -> bool:
        """End immediately, without cleaning up."""
        if not self.gone:
            self.world.trace.add(self.name, "crash", why)
            self._end()
        return True

    def stop(self) -> None:
        """Stop the worker as SIGTERM does."""
        if self.worker is not None and not self.gone:
            self.main.call_soon(self.worker.stop)

    def _end(self) -> None:
        self.gone = True
        for lane in (self.main, self.heartbeat_lane):
            lane.die()
        for database in self.databases:
            if database in self.world.server.databases:
                self.world.server.databases.remove(database)
        self.world.ended(self)

    async def _run(self) -> None:
        try:
            self.worker = self._build()
            self.world.record_incarnation(self.worker.incarnation, self)
            await self.worker.run()
        except* Unavailable as error:
            self.world.trace.add(self.name, "could not begin or leave", error)
        except* Exception as error:  # noqa: BLE001 - a worker that ends like this is a finding
            if not self.main.dead:
                self.world.auditor.report_violation(f"{self.name} ended with {error!r}")
        if not self.main.dead:
            self.world.trace.add(self.name, "exits")
            self._end()

    def _build(self) -> SimulatedWorker:
        rng, world = self.world.rng, self.world
        options = WorkerOptions(
            queues=QUEUES,
            name=self.name,
            io=rng.choose((1, 2, 3)),
            cpu=0,
            lease=rng.lease,
            grace=rng.choose((0.0, 1.0, 4.0)),
            stall=rng.lease * 3,
        )
        duplicates = DuplicateFilter(options.remember)
        common: dict[str, Any] = {"clock": self.clock, "telemetry": self._telemetry}

        def open_intake() -> Router:
            return Router(self._open("intake"), queues=QUEUES, duplicates=duplicates, **common)

        def open_upkeep(every: float) -> list[Callable[[], Awaitable[object]]]:
            backend = self._open("upkeep")
            lifeline = DeadWorkerReaper(
                backend.registry, backend.broker, backend.routes, **common, every=every
            )
            worker_count = lifeline.count_workers
            pruner = Pruner(
                backend.records,
                backend.joins,
                age=_YEAR,
                keep=1_000,
                worker_count=worker_count,
                **common,
            )
            return [lifeline.run_once, pruner.run_once]

        worker = SimulatedWorker(
            open_intake,
            world.memory_database.registry,
            options,
            codec=world.codec,
            open_upkeep=open_upkeep,
            heartbeat=SimulatedHeartbeat,
            **common,
        )
        worker.process = self
        return worker

    def _open(self, use: str) -> Roles:
        lane = (
            self.heartbeat_lane if asyncio.get_running_loop() is self.heartbeat_lane else self.main
        )
        use = f"heartbeat {use}" if lane is self.heartbeat_lane else f"main {use}"
        database = SimulatedDatabase(self.world.server, self, lane, use=use)
        self.databases.append(database)
        return open_backend(database, self.clock)

    def _on_event(self, event: Any) -> None:
        if self.main.dead or self.worker is None:
            return
        world = self.world
        match event:
            case events.JobStarted():
                life = self.worker.incarnation
                world.auditor.dispatched(self, life, event.job, world.server.snapshot)
            case events.ServiceFailed():
                world.auditor.report_violation(
                    f"{self.name}: {event.service} failed: {event.error}"
                )
            case events.LeasesLost() | events.WorkerStopping() | events.WorkerStalled():
                world.trace.add(self.name, type(event).__name__)
            case events.OutcomeRefused():
                world.trace.add(self.name, "is refused", event.job)


def open_backend(database: SimulatedDatabase, clock: SimulatedClock) -> Roles:
    """Return the real adapters on a simulated database."""
    common: Any = {"namespace": NAMESPACE, "clock": clock}
    stores = (SqliteRecords, SqliteRegistry, SqlControl, SqliteGates, SqliteSteps, SqliteRoutes)
    made = (SqliteBroker, *stores, SqliteJoins, SqliteCoordination)
    parts: Any = (LabeledAdapter(kind(database, **common)) for kind in made)
    return Roles(*parts)


def _set(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)

"""One simulated operating system process: a real worker in two lanes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from umbel.backends import Roles
from umbel.backends.sqlite.broker import SqliteBroker
from umbel.backends.sqlite.control import SqliteControl
from umbel.backends.sqlite.deployments import SqliteDeployments
from umbel.backends.sqlite.gates import SqliteGates
from umbel.backends.sqlite.records import SqliteRecords
from umbel.backends.sqlite.registry import SqliteRegistry
from umbel.backends.sqlite.routes import SqliteRoutes
from umbel.backends.sqlite.steps import SqliteSteps
from umbel.errors import Unavailable
from umbel.router import DeadWorkerReaper, Pruner, Receiver, Router
from umbel.telemetry import Telemetry, events
from umbel.testing.simulation.database import SimulatedDatabase, Watched
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
    """Wall time can be set by somebody; monotonic time is the timeline's."""

    def __init__(self, timeline: Timeline) -> None:
        self.ahead = 0.0
        self._timeline = timeline

    def now(self) -> float:
        return _EPOCH + self._timeline.now + self.ahead

    def monotonic(self) -> float:
        return self._timeline.now


class SimulatedHeart(Heartbeat):
    """A heart in a lane of its own where others have a thread."""

    _beating: asyncio.Task[Any] | None = None

    def _begin(self) -> None:
        lane = asyncio.get_running_loop()
        assert isinstance(lane, Lane)
        self._beating = lane.owner.heart.create_task(self._main())

    async def _ended(self) -> None:
        host = asyncio.get_running_loop()
        assert self._beating is not None
        ended = host.create_future()
        tell = lambda _: host.call_soon_threadsafe(_set, ended)  # noqa: E731
        self._beating.add_done_callback(tell)
        if self._beating.done():
            _set(ended)
        await asyncio.wait([ended], timeout=10)

    @property
    def alive(self) -> bool:
        return self._beating is not None and not self._beating.done()


class SimulatedWorker(Worker):
    """A worker whose process can end without ending ours."""

    process: Process

    def die(self, why: str) -> None:
        self.process.crash(why)


class Process:
    """A worker's process from its start to its end. The next one of the same name is another."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.number = number
        self.main = world.timeline.lane(f"{name} main", self)
        self.heart = world.timeline.lane(f"{name} heart", self)
        self.clock = SimulatedClock(world.timeline)
        self.gone = False
        self.worker: SimulatedWorker | None = None
        self.databases: list[SimulatedDatabase] = []
        self._telemetry = Telemetry(self._hear)
        self.main.create_task(self._live(), name=name)

    @property
    def frozen_lately(self) -> float:
        """When it last could not act: now while it is frozen, else when it woke."""
        return min(self.world.timeline.now, max(self.main.held_until, self.heart.held_until))

    def crash(self, why: str) -> bool:
        """End at once: nothing it holds in memory is left, nothing is said to anybody."""
        if not self.gone:
            self.world.trace.add(self.name, "crash", why)
            self._end()
        return True

    def stop(self) -> None:
        """SIGTERM, as the command line hears it."""
        if self.worker is not None and not self.gone:
            self.main.call_soon(self.worker.stop)

    def _end(self) -> None:
        self.gone = True
        for lane in (self.main, self.heart):
            lane.die()
        for database in self.databases:
            if database in self.world.server.databases:
                self.world.server.databases.remove(database)
        self.world.ended(self)

    async def _live(self) -> None:
        try:
            self.worker = self._build()
            self.world.note_life(self.worker.incarnation, self)
            await self.worker.run()
        except* Unavailable as error:
            self.world.trace.add(self.name, "could not begin or leave", error)
        except* Exception as error:  # noqa: BLE001 - a worker that ends like this is a finding
            if not self.main.dead:
                self.world.auditor.wrong(f"{self.name} ended with {error!r}")
        if not self.main.dead:
            self.world.trace.add(self.name, "exits")
            self._end()

    def _build(self) -> SimulatedWorker:
        fate, world = self.world.fate, self.world
        options = WorkerOptions(
            queues=QUEUES,
            name=self.name,
            io=fate.choose((1, 2, 3)),
            cpu=0,
            lease=fate.lease,
            grace=fate.choose((0.0, 1.0, 4.0)),
            stall=fate.lease * 3,
        )
        receiver = Receiver(options.remember)
        common: dict[str, Any] = {"clock": self.clock, "telemetry": self._telemetry}

        def open_intake() -> Router:
            return Router(self._open("intake"), queues=QUEUES, receiver=receiver, **common)

        def open_upkeep(every: float) -> list[Callable[[], Awaitable[object]]]:
            backend = self._open("upkeep")
            lifeline = DeadWorkerReaper(
                backend.registry, backend.broker, backend.routes, **common, every=every
            )
            crowd = lifeline.living
            pruner = Pruner(backend.records, age=_YEAR, keep=1_000, crowd=crowd, **common)
            return [lifeline.look, pruner.look]

        worker = SimulatedWorker(
            open_intake,
            world.ground.registry,
            options,
            codec=world.codec,
            open_upkeep=open_upkeep,
            heart=SimulatedHeart,
            **common,
        )
        worker.process = self
        return worker

    def _open(self, use: str) -> Roles:
        lane = self.heart if asyncio.get_running_loop() is self.heart else self.main
        use = f"heart {use}" if lane is self.heart else f"main {use}"
        database = SimulatedDatabase(self.world.server, self, lane, use=use)
        self.databases.append(database)
        return open_backend(database, self.clock)

    def _hear(self, event: Any) -> None:
        if self.main.dead or self.worker is None:
            return
        world = self.world
        match event:
            case events.JobStarted():
                life = self.worker.incarnation
                world.auditor.dispatched(self, life, event.job, world.server.picture)
            case events.ServiceFailed():
                world.auditor.wrong(f"{self.name}: {event.service} failed: {event.error}")
            case events.WorkerAlone() | events.WorkerStopping() | events.Stalled():
                world.trace.add(self.name, type(event).__name__)
            case events.OutcomeRefused():
                world.trace.add(self.name, "is refused", event.job)


def open_backend(database: SimulatedDatabase, clock: SimulatedClock) -> Roles:
    """The real adapters on a simulated database."""
    common: Any = {"namespace": NAMESPACE, "clock": clock}
    books = (SqliteRecords, SqliteRegistry, SqliteControl, SqliteGates)
    made = (SqliteBroker, *books, SqliteSteps, SqliteDeployments, SqliteRoutes)
    parts: Any = (Watched(kind(database, **common)) for kind in made)
    return Roles(*parts)


def _set(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)

"""What the simulation found, each told once more as plainly as it can be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from umbel.backends import ControlState, Demand, RegisteredWorker, Roles, WorkerEntry
from umbel.backends.sql.control import SqlControl
from umbel.backends.sql.deployments import SqlDeployments
from umbel.backends.sqlite.broker import SqliteBroker
from umbel.backends.sqlite.database import Database, SqliteFile
from umbel.backends.sqlite.gates import SqliteGates
from umbel.backends.sqlite.records import SqliteRecords
from umbel.backends.sqlite.registry import SqliteRegistry
from umbel.backends.sqlite.routes import SqliteRoutes
from umbel.backends.sqlite.steps import SqliteSteps
from umbel.errors import BadMessage
from umbel.messages import JSON, Body, Envelope, Lease, fresh_id
from umbel.router import DeadWorkerReaper, DuplicateFilter, Router
from umbel.telemetry import Telemetry
from umbel.testing import FakeClock
from umbel.worker.heartbeat import Heartbeat
from umbel.worker.incarnation import Incarnation

LEASE = 10.0
SHORT = 0.6


def site() -> tuple[Roles, FakeClock]:
    """Real adapters on a database in memory, by a clock that only moves when told to."""
    clock = FakeClock()
    clock.stop()
    database = Database(SqliteFile(":memory:"), is_loop_dedicated=True)
    common: Any = {"namespace": "umbel", "clock": clock}
    return Roles(
        SqliteBroker(database, **common),
        SqliteRecords(database, **common),
        SqliteRegistry(database, **common),
        SqlControl(database, **common),
        SqliteGates(database, **common),
        SqliteSteps(database, **common),
        SqlDeployments(database, **common),
        SqliteRoutes(database, **common),
    ), clock


def entry(incarnation: str, lease: float = LEASE) -> WorkerEntry:
    return WorkerEntry(
        incarnation=incarnation,
        name="w",
        host="here",
        pid=1,
        queues=("default",),
        capacity={"io": 1, "cpu": 0},
        lease=lease,
    )


async def running_job(backend: Roles, owner: str) -> str:
    job = fresh_id()
    body = Body(JSON, b'{"args":[],"kwargs":{}}')
    await backend.broker.publish([Envelope(id=job, subject="t", body=body, kind="io")])
    [delivery] = await backend.broker.fetch(["default"], Demand.of(io=1), owner, 0.0)
    assert delivery.id == job
    return job


def test_a_beat_that_came_while_the_watchers_question_was_on_its_way_is_seen_when_it_is_told() -> (
    None
):
    async def tale() -> None:
        backend, clock = site()
        registry: Any = backend.registry
        watcher = DeadWorkerReaper(
            registry, backend.broker, backend.routes, clock=clock, telemetry=Telemetry()
        )
        workers = registry.workers

        async def slowly() -> list[RegisteredWorker]:
            clock.advance(0.9 * LEASE)
            await registry.heartbeat("a", running=0, epoch=0, stopping=False)
            found: list[RegisteredWorker] = await workers()
            return found

        await registry.register(entry("a"))
        registry.workers = slowly
        await watcher.run_once()
        registry.workers = workers
        clock.advance(0.5 * LEASE)
        await watcher.run_once()
        assert [m.entry.incarnation for m in await workers()] == ["a"], "ended within half a lease"
        clock.advance(LEASE)
        await watcher.run_once()
        assert not await workers()

    asyncio.run(tale())


def test_a_claim_whose_answer_was_lost_is_no_death_when_its_worker_leaves() -> None:
    async def tale() -> None:
        backend, clock = site()
        router = Router(
            backend,
            queues=["default"],
            duplicates=DuplicateFilter(),
            clock=clock,
            telemetry=Telemetry(),
        )
        await router.register(entry("a"))
        job = await running_job(backend, "a")
        await router.unregister("a")
        await backend.broker.recover()
        record = await backend.records.find(job)
        assert (record.state, record.deaths, record.attempts) == ("queued", 0, ())

    asyncio.run(tale())


class Quiet:
    """An intake whose server answers beats, and never the question whether control changed."""

    def __init__(self) -> None:
        self.beats = 0
        self.fourth = asyncio.Event()
        self.meanwhile: Callable[[], None] = lambda: None
        self.held: list[Lease] = []
        self.roles = SimpleNamespace(registry=self, control=self)

    async def heartbeat(self, incarnation: str, **said: Any) -> bool:
        self.beats += 1
        if self.beats == 4:
            self.fourth.set()
        self.meanwhile()
        return True

    async def wait_for_change(self, since: int, wait: float) -> bool:
        await asyncio.Event().wait()
        return False

    async def state(self) -> ControlState:
        return ControlState(0, ())

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        self.held = list(held)
        return []

    async def cancellations(self, jobs: Sequence[str]) -> dict[str, str]:
        return {}

    async def assign_kinds(self, kinds: Any) -> int:
        return 0

    async def has_waiting_jobs(self, kinds: Any, without: Any = ()) -> bool:
        return False


class Still:
    """A worker that has nothing to do."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: {"kinds": {}, "free": Demand(), "stopping": False}.get(name, 0)


def heart_of(intake: Any, life: Incarnation, clock: FakeClock, lease: float) -> Heartbeat:
    worker: Any = Still()
    return Heartbeat(
        life,
        worker,
        lease=lease,
        stall=60.0,
        open_intake=lambda: intake,
        open_upkeep=lambda every: [],
        clock=clock,
        telemetry=Telemetry(),
    )


class Ended(Quiet):
    """The life is over, and control has changed since."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def heartbeat(self, incarnation: str, **said: Any) -> bool:
        await super().heartbeat(incarnation, **said)
        return False

    async def wait_for_change(self, since: int, wait: float) -> bool:
        self.asked += 1
        return True


class Garbled(Quiet):
    """The other side does not understand the question whether control changed."""

    async def wait_for_change(self, since: int, wait: float) -> bool:
        raise BadMessage("since", "is not expected")


def beat_four_times(intake: Any) -> None:
    """Fails when the heart stops before, or hangs."""

    async def tale() -> None:
        heart = heart_of(intake, Incarnation("w"), FakeClock(), SHORT)
        heart._host = asyncio.get_running_loop()
        heart._stop = asyncio.Event()
        beating = asyncio.create_task(heart._beat_until_stopped(intake))
        fourth = asyncio.create_task(intake.fourth.wait())
        async with asyncio.timeout(45):
            await asyncio.wait([beating, fourth], return_when=asyncio.FIRST_COMPLETED)
        assert fourth.done(), "the heart has stopped"
        beating.cancel()
        await asyncio.wait([beating])

    asyncio.run(tale())


def test_a_heart_beats_on_although_the_server_does_not_answer_whether_control_changed() -> None:
    beat_four_times(Quiet())


def test_a_heart_beats_on_although_nobody_understands_whether_control_changed() -> None:
    beat_four_times(Garbled())


def test_a_heart_whose_life_is_over_does_not_ask_again_and_again_whether_control_changed() -> None:
    intake = Ended()
    beat_four_times(intake)
    assert intake.asked == 0


def test_a_job_that_came_while_the_heart_was_beating_is_said_to_be_held() -> None:
    async def tale() -> None:
        intake: Any = Quiet()
        life = Incarnation("w")
        lease = Lease(fresh_id(), life.id, 1)
        intake.meanwhile = lambda: life.hold(lease)
        await heart_of(intake, life, FakeClock(), LEASE)._beat(intake)
        assert intake.held == [lease]

    asyncio.run(tale())


class SetClock(FakeClock):
    """A machine whose wall clock is set by somebody."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


def test_nothing_is_taken_for_unseen_for_a_lease_after_the_wall_clock_was_set() -> None:
    clock = SetClock()
    clock.stop()
    heart = heart_of(Quiet(), Incarnation("w"), clock, LEASE)
    assert heart._unseen_after() == LEASE
    clock.ahead = 3600.0
    assert heart._unseen_after() > 3600 + LEASE
    clock.advance(0.9 * LEASE)
    assert heart._unseen_after() > 3600 + LEASE
    clock.advance(0.2 * LEASE)
    assert heart._unseen_after() == LEASE


def test_a_clock_that_was_set_and_is_right_again_at_the_next_beat_is_noticed() -> None:
    """Whoever fetches has looked at it in between: a claim bears that time."""
    clock = SetClock()
    clock.stop()
    heart = heart_of(Quiet(), Incarnation("w"), clock, LEASE)
    clock.ahead = -5.0
    heart.check_wall_clock()
    clock.ahead = 0.0
    assert heart._unseen_after() > 3600 + LEASE
    clock.advance(1.1 * LEASE)
    assert heart._unseen_after() == LEASE

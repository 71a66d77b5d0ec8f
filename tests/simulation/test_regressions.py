"""Regression tests for bugs that the simulation found, each as small as possible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from umbel.backends import Demand, Page, RegisteredWorker, Roles, WorkerEntry
from umbel.backends.sqlite.backend import SqliteBackend
from umbel.errors import BadMessage
from umbel.messages import JSON, Body, Envelope, Lease, fresh_id
from umbel.router import DeadWorkerReaper, DuplicateFilter, Router
from umbel.telemetry import Telemetry
from umbel.testing import FakeClock
from umbel.worker.heartbeat import Heartbeat
from umbel.worker.incarnation import Incarnation

LEASE = 10.0
SHORT = 0.6


def backend_in_memory() -> tuple[Roles, FakeClock]:
    """Return real adapters on a database in memory, with a clock that only the test advances."""
    clock = FakeClock()
    clock.stop()
    backend = SqliteBackend("sqlite:///:memory:", namespace="umbel", deadline=5.0, clock=clock)
    return backend.open(is_loop_dedicated=True), clock


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


def test_a_heartbeat_during_the_query_of_the_reaper_counts_from_its_answer() -> None:
    async def scenario() -> None:
        backend, clock = backend_in_memory()
        registry: Any = backend.registry
        reaper = DeadWorkerReaper(
            registry, backend.broker, backend.routes, clock=clock, telemetry=Telemetry()
        )
        workers = registry.workers

        async def workers_after_a_delay() -> list[RegisteredWorker]:
            clock.advance(0.9 * LEASE)
            await registry.heartbeat("a", running=0, epoch=0, stopping=False)
            found: list[RegisteredWorker] = await workers()
            return found

        await registry.register(entry("a"))
        registry.workers = workers_after_a_delay
        await reaper.run_once()
        registry.workers = workers
        clock.advance(0.5 * LEASE)
        await reaper.run_once()
        assert [m.entry.incarnation for m in await workers()] == ["a"], "ended within half a lease"
        clock.advance(LEASE)
        await reaper.run_once()
        assert not await workers()

    asyncio.run(scenario())


def test_a_claim_whose_answer_was_lost_counts_as_no_death_when_its_worker_stops() -> None:
    async def scenario() -> None:
        backend, clock = backend_in_memory()
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

    asyncio.run(scenario())


class ControlNeverAnswers:
    """An intake whose server answers heartbeats, but never whether the control state changed."""

    def __init__(self) -> None:
        self.beats = 0
        self.fourth = asyncio.Event()
        self.meanwhile: Callable[[], None] = lambda: None
        self.held: list[Lease] = []
        self.roles = SimpleNamespace(registry=self, control=self, coordination=self)

    async def heartbeat(self, incarnation: str, **fields: Any) -> bool:
        self.beats += 1
        if self.beats == 4:
            self.fourth.set()
        self.meanwhile()
        return True

    async def changed(self, since: Mapping[str, int], wait: float) -> dict[str, int]:
        await asyncio.Event().wait()
        return {}

    async def read(self, prefix: str, after: str = "", limit: int = 1) -> Page:
        return Page((), 0, 0.0)

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        self.held = list(held)
        return []

    async def cancellations(self, jobs: Sequence[str]) -> dict[str, str]:
        return {}

    async def assign_kinds(self, kinds: Any) -> int:
        return 0

    async def has_waiting_jobs(self, kinds: Any, without: Any = ()) -> bool:
        return False


class IdleWorker:
    """A worker without jobs."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: {"kinds": {}, "free": Demand(), "stopping": False}.get(name, 0)


def heartbeat_of(
    intake: Any, incarnation: Incarnation, clock: FakeClock, lease: float
) -> Heartbeat:
    worker: Any = IdleWorker()
    return Heartbeat(
        incarnation,
        worker,
        lease=lease,
        stall=60.0,
        open_intake=lambda: intake,
        open_upkeep=lambda every: [],
        clock=clock,
        telemetry=Telemetry(),
    )


class RemovedWorker(ControlNeverAnswers):
    """The worker was removed, and the control state has changed since."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def heartbeat(self, incarnation: str, **fields: Any) -> bool:
        await super().heartbeat(incarnation, **fields)
        return False

    async def wait_for_change(self, since: int, wait: float) -> bool:
        self.asked += 1
        return True


class ControlNotUnderstood(ControlNeverAnswers):
    """The server does not understand the query whether the control state changed."""

    async def wait_for_change(self, since: int, wait: float) -> bool:
        raise BadMessage("since", "is not expected")


def beat_four_times(intake: Any) -> None:
    """Wait for four heartbeats. Fail if they stop earlier."""

    async def scenario() -> None:
        heartbeat = heartbeat_of(intake, Incarnation("w"), FakeClock(), SHORT)
        heartbeat._stop = asyncio.Event()
        heartbeats = asyncio.create_task(heartbeat._beat_until_stopped(intake))
        fourth = asyncio.create_task(intake.fourth.wait())
        async with asyncio.timeout(45):
            await asyncio.wait([heartbeats, fourth], return_when=asyncio.FIRST_COMPLETED)
        assert fourth.done(), "the heartbeats have stopped"
        heartbeats.cancel()
        await asyncio.wait([heartbeats])

    asyncio.run(scenario())


def test_heartbeats_continue_if_the_server_does_not_answer_whether_control_changed() -> None:
    beat_four_times(ControlNeverAnswers())


def test_heartbeats_continue_if_the_server_does_not_understand_whether_control_changed() -> None:
    beat_four_times(ControlNotUnderstood())


def test_a_removed_worker_does_not_ask_repeatedly_whether_control_changed() -> None:
    intake = RemovedWorker()
    beat_four_times(intake)
    assert intake.asked == 0


def test_a_job_received_during_a_heartbeat_is_reported_as_held() -> None:
    async def scenario() -> None:
        intake: Any = ControlNeverAnswers()
        incarnation = Incarnation("w")
        lease = Lease(fresh_id(), incarnation.id, 1)
        intake.meanwhile = lambda: incarnation.hold(lease)
        await heartbeat_of(intake, incarnation, FakeClock(), LEASE)._beat(intake)
        assert intake.held == [lease]

    asyncio.run(scenario())


class AdjustableClock(FakeClock):
    """A machine whose wall clock is changed."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


def test_no_claim_is_treated_as_undelivered_for_a_lease_after_the_wall_clock_was_set() -> None:
    clock = AdjustableClock()
    clock.stop()
    heartbeat = heartbeat_of(ControlNeverAnswers(), Incarnation("w"), clock, LEASE)
    assert heartbeat._unseen_after() == LEASE
    clock.ahead = 3600.0
    assert heartbeat._unseen_after() > 3600 + LEASE
    clock.advance(0.9 * LEASE)
    assert heartbeat._unseen_after() > 3600 + LEASE
    clock.advance(0.2 * LEASE)
    assert heartbeat._unseen_after() == LEASE


def test_a_clock_that_is_right_again_at_the_next_heartbeat_is_noticed() -> None:
    """A fetch has read the clock in between, and its claim has that time."""
    clock = AdjustableClock()
    clock.stop()
    heartbeat = heartbeat_of(ControlNeverAnswers(), Incarnation("w"), clock, LEASE)
    clock.ahead = -5.0
    heartbeat.check_wall_clock()
    clock.ahead = 0.0
    assert heartbeat._unseen_after() > 3600 + LEASE
    clock.advance(1.1 * LEASE)
    assert heartbeat._unseen_after() == LEASE

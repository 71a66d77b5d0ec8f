"""Duties any worker does for all: Lifeline and Pruner, on a clock that tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import pytest

from umbel import Umbel
from umbel.app.upkeep import open_upkeep
from umbel.backends import Demand, JobFilter, Records, Registry, Roles, WorkerEntry
from umbel.backends.joins import Resolution
from umbel.errors import Unavailable, UnknownJob
from umbel.messages import (
    GRAPH_TASK,
    GROUP_HEADER,
    JSON,
    Attempt,
    Body,
    Cancelled,
    Delivery,
    Edge,
    Envelope,
    Expired,
    Failed,
    Failure,
    Join,
    Outcome,
    Publication,
    Settlement,
    State,
    Succeeded,
    Wait,
    fresh_id,
)
from umbel.router import DeadWorkerReaper, Pruner, SharedInterval
from umbel.telemetry import Telemetry, events
from umbel.testing.clock import FakeClock

YEAR = 365 * 86_400.0
LEASE = 10.0


class JumpyClock(FakeClock):
    """A machine whose wall clock is set by somebody, while its monotonic clock goes on."""

    jumped = 0.0

    def now(self) -> float:
        return super().now() + self.jumped


class Absent:
    """A registry that sometimes does not answer."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.absent = False

    def __getattr__(self, name: str) -> Any:
        if self.absent:
            raise Unavailable("the server does not answer")
        return getattr(self._registry, name)


class Scene:
    """A real store in memory, a clock, and what was told."""

    def __init__(self) -> None:
        self.clock = JumpyClock()
        self.clock.stop()
        self.told: list[events.Event] = []
        self.telemetry = Telemetry(self.told.append)
        self.backend: Roles = Umbel("sqlite:///:memory:", clock=self.clock).backend.open()
        self.registry = Absent(self.backend.registry)

    def lifeline(self, **settings: Any) -> DeadWorkerReaper:
        broker, registry = self.backend.broker, cast(Registry, self.registry)
        how: Any = {"clock": self.clock, "telemetry": self.telemetry, **settings}
        return DeadWorkerReaper(registry, broker, self.backend.routes, **how)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """The watcher cannot reach the registry for the time of the block."""
        self.registry.absent = True
        yield
        self.registry.absent = False

    def pruner(self, *, age: float = 100.0, keep: int = 1_000_000, worker_count: int = 1) -> Pruner:
        how: Any = {"clock": self.clock, "telemetry": self.telemetry}
        return Pruner(
            self.backend.records,
            self.backend.joins,
            age=age,
            keep=keep,
            worker_count=lambda: worker_count,
            **how,
        )

    async def register(self, name: str = "worker", lease: float = LEASE) -> str:
        entry = WorkerEntry(
            incarnation=f"{name}-{fresh_id()}",
            name=name,
            host="here",
            pid=1,
            queues=("default",),
            capacity={"io": 10, "cpu": 10},
            lease=lease,
        )
        await self.backend.registry.register(entry)
        return entry.incarnation

    async def heartbeat(self, incarnation: str) -> bool:
        return await self.backend.registry.heartbeat(
            incarnation, running=0, epoch=0, stopping=False
        )

    async def alive(self) -> set[str]:
        return {member.entry.incarnation for member in await self.backend.registry.workers()}

    async def publish(self, count: int = 1, **fields: Any) -> list[str]:
        made = Envelope(
            id="", subject="tests.add", body=Body(JSON, b"{}"), kind="io", created=self.clock.now()
        )
        envelopes = [msgspec.structs.replace(made, id=fresh_id(), **fields) for _ in range(count)]
        await self.backend.broker.publish(envelopes)
        return [envelope.id for envelope in envelopes]

    async def claim(self, owner: str) -> list[Delivery]:
        return await self.backend.broker.fetch(
            ("default",), Demand.of(io=5_000, cpu=5_000), owner, 0
        )

    async def finish(self, count: int = 1, outcome: Outcome | None = None) -> list[str]:
        """Publish, claim and settle so many jobs."""
        owner = await self.register("finisher", lease=YEAR)
        await self.publish(count)
        deliveries = await self.claim(owner)
        story = Attempt(1, "finisher", 0, 1, "any")
        ended = outcome or Succeeded()
        await self.backend.broker.settle(
            [Settlement(lease=d.lease, outcome=ended, attempt=story) for d in deliveries]
        )
        await self.backend.registry.unregister(owner)
        return [delivery.id for delivery in deliveries]

    async def graph(self, outcome: Resolution | None = None, *, is_live: bool = False) -> set[str]:
        """Add a graph of three jobs, and end its root and, unless it is live, all jobs."""
        root, *parts = fresh_id(), fresh_id(), fresh_id()
        made = Envelope(
            id="",
            subject="tests.add",
            body=Body(JSON, b"{}"),
            headers={GROUP_HEADER: root},
            created=self.clock.now(),
        )
        join = Join(fresh_id(), root)
        publication = Publication(
            envelopes=(
                *(msgspec.structs.replace(made, id=part) for part in parts),
                msgspec.structs.replace(made, id=root, subject=GRAPH_TASK),
            ),
            joins=(join,),
            edges=tuple(Edge(part, join.id, n) for n, part in enumerate(parts)),
            waits=(Wait(root, join.id),),
        )
        joins = self.backend.joins
        await joins.add(publication)
        for part in parts[is_live:]:
            await joins.resolve(part, Succeeded())
        await joins.resolve(root, outcome or Succeeded())
        return {root, *parts}

    async def known(self) -> set[str]:
        return {one.id for one in await self.backend.records.search(JobFilter(limit=10_000))}

    def heard(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]


Tale = Callable[[Scene], Awaitable[None]]


def story(tale: Callable[[Scene], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        async def tell() -> None:
            scene = Scene()
            async with asyncio.timeout(60):
                await tale(scene)
            await scene.backend.close()

        asyncio.run(tell())

    test.__name__, test.__doc__ = tale.__name__, tale.__doc__
    return test


# --- Lifeline: who lives ---------------------------------------------------------------------


@story
async def test_a_worker_without_heartbeats_for_a_lease_is_removed(scene: Scene) -> None:
    life, lifeline = await scene.register(), scene.lifeline()
    await lifeline.run_once()
    scene.clock.advance(LEASE + 0.1)
    await lifeline.run_once()
    assert await scene.alive() == set()
    assert [lost.incarnation for lost in scene.heard(events.WorkerLost)] == [life]


@story
async def test_a_worker_seen_for_the_first_time_gets_a_whole_lease(scene: Scene) -> None:
    life = await scene.register()
    scene.clock.advance(YEAR)
    await scene.lifeline().run_once()
    assert await scene.alive() == {life}, "the watcher has only just begun to watch"


@story
async def test_a_worker_without_heartbeats_for_less_than_a_lease_stays(scene: Scene) -> None:
    life, lifeline = await scene.register(), scene.lifeline()
    await lifeline.run_once()
    scene.clock.advance(LEASE - 0.1)
    await lifeline.run_once()
    assert await scene.alive() == {life}


@story
async def test_a_beat_in_between_saves(scene: Scene) -> None:
    life, lifeline = await scene.register(), scene.lifeline()
    await lifeline.run_once()
    for _ in range(5):
        scene.clock.advance(LEASE - 0.1)
        await scene.heartbeat(life)
        await lifeline.run_once()
    assert await scene.alive() == {life}


@story
async def test_a_beat_unseen_until_the_watcher_looks_saves(scene: Scene) -> None:
    life, lifeline = await scene.register(), scene.lifeline()
    await lifeline.run_once()
    await scene.heartbeat(life)
    scene.clock.advance(100 * LEASE)
    await lifeline.run_once()
    assert await scene.alive() == {life}, "it was seen to beat since the last look"
    scene.clock.advance(LEASE + 0.1)
    await lifeline.run_once()
    assert await scene.alive() == set()


@pytest.mark.parametrize("years", [-50, -1, 1, 50])
def test_a_wall_clock_that_jumps_by_years_removes_no_worker(years: int) -> None:
    async def tale(scene: Scene) -> None:
        life, lifeline = await scene.register(), scene.lifeline()
        await lifeline.run_once()
        scene.clock.jumped = years * YEAR
        for _ in range(3):
            await lifeline.run_once()
        assert await scene.alive() == {life}

    story(tale)()


@story
async def test_a_wall_clock_that_jumped_back_does_not_keep_the_dead_alive(scene: Scene) -> None:
    await scene.register()
    lifeline = scene.lifeline()
    await lifeline.run_once()
    scene.clock.jumped = -YEAR
    scene.clock.advance(LEASE + 0.1)
    await lifeline.run_once()
    assert await scene.alive() == set()


@story
async def test_each_worker_is_judged_by_its_own_lease(scene: Scene) -> None:
    await scene.register("hasty", lease=1)
    patient = await scene.register("patient", lease=100)
    lifeline = scene.lifeline()
    await lifeline.run_once()
    scene.clock.advance(2)
    await lifeline.run_once()
    assert await scene.alive() == {patient}


@story
async def test_two_reapers_remove_a_worker_once(scene: Scene) -> None:
    await scene.register()
    watchers = [scene.lifeline(), scene.lifeline()]
    for watcher in watchers:
        await watcher.run_once()
    scene.clock.advance(LEASE + 0.1)
    for watcher in watchers:
        await watcher.run_once()
    assert len(scene.heard(events.WorkerLost)) == 1


@story
async def test_a_new_incarnation_of_the_same_name_is_not_blamed_for_the_old_one(
    scene: Scene,
) -> None:
    await scene.register("worker")
    lifeline = scene.lifeline()
    await lifeline.run_once()
    scene.clock.advance(LEASE - 1)
    fresh = await scene.register("worker")
    await lifeline.run_once()
    scene.clock.advance(2)
    await lifeline.run_once()
    assert await scene.alive() == {fresh}


@story
async def test_a_watcher_that_could_not_look_has_seen_nothing(scene: Scene) -> None:
    life, lifeline = await scene.register(), scene.lifeline()
    await lifeline.run_once()
    with scene.outage(), pytest.raises(Unavailable):
        await lifeline.run_once()
    scene.clock.advance(LEASE + 0.1)
    await lifeline.run_once()
    assert await scene.alive() == {life}, "nobody can beat, or be seen to, in an outage"
    scene.clock.advance(LEASE + 0.1)
    await lifeline.run_once()
    assert await scene.alive() == set()


@story
async def test_a_watcher_that_was_frozen_counts_that_time_against_no_worker(scene: Scene) -> None:
    every = LEASE / 3
    life, lifeline = await scene.register(), scene.lifeline(every=every)
    await lifeline.run_once()
    scene.clock.advance(5 * LEASE)
    await lifeline.run_once()
    assert await scene.alive() == {life}, "nobody was watched meanwhile"
    scene.clock.advance(every)
    await lifeline.run_once()
    assert await scene.alive() == {life}, "it has time to beat"
    for _ in range(2):
        scene.clock.advance(every + 0.1)
        await lifeline.run_once()
    assert await scene.alive() == set()


@story
async def test_a_store_that_was_frozen_counts_that_time_against_no_worker(scene: Scene) -> None:
    every = LEASE / 3
    life, lifeline = await scene.register(), scene.lifeline(every=every)
    await lifeline.run_once()
    members = scene.backend.registry.workers

    async def slowly() -> Any:
        scene.clock.advance(5 * LEASE)
        return await members()

    scene.clock.advance(every)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scene.backend.registry, "workers", slowly)
        await lifeline.run_once()
    scene.clock.advance(every)
    await lifeline.run_once()
    assert await scene.alive() == {life}, "nobody could beat meanwhile"


@story
async def test_a_watcher_that_is_always_late_finds_the_dead_all_the_same(scene: Scene) -> None:
    life, lifeline = await scene.register(), scene.lifeline(every=LEASE / 3)
    lively = await scene.register("lively")
    for _ in range(6):
        await lifeline.run_once()
        await scene.heartbeat(lively)
        scene.clock.advance(LEASE)
    assert await scene.alive() == {lively}, life


@story
async def test_the_last_of_many_workers_soon_watches_again(scene: Scene) -> None:
    every, crowd = LEASE / 3, 100
    lives = [await scene.register(f"w{index}") for index in range(crowd)]
    watchers = [scene.lifeline(every=every) for _ in range(10)]
    for _ in range(30):
        scene.clock.advance(every)
        for life in lives:
            await scene.heartbeat(life)
        for watcher in watchers:
            await watcher.run_once()
    for watcher in watchers:  # each as if it were the only one that is left
        lives = [await scene.register() for _ in range(3)]
        for _ in range(60):
            scene.clock.advance(every)
            await watcher.run_once()
        assert not await scene.alive() & {*lives}


@story
async def test_many_workers_together_read_the_registry_few_times(scene: Scene) -> None:
    crowd, rounds = 100, 100
    for index in range(crowd):
        await scene.register(f"w{index}", lease=YEAR)
    watchers = [scene.lifeline() for _ in range(crowd)]
    members, reads = await scene.backend.registry.workers(), 0

    async def count() -> Any:
        nonlocal reads
        reads += 1
        return [msgspec.structs.replace(one, heartbeats=reads) for one in members]

    async def watch() -> None:
        for _ in range(rounds):
            for watcher in watchers:
                await watcher.run_once()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scene.backend.registry, "workers", count)
        await watch()  # at the start, all of them watch
        reads = 0
        await watch()
    assert rounds < reads < rounds * crowd / 4


def test_each_group_of_workers_does_a_shared_duty_about_once_per_interval() -> None:
    workers, intervals, rounds_per_interval = 8, 300, 4
    for _ in range(10):
        clock, done = FakeClock(), 0
        clock.stop()
        group = [SharedInterval(1.0, clock, lambda: workers) for _ in range(workers)]
        for _ in range(intervals * rounds_per_interval):
            for one in group:
                if one.is_due():
                    one.record_done()
                    done += 1
            clock.advance(1.0 / rounds_per_interval)
        assert intervals * 0.6 < done < intervals * 1.5


@story
async def test_a_router_always_watches_the_workers_behind_it(scene: Scene) -> None:
    every, crowd = LEASE / 3, 30
    app = Umbel("sqlite:///:memory:", clock=scene.clock)
    given = (app.backend, app.settings, scene.clock, scene.telemetry)
    reap = open_upkeep(*given, every, is_router=True)[0]
    scene.backend = app.backend.open()
    lives = [await scene.register(f"w{index}") for index in range(crowd)]
    for _ in range(20):
        dead = await scene.register("dead")
        for _ in range(5):
            scene.clock.advance(every)
            for life in lives:
                await scene.heartbeat(life)
            await reap()
        assert dead not in await scene.alive()


# --- Lifeline: what happens to their jobs ----------------------------------------------------


@story
async def test_the_jobs_of_a_dead_worker_are_put_back_and_the_death_is_counted(
    scene: Scene,
) -> None:
    life, lifeline = await scene.register(), scene.lifeline()
    jobs = await scene.publish(2)
    await scene.claim(life)
    await lifeline.run_once()
    scene.clock.advance(LEASE + 0.1)
    assert sorted(await lifeline.run_once()) == sorted(jobs)
    for job in jobs:
        record = await scene.backend.records.find(job)
        assert (record.state, record.deaths, record.attempt) == (State.QUEUED, 1, 1)
    assert [told.jobs for told in scene.heard(events.JobsRecovered)] == [2]


@story
async def test_the_jobs_of_a_living_worker_are_left_alone(scene: Scene) -> None:
    life, lifeline = await scene.register(), scene.lifeline()
    [job] = await scene.publish()
    await scene.claim(life)
    for _ in range(4):
        await scene.heartbeat(life)
        assert await lifeline.run_once() == []
        scene.clock.advance(LEASE - 0.1)
    assert (await scene.backend.records.find(job)).state is State.RUNNING
    assert not scene.heard(events.JobsRecovered)


@pytest.mark.parametrize("max_deaths", [1, 2, 3])
def test_a_job_is_buried_with_the_death_that_is_one_too_many(max_deaths: int) -> None:
    async def tale(scene: Scene) -> None:
        lifeline = scene.lifeline()
        [job] = await scene.publish(max_deaths=max_deaths)
        for number in range(max_deaths):
            assert (await scene.backend.records.find(job)).state is State.QUEUED
            await scene.claim(await scene.register(f"victim-{number}"))
            await lifeline.run_once()
            scene.clock.advance(LEASE + 0.1)
            await lifeline.run_once()
        record = await scene.backend.records.find(job)
        assert (record.state, record.deaths) == (State.BURIED, max_deaths)
        assert f"{max_deaths} workers died" in record.reason
        assert [attempt.ended for attempt in record.attempts] == ["lost"] * max_deaths

    story(tale)()


@story
async def test_work_left_by_a_recovery_that_crashed_is_put_back_by_the_next_look(
    scene: Scene,
) -> None:
    life = await scene.register()
    [job] = await scene.publish()
    await scene.claim(life)
    await scene.backend.registry.remove(life, 0)  # ... and the process that did this died here
    assert await scene.lifeline().run_once() == [job]


# --- Pruner ----------------------------------------------------------------------------------


@story
async def test_old_records_are_pruned_and_reported(scene: Scene) -> None:
    old = await scene.finish(2)
    scene.clock.advance(101)
    young = await scene.finish(2)
    await scene.pruner(age=100).run_once()
    assert await scene.known() == set(young)
    assert [told.records for told in scene.heard(events.RecordsPruned)] == [2]
    with pytest.raises(UnknownJob):
        await scene.backend.records.find(old[0])


@story
async def test_records_beyond_the_count_are_pruned(scene: Scene) -> None:
    for _ in range(3):
        await scene.finish()
        scene.clock.advance(1)
    newest = await scene.finish()
    await scene.pruner(keep=1).run_once()
    assert await scene.known() == set(newest)


@story
async def test_buried_jobs_outlive_everything(scene: Scene) -> None:
    buried = await scene.finish(1, Failed(Failure("builtins:OSError", "no")))
    for outcome in (Succeeded(), Cancelled("no"), Expired()):
        await scene.finish(1, outcome)
    scene.clock.advance(YEAR)
    await scene.pruner(age=1, keep=0).run_once()
    assert await scene.known() == set(buried)


@story
async def test_live_jobs_are_never_pruned(scene: Scene) -> None:
    waiting = await scene.publish()
    scene.clock.advance(YEAR)
    await scene.pruner(age=1, keep=0).run_once()
    assert await scene.known() == set(waiting)


@story
async def test_an_old_graph_is_pruned_as_a_whole_and_a_young_one_kept(scene: Scene) -> None:
    await scene.graph()
    scene.clock.advance(101)
    young = await scene.graph()
    await scene.pruner(age=100).run_once()
    assert await scene.known() == young
    assert [told.records for told in scene.heard(events.RecordsPruned)] == [3]


@story
async def test_a_graph_beyond_the_count_is_pruned(scene: Scene) -> None:
    await scene.graph()
    scene.clock.advance(1)
    newest = await scene.graph()
    await scene.pruner(keep=3).run_once()
    assert await scene.known() == newest


@story
async def test_graphs_of_which_the_root_is_buried_or_a_job_is_live_outlive_everything(
    scene: Scene,
) -> None:
    buried = await scene.graph(Failed(Failure("builtins:OSError", "no")))
    live = await scene.graph(is_live=True)
    await scene.graph()
    scene.clock.advance(YEAR)
    await scene.pruner(age=1, keep=0).run_once()
    assert await scene.known() == buried | live


@story
async def test_live_graphs_of_which_the_root_has_ended_do_not_stop_others(scene: Scene) -> None:
    live = set[str]()
    for _ in range(250):
        live |= await scene.graph(is_live=True)
        scene.clock.advance(1)
    await scene.graph()
    scene.clock.advance(YEAR)
    pruner = scene.pruner(age=1)
    for _ in range(3):  # each takes a bounded number of them
        assert await scene.known() > live
        await pruner.run_once()
        scene.clock.advance(61)
    assert await scene.known() == live


@story
async def test_hundreds_of_old_graphs_are_pruned_in_one_round(scene: Scene) -> None:
    live = await scene.graph(is_live=True)
    for _ in range(320):
        await scene.graph()
    scene.clock.advance(101)
    await scene.pruner(age=100).run_once()
    assert await scene.known() == live


@story
async def test_nothing_to_prune_is_no_news(scene: Scene) -> None:
    await scene.pruner().run_once()
    assert scene.told == []


@story
async def test_it_looks_about_once_a_minute(scene: Scene) -> None:
    pruner = scene.pruner(age=1)
    await pruner.run_once()
    await scene.finish()
    scene.clock.advance(59)
    await pruner.run_once()
    assert len(await scene.known()) == 1
    scene.clock.advance(2)
    await pruner.run_once()
    assert await scene.known() == set()


@story
async def test_a_crowd_looks_little_more_often_than_one(scene: Scene) -> None:
    looks: list[None] = []

    class Counting:
        async def prunable_groups(self, **_: Any) -> list[str]:
            return []

        async def prune(self, **_: Any) -> int:
            looks.append(None)
            return 0

    how: Any = {"clock": scene.clock, "telemetry": scene.telemetry, "worker_count": lambda: 200}
    records, joins = cast(Records, Counting()), scene.backend.joins
    pruners = [Pruner(records, joins, age=1, keep=1, **how) for _ in range(200)]
    for _ in range(600):
        scene.clock.advance(60)
        for pruner in pruners:
            await pruner.run_once()
    assert 600 <= len(looks) <= 6_000


@story
async def test_all_that_is_to_go_goes_in_one_look_however_much_it_is(scene: Scene) -> None:
    await scene.finish(2_500)
    scene.clock.advance(101)
    await scene.pruner(age=100).run_once()
    assert await scene.known() == set()
    assert [told.records for told in scene.heard(events.RecordsPruned)] == [2500]


@pytest.mark.parametrize("years", [-1, -50])
def test_a_wall_clock_that_jumps_back_prunes_nothing_and_does_not_stop_the_pruner(
    years: int,
) -> None:
    async def tale(scene: Scene) -> None:
        done = await scene.finish()
        pruner = scene.pruner(age=100)
        scene.clock.jumped = years * YEAR
        await pruner.run_once()
        assert await scene.known() == set(done)
        scene.clock.jumped = 0
        scene.clock.advance(101)
        await pruner.run_once()
        assert await scene.known() == set()

    story(tale)()

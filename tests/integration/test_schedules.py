"""Schedulers: who publishes which tick, how declarations and their workers come and go."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from integration.schedule_world import World, open_world, settle
from umbel import Hook, Umbel
from umbel.backends import Put, json_value
from umbel.errors import ConfigurationError
from umbel.messages import State
from umbel.schedules import catalog as keys
from umbel.tasks.hooks import Hooks
from umbel.telemetry import events

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def every_minute(world: World) -> None:
    world.app.schedule("minutely", world.report.s(7), every=60, overlap="allow")


async def test_a_declared_schedule_publishes_its_call_at_its_times() -> None:
    async with open_world(every_minute) as world:
        await world.run(world.scheduler(), seconds=180)
        jobs = await world.jobs()
        assert await world.nominals() == [60, 120, 180]
        assert {one.task for one in jobs} == {"report"}
        assert world.app.codec.decode(jobs[0].body) == {"args": [7], "kwargs": {}}
        assert jobs[0].headers["schedule"] == "minutely"
        assert all(one.state is State.QUEUED for one in jobs)


async def test_without_schedules_there_is_no_election_and_one_slow_watch() -> None:
    async with open_world() as world:
        scheduler = world.scheduler()
        wait, sections = await scheduler.run_once()
        assert (wait, sections) == (60.0, {"schedules/": 0})
        assert (await world.roles.coordination.read("elections/")).entries == ()


@pytest.mark.parametrize("count", [2, 5, 10])
async def test_of_several_schedulers_one_publishes_each_tick_once(count: int) -> None:
    async with open_world(every_minute) as world:
        schedulers = [world.scheduler(f"s{n}") for n in range(count)]
        for _ in range(60):
            world.clock.pass_time(2)
            await asyncio.gather(*(settle(one) for one in schedulers))
        assert await world.nominals() == [60, 120]
        assert len(world.told(events.SchedulerElected)) == 1


async def test_another_scheduler_takes_over_within_one_lease() -> None:
    async with open_world(every_minute) as world:
        first, second = world.scheduler("first"), world.scheduler("second")
        await world.run(first, second, seconds=59)
        await world.run(second, seconds=6)  # the first is dead
        assert await world.nominals() == [60]
        assert [one.scheduler for one in world.told(events.SchedulerElected)] == ["first", "second"]  # type: ignore[attr-defined]


async def test_a_leader_that_was_frozen_past_its_lease_publishes_nothing() -> None:
    async with open_world(every_minute) as world:
        frozen, other = world.scheduler("frozen"), world.scheduler("other")
        await world.run(frozen, other, seconds=50)
        await world.run(other, seconds=20)
        assert await world.nominals() == [60]
        states = await world.states()
        await settle(frozen)  # it resumes
        assert await world.states() == states
        await world.run(frozen, other, seconds=60)
        assert await world.nominals() == [60, 120]


async def test_a_leader_that_is_frozen_between_reading_and_publishing_changes_nothing() -> None:
    """Its lease lapses, and another leads, before its commit reaches the store."""
    async with open_world(every_minute) as world:
        frozen, other = world.scheduler("frozen"), world.scheduler("other")
        await world.run(frozen, other, seconds=59)
        world.clock.pass_time(1)
        commit, states = world.roles.coordination.commit, []

        async def freeze(checks: Any, puts: Any = (), deletes: Any = (), publish: Any = ()) -> Any:
            if publish and not states:
                states.append(None)
                world.clock.pass_time(70)
                await settle(other)
                states.append(await world.states())
                assert await commit(checks, puts, deletes, publish) is None
                return None
            return await commit(checks, puts, deletes, publish)

        world.roles.coordination.commit = freeze  # type: ignore[method-assign]
        await settle(frozen)
        assert states[1] == await world.states()
        assert await world.nominals() == [120]
        assert [one.schedule for one in world.told(events.TicksMissed)] == ["minutely"]  # type: ignore[attr-defined]


async def test_a_leader_that_resigns_is_replaced_at_once() -> None:
    async with open_world(every_minute) as world:
        first, second = world.scheduler("first"), world.scheduler("second")
        await world.run(first, second, seconds=2)
        with pytest.raises(RuntimeError):
            await first.run(_fail)
        await settle(second)
        assert len(world.told(events.SchedulerElected)) == 2


def _fail() -> None:
    raise RuntimeError("stop")


async def test_the_ticks_of_a_moment_are_one_commit() -> None:
    def many(world: World) -> None:
        for number in range(200):
            world.app.schedule(f"s{number}", world.report.s(number), every=60, overlap="allow")

    async with open_world(many) as world:
        scheduler = world.scheduler()
        await settle(scheduler)
        world.clock.pass_time(60)
        await settle(scheduler)
        page = await world.roles.coordination.read("schedule-states/")
        assert len(await world.jobs()) == 200
        assert len({entry.revision for entry in page.entries}) == 1


async def test_ticks_of_more_schedules_than_one_commit_may_write_are_divided() -> None:
    def many(world: World) -> None:
        for number in range(1_100):
            world.app.schedule(f"s{number}", world.report.s(), every=60, overlap="allow")

    async with open_world(many) as world:
        scheduler = world.scheduler()
        await settle(scheduler)
        await world.run(scheduler, seconds=120, step=60)
        assert len(await world.jobs()) == 2_200


# --- missed ticks and clocks -------------------------------------------------------------------


async def test_missed_ticks_are_told_and_the_last_one_is_published() -> None:
    async with open_world(every_minute) as world:
        await settle(world.scheduler())
        world.clock.pass_time(7_190)  # no scheduler runs
        scheduler = world.scheduler("later")
        await settle(scheduler)
        assert await world.nominals() == [7_140]
        (told,) = world.told(events.TicksMissed)
        assert told == events.TicksMissed(schedule="minutely", missed=118, exact=True, published=1)


async def test_after_a_downtime_longer_than_ten_minutes_ticks_are_caught_up() -> None:
    """Declarations lapse meanwhile, but that the whole cluster was down retires nothing."""

    def hourly(world: World) -> None:
        world.app.schedule("hourly", world.report.s(), every=3_600, catch_up="all", overlap="queue")

    async with open_world(hourly) as world:
        await settle(world.scheduler())
        world.clock.pass_time(86_400 + 120)
        await settle(world.scheduler("next day"))
        assert await world.nominals() == [3_600 * n for n in range(1, 25)]


async def test_a_clock_that_jumps_forward_makes_ticks_missed() -> None:
    async with open_world(every_minute) as world:
        scheduler = world.scheduler()
        await world.run(scheduler, seconds=61)
        world.clock.jump(3_600)
        await world.run(scheduler, seconds=12)  # it is elected, and its declaration renewed, again
        assert (await world.nominals())[-1] == 3_660
        assert len(await world.nominals()) <= 3
        assert world.told(events.TicksMissed)


async def test_a_clock_that_is_set_back_publishes_no_tick_twice_and_causes_no_silence() -> None:
    async with open_world(every_minute) as world:
        scheduler = world.scheduler()
        await world.run(scheduler, seconds=200)
        world.clock.jump(-3_600)
        await world.run(scheduler, seconds=121)
        assert world.told(events.ScheduleSetBack)
        nominals = await world.nominals()
        assert nominals == [-3_360, -3_300, 60, 120, 180]
        await world.run(scheduler, seconds=3_600, step=10)
        nominals = await world.nominals()
        assert len({*nominals}) == len(nominals)
        assert [one for one in nominals if one > 0] == [60, 120, 180, 240, 300]


# --- overlap -----------------------------------------------------------------------------------


async def test_a_tick_is_skipped_while_its_predecessor_has_not_ended() -> None:
    def skipping(world: World) -> None:
        world.app.schedule("s", world.report.s(), every=60)

    async with open_world(skipping) as world:
        await world.run(world.scheduler(), seconds=300)
        assert await world.nominals(State.QUEUED) == [60]
        assert await world.nominals(State.CANCELLED) == [120, 180, 240, 300]
        (first,) = [one for one in await world.jobs() if one.state is State.QUEUED]
        (second, *_) = [one for one in await world.jobs() if one.state is State.CANCELLED]
        assert first.id in second.reason
        (told,) = world.told(events.ScheduleOverlaps)
        assert (told.schedule, told.ticks) == ("s", 3)  # type: ignore[attr-defined]


async def test_queued_ticks_wait_for_each_other_and_at_most_a_hundred_of_them() -> None:
    def queueing(world: World) -> None:
        world.app.schedule("q", world.report.s(), every=60, overlap="queue")

    async with open_world(queueing) as world:
        await world.run(world.scheduler(), seconds=60 * 110, step=60)
        jobs = await world.jobs()
        assert 100 <= len(jobs) <= 102
        assert world.told(events.ScheduleOverlaps)
        gates = await world.roles.gates.gates("limit:@schedule/q")
        assert [gate.capacity for gate in gates] == [1]


# --- declarations ------------------------------------------------------------------------------


async def test_of_live_declarations_the_one_first_seen_last_wins_and_a_rollback_works() -> None:
    async with open_world() as world:
        world.app.schedule("s", world.report.s(1), every=60, overlap="allow")
        old = world.scheduler("old")
        await settle(old)
        world.app.schedule("s", world.report.s(2), every=30, overlap="allow")
        new = world.scheduler("new")
        await world.run(old, new, seconds=15)
        assert (await world.catalog()).schedules["s"].plan.timing.every == 30
        await world.run(old, new, seconds=15)
        assert await world.nominals() == [30]
        # The new workers are replaced by old ones: a rollback.
        await world.run(old, seconds=50)
        assert (await world.catalog()).schedules["s"].plan.timing.every == 60
        await world.run(old, seconds=60)
        assert (await world.nominals())[-1] == 120
        # And the new code again.
        again = world.scheduler("again")
        await world.run(old, again, seconds=12)
        assert (await world.catalog()).schedules["s"].plan.timing.every == 30


async def test_a_schedule_that_no_worker_declares_any_more_is_retired_and_its_history_kept() -> (
    None
):
    async with open_world(every_minute) as world:
        await world.run(world.scheduler("old"), seconds=61)
        other = world.scheduler("other code", declared=[])
        await world.run(other, seconds=602, step=2)
        fired = await world.nominals()
        assert (await world.catalog()).schedules["minutely"].is_retired
        await world.run(other, seconds=602, step=2)
        assert "minutely" not in (await world.catalog()).schedules
        assert [one.schedule for one in world.told(events.ScheduleRetired)] == ["minutely"]  # type: ignore[attr-defined]
        assert max(fired) <= 660
        assert (await world.states())["minutely"].published == len(await world.nominals())


async def test_a_worker_without_a_scheduler_still_declares_its_schedules() -> None:
    async with open_world(every_minute) as world:
        silent = world.scheduler("silent", may_lead=False)
        leader = world.scheduler("leader", declared=[])
        await world.run(silent, leader, seconds=61)
        assert await world.nominals() == [60]
        assert [one.scheduler for one in world.told(events.SchedulerElected)] == ["leader"]  # type: ignore[attr-defined]


async def test_an_entry_that_cannot_be_read_affects_no_other_schedule() -> None:
    async with open_world(every_minute) as world:
        wrong = (b"{", b'{"plan": {"timing": {"cron": "61 * * * *"}}}', b"\xff")
        for number, value in enumerate(wrong):
            put = Put(f"{keys.ADDED}broken {number}", value)
            await world.roles.coordination.commit({}, [put])
        await world.run(world.scheduler(), seconds=61)
        assert await world.nominals() == [60]
        assert len(world.told(events.ScheduleFailed)) == 3


@pytest.mark.parametrize("since", [1e300, 1e18, 9e15])
async def test_a_stored_time_that_is_impossible_affects_no_other_schedule(since: float) -> None:
    async with open_world(every_minute) as world:
        world.app.schedule("impossible", world.report.s(), cron="0 3 * * *")
        impossible = world.app.schedules.all()[1].definition
        value = json_value(replace(impossible, since=since))
        await world.roles.coordination.commit({}, [Put(f"{keys.ADDED}impossible", value)])
        await world.run(world.scheduler(), seconds=61)
        assert await world.nominals() == [60]
        assert (await world.catalog()).schedules["impossible"].find_next(int(since)) is None


async def test_a_hook_that_hangs_at_each_tick_does_not_make_ticks_late() -> None:
    class Hang(Hook):
        async def on_tick(self, tick: Any) -> None:
            calls.append(len(reported))
            await asyncio.Event().wait()

    calls: list[int] = []
    reported: list[str] = []
    hooks = Hooks(lambda hook, error: reported.append(error))
    hooks.add(Hang())
    async with open_world() as world:
        for number in range(100):
            world.app.schedule(f"s{number}", world.report.s(), every=60)
        scheduler = world.scheduler(hooks=hooks)
        await world.run(scheduler, seconds=60, step=20)
        assert len(await world.nominals()) == len(reported) == 100
        assert calls == [0] * 100, "a call waited until another one was cancelled"


async def test_a_change_between_reading_and_publishing_is_respected() -> None:
    """The leader's commit checks that no schedule was changed, and reads again if one was."""
    async with open_world(every_minute) as world:
        scheduler = world.scheduler()
        await world.run(scheduler, seconds=59)
        world.clock.pass_time(2)
        commit, committed = world.roles.coordination.commit, []

        async def interfere(
            checks: Any, puts: Any = (), deletes: Any = (), publish: Any = ()
        ) -> Any:
            if publish and not committed:
                committed.append(True)
                removed = list((await world.catalog()).schedules)
                assert removed == ["minutely"]
                override = b'{"paused": true}'
                await commit({}, [Put(keys.EDITS + "minutely", override), Put(keys.VERSION)])
            return await commit(checks, puts, deletes, publish)

        world.roles.coordination.commit = interfere  # type: ignore[method-assign]
        await settle(scheduler)
        assert committed
        assert await world.nominals() == []


# --- calendars ---------------------------------------------------------------------------------


def every_ten_minutes(after: datetime) -> datetime | None:
    return after.replace(minute=after.minute // 10 * 10, second=0) + timedelta(minutes=10)


async def test_a_calendar_is_computed_by_the_workers_that_have_its_function() -> None:
    async with open_world() as world:
        world.app.schedule("c", world.report.s(), calendar=every_ten_minutes, overlap="allow")
        having, leader = world.scheduler("having"), world.scheduler("leader", declared=[])
        await world.run(having, seconds=1)
        await world.run(leader, having, seconds=1_260, step=5)
        assert await world.nominals() == [600, 1_200]


async def test_a_calendar_that_raises_or_hangs_is_reported_and_affects_no_other() -> None:
    released = threading.Event()

    def raising(after: datetime) -> datetime | None:
        raise ZeroDivisionError("no such day")

    def hanging(after: datetime) -> datetime | None:
        released.wait(60)
        return None

    try:
        async with open_world(every_minute) as world:
            world.app.schedule("raises", world.report.s(), calendar=raising)
            world.app.schedule("hangs", world.report.s(), calendar=hanging)
            await world.run(world.scheduler(), seconds=120, step=20)
            assert await world.nominals() == [60, 120]
            told = {one.schedule: one.error for one in world.told(events.ScheduleFailed)}  # type: ignore[attr-defined]
            assert told["raises"] == "ZeroDivisionError('no such day')"
            assert "has not returned within" in told["hangs"]
    finally:
        released.set()


async def test_after_a_downtime_the_missed_times_of_a_calendar_are_caught_up() -> None:
    async with open_world() as world:
        world.app.schedule(
            "c", world.report.s(), calendar=every_ten_minutes, catch_up="all", overlap="allow"
        )
        await settle(world.scheduler())
        world.clock.pass_time(86_400)
        await world.run(world.scheduler("later"), seconds=1)
        nominals = await world.nominals()
        assert nominals[-1] == 86_400
        assert len(nominals) == 101


# --- declaring ---------------------------------------------------------------------------------


def test_a_wrong_declaration_is_refused_with_the_field_and_the_remedy() -> None:
    app = Umbel("sqlite:///:memory:")

    @app.task(name="add")
    def add(a: int, b: int, text: str = "") -> int:
        return a + b

    def refused(**options: Any) -> str:
        with pytest.raises(ConfigurationError) as caught:
            app.schedule(options.pop("name", "s"), options.pop("signature", add.s(1, 2)), **options)
        return str(caught.value)

    assert "give one of cron, every, at, calendar" in refused()
    assert "schedule 's': cron='0 0 30 2 *': it never fires" in refused(cron="0 0 30 2 *")
    assert "within 50 years" in refused(cron="0 0 */3 2 MON#5")
    assert "zone='Mars'" in refused(cron="0 0 * * *", zone="Mars")
    assert "no signature" in refused(signature=add, every=60)
    assert "name=''" in refused(name="", every=60)
    assert "name='a#b'" in refused(name="a#b", every=60)
    assert "worker= cannot be scheduled" in refused(
        signature=add.options(worker=3).s(1, 2), every=60
    )
    assert "at most 65,536" in refused(signature=add.s(1, 2, "x" * 70_000), every=60)
    with pytest.raises(ConfigurationError, match=r"cron of task add2: .*app\.schedule"):
        app.task(name="add2", cron="0 3 * * *")(add.function)
    with pytest.raises(ConfigurationError, match=r"zone of task add3: give cron"):
        app.task(name="add3", zone="UTC")(add.function)
    app.schedule("s", add.s(1, 2), every=60)

    @app.task(name="other")
    def other() -> None: ...

    assert "two schedules are named 's'" in refused(signature=other.s(), every=60)


def test_a_task_can_declare_its_own_schedule() -> None:
    app = Umbel("sqlite:///:memory:")

    @app.task(name="nightly", cron="0 3 * * *", zone="Europe/Vienna", jitter=60, overlap="queue")
    def nightly() -> None: ...

    (declared,) = app.schedules.all()
    assert declared.name == "nightly"
    assert declared.plan.timing.describe() == "0 3 * * * Europe/Vienna"
    assert (declared.plan.jitter, declared.plan.overlap) == (60, "queue")

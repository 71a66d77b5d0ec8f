"""What operators see and change of schedules, and when a change applies."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from integration.schedule_world import NOON, World, open_world, settle
from umbel.errors import ConfigurationError, NotAllowed, UnknownSchedule
from umbel.messages import State
from umbel.operations.schedules import ScheduleOperations
from umbel.schedules import Plan, make_timing
from umbel.telemetry import events

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def minutely(world: World) -> None:
    world.app.schedule("minutely", world.report.s(7), every=60, overlap="allow", zone="Asia/Tokyo")


def operations(world: World) -> ScheduleOperations:
    return ScheduleOperations(world.roles, namespace="umbel")


async def test_an_override_wins_field_by_field_until_it_is_reset() -> None:
    async with open_world(minutely) as world:
        scheduler, operator = world.scheduler(), operations(world)
        await world.run(scheduler, seconds=30)
        changes = {"timing": make_timing(every=20), "catch_up": "none"}
        view = await operator.edit("minutely", changes, reset=False, who="ann")
        await operator.edit("minutely", {"jitter": 5}, reset=False, who="ann")
        view = await operator.show("minutely")
        assert (view.plan.timing.every, view.defined.timing.every) == (20, 60)
        assert (view.plan.catch_up, view.plan.jitter, view.plan.overlap) == ("none", 5, "allow")
        assert view.plan.timing.zone == "Asia/Tokyo"
        assert [*view.changes] == ["timing", "catch_up", "jitter"]
        assert view.changed_by == "ann"
        # A restart of the workers, and other code, do not erase it.
        world.app.schedule("minutely", world.report.s(8), every=60, overlap="skip")
        await world.run(world.scheduler("new code"), seconds=5)
        view = await operator.show("minutely")
        assert (view.plan.timing.every, view.plan.overlap, view.plan.jitter) == (20, "skip", 5)
        view = await operator.edit("minutely", {}, reset=True, who="bob")
        assert (view.plan, view.changes) == (view.defined, {})


async def test_an_edit_applies_to_times_after_it_and_never_fires_by_itself() -> None:
    async with open_world(minutely) as world:
        scheduler, operator = world.scheduler(), operations(world)
        await world.run(scheduler, seconds=90)
        await operator.edit("minutely", {"timing": make_timing(every=10)}, reset=False, who="")
        await settle(scheduler)
        assert await world.nominals() == [60]
        await world.run(scheduler, seconds=11)
        assert await world.nominals() == [60, 100]
        await operator.edit("minutely", {}, reset=True, who="")
        await world.run(scheduler, seconds=25)
        assert await world.nominals() == [60, 100, 120]


async def test_ticks_in_a_pause_are_not_missed_and_resume_waits_for_the_next() -> None:
    async with open_world(minutely) as world:
        scheduler, operator = world.scheduler(), operations(world)
        await world.run(scheduler, seconds=70)
        view = await operator.pause("minutely", "migration", "ann")
        assert (view.state, view.reason, view.next) == ("paused", "migration", None)
        await world.run(scheduler, seconds=400)
        assert await world.nominals() == [60]
        view = await operator.resume("minutely")
        assert (view.state, view.next) == ("active", int(NOON) + 480)
        await world.run(scheduler, seconds=15)
        assert await world.nominals() == [60, 480]
        assert world.told(events.TicksMissed) == []


async def test_a_pause_without_a_scheduler_is_no_downtime_either() -> None:
    async with open_world(minutely) as world:
        await world.run(world.scheduler(), seconds=70)
        await operations(world).pause("minutely", "", "")
        world.clock.pass_time(86_400)
        await operations(world).resume("minutely")
        await world.run(world.scheduler("later"), seconds=60)
        assert await world.nominals() == [60, 86_520]
        assert world.told(events.TicksMissed) == []


async def test_a_schedule_can_be_added_and_removed_at_run_time() -> None:
    async with open_world() as world:
        scheduler, operator = world.scheduler(), operations(world)
        await settle(scheduler)
        template = world.app.build(world.report.s(3))
        plan = Plan(timing=make_timing(every=30), overlap="allow")
        added = await operator.add("extra", plan, template, "ann")
        assert (added.origin, added.task, added.next) == ("operator", "report", int(NOON) + 30)
        await world.run(scheduler, seconds=60)
        assert await world.nominals() == [30, 60]
        with pytest.raises(ConfigurationError, match="'extra' exists already"):
            await operator.add("extra", plan, template, "ann")
        await operator.remove("extra")
        await world.run(scheduler, seconds=60)
        assert await world.nominals() == [30, 60]
        with pytest.raises(UnknownSchedule, match="there are no schedules"):
            await operator.history("extra")
        await operator.add("extra", plan, template, "ann")  # and again
        await world.run(scheduler, seconds=30)
        assert await world.nominals() == [30, 60, 150]
        assert (await operator.show("extra")).published == 1


async def test_a_declared_schedule_cannot_be_removed_while_a_worker_declares_it() -> None:
    async with open_world(minutely) as world:
        operator = operations(world)
        await world.run(world.scheduler(), seconds=61)
        with pytest.raises(NotAllowed, match="declared in the code"):
            await operator.remove("minutely")
        world.clock.pass_time(601)
        assert (await operator.show("minutely")).state == "retired"
        assert len(await operator.history("minutely")) == 1
        await operator.remove("minutely")
        assert "minutely" not in await world.states()


async def test_a_manual_trigger_has_an_id_of_its_own_and_respects_overlap() -> None:
    async with open_world() as world:
        world.app.schedule("s", world.report.s(), every=60)
        scheduler, operator = world.scheduler(), operations(world)
        await settle(scheduler)
        world.clock.pass_time(59)
        job, state = await operator.trigger("s")
        assert state is State.QUEUED
        assert (await operator.trigger("s"))[1] is State.CANCELLED
        await world.run(scheduler, seconds=1)
        ticks = await operator.history("s")
        assert [(one.nominal, one.state) for one in ticks] == [(int(NOON) + 60, State.CANCELLED)]
        assert job in ticks[0].reason


async def test_history_and_next_times_are_told() -> None:
    async with open_world(minutely) as world:
        scheduler, operator = world.scheduler(), operations(world)
        await world.run(scheduler, seconds=130)
        world.clock.pass_time(3_600)
        await world.run(scheduler, seconds=12)
        lines = await operator.history("minutely")
        assert [one.nominal - int(NOON) for one in lines if one.job] == [3_720, 120, 60]
        assert [one.missed for one in lines if one.missed] == [59]
        assert await operator.next_times("minutely", 3) == [
            int(NOON) + 3_780 + 60 * n for n in range(3)
        ]
        view = await operator.show("minutely")
        assert (view.published, view.missed) == (3, 59)


async def test_the_next_times_of_all_active_schedules_are_told_in_order() -> None:
    async with open_world(minutely) as world:
        world.app.schedule("half", world.report.s(), every=60, phase=30)
        world.app.schedule("idle", world.report.s(), every=1)
        scheduler, operator = world.scheduler(), operations(world)
        await settle(scheduler)
        await operator.pause("idle", "", "ada")
        found = [(at - int(NOON), view.name) for at, view in await operator.upcoming(3)]
        assert found == [(30, "half"), (60, "minutely"), (90, "half")]


async def test_the_zone_of_a_calendar_is_changed_in_the_code_only() -> None:
    def daily(after: datetime) -> datetime:
        return after + timedelta(days=1)

    async with open_world() as world:
        world.app.schedule("daily", world.report.s(), calendar=daily, zone="Europe/Vienna")
        operator = operations(world)
        await settle(world.scheduler())
        with pytest.raises(ConfigurationError, match=r"zone of schedule 'daily'.*in the code"):
            await operator.edit("daily", {"zone": "UTC"}, reset=False, who="ada")
        assert (await operator.show("daily")).plan.timing.zone == "Europe/Vienna"


async def test_wrong_changes_are_refused_and_nothing_is_changed() -> None:
    async with open_world(minutely) as world:
        operator = operations(world)
        await settle(world.scheduler())
        before = await operator.show("minutely")
        wrong = (
            ({"zone": "Mars"}, "zone='Mars'"),
            ({"jitter": 60}, "jitter=60"),
            ({"timing": make_timing(cron="0 0 */3 2 MON#5")}, "never fires"),
        )
        for changes, text in wrong:
            with pytest.raises(ConfigurationError, match=text):
                await operator.edit("minutely", changes, reset=False, who="")
        assert await operator.show("minutely") == before
        for refused in (operator.show("minutly"), operator.pause("minutly", "", "")):
            with pytest.raises(UnknownSchedule, match="did you mean minutely"):
                await refused


async def test_changes_at_the_same_time_are_all_kept() -> None:
    async with open_world(minutely) as world:
        operator = operations(world)
        await settle(world.scheduler())
        await asyncio.gather(
            operator.edit("minutely", {"jitter": 7}, reset=False, who=""),
            operator.edit("minutely", {"catch_up": "all"}, reset=False, who=""),
            operator.pause("minutely", "now", ""),
        )
        view = await operator.show("minutely")
        assert (view.plan.jitter, view.plan.catch_up, view.state) == (7, "all", "paused")

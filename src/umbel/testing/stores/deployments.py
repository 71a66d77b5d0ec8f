"""One deployment at a time, and what somebody who deploys has to know."""

from __future__ import annotations

import asyncio
from typing import Any

from umbel.backends import Deployment, DeploymentPlan
from umbel.messages import Attempt, Failed, Retry, Succeeded, fresh_id
from umbel.testing.acts import (
    FAILURE,
    FAR,
    RESULT,
    enlist,
    kill,
    publish,
    publish_many,
    running,
    settle,
    take,
    take_one,
)
from umbel.testing.backend import Backend, story


def plan(who: str = "anna", **changes: Any) -> DeploymentPlan:
    """Somebody who wants to deploy."""
    return DeploymentPlan(id=fresh_id(), who=who, host="here", pid=1, **changes)


async def begin(b: Backend, who: str = "anna", **changes: Any) -> Deployment:
    """A deployment that does not lapse while a test lasts."""
    return await b.deployments.begin(plan(who, **changes), lease=FAR, force=False)


async def lapsed(b: Backend) -> Deployment:
    """Look until it has lapsed, by whatever clock it is that the store goes by."""
    while True:
        found = await b.deployments.lapse()
        if found is not None:
            return found
        if b.time_travels:
            b.advance(1.0)
        await asyncio.sleep(0.02)


async def holds(b: Backend) -> set[tuple[str, str, str]]:
    """What is paused, and by whom."""
    return {(p.scope, p.name, p.holder) for p in (await b.control.state()).pauses}


class Deploying:
    """Begin, renew, go, end, lapse."""

    @story()
    async def test_at_first_there_was_no_deployment(self, b: Backend) -> None:
        assert await b.deployments.last() is None
        assert await b.deployments.lapse() is None

    @story()
    async def test_a_deployment_says_who_where_and_why(self, b: Backend) -> None:
        wanted = plan("anna", reason="release 7")
        begun = await b.deployments.begin(wanted, lease=FAR, force=False)
        assert (begun.id, begun.who, begun.host, begun.reason) == (
            *(wanted.id, "anna", "here"),
            "release 7",
        )
        assert begun.state == "waiting"
        assert begun.since > 0
        assert begun.left is not None
        async with b.another() as other:
            seen = await other.deployments.last()
        assert seen is not None
        assert seen.id == begun.id

    @story()
    async def test_nothing_is_fetched_from_its_beginning_to_its_end(self, b: Backend) -> None:
        await publish_many(b, 3)
        owner = await enlist(b)
        begun = await begin(b)
        assert await take(b, owner) == []
        assert await b.deployments.go(begun.id)
        assert await take(b, owner) == []
        await b.deployments.end(begun.id, state="ended", outcome="")
        assert len(await take(b, owner)) == 3

    @story()
    async def test_a_deployment_of_some_queues_leaves_the_others_alone(self, b: Backend) -> None:
        await publish(b, queue="mail")
        other = await publish(b, queue="other")
        await begin(b, queues=("mail",))
        found = await take(b, await enlist(b), queues=("mail", "other"))
        assert [one.id for one in found] == [other.id]

    @story()
    async def test_its_epoch_is_that_of_its_pauses(self, b: Backend) -> None:
        before = (await b.control.state()).epoch
        begun = await begin(b, workers=("a", "b"), queues=("mail",))
        state = await b.control.state()
        assert begun.epoch == state.epoch > before
        assert await holds(b) == {
            ("worker", "a", "deploy"),
            ("worker", "b", "deploy"),
            ("queue", "mail", "deploy"),
        }

    @story()
    async def test_its_end_is_a_change_of_control(self, b: Backend) -> None:
        begun = await begin(b)
        assert not await b.control.changed(begun.epoch, 0)
        await b.deployments.end(begun.id, state="ended", outcome="")
        assert (await b.control.state()).epoch > begun.epoch
        assert await b.control.changed(begun.epoch, 0)

    @story()
    async def test_pauses_of_operators_stay_as_they_were(self, b: Backend) -> None:
        await b.control.pause("all", "", "an operator's")
        begun = await begin(b)
        assert await holds(b) == {("all", "", ""), ("all", "", "deploy")}
        await b.deployments.end(begun.id, state="ended", outcome="")
        assert await holds(b) == {("all", "", "")}

    @story()
    async def test_an_operator_who_resumes_does_not_end_it(self, b: Backend) -> None:
        await publish(b)
        await begin(b)
        await b.control.pause("all", "", "")
        await b.control.resume("all", "")
        assert await holds(b) == {("all", "", "deploy")}
        assert await take(b, await enlist(b)) == []

    @story()
    async def test_a_second_is_told_of_the_first_and_changes_nothing(self, b: Backend) -> None:
        first = await begin(b, "anna")
        async with b.another() as other:
            second = await begin(other, "ben", queues=("mail",))
        assert (second.id, second.who) == (first.id, "anna")
        assert await holds(b) == {("all", "", "deploy")}

    @story()
    async def test_of_many_at_once_one_begins(self, b: Backend) -> None:
        async with b.another() as other:
            found = await asyncio.gather(*(begin(side) for _ in range(5) for side in (b, other)))
        assert len({one.id for one in found}) == 1

    @story()
    async def test_beginning_again_after_a_lost_answer_is_the_same_one(self, b: Backend) -> None:
        wanted = plan()
        first = await b.deployments.begin(wanted, lease=FAR, force=False)
        again = await b.deployments.begin(wanted, lease=FAR, force=True)
        assert (again.id, again.epoch) == (first.id, first.epoch)

    @story()
    async def test_who_takes_over_leaves_no_gap_and_the_other_learns_of_it(
        self, b: Backend
    ) -> None:
        first = await begin(b, "anna", queues=("mail",))
        second = await b.deployments.begin(plan("ben"), lease=FAR, force=True)
        assert second.who == "ben"
        assert await holds(b) == {("all", "", "deploy")}
        assert not await b.deployments.go(first.id)
        seen = await b.deployments.renew(first.id, lease=FAR)
        assert seen is not None
        assert (seen.id, seen.state) == (second.id, "waiting")
        assert await b.deployments.end(first.id, state="ended", outcome="") is None
        assert await holds(b) == {("all", "", "deploy")}

    @story()
    async def test_one_that_nobody_renews_lapses_and_lifts_its_pauses(self, b: Backend) -> None:
        await b.control.pause("queue", "mail", "")
        begun = await b.deployments.begin(plan(), lease=0.05, force=False)
        gone = await lapsed(b)
        assert (gone.id, gone.state) == (begun.id, "aborted")
        assert gone.outcome
        assert await holds(b) == {("queue", "mail", "")}
        assert await b.deployments.lapse() is None
        assert not await b.deployments.go(begun.id), "what has lapsed is never go"
        seen = await b.deployments.renew(begun.id, lease=FAR)
        assert seen is not None
        assert seen.state == "aborted"

    @story()
    async def test_one_that_has_lapsed_is_in_nobodys_way(self, b: Backend) -> None:
        await b.deployments.begin(plan("anna"), lease=0.05, force=False)
        while (found := await begin(b, "ben")).who != "ben":
            if b.time_travels:
                b.advance(1.0)
            await asyncio.sleep(0.02)
        assert found.state == "waiting"

    @story()
    async def test_one_that_is_renewed_does_not_lapse(self, b: Backend) -> None:
        begun = await b.deployments.begin(plan(), lease=FAR, force=False)
        for _ in range(3):
            await b.deployments.renew(begun.id, lease=2 * FAR)
            if b.time_travels:
                b.advance(FAR)
            assert await b.deployments.lapse() is None

    @story()
    async def test_one_that_is_go_does_not_lapse(self, b: Backend) -> None:
        begun = await b.deployments.begin(plan(), lease=0.5, force=False)
        assert await b.deployments.go(begun.id)
        assert await b.deployments.go(begun.id), "safe to repeat"
        if b.time_travels:
            b.advance(FAR)
        assert await b.deployments.lapse() is None
        found = await b.deployments.last()
        assert found is not None
        assert (found.state, found.left) == ("go", None)
        assert found.ready is not None

    @story()
    async def test_it_ends_once_and_says_how_long_fetching_stood(self, b: Backend) -> None:
        begun = await begin(b)
        async with b.another() as other:
            both = await asyncio.gather(
                b.deployments.end(begun.id, state="ended", outcome="done"),
                other.deployments.end(begun.id, state="aborted", outcome="no"),
            )
        (ended,) = [one for one in both if one is not None]
        assert ended.state in ("ended", "aborted")
        assert ended.stood >= 0
        assert ended.ended is not None
        assert await holds(b) == set()

    @story()
    async def test_deployments_stay_in_their_namespace(self, b: Backend) -> None:
        await begin(b)
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.deployments.last() is None
            assert await elsewhere.deployments.lapse() is None
            assert await holds(elsewhere) == set()


class WhatRuns:
    """Who holds what, and what waits for code that may be gone."""

    @story()
    async def test_runs_are_told_with_their_holder(self, b: Backend) -> None:
        anna, ben = await enlist(b, "anna"), await enlist(b, "ben")
        of_anna = await running(b, anna, subject="tests.long")
        of_ben = await running(b, ben)
        runs = await b.deployments.runs([anna, ben])
        assert {(run.job, run.owner, run.task) for run in runs} == {
            (of_anna.id, anna, "tests.long"),
            (of_ben.id, ben, "tests.add"),
        }
        assert all(run.age >= 0 and run.queue == "default" for run in runs)
        assert [run.job for run in await b.deployments.runs([ben])] == [of_ben.id]
        assert await b.deployments.runs([]) == []

    @story()
    async def test_what_has_ended_or_waits_runs_no_more(self, b: Backend) -> None:
        owner = await enlist(b)
        await settle(b, await running(b, owner), Succeeded(RESULT))
        await settle(b, await running(b, owner), Retry(FAILURE, FAR))
        assert await b.deployments.runs([owner]) == []

    @story()
    async def test_what_the_dead_held_is_not_asked_for(self, b: Backend) -> None:
        dead, alive = await enlist(b, "anna"), await enlist(b, "anna")
        await running(b, dead)
        await kill(b, dead)
        assert await b.deployments.runs([alive]) == []

    @story("delay")
    async def test_jobs_that_wait_are_counted_by_task(self, b: Backend) -> None:
        await publish_many(b, 3, subject="tests.gone")
        await publish(b, subject="tests.gone", not_before=b.clock.now() + FAR)
        await publish_many(b, 2, subject="tests.other", queue="other")
        owner = await enlist(b)
        assert len(await take(b, owner, queues=("other",))) == 2
        await publish(b, subject="tests.gone", queue="third")
        found = {(one.queue, one.task): one.jobs for one in await b.deployments.waiting()}
        assert found == {("default", "tests.gone"): 4, ("third", "tests.gone"): 1}


async def ran(b: Backend, task: str, seconds: float, **attempt: Any) -> str:
    """A job of a task whose last run took so long."""
    owner = await enlist(b)
    await publish(b, subject=task)
    held = await take_one(b, owner)
    told = Attempt(1, "worker", held.claimed, held.claimed + seconds, "succeeded")
    outcome = attempt.pop("outcome", Succeeded(RESULT))
    assert await settle(b, held, outcome, attempt=told) == []
    return held.id


class LongRuns:
    """Which tasks ran too long."""

    @story("records")
    async def test_of_tasks_that_ran_too_long_all_runs_are_told(self, b: Backend) -> None:
        jobs = [await ran(b, "tests.slow", 10.0 * (n + 1)) for n in range(10)]
        for _ in range(3):
            await ran(b, "tests.quick", 5.0)
        (found,) = await b.deployments.run_times(since=FAR, longer=60.0, but=[], worst=2)
        assert (found.task, found.runs, found.long) == ("tests.slow", 10, 4)
        assert abs(found.p50 - 50.0) <= 1.0
        assert abs(found.p95 - 100.0) <= 2.0
        assert abs(found.worst - 100.0) < 0.01
        assert found.jobs == (jobs[9], jobs[8])

    @story("records")
    async def test_the_threshold_itself_is_not_too_long(self, b: Backend) -> None:
        await ran(b, "tests.slow", 1024.0)
        assert await b.deployments.run_times(since=FAR, longer=1024.5, but=[], worst=3) == []

    @story("records")
    async def test_tasks_that_may_take_long_are_left_out(self, b: Backend) -> None:
        await ran(b, "tests.slow", 100.0)
        await ran(b, "tests.fine", 200.0)
        found = await b.deployments.run_times(since=FAR, longer=60.0, but=["tests.fine"], worst=3)
        assert [times.task for times in found] == ["tests.slow"]

    @story("records")
    async def test_the_longest_comes_first_and_buried_jobs_count(self, b: Backend) -> None:
        await ran(b, "tests.slow", 100.0)
        buried = await ran(b, "tests.slower", 300.0, outcome=Failed(FAILURE))
        found = await b.deployments.run_times(since=FAR, longer=60.0, but=[], worst=3)
        assert [times.task for times in found] == ["tests.slower", "tests.slow"]
        assert found[0].jobs == (buried,)

    @story("records")
    async def test_every_run_of_a_job_counts_and_no_time_between_them(self, b: Backend) -> None:
        owner = await enlist(b)
        first = await running(b, owner, subject="tests.slow")
        told = Attempt(1, "worker", first.claimed, first.claimed + 100, "retry")
        await settle(b, first, Retry(FAILURE, 0.0), attempt=told)
        second = await take_one(b, owner)
        told = Attempt(2, "worker", second.claimed + 5000, second.claimed + 5010, "succeeded")
        await settle(b, second, Succeeded(RESULT), attempt=told)
        (found,) = await b.deployments.run_times(since=FAR, longer=60.0, but=[], worst=3)
        assert (found.runs, found.long) == (2, 1)
        assert abs(found.worst - 100.0) < 0.01

    @story("records")
    async def test_old_runs_do_not_count(self, b: Backend) -> None:
        await ran(b, "tests.slow", 100.0)
        b.advance(100.0)
        assert await b.deployments.run_times(since=50.0, longer=60.0, but=[], worst=3) == []
        assert await b.deployments.run_times(since=500.0, longer=60.0, but=[], worst=3)

    @story("records")
    async def test_runs_stay_in_their_namespace(self, b: Backend) -> None:
        await ran(b, "tests.slow", 100.0)
        async with b.another(f"{b.namespace}2") as elsewhere:
            found = await elsewhere.deployments.run_times(since=FAR, longer=1.0, but=[], worst=3)
        assert found == []

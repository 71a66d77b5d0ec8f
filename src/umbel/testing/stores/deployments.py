"""Deployments: one at a time, with the runs and run times that they need."""

from __future__ import annotations

import asyncio
from typing import Any

from umbel.backends import PAUSES, Put, json_value
from umbel.control import Deployment, DeploymentPlan
from umbel.messages import Attempt, Failed, Retry, Succeeded, fresh_id
from umbel.testing.actions import (
    FAILURE,
    FAR,
    RESULT,
    claim,
    claim_one,
    kill,
    publish,
    publish_and_claim,
    publish_many,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test


def plan(who: str = "anna", **changes: Any) -> DeploymentPlan:
    """Return the plan of a deployment."""
    return DeploymentPlan(id=fresh_id(), who=who, host="here", pid=1, **changes)


async def begin(b: Adapters, who: str = "anna", **changes: Any) -> Deployment:
    """Begin a deployment that does not lapse during a test."""
    return await b.deployments.begin(plan(who, **changes), lease=FAR, force=False)


async def lapsed(b: Adapters) -> Deployment:
    """Wait until a deployment has lapsed, by the store's clock."""
    while True:
        found = await b.deployments.end_lapsed()
        if found is not None:
            return found
        if b.time_travels:
            b.advance(1.0)
        await asyncio.sleep(0.02)


async def holds(b: Adapters) -> set[tuple[str, str, str]]:
    """Return what is paused and by which deployment or operator."""
    return {(p.scope, p.name, p.holder) for p in (await b.pauses.state()).pauses}


class Deploying:
    """Deployments begin, are renewed, become "go", end or lapse."""

    @backend_test()
    async def test_at_first_there_was_no_deployment(self, b: Adapters) -> None:
        assert await b.deployments.last() is None
        assert await b.deployments.end_lapsed() is None

    @backend_test()
    async def test_a_deployment_records_user_host_and_reason(self, b: Adapters) -> None:
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

    @backend_test()
    async def test_nothing_is_fetched_from_its_beginning_to_its_end(self, b: Adapters) -> None:
        await publish_many(b, 3)
        owner = await register(b)
        begun = await begin(b)
        assert await claim(b, owner) == []
        assert await b.deployments.go(begun.id)
        assert await claim(b, owner) == []
        await b.deployments.end(begun.id, state="ended", outcome="")
        assert len(await claim(b, owner)) == 3

    @backend_test()
    async def test_a_deployment_of_some_queues_leaves_the_others_alone(self, b: Adapters) -> None:
        await publish(b, queue="mail")
        other = await publish(b, queue="other")
        await begin(b, queues=("mail",))
        found = await claim(b, await register(b), queues=("mail", "other"))
        assert [one.id for one in found] == [other.id]

    @backend_test()
    async def test_its_epoch_is_that_of_its_pauses(self, b: Adapters) -> None:
        before = (await b.pauses.state()).epoch
        begun = await begin(b, workers=("a", "b"), queues=("mail",))
        state = await b.pauses.state()
        assert begun.epoch == state.epoch > before
        assert await holds(b) == {
            ("worker", "a", "deploy"),
            ("worker", "b", "deploy"),
            ("queue", "mail", "deploy"),
        }

    @backend_test()
    async def test_its_end_is_a_change_of_control(self, b: Adapters) -> None:
        begun = await begin(b)
        assert await b.coordination.changed({PAUSES: begun.epoch}, 0) == {}
        await b.deployments.end(begun.id, state="ended", outcome="")
        assert (await b.pauses.state()).epoch > begun.epoch
        assert [*await b.coordination.changed({PAUSES: begun.epoch}, 0)] == [PAUSES]

    @backend_test()
    async def test_pauses_of_operators_stay_as_they_were(self, b: Adapters) -> None:
        await b.pauses.pause("all", "", "an operator's")
        begun = await begin(b)
        assert await holds(b) == {("all", "", ""), ("all", "", "deploy")}
        await b.deployments.end(begun.id, state="ended", outcome="")
        assert await holds(b) == {("all", "", "")}

    @backend_test()
    async def test_an_operator_who_resumes_does_not_end_it(self, b: Adapters) -> None:
        await publish(b)
        await begin(b)
        await b.pauses.pause("all", "", "")
        await b.pauses.resume("all", "")
        assert await holds(b) == {("all", "", "deploy")}
        assert await claim(b, await register(b)) == []

    @backend_test()
    async def test_a_second_deployment_gets_the_first_and_changes_nothing(
        self, b: Adapters
    ) -> None:
        first = await begin(b, "anna")
        async with b.another() as other:
            second = await begin(other, "ben", queues=("mail",))
        assert (second.id, second.who) == (first.id, "anna")
        assert await holds(b) == {("all", "", "deploy")}

    @backend_test()
    async def test_of_many_at_once_one_begins(self, b: Adapters) -> None:
        async with b.another() as other:
            found = await asyncio.gather(*(begin(side) for _ in range(5) for side in (b, other)))
        assert len({one.id for one in found}) == 1

    @backend_test()
    async def test_beginning_again_after_a_lost_answer_is_the_same_one(self, b: Adapters) -> None:
        wanted = plan()
        first = await b.deployments.begin(wanted, lease=FAR, force=False)
        again = await b.deployments.begin(wanted, lease=FAR, force=True)
        assert (again.id, again.epoch) == (first.id, first.epoch)

    @backend_test()
    async def test_taking_over_leaves_no_gap_and_the_first_deployment_learns_of_it(
        self, b: Adapters
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

    @backend_test()
    async def test_a_deployment_that_is_not_renewed_lapses_and_lifts_its_pauses(
        self, b: Adapters
    ) -> None:
        await b.pauses.pause("queue", "mail", "")
        begun = await b.deployments.begin(plan(), lease=0.05, force=False)
        gone = await lapsed(b)
        assert (gone.id, gone.state) == (begun.id, "aborted")
        assert gone.outcome
        assert await holds(b) == {("queue", "mail", "")}
        assert await b.deployments.end_lapsed() is None
        assert not await b.deployments.go(begun.id), "what has lapsed is never go"
        seen = await b.deployments.renew(begun.id, lease=FAR)
        assert seen is not None
        assert seen.state == "aborted"

    @backend_test()
    async def test_a_lapsed_deployment_does_not_block_another(self, b: Adapters) -> None:
        await b.deployments.begin(plan("anna"), lease=0.05, force=False)
        while (found := await begin(b, "ben")).who != "ben":
            if b.time_travels:
                b.advance(1.0)
            await asyncio.sleep(0.02)
        assert found.state == "waiting"

    @backend_test()
    async def test_one_that_is_renewed_does_not_lapse(self, b: Adapters) -> None:
        begun = await b.deployments.begin(plan(), lease=FAR, force=False)
        for _ in range(3):
            await b.deployments.renew(begun.id, lease=2 * FAR)
            if b.time_travels:
                b.advance(FAR)
            assert await b.deployments.end_lapsed() is None

    @backend_test()
    async def test_one_that_is_go_does_not_lapse(self, b: Adapters) -> None:
        begun = await b.deployments.begin(plan(), lease=0.5, force=False)
        assert await b.deployments.go(begun.id)
        assert await b.deployments.go(begun.id), "safe to repeat"
        if b.time_travels:
            b.advance(FAR)
        assert await b.deployments.end_lapsed() is None
        found = await b.deployments.last()
        assert found is not None
        assert (found.state, found.left) == ("go", None)
        assert found.ready is not None

    @backend_test()
    async def test_it_ends_once_and_says_how_long_fetching_stood(self, b: Adapters) -> None:
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

    @backend_test()
    async def test_a_worker_that_is_named_twice_is_paused_once(self, b: Adapters) -> None:
        begun = await begin(b, workers=("a", "a"), queues=("mail", "mail"))
        assert await holds(b) == {("worker", "a", "deploy"), ("queue", "mail", "deploy")}
        assert await b.deployments.renew(begun.id, lease=FAR) is not None
        assert await b.deployments.go(begun.id)
        assert await b.deployments.end(begun.id, state="ended", outcome="") is not None
        assert await holds(b) == set()

    @backend_test()
    async def test_an_entry_that_was_edited_by_hand_is_replaced_by_the_next_deployment(
        self, b: Adapters
    ) -> None:
        def edited(state: str = "waiting", **changes: Any) -> bytes:
            wrong = {"id": "x", "who": "w", "host": "h", "pid": 1, **changes}
            return json_value({"plan": wrong, "state": state, "since": 1.0})

        values = [
            *(b"", b"\xff\xfe", b"null", b"[" * 60_000, b"{" * 100),
            *(edited(queues=["q" * 3_000]), edited("go", queues=["q" * 3_000])),
            *(edited(workers=["a\0"]), edited(workers=[""]), edited("odd")),
            edited(queues=[f"q{n}" for n in range(1_500)]),
        ]
        for value in values:
            await b.coordination.commit({}, [Put("deployment/last", value)])
            assert await b.deployments.end_lapsed() is None, value[:80]
            assert await b.deployments.last() is None, value[:80]
            wanted = plan()
            begun = await b.deployments.begin(wanted, lease=FAR, force=False)
            assert (begun.id, begun.state) == (wanted.id, "waiting")
            assert await holds(b) == {("all", "", "deploy")}
            assert await b.deployments.end(begun.id, state="ended", outcome="") is not None
            assert await holds(b) == set()

    @backend_test()
    async def test_deployments_stay_in_their_namespace(self, b: Adapters) -> None:
        await begin(b)
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.deployments.last() is None
            assert await elsewhere.deployments.end_lapsed() is None
            assert await holds(elsewhere) == set()


class RunsAndWaiting:
    """The running jobs of workers, and the waiting jobs by task."""

    @backend_test()
    async def test_runs_are_returned_with_their_owner(self, b: Adapters) -> None:
        anna, ben = await register(b, "anna"), await register(b, "ben")
        of_anna = await publish_and_claim(b, anna, subject="tests.long")
        of_ben = await publish_and_claim(b, ben)
        runs = await b.records.runs([anna, ben])
        assert {(run.job, run.owner, run.task) for run in runs} == {
            (of_anna.id, anna, "tests.long"),
            (of_ben.id, ben, "tests.add"),
        }
        assert all(run.age >= 0 and run.queue == "default" for run in runs)
        assert [run.job for run in await b.records.runs([ben])] == [of_ben.id]
        assert await b.records.runs([]) == []

    @backend_test()
    async def test_ended_and_waiting_jobs_are_not_among_the_runs(self, b: Adapters) -> None:
        owner = await register(b)
        await settle(b, await publish_and_claim(b, owner), Succeeded(RESULT))
        await settle(b, await publish_and_claim(b, owner), Retry(FAILURE, FAR))
        assert await b.records.runs([owner]) == []

    @backend_test()
    async def test_runs_of_dead_workers_are_left_out(self, b: Adapters) -> None:
        dead, alive = await register(b, "anna"), await register(b, "anna")
        await publish_and_claim(b, dead)
        await kill(b, dead)
        assert await b.records.runs([alive]) == []

    @backend_test("delay")
    async def test_jobs_that_wait_are_counted_by_task(self, b: Adapters) -> None:
        await publish_many(b, 3, subject="tests.gone")
        await publish(b, subject="tests.gone", not_before=b.clock.now() + FAR)
        await publish_many(b, 2, subject="tests.other", queue="other")
        owner = await register(b)
        assert len(await claim(b, owner, queues=("other",))) == 2
        await publish(b, subject="tests.gone", queue="third")
        found = {(one.queue, one.task): one.jobs for one in await b.records.count_waiting()}
        assert found == {("default", "tests.gone"): 4, ("third", "tests.gone"): 1}


async def ran(b: Adapters, task: str, seconds: float, **attempt: Any) -> str:
    """Run a job of a task whose attempt took the given time."""
    owner = await register(b)
    await publish(b, subject=task)
    held = await claim_one(b, owner)
    told = Attempt(1, "worker", held.claimed, held.claimed + seconds, "succeeded")
    outcome = attempt.pop("outcome", Succeeded(RESULT))
    assert await settle(b, held, outcome, attempt=told) == []
    return held.id


class LongRuns:
    """The tasks with runs that were too long."""

    @backend_test("records")
    async def test_for_tasks_that_ran_too_long_all_runs_are_counted(self, b: Adapters) -> None:
        jobs = [await ran(b, "tests.slow", 10.0 * (n + 1)) for n in range(10)]
        for _ in range(3):
            await ran(b, "tests.quick", 5.0)
        (found,) = await b.records.run_times(since=FAR, longer=60.0, but=[], worst=2)
        assert (found.task, found.runs, found.long) == ("tests.slow", 10, 4)
        assert abs(found.p50 - 50.0) <= 1.0
        assert abs(found.p95 - 100.0) <= 2.0
        assert abs(found.worst - 100.0) < 0.01
        assert found.jobs == (jobs[9], jobs[8])

    @backend_test("records")
    async def test_the_threshold_itself_is_not_too_long(self, b: Adapters) -> None:
        await ran(b, "tests.slow", 1024.0)
        assert await b.records.run_times(since=FAR, longer=1024.5, but=[], worst=3) == []

    @backend_test("records")
    async def test_tasks_that_may_take_long_are_left_out(self, b: Adapters) -> None:
        await ran(b, "tests.slow", 100.0)
        await ran(b, "tests.fine", 200.0)
        found = await b.records.run_times(since=FAR, longer=60.0, but=["tests.fine"], worst=3)
        assert [times.task for times in found] == ["tests.slow"]

    @backend_test("records")
    async def test_the_longest_comes_first_and_buried_jobs_count(self, b: Adapters) -> None:
        await ran(b, "tests.slow", 100.0)
        buried = await ran(b, "tests.slower", 300.0, outcome=Failed(FAILURE))
        found = await b.records.run_times(since=FAR, longer=60.0, but=[], worst=3)
        assert [times.task for times in found] == ["tests.slower", "tests.slow"]
        assert found[0].jobs == (buried,)

    @backend_test("records")
    async def test_every_run_of_a_job_counts_and_no_time_between_them(self, b: Adapters) -> None:
        owner = await register(b)
        first = await publish_and_claim(b, owner, subject="tests.slow")
        told = Attempt(1, "worker", first.claimed, first.claimed + 100, "retry")
        await settle(b, first, Retry(FAILURE, 0.0), attempt=told)
        second = await claim_one(b, owner)
        told = Attempt(2, "worker", second.claimed + 5000, second.claimed + 5010, "succeeded")
        await settle(b, second, Succeeded(RESULT), attempt=told)
        (found,) = await b.records.run_times(since=FAR, longer=60.0, but=[], worst=3)
        assert (found.runs, found.long) == (2, 1)
        assert abs(found.worst - 100.0) < 0.01

    @backend_test("records")
    async def test_old_runs_do_not_count(self, b: Adapters) -> None:
        await ran(b, "tests.slow", 100.0)
        b.advance(100.0)
        assert await b.records.run_times(since=50.0, longer=60.0, but=[], worst=3) == []
        assert await b.records.run_times(since=500.0, longer=60.0, but=[], worst=3)

    @backend_test("records")
    async def test_runs_stay_in_their_namespace(self, b: Adapters) -> None:
        await ran(b, "tests.slow", 100.0)
        async with b.another(f"{b.namespace}2") as elsewhere:
            found = await elsewhere.records.run_times(since=FAR, longer=1.0, but=[], worst=3)
        assert found == []

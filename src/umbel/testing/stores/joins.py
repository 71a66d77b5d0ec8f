"""Joins: the end of each part is counted in the same step, and completes the join once."""

from __future__ import annotations

import asyncio
from collections import Counter

from umbel.backends import Demand
from umbel.messages import (
    GROUP_HEADER,
    JSON,
    NODE_HEADER,
    Body,
    Cancelled,
    Edge,
    Expired,
    Failed,
    Fire,
    Interrupted,
    Join,
    Member,
    Outcome,
    Rejected,
    Retry,
    Snoozed,
    State,
    Succeeded,
)
from umbel.messages.joins import cancel_reason
from umbel.testing.actions import (
    FAILURE,
    FAR,
    LONG_WAIT,
    QUEUES,
    RESULT,
    claim,
    claim_one,
    depths,
    envelope,
    ids,
    kill,
    publish,
    publish_and_settle,
    register,
    settlement,
)
from umbel.testing.backend import Adapters, backend_test
from umbel.testing.brokers.recovery import come_back
from umbel.testing.stores.graphs import (
    Graph,
    OneWorker,
    advance,
    members,
    parts,
    reason,
    results,
    state,
    states,
)

BLOCKED, QUEUED, CANCELLED = State.BLOCKED, State.QUEUED, State.CANCELLED
WAYS_TO_FAIL: tuple[Outcome, ...] = (
    Failed(FAILURE),
    Cancelled("not wanted"),
    Rejected("unknown task"),
    Expired(),
)


class EndsOfParts:
    """However a part ends, the job that waits for it is queued in the same step."""

    @backend_test()
    async def test_a_job_waits_until_its_part_has_succeeded(self, b: Adapters) -> None:
        g = Graph(b)
        part = g.job()
        waiter = g.job(after=g.join(part))
        await g.add()
        worker = await OneWorker.start(b)
        assert await worker.fetch() == [part.id]
        assert await state(b, waiter) is BLOCKED
        await worker.end(part)
        assert await state(b, waiter) is QUEUED
        assert await worker.end(waiter) == []
        assert await state(b, waiter) is State.SUCCEEDED

    @backend_test()
    async def test_every_final_outcome_of_a_part_is_its_end(self, b: Adapters) -> None:
        worker = await OneWorker.start(b)
        for outcome in (Succeeded(RESULT), Succeeded(), *WAYS_TO_FAIL):
            g = Graph(b)
            waiter = g.job(after=g.join(part := g.job()))
            await g.add()
            await worker.end(part, outcome)
            assert await state(b, waiter) is QUEUED, outcome
            await worker.end(waiter)

    @backend_test()
    async def test_a_part_that_goes_back_to_its_queue_has_not_ended(self, b: Adapters) -> None:
        worker = await OneWorker.start(b)
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()))
        await g.add()
        for outcome in (Retry(FAILURE, 0.0), Retry(FAILURE, 0.0, "mail"), Interrupted("stop")):
            await worker.end(part, outcome)
            assert await state(b, waiter) is BLOCKED, outcome
        await worker.end(part, Snoozed(FAR))
        assert await states(b, part, waiter) == [State.SCHEDULED, BLOCKED]

    @backend_test()
    async def test_a_success_of_which_no_record_is_kept_is_counted_and_kept(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        waiter = g.job(after=(join := g.join(part := g.job(), fire="success")))
        await g.add()
        await (await OneWorker.start(b)).end(part, keep=False)
        assert await state(b, waiter) is QUEUED
        assert [(one.state, one.result) for one in await results(b, join)] == [
            (State.SUCCEEDED, RESULT)
        ]

    @backend_test()
    async def test_a_part_that_is_cancelled_while_it_waits_ends(self, b: Adapters) -> None:
        g = Graph(b)
        queued, scheduled = g.job(), g.job(delay=FAR)
        first, second = g.job(after=g.join(queued)), g.job(after=g.join(scheduled))
        await g.add()
        await b.control.cancel([queued.id], "not wanted")
        assert await states(b, queued, first, second) == [CANCELLED, QUEUED, BLOCKED]
        await b.control.cancel([scheduled.id], "not wanted")
        assert await states(b, scheduled, second) == [CANCELLED, QUEUED]

    @backend_test()
    async def test_a_running_part_ends_when_its_worker_has_stopped_it(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()))
        await g.add()
        worker = await OneWorker.start(b)
        await worker.holds(part)
        await b.control.cancel([part.id], "not wanted")
        assert await state(b, waiter) is BLOCKED
        await worker.end(part, Cancelled("not wanted"))
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_part_that_is_buried_while_it_waits_ends(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()))
        await g.add()
        assert await b.control.bury([part.id], "no use") == [part.id]
        assert await states(b, part, waiter) == [State.BURIED, QUEUED]

    @backend_test()
    async def test_a_part_that_expires_ends(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job(expires=b.clock.now() - 60)))
        await g.add()
        assert await b.broker.expire(100) == [part.id]
        assert await states(b, part, waiter) == [State.EXPIRED, QUEUED]

    @backend_test()
    async def test_the_parts_in_a_queue_that_is_purged_end(self, b: Adapters) -> None:
        g = Graph(b)
        some = g.jobs(3, queue="other")
        waiter = g.job(after=g.join(*some))
        await g.add()
        assert await b.broker.purge("other") == 3
        assert await states(b, *some, waiter) == [CANCELLED] * 3 + [QUEUED]

    @backend_test("unique")
    async def test_a_part_that_is_replaced_by_another_job_ends(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job(unique="only")))
        await g.add()
        await publish(b, unique="only", on_conflict="replace")
        assert await states(b, part, waiter) == [CANCELLED, QUEUED]

    @backend_test()
    async def test_a_part_that_is_buried_because_its_workers_died_ends(self, b: Adapters) -> None:
        g = Graph(b)
        fragile, sturdy = g.job(max_deaths=1), g.job(queue="other")
        first, second = g.job(after=g.join(fragile)), g.job(after=g.join(sturdy))
        await g.add()
        for queue in ("default", "other"):
            owner = await register(b, "dead")
            await claim_one(b, owner, queues=(queue,))
            await kill(b, owner)
            await b.broker.recover()
        assert await states(b, fragile, first) == [State.BURIED, QUEUED]
        assert await states(b, sturdy, second) == [QUEUED, BLOCKED], "it runs again"

    @backend_test("records")
    async def test_a_part_whose_worker_was_alive_comes_back_and_its_success_is_kept(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        part, other = g.job(max_deaths=2), g.job(queue="other")
        waiter = g.job(after=(join := g.join(part, other)))
        await g.add()
        owners = []
        for _ in range(2):
            dead = await OneWorker.start(b)
            await dead.holds(part)
            owners.append(dead.owner)
            await kill(b, dead.owner)
            await b.broker.recover()
        assert await state(b, part) is State.BURIED
        worker = OneWorker(b, await come_back(b, *owners))
        assert await state(b, part) is QUEUED
        assert await worker.end(part, keep=False) == []
        assert await states(b, part, waiter) == [State.SUCCEEDED, BLOCKED]
        assert [one.result for one in await results(b, join)] == [RESULT, None]
        await b.broker.purge("other")
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_part_that_is_resolved_ends(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job(), fire="success"))
        await g.add()
        assert await b.joins.resolve(part.id, Succeeded(RESULT))
        assert await states(b, part, waiter) == [State.SUCCEEDED, QUEUED]

    @backend_test()
    async def test_the_late_outcome_of_a_lost_lease_is_not_counted(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()))
        await g.add()
        owner = await register(b, "dead")
        late = await claim_one(b, owner)
        await kill(b, owner)
        await b.broker.recover()
        assert await b.broker.settle([settlement(late, Succeeded(RESULT))]) == [late.lease]
        assert await states(b, part, waiter) == [QUEUED, BLOCKED]

    @backend_test()
    async def test_a_part_that_ends_twice_is_counted_once(self, b: Adapters) -> None:
        g = Graph(b)
        first, second = g.job(), g.job()
        waiter = g.job(after=g.join(first, second))
        await g.add()
        worker = await OneWorker.start(b)
        await worker.holds(first, second)
        await worker.end(first, Failed(FAILURE))
        assert await b.records.replay([first.id]) == [first.id]
        await worker.end(first)
        assert await state(b, waiter) is BLOCKED, "the second part runs"
        await worker.end(second)
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_released_job_wakes_a_waiting_fetch(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()))
        await g.add()
        worker = await OneWorker.start(b)
        await worker.holds(part)
        async with b.another() as other:
            waiting = asyncio.create_task(claim(other, await register(other), wait=LONG_WAIT))
            await asyncio.sleep(0.05)
            await worker.end(part)
            assert ids(await waiting) == [waiter.id]


class Firing:
    """``fire``: which outcomes queue the waiting jobs, and which cancel them."""

    @backend_test()
    async def test_fire_and_the_outcomes_of_two_parts_decide(self, b: Adapters) -> None:
        worker = await OneWorker.start(b)
        ok, bad = Succeeded(RESULT), Failed(FAILURE)
        cases: list[tuple[Fire, Outcome, Outcome, State]] = [
            *(("all", ok, ok, QUEUED), ("all", ok, bad, QUEUED), ("all", bad, bad, QUEUED)),
            *(("success", ok, ok, QUEUED), ("success", ok, bad, CANCELLED)),
            *(("success", bad, ok, CANCELLED), ("failure", ok, ok, CANCELLED)),
            *(("failure", bad, ok, QUEUED), ("failure", ok, bad, QUEUED)),
            ("failure", bad, bad, QUEUED),
        ]
        for fire, one, two, expected in cases:
            g = Graph(b)
            first, second = g.job(), g.job()
            waiter = g.job(after=g.join(first, second, fire=fire))
            await g.add()
            await worker.holds(first, second)
            await worker.end(first, one)
            await advance(b)
            assert await state(b, waiter) is BLOCKED, "it waits for all parts"
            await worker.end(second, two)
            if expected is CANCELLED:
                await advance(b)
                assert await reason(b, waiter) == cancel_reason(fire)
            assert await state(b, waiter) is expected, (fire, one, two)
            await b.broker.purge("default")

    @backend_test()
    async def test_every_end_that_is_no_success_is_a_failure(self, b: Adapters) -> None:
        worker = await OneWorker.start(b)
        for outcome in WAYS_TO_FAIL:
            g = Graph(b)
            part = g.job()
            unwanted = g.job(after=g.join(part, fire="success"))
            wanted = g.job(after=g.join(part, fire="failure"))
            await g.add()
            await worker.end(part, outcome)
            await advance(b)
            assert await states(b, unwanted, wanted) == [CANCELLED, QUEUED], outcome
            await b.broker.purge("default")

    @backend_test()
    async def test_cancelled_and_expired_parts_are_failures(self, b: Adapters) -> None:
        g = Graph(b)
        cancelled, buried, expired = g.job(), g.job(), g.job(expires=b.clock.now() - 60)
        some = [cancelled, buried, expired]
        unwanted = [g.job(after=g.join(part, fire="success")) for part in some]
        wanted = [g.job(after=g.join(part, fire="failure")) for part in some]
        await g.add()
        await b.control.cancel([cancelled.id], "")
        await b.control.bury([buried.id], "")
        await b.broker.expire(100)
        assert await states(b, *wanted) == [QUEUED] * 3
        await advance(b)
        assert await states(b, *unwanted) == [CANCELLED] * 3

    @backend_test()
    async def test_all_jobs_that_wait_for_a_join_are_queued(self, b: Adapters) -> None:
        g = Graph(b)
        waiters = g.jobs(5, after=g.join(part := g.job()))
        await g.add()
        await (await OneWorker.start(b)).end(part)
        assert await states(b, *waiters) == [QUEUED] * 5
        assert await advance(b) == 0
        assert sorted(ids(await claim(b, await register(b)))) == sorted(ids(waiters))

    @backend_test()
    async def test_a_job_that_cannot_run_ends_and_is_counted_in_its_own_joins(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        part = g.job()
        doomed = g.job(after=g.join(part, fire="success"))
        heir = g.job(after=(second := g.join(doomed, fire="failure")))
        await g.add()
        await (await OneWorker.start(b)).end(part, Failed(FAILURE))
        await advance(b)
        assert await states(b, doomed, heir) == [CANCELLED, QUEUED]
        (result,) = await results(b, second)
        assert (result.state, result.reason) == (CANCELLED, cancel_reason("success"))
        assert await advance(b) == 0

    @backend_test()
    async def test_a_chain_of_which_the_first_job_fails_ends_completely(self, b: Adapters) -> None:
        g = Graph(b)
        chain = [g.job()]
        for _ in range(50):
            chain.append(g.job(after=g.join(chain[-1], fire="success")))
        await g.add()
        await (await OneWorker.start(b)).end(chain[0], Failed(FAILURE))
        await advance(b)
        assert Counter(await states(b, *chain[1:])) == {CANCELLED: 50}
        assert await b.broker.depths() == []

    @backend_test()
    async def test_a_chain_runs_to_its_end(self, b: Adapters) -> None:
        g = Graph(b)
        chain = [g.job()]
        for _ in range(10):
            chain.append(g.job(after=g.join(chain[-1], fire="success")))
        await g.add()
        worker = await OneWorker.start(b)
        for n, job in enumerate(chain):
            await worker.end(job)
            assert await states(b, *chain[n + 2 :]) == [BLOCKED] * (len(chain) - n - 2)
        assert await b.broker.depths() == []

    @backend_test()
    async def test_advance_does_no_more_than_its_limit(self, b: Adapters) -> None:
        g = Graph(b)
        doomed = g.jobs(7, after=g.join(part := g.job(), fire="success"))
        await g.add()
        await (await OneWorker.start(b)).end(part, Failed(FAILURE))
        left = 7
        while many := await b.joins.advance(3):
            assert many <= 3
            left -= many
        assert left >= 0
        assert await states(b, *doomed) == [CANCELLED] * 7

    @backend_test()
    async def test_advance_has_nothing_to_do_while_nothing_is_complete(self, b: Adapters) -> None:
        assert await b.joins.advance() == 0
        g = Graph(b)
        g.job(after=g.join(g.job()))
        await g.add()
        assert await b.joins.advance() == 0

    @backend_test()
    async def test_waiting_for_the_result_of_a_job_that_cannot_run_ends(self, b: Adapters) -> None:
        g = Graph(b)
        doomed = g.job(after=g.join(part := g.job(), fire="success"))
        await g.add()
        async with b.another() as other:
            waiting = asyncio.create_task(other.records.wait_finished(doomed.id, LONG_WAIT))
            await asyncio.sleep(0.05)
            await b.control.cancel([part.id], "")
            await advance(b)
            assert (await waiting).state is CANCELLED

    @backend_test()
    async def test_a_job_that_is_a_part_twice_and_of_two_joins_is_counted_everywhere(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        part, other = g.job(), g.job(queue="other")
        twice = g.join(part, other, part)
        first, second = g.job(after=twice), g.job(after=g.join(part))
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(part)
        assert await states(b, first, second) == [BLOCKED, QUEUED]
        assert await parts(b, twice) == [
            *((0, part.id, State.SUCCEEDED), (1, other.id, QUEUED)),
            (2, part.id, State.SUCCEEDED),
        ]
        await b.control.cancel([other.id], "")
        assert await state(b, first) is QUEUED

    @backend_test()
    async def test_jobs_fan_out_and_in(self, b: Adapters) -> None:
        g = Graph(b)
        root = g.job()
        middle = g.jobs(4, after=g.join(root, fire="success"))
        last = g.job(after=g.join(*middle, fire="success"))
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(root)
        await worker.holds(*middle)
        for job in middle:
            assert await state(b, last) is BLOCKED
            await worker.end(job)
        assert await state(b, last) is QUEUED


class JoinResults:
    """``results``: the parts of a join, by position."""

    @backend_test()
    async def test_parts_are_returned_with_how_they_ended(self, b: Adapters) -> None:
        g = Graph(b)
        jobs = g.jobs(6)
        blocked = g.job(after=g.join(jobs[5]))
        join = g.join(*jobs, blocked)
        await g.add()
        worker = await OneWorker.start(b)
        await worker.holds(*jobs)
        body = Body(JSON, b'{"rows": [1, 2]}')
        await worker.end(jobs[0], Succeeded(body))
        await worker.end(jobs[1], Failed(FAILURE))
        await worker.end(jobs[2], Cancelled("not wanted"))
        await worker.end(jobs[3], Expired())
        await worker.end(jobs[4], Retry(FAILURE, 0.0))
        found = await results(b, join)
        assert [(one.position, one.job) for one in found] == [
            (n, job.id) for n, job in enumerate([*jobs, blocked])
        ]
        assert [one.state for one in found] == [
            *(State.SUCCEEDED, State.BURIED, CANCELLED, State.EXPIRED),
            *(QUEUED, State.RUNNING, BLOCKED),
        ]
        assert [one.result for one in found] == [body, *[None] * 6]
        assert [one.failure for one in found] == [None, FAILURE, *[None] * 5]
        assert found[1].reason == FAILURE.message
        assert found[2].reason == "not wanted"
        assert found[3].reason != ""
        assert [found[n].reason for n in (0, 4, 5, 6)] == [""] * 4

    @backend_test()
    async def test_results_are_read_in_pages_by_position(self, b: Adapters) -> None:
        g = Graph(b)
        jobs = g.jobs(7)
        join = g.join()
        for n, job in enumerate(jobs):
            g.edge(join, job, first=10 * (7 - n))
        await g.add()
        assert [one.job for one in await results(b, join)] == [job.id for job in jobs[::-1]]
        page = await b.joins.results(join.id, limit=3)
        assert [one.position for one in page] == [10, 20, 30]
        page = await b.joins.results(join.id, after=30, limit=3)
        assert [one.position for one in page] == [40, 50, 60]
        assert [one.position for one in await b.joins.results(join.id, after=65)] == [70]
        assert await b.joins.results(join.id, after=70) == []

    @backend_test()
    async def test_an_unknown_join_has_no_parts(self, b: Adapters) -> None:
        assert await b.joins.results("nothing") == []

    @backend_test()
    async def test_joins_stay_in_their_namespace(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=(join := g.join(part := g.job(), held=True)))
        await g.add()
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.joins.results(join.id) == []
            assert await elsewhere.joins.seal([join.id]) == 0
            assert not await elsewhere.joins.resolve(part.id, Succeeded(RESULT))
            assert await elsewhere.joins.reopen([part.id]) == []
            assert await elsewhere.joins.sweep(-FAR) == []
            assert await elsewhere.joins.drop(g.group)
            assert await elsewhere.joins.advance() == 0
        assert await parts(b, join) == [(0, part.id, QUEUED)]
        assert await b.joins.seal([join.id]) == 1
        assert await state(b, waiter) is BLOCKED


class Members:
    """The parts of a group are listed with what is known about them, in pages."""

    @backend_test()
    async def test_members_are_the_parts_of_all_joins_of_a_group_in_order(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        first, second, third = g.jobs(3)
        for parts_of in ([third, first], [], [second, third]):
            g.join(*parts_of)
        await g.add()
        other = Graph(b)
        other.join(first, other.job())
        await other.add()
        found = await members(b, g.group)
        assert [place(one) for one in found] == sorted(
            (edge.join, edge.position, edge.job) for edge in g.edges
        )
        assert {one.state for one in found} == {QUEUED}

    @backend_test()
    async def test_members_are_in_the_order_of_the_bytes_of_the_joins(self, b: Adapters) -> None:
        g = Graph(b)
        job = g.job()
        joins = ["B", "a", "Z-1", "Z", "ä", "z", "\uffff", "\U0001f600", "9", "10"]
        g.joins += [Join(name, g.group) for name in joins]
        g.edges += [Edge(job.id, name, 0) for name in joins]
        await g.add()
        in_order = sorted(joins, key=str.encode)
        for page in (1, 3, 1_000):
            assert [one.join for one in await members(b, g.group, page)] == in_order

    @backend_test()
    async def test_members_tell_what_the_records_tell(self, b: Adapters) -> None:
        g = Graph(b)
        headers = {GROUP_HEADER: g.group, NODE_HEADER: "n/1", "other": "x"}
        done, failed = g.job(headers=headers), g.job()
        running, cancelling, retried, late = g.jobs(4)
        doomed = g.job(after=g.join(failed, fire="success"))
        blocked = g.job(after=g.join(done, running))
        g.join(failed, done, running, retried, cancelling, late, doomed, blocked)
        g.join(failed)
        await g.add()
        worker = await OneWorker.start(b)
        await worker.holds(done, failed, running, cancelling, retried, late)
        await worker.end(done)
        await worker.end(failed, Failed(FAILURE))
        await worker.end(retried, Retry(FAILURE, FAR))
        await worker.end(late, Succeeded())
        await b.control.cancel([cancelling.id], "not wanted")
        await advance(b)
        found = await members(b, g.group)
        assert len(found) == len(g.edges)
        for one in found:
            record = await b.records.find(one.job)
            assert one == Member(
                join=one.join,
                position=one.position,
                job=record.id,
                task=record.task,
                state=record.state,
                node=record.headers.get(NODE_HEADER, ""),
                graph=record.headers.get(GROUP_HEADER, ""),
                result_type=record.result.content_type if record.result else None,
                reason=record.reason,
                failure=record.failure,
                created=record.created,
                started=record.started,
                finished=record.finished,
                worker=record.worker,
            )
        by_job = {one.job: one for one in found}
        assert (by_job[done.id].node, by_job[done.id].result_type) == ("n/1", JSON)
        assert by_job[failed.id].failure == FAILURE
        assert by_job[doomed.id].reason == cancel_reason("success")
        assert by_job[blocked.id].state is BLOCKED

    @backend_test()
    async def test_a_member_whose_record_was_removed_has_the_state_that_was_counted(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        first, second, third = g.jobs(3)
        join = g.join(first, second, third)
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(first)
        await worker.end(second, Failed(FAILURE))
        assert await b.records.remove([first.id, second.id]) == 2
        found = await members(b, g.group)
        assert found[:2] == [
            Member(join=join.id, position=0, job=first.id, task="", state=State.SUCCEEDED),
            Member(join=join.id, position=1, job=second.id, task="", state=State.BURIED),
        ]
        assert (found[2].task, found[2].state) == (third.subject, State.RUNNING)
        assert await members(b, g.group, failed=True) == [found[1]]

    @backend_test()
    async def test_the_failed_members_are_those_that_have_ended_without_success(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        parts_of = g.jobs(8)
        succeeded, buried, replayed, again, expired, cancelled, _, _ = parts_of
        g.join(succeeded)
        g.join(*parts_of, held=True)
        g.join(cancelled, succeeded)
        await g.add()
        worker = await OneWorker.start(b)
        await worker.holds(*parts_of)
        for job in (buried, replayed, again):
            await worker.end(job, Failed(FAILURE))
        await worker.end(succeeded)
        await worker.end(expired, Expired())
        await worker.end(cancelled, Cancelled("not wanted"))
        await b.records.replay([replayed.id, again.id])
        await worker.end(again)
        ended = {buried.id, expired.id, cancelled.id}
        expected = sorted((e.join, e.position, e.job) for e in g.edges if e.job in ended)
        for page in (1, 2, 1_000):
            found = await members(b, g.group, page, failed=True)
            assert [place(one) for one in found] == expected

    @backend_test()
    async def test_a_large_group_is_read_in_pages(self, b: Adapters) -> None:
        g = Graph(b)
        job = g.job()
        for _ in range(1_200):
            g.join(job)
        wide = g.join()
        g.edges += [Edge(job.id, wide.id, position) for position in range(1_500)]
        await g.add()
        await (await OneWorker.start(b)).end(job, Failed(FAILURE))
        expected = sorted((e.join, e.position, e.job) for e in g.edges)
        for page, failed in ((1_000, False), (1_999, True), (10_000, False)):
            found = await members(b, g.group, page, failed=failed)
            assert [place(one) for one in found] == expected

    @backend_test()
    async def test_a_group_that_is_unknown_elsewhere_or_dropped_has_no_members(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        g.join(part := g.job())
        await g.add()
        assert await b.joins.members("nothing") == []
        assert await b.joins.members(g.group, limit=0) == []
        async with b.another(f"{b.namespace}-other") as other:
            assert await other.joins.members(g.group) == []
        await (await OneWorker.start(b)).end(part)
        assert await b.joins.drop(g.group)
        assert await b.joins.members(g.group) == []


def place(member: Member) -> tuple[str, int, str]:
    """Return where a member is, and its job."""
    return member.join, member.position, member.job


class JoinsAtOnce:
    """Several processes end parts at the same moment, and many jobs wait."""

    @backend_test()
    async def test_the_last_two_parts_end_at_once_and_the_join_fires_once(
        self, b: Adapters
    ) -> None:
        async with b.another() as other:
            worker = await OneWorker.start(b)
            for _ in range(30):
                g = Graph(b)
                first, second = g.job(), g.job()
                waiter = g.job(after=g.join(first, second))
                await g.add()
                held = await worker.holds(first, second)
                refused = await asyncio.gather(
                    b.broker.settle([settlement(held[0], Succeeded(RESULT))]),
                    other.broker.settle([settlement(held[1], Failed(FAILURE))]),
                )
                assert [*refused] == [[], []]
                await asyncio.gather(b.joins.advance(), other.joins.advance())
                await advance(b)
                assert await worker.fetch(5.0) == [waiter.id]
                assert await depths(b) == {("default", "running"): 1}
                await worker.end(waiter)

    @backend_test()
    async def test_batches_that_end_parts_of_the_same_joins_in_another_order_do_not_block(
        self, b: Adapters
    ) -> None:
        async with b.another() as other:
            for _ in range(10):
                g = Graph(b)
                jobs = g.jobs(8)
                first, second = g.join(*jobs[:4]), g.join(*jobs[4:])
                both = g.join(*jobs[::-1])
                waiters = [g.job(after=join) for join in (first, second, both)]
                await g.add()
                worker = await OneWorker.start(b)
                held = await worker.holds(*jobs)
                ends = [settlement(one, Succeeded(RESULT)) for one in held]
                refused = await asyncio.gather(
                    b.broker.settle([ends[0], ends[4], ends[1], ends[5]]),
                    other.broker.settle([ends[7], ends[3], ends[6], ends[2]]),
                )
                assert [*refused] == [[], []]
                await advance(b)
                assert await states(b, *waiters) == [QUEUED] * 3
                await b.broker.purge("default")

    @backend_test()
    async def test_a_part_that_ends_while_the_join_is_added_is_counted(self, b: Adapters) -> None:
        worker = await OneWorker.start(b)
        async with b.another() as other:
            for _ in range(10):
                part = await publish(b)
                (held,) = await worker.holds(part)
                g = Graph(other)
                waiter = g.job(after=g.join(part), queue="after")
                added, refused = await asyncio.gather(
                    g.add(), b.broker.settle([settlement(held, Succeeded(RESULT))])
                )
                assert (len(added), refused) == (1, [])
                await advance(b)
                assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_part_is_settled_and_cancelled_at_once_and_counted_once(
        self, b: Adapters
    ) -> None:
        async with b.another() as other:
            for _ in range(10):
                g = Graph(b)
                one, two = g.job(), g.job(queue="other")
                waiter = g.job(after=g.join(one, two))
                await g.add()
                await asyncio.gather(
                    b.control.cancel([one.id], "b"),
                    other.control.cancel([one.id], "other"),
                    other.joins.resolve(one.id, Succeeded(RESULT)),
                )
                assert await state(b, waiter) is BLOCKED
                await b.broker.purge("other")
                assert await state(b, waiter) is QUEUED
                await b.broker.purge("default")

    @backend_test()
    async def test_thousands_of_jobs_that_wait_for_one_part_are_all_queued(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        join = g.join(g.job(queue="first"), held=True)
        await g.add()
        for _ in range(5):
            more = Graph(b, g.group)
            more.jobs(500, after=join)
            await more.add()
        assert await b.joins.seal([join.id]) == 1
        held = await claim_one(b, await register(b), queues=("first",))
        await b.broker.settle([settlement(held, Succeeded(RESULT))])
        await advance(b)
        assert await depths(b) == {("default", "queued"): 2_500}

    @backend_test()
    async def test_hundreds_of_parts_complete_a_join_once(self, b: Adapters) -> None:
        g = Graph(b)
        jobs = g.jobs(500)
        waiter = g.job(after=(join := g.join(*jobs, fire="success")), queue="after")
        await g.add()
        owner, ended = await register(b), 0
        while held := await b.broker.fetch(QUEUES, Demand.of(io=150), owner, 1.0):
            assert await state(b, waiter) is BLOCKED
            ends = [settlement(one, Succeeded(RESULT)) for one in held]
            assert await b.broker.settle(ends) == []
            ended += len(held)
            if ended == len(jobs):
                break
        assert await state(b, waiter) is QUEUED
        assert await depths(b) == {("after", "queued"): 1}
        assert [one.state for one in await results(b, join)] == [State.SUCCEEDED] * 500

    @backend_test()
    async def test_jobs_outside_of_graphs_are_not_affected(self, b: Adapters) -> None:
        done = await publish_and_settle(b)
        lone = envelope(b)
        await b.broker.publish([lone])
        assert await b.joins.advance() == 0
        assert await states(b, done, lone) == [State.SUCCEEDED, QUEUED]

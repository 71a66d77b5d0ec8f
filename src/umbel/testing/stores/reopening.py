"""Graphs that operators change: resolving, reopening and dropping; and graphs that grow."""

from __future__ import annotations

import math

import pytest

from umbel.backends import Changes
from umbel.errors import BadMessage, ConfigurationError, UnknownJob
from umbel.messages import (
    Body,
    Cancelled,
    Envelope,
    Failed,
    Growth,
    Interrupted,
    Outcome,
    Publication,
    State,
    Succeeded,
    fresh_id,
)
from umbel.testing.actions import (
    FAILURE,
    FAR,
    RESULT,
    claim,
    claim_one,
    envelope,
    key_taken,
    prune_until_gone,
    publish,
    publish_and_claim,
    publish_and_settle,
    register,
    settle,
    settlement,
)
from umbel.testing.backend import Adapters, backend_test
from umbel.testing.stores.graphs import (
    Graph,
    OneWorker,
    advance,
    names,
    parts,
    reason,
    results,
    state,
    states,
)

BLOCKED, QUEUED, CANCELLED = State.BLOCKED, State.QUEUED, State.CANCELLED
RUNNING, SUCCEEDED, BURIED = State.RUNNING, State.SUCCEEDED, State.BURIED


class Resolving:
    """``resolve``: ends a job that does not run, with an outcome."""

    @backend_test()
    async def test_a_blocked_job_is_resolved_and_its_joins_count_it(self, b: Adapters) -> None:
        g = Graph(b)
        blocked = g.job(after=g.join(part := g.job()))
        heir = g.job(after=(join := g.join(blocked, fire="success")))
        await g.add()
        assert await b.joins.resolve(blocked.id, Succeeded(RESULT))
        assert await states(b, part, blocked, heir) == [QUEUED, SUCCEEDED, QUEUED]
        assert [one.result for one in await results(b, join)] == [RESULT]
        await (await OneWorker.start(b)).end(part)
        await advance(b)
        assert await state(b, blocked) is SUCCEEDED

    @backend_test("delay")
    async def test_jobs_that_wait_are_resolved(self, b: Adapters) -> None:
        queued, scheduled = await publish(b), await publish(b, delay=FAR)
        assert await b.joins.resolve(queued.id, Succeeded(RESULT))
        assert await b.joins.resolve(scheduled.id, Succeeded(None))
        found = await b.records.find(queued.id)
        assert (found.state, found.result) == (SUCCEEDED, RESULT)
        assert found.finished is not None
        assert (await b.records.find(scheduled.id)).result is None
        assert await claim(b, await register(b)) == []

    @backend_test()
    async def test_a_job_is_resolved_with_each_outcome(self, b: Adapters) -> None:
        failed, cancelled = await publish(b), await publish(b)
        assert await b.joins.resolve(failed.id, Failed(FAILURE))
        assert await b.joins.resolve(cancelled.id, Cancelled("done by hand"))
        found = await b.records.find(failed.id)
        assert (found.state, found.failure) == (BURIED, FAILURE)
        assert found.reason == FAILURE.message
        found = await b.records.find(cancelled.id)
        assert (found.state, found.reason) == (CANCELLED, "done by hand")

    @backend_test()
    async def test_a_running_job_is_not_resolved(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        assert not await b.joins.resolve(held.id, Failed(FAILURE))
        assert await state(b, held.id) is RUNNING
        assert await settle(b, held, Succeeded(RESULT)) == []

    @backend_test()
    async def test_ended_and_unknown_jobs_are_not_resolved(self, b: Adapters) -> None:
        done = await publish_and_settle(b, Failed(FAILURE))
        assert not await b.joins.resolve(done, Succeeded(RESULT))
        assert await state(b, done) is BURIED
        assert not await b.joins.resolve(fresh_id(), Succeeded(RESULT))

    @backend_test()
    async def test_resolving_twice_is_the_same_as_once(self, b: Adapters) -> None:
        sent = await publish(b)
        assert await b.joins.resolve(sent.id, Succeeded(RESULT))
        assert not await b.joins.resolve(sent.id, Succeeded(RESULT))
        assert await state(b, sent) is SUCCEEDED


class Reopening:
    """``reopen``: ended jobs run again, with everything that waits for them."""

    @backend_test()
    async def test_a_graph_whose_part_failed_is_reopened_and_completes(self, b: Adapters) -> None:
        g = Graph(b)
        good, bad = g.job(), g.job()
        middle = g.job(after=(join := g.join(good, bad, fire="success")))
        last = g.job(after=g.join(middle, fire="success"))
        await g.add()
        worker = await OneWorker.start(b)
        await worker.holds(good, bad)
        await worker.end(good)
        await worker.end(bad, Failed(FAILURE))
        await advance(b)
        assert await states(b, middle, last) == [CANCELLED] * 2
        assert sorted(await b.joins.reopen([bad.id])) == names([bad, middle, last])
        assert await states(b, good, bad, middle, last) == [SUCCEEDED, QUEUED, BLOCKED, BLOCKED]
        assert await parts(b, join) == [(0, good.id, SUCCEEDED), (1, bad.id, QUEUED)]
        assert await advance(b) == 0
        for job in (bad, middle, last):
            await worker.end(job)
        assert await states(b, bad, middle, last) == [SUCCEEDED] * 3
        assert await b.broker.depths() == []

    @backend_test()
    async def test_a_reopened_part_may_fail_again(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job(), fire="success"))
        await g.add()
        worker = await OneWorker.start(b)
        for _ in range(3):
            await worker.end(part, Failed(FAILURE))
            await advance(b)
            assert await states(b, part, waiter) == [BURIED, CANCELLED]
            assert sorted(await b.joins.reopen([part.id])) == names([part, waiter])
        await worker.end(part)
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_reopened_job_starts_over_with_its_history(self, b: Adapters) -> None:
        g = Graph(b)
        g.job(after=g.join(part := g.job(priority=4)))
        await g.add()
        worker = await OneWorker.start(b)
        (first,) = await worker.holds(part)
        await worker.end(part, Failed(FAILURE))
        await b.joins.reopen([part.id])
        record = await b.records.find(part.id)
        assert (record.state, record.failure, record.reason) == (QUEUED, None, "")
        assert [one.ended for one in record.attempts] == ["failed"]
        await b.broker.purge("default")
        await b.joins.reopen([part.id])
        (again,) = await worker.holds(part)
        assert again.attempt == 1
        assert again.lease.fence > first.lease.fence
        assert again.envelope.body == part.body
        assert again.envelope.headers == part.headers

    @backend_test()
    async def test_succeeded_jobs_are_reopened_only_if_they_are_named(self, b: Adapters) -> None:
        g = Graph(b)
        first = g.job()
        second = g.job(after=g.join(first))
        third = g.job(after=g.join(second))
        await g.add()
        worker = await OneWorker.start(b)
        for job in (first, second, third):
            await worker.end(job)
        assert await b.joins.reopen([first.id]) == [first.id]
        assert await states(b, first, second, third) == [QUEUED, SUCCEEDED, SUCCEEDED]
        await worker.end(first)
        await advance(b)
        assert await states(b, second, third) == [SUCCEEDED] * 2
        everything = [third.id, second.id, first.id]
        assert sorted(await b.joins.reopen(everything)) == names([first, second, third])
        assert await states(b, first, second, third) == [QUEUED, BLOCKED, BLOCKED]
        for job in (first, second, third):
            await worker.end(job)
        assert await states(b, first, second, third) == [SUCCEEDED] * 3

    @backend_test()
    async def test_a_named_job_is_blocked_if_its_join_is_not_complete(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()))
        await g.add()
        await b.control.cancel([waiter.id], "")
        assert await b.joins.reopen([waiter.id]) == [waiter.id]
        assert await state(b, waiter) is BLOCKED
        await (await OneWorker.start(b)).end(part)
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_named_job_is_queued_if_its_join_is_complete(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job(), fire="success"))
        await g.add()
        await b.control.cancel([part.id], "")
        await advance(b)
        assert await b.joins.reopen([waiter.id]) == [waiter.id]
        assert await states(b, part, waiter) == [CANCELLED, QUEUED]
        await advance(b)
        assert await state(b, waiter) is QUEUED
        assert await (await OneWorker.start(b)).end(waiter) == []

    @backend_test()
    async def test_named_jobs_are_changed_and_those_that_wait_are_not(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job(), fire="success"), priority=1)
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(part, Failed(FAILURE))
        await advance(b)
        body = Body("application/json", b'{"args":[7],"kwargs":{}}')
        changes = Changes(task="tests.other", kind="cpu", queue="other", priority=7, body=body)
        assert sorted(await b.joins.reopen([part.id], changes)) == names([part, waiter])
        got = (await claim_one(b, worker.owner, queues=("other",))).envelope
        assert (got.id, got.subject, got.kind) == (part.id, "tests.other", "cpu")
        assert (got.queue, got.priority, got.body) == ("other", 7, body)
        record = await b.records.find(waiter.id)
        assert (record.task, record.queue, record.priority) == ("tests.add", "default", 1)
        assert (record.state, record.body) == (BLOCKED, waiter.body)

    @backend_test()
    async def test_running_jobs_that_waited_are_left_alone(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()))
        heir = g.job(after=g.join(waiter, fire="success"))
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(part, Failed(FAILURE))
        await worker.holds(waiter)
        assert await b.joins.reopen([part.id]) == [part.id]
        assert await states(b, part, waiter, heir) == [QUEUED, RUNNING, BLOCKED]
        assert await worker.end(waiter) == []
        assert await states(b, waiter, heir) == [SUCCEEDED, QUEUED]
        await worker.end(part)
        await advance(b)
        assert await states(b, part, waiter) == [SUCCEEDED] * 2

    @backend_test()
    async def test_queued_jobs_that_waited_are_blocked_again(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()))
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(part, Failed(FAILURE))
        assert await state(b, waiter) is QUEUED
        assert await b.joins.reopen([part.id]) == [part.id], "the other one was live"
        assert await states(b, part, waiter) == [QUEUED, BLOCKED]
        assert await worker.fetch(0.5) == [part.id]
        await worker.end(part)
        assert await state(b, waiter) is QUEUED
        assert await worker.end(waiter) == []

    @backend_test("delay")
    async def test_seconds_of_a_job_that_is_blocked_again_count_from_its_second_release(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()), delay=FAR, expires_in=2 * FAR)
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(part, Failed(FAILURE))
        assert await state(b, waiter) is State.SCHEDULED
        await b.joins.reopen([part.id])
        assert await state(b, waiter) is BLOCKED
        if b.time_travels:
            b.advance(3 * FAR)
        assert await b.broker.expire(100) == []
        (held,) = await worker.holds(part)
        await worker.end(part)
        found = await b.records.find(waiter.id)
        assert found.state is State.SCHEDULED
        assert found.not_before is not None
        assert found.expires is not None
        assert found.not_before >= held.claimed + FAR - 0.001
        assert found.expires >= held.claimed + 2 * FAR - 0.001

    @backend_test()
    async def test_jobs_that_waited_and_failed_are_blocked_again(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()))
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(part, Failed(FAILURE))
        await worker.end(waiter, Failed(FAILURE))
        assert sorted(await b.joins.reopen([part.id])) == names([part, waiter])
        assert await states(b, part, waiter) == [QUEUED, BLOCKED]
        await worker.end(part)
        assert await worker.end(waiter) == []

    @backend_test()
    async def test_live_and_unknown_jobs_are_not_reopened(self, b: Adapters) -> None:
        g = Graph(b)
        blocked = g.job(after=g.join(running := g.job(), queued := g.job(queue="other")))
        await g.add()
        worker = await OneWorker.start(b)
        await worker.holds(running)
        known = [running.id, queued.id, blocked.id]
        assert await b.joins.reopen([*known, fresh_id()]) == []
        assert await b.joins.reopen([]) == []
        assert await states(b, running, queued, blocked) == [RUNNING, QUEUED, BLOCKED]
        assert await worker.end(running) == []

    @backend_test()
    async def test_jobs_outside_of_joins_are_reopened_too(self, b: Adapters) -> None:
        failed, done = await publish_and_settle(b, Failed(FAILURE)), await publish_and_settle(b)
        assert sorted(await b.joins.reopen([failed, done])) == sorted([failed, done])
        assert await states(b, failed, done) == [QUEUED] * 2

    @backend_test()
    async def test_an_expired_part_does_not_expire_again_at_once(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job(expires=b.clock.now() - 60), fire="success"))
        await g.add()
        assert await b.broker.expire(100) == [part.id]
        await advance(b)
        assert sorted(await b.joins.reopen([part.id])) == names([part, waiter])
        assert await b.broker.expire(100) == []
        assert await states(b, part, waiter) == [QUEUED, BLOCKED]

    @backend_test()
    async def test_a_diamond_is_reopened_as_a_whole(self, b: Adapters) -> None:
        g = Graph(b)
        root = g.job()
        left, right = (g.job(after=g.join(root, fire="success")) for _ in range(2))
        last = g.job(after=g.join(left, right, fire="success"))
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(root, Failed(FAILURE))
        await advance(b)
        assert await states(b, left, right, last) == [CANCELLED] * 3
        assert sorted(await b.joins.reopen([root.id])) == names([root, left, right, last])
        await worker.end(root)
        await worker.end(left)
        assert await state(b, last) is BLOCKED
        await worker.end(right)
        assert await worker.end(last) == []

    @backend_test()
    async def test_a_replayed_job_is_blocked_if_its_join_is_not_complete(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()))
        await g.add()
        await b.control.cancel([waiter.id], "")
        assert await b.records.replay([waiter.id]) == [waiter.id]
        assert await state(b, waiter) is BLOCKED
        worker = await OneWorker.start(b)
        await worker.end(part)
        assert await state(b, waiter) is QUEUED
        await b.control.cancel([waiter.id], "")
        assert await b.records.replay([waiter.id]) == [waiter.id]
        assert await worker.end(waiter) == []

    @backend_test("unique")
    async def test_a_job_that_was_cancelled_at_once_still_waits_when_it_is_reopened(
        self, b: Adapters
    ) -> None:
        holder = await publish(b, unique="only", queue="other")
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()), unique="only")
        await g.add()
        assert await state(b, waiter) is CANCELLED
        await b.control.cancel([holder.id], "")
        assert await b.joins.reopen([waiter.id]) == [waiter.id]
        assert await state(b, waiter) is BLOCKED
        await (await OneWorker.start(b)).end(part)
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_replayed_job_waits_again_if_its_part_is_reopened(self, b: Adapters) -> None:
        g = Graph(b)
        first = g.job()
        second = g.job(after=g.join(first, fire="success"))
        third = g.job(after=g.join(second, fire="success"))
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(first, Failed(FAILURE))
        await advance(b)
        assert await states(b, first, second, third) == [BURIED, CANCELLED, CANCELLED]
        assert await b.records.replay([second.id]) == [second.id]
        assert first.id in await b.joins.reopen([first.id])
        assert await states(b, first, second, third) == [QUEUED, BLOCKED, BLOCKED]
        assert await advance(b) == 0
        for job in (first, second, third):
            await worker.end(job)
        assert await states(b, first, second, third) == [SUCCEEDED] * 3
        assert await b.broker.depths() == []


class Dropping:
    """``drop``: a graph is kept as long as it has joins."""

    @backend_test()
    async def test_a_group_with_a_live_job_is_not_dropped(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=(join := g.join(part := g.job())))
        await g.add()
        worker = await OneWorker.start(b)
        assert not await b.joins.drop(g.group)
        await worker.end(part)
        assert not await b.joins.drop(g.group)
        await worker.holds(waiter)
        assert not await b.joins.drop(g.group)
        assert await parts(b, join) == [(0, part.id, SUCCEEDED)]
        await worker.end(waiter)
        assert await b.joins.drop(g.group)
        assert await b.joins.drop(g.group), "safe to repeat"
        assert await parts(b, join) == []

    @backend_test()
    async def test_records_are_kept_until_their_group_is_dropped(self, b: Adapters) -> None:
        await publish_and_settle(b)
        g = Graph(b)
        first, second = g.job(), g.job()
        waiter = g.job(after=g.join(first, second))
        await g.add()
        worker = await OneWorker.start(b)
        await worker.holds(first, second)
        await worker.end(first)
        assert await b.records.prune(older_than=0, keep=0, limit=100) == 1
        assert await state(b, first) is SUCCEEDED
        await worker.end(second)
        await worker.end(waiter)
        assert await b.records.prune(older_than=0, keep=0, limit=100) == 0
        assert await states(b, first, second, waiter) == [SUCCEEDED] * 3
        assert await b.joins.drop(g.group)
        assert await b.records.prune(older_than=0, keep=0, limit=100) == 3
        assert await b.joins.advance() == 0

    @backend_test()
    async def test_a_time_of_its_own_deletes_no_record_of_a_group(self, b: Adapters) -> None:
        g = Graph(b)
        part = g.job()
        waiter = g.job(after=g.join(part))
        await g.add()
        worker = await OneWorker.start(b)
        for job in (part, waiter):
            await worker.end(job, Succeeded(keep_for=0.01))
        later = await publish_and_settle(b, Succeeded(keep_for=0.01))
        assert await prune_until_gone(b, later) == 1
        assert await states(b, part, waiter) == [SUCCEEDED] * 2
        assert await b.joins.drop(g.group)
        assert await prune_until_gone(b, part.id, waiter.id) == 2

    @backend_test()
    async def test_a_reopened_job_loses_the_time_of_its_first_end(self, b: Adapters) -> None:
        g = Graph(b)
        part = g.job()
        g.join(part)
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(part, Succeeded(keep_for=0.01))
        assert await b.joins.reopen([part.id]) == [part.id]
        await worker.end(part)
        assert await b.joins.drop(g.group)
        later = await publish_and_settle(b, Succeeded(keep_for=0.01))
        assert await prune_until_gone(b, later) == 1
        assert await state(b, part) is SUCCEEDED

    @backend_test()
    async def test_records_of_other_groups_and_of_none_are_pruned(self, b: Adapters) -> None:
        kept, gone = Graph(b), Graph(b)
        for g in (kept, gone):
            g.job(after=g.join(g.job()))
            await g.add()
        lone = await publish(b)
        worker = await OneWorker.start(b)
        await worker.holds(lone)
        for job in (*kept.envelopes, *gone.envelopes, lone):
            await worker.end(job)
        assert await b.joins.drop(gone.group)
        assert await b.records.prune(older_than=0, keep=0, limit=100) == 3
        assert await states(b, *kept.envelopes) == [SUCCEEDED] * 2

    @backend_test()
    async def test_kept_records_do_not_keep_others_from_being_pruned(self, b: Adapters) -> None:
        g = Graph(b)
        jobs = g.jobs(5)
        g.join(*jobs)
        await g.add()
        worker = await OneWorker.start(b)
        for job in jobs:
            await worker.end(job)
        lone = await publish_and_settle(b)
        assert await b.records.prune(older_than=0, keep=0, limit=2) == 1
        assert await b.records.prune(older_than=0, keep=0, limit=2) == 0
        with pytest.raises(UnknownJob):
            await b.records.find(lone)

    @backend_test()
    async def test_a_dropped_group_does_not_wait_for_its_jobs_any_more(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job(), fire="success"))
        await g.add()
        await b.control.cancel([part.id], "")
        await advance(b)
        assert await b.joins.drop(g.group)
        assert await b.joins.reopen([part.id]) == [part.id]
        assert await states(b, part, waiter) == [QUEUED, CANCELLED]


def growth_of(more: Graph, place: Envelope) -> Growth:
    """Return the growth by a graph, one job of which takes the position."""
    return Growth(more.publication(), place.id)


class Growing:
    """``Growth``: the jobs that replace the job that is settled."""

    @backend_test()
    async def test_a_growth_takes_the_position_of_its_job(self, b: Adapters) -> None:
        g = Graph(b)
        first, grows, third = g.jobs(3)
        join, other = g.join(first, grows, third), g.join(grows)
        waiter, second = g.job(after=join), g.job(after=other)
        await g.add()
        worker = await OneWorker.start(b)
        await worker.holds(first, grows, third)
        more = Graph(b, g.group)
        place = more.job()
        growth = Growth(more.publication(), place.id)
        assert await worker.end(grows, growth=growth) == []
        assert await states(b, grows, place, waiter, second) == [SUCCEEDED, QUEUED] + [BLOCKED] * 2
        assert [one[:2] for one in await parts(b, join)] == [
            *((0, first.id), (1, place.id), (2, third.id))
        ]
        await worker.end(first)
        await worker.end(third)
        assert await states(b, waiter, second) == [BLOCKED] * 2
        result = Body("application/json", b"[7]")
        await worker.end(place, Succeeded(result))
        assert await states(b, waiter, second) == [QUEUED] * 2
        assert [one.result for one in await results(b, join)] == [RESULT, result, RESULT]

    @backend_test()
    async def test_a_growth_may_be_a_graph_of_its_own(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=(join := g.join(grows := g.job(), fire="success")))
        await g.add()
        more = Graph(b, g.group)
        inner = more.jobs(2)
        place = more.job(after=more.join(*inner, fire="success"))
        worker = await OneWorker.start(b)
        await worker.end(grows, growth=Growth(more.publication(), place.id))
        assert await states(b, *inner, place, waiter) == [QUEUED, QUEUED, BLOCKED, BLOCKED]
        await worker.holds(*inner)
        for job in inner:
            await worker.end(job)
        assert await states(b, place, waiter) == [QUEUED, BLOCKED]
        await worker.end(place)
        assert await state(b, waiter) is QUEUED
        assert [one.job for one in await results(b, join)] == [place.id]

    @backend_test()
    async def test_a_growth_may_wait_for_its_own_job(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=(outer := g.join(grows := g.job())))
        await g.add()
        more = Graph(b, g.group)
        place = more.job(after=(inner := more.join(grows, other := more.job(), fire="success")))
        worker = await OneWorker.start(b)
        await worker.end(grows, growth=Growth(more.publication(), place.id))
        assert await states(b, grows, place, waiter) == [SUCCEEDED, BLOCKED, BLOCKED]
        assert await parts(b, inner) == [(0, grows.id, SUCCEEDED), (1, other.id, QUEUED)]
        assert await parts(b, outer) == [(0, place.id, BLOCKED)]
        await worker.end(other)
        assert await states(b, place, waiter) == [QUEUED, BLOCKED]
        await worker.end(place)
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_growth_that_fails_fails_in_the_place_of_its_job(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(grows := g.job(), fire="success"))
        await g.add()
        more = Graph(b, g.group)
        place = more.job()
        worker = await OneWorker.start(b)
        await worker.end(grows, growth=Growth(more.publication(), place.id))
        await worker.end(place, Failed(FAILURE))
        await advance(b)
        assert await state(b, waiter) is CANCELLED

    @backend_test()
    async def test_a_growth_may_grow(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=(join := g.join(last := g.job())))
        await g.add()
        worker = await OneWorker.start(b)
        for _ in range(5):
            more = Graph(b, g.group)
            place = more.job()
            await worker.end(last, growth=Growth(more.publication(), place.id))
            assert await state(b, waiter) is BLOCKED
            last = place
        await worker.end(last)
        assert await state(b, waiter) is QUEUED
        assert [one.job for one in await results(b, join)] == [last.id]

    @backend_test()
    async def test_a_job_outside_of_joins_may_grow(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        more = Graph(b)
        place = more.job(after=more.join(inner := more.job()))
        growth = Growth(more.publication(), place.id)
        assert await settle(b, held, Succeeded(RESULT), growth=growth) == []
        assert await states(b, held.id, inner, place) == [SUCCEEDED, QUEUED, BLOCKED]

    @backend_test()
    async def test_a_refused_settlement_adds_no_growth(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=(join := g.join(grows := g.job())))
        await g.add()
        worker = await OneWorker.start(b)
        (held,) = await worker.holds(grows)
        await worker.end(grows, Interrupted("stop"))
        more = Graph(b, g.group)
        place = more.job()
        growth = Growth(more.publication(), place.id)
        assert await settle(b, held, Succeeded(RESULT), growth=growth) == [held.lease]
        assert await parts(b, join) == [(0, grows.id, QUEUED)]
        assert await states(b, grows, waiter) == [QUEUED, BLOCKED]
        assert await worker.end(grows, growth=growth) == []
        assert await state(b, place) is QUEUED

    @backend_test()
    async def test_a_growth_whose_place_is_not_in_it_is_refused(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=(join := g.join(grows := g.job())))
        await g.add()
        worker = await OneWorker.start(b)
        (held,) = await worker.holds(grows)
        more = Graph(b, g.group)
        job = more.job()
        with pytest.raises(ConfigurationError, match="place"):
            await settle(b, held, Succeeded(RESULT), growth=Growth(more.publication(), fresh_id()))
        with pytest.raises(UnknownJob):
            await b.records.find(job.id)
        assert await parts(b, join) == [(0, grows.id, RUNNING)]
        assert await worker.end(grows) == []
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_job_whose_cancellation_was_requested_does_not_grow(self, b: Adapters) -> None:
        ends: list[tuple[Outcome, State]] = [
            (Succeeded(RESULT), CANCELLED),
            (Cancelled("not wanted"), CANCELLED),
            (Failed(FAILURE), BURIED),
        ]
        worker = await OneWorker.start(b)
        for outcome, end in ends:
            for why in ("not wanted", ""):
                g = Graph(b)
                waiter = g.job(after=(join := g.join(grows := g.job())))
                await g.add()
                await worker.holds(grows)
                assert await b.control.cancel([grows.id], why) == {grows.id: RUNNING}
                more = Graph(b, g.group)
                inner = more.job()
                place = more.job(after=(added := more.join(inner)))
                assert await worker.end(grows, outcome, growth=growth_of(more, place)) == []
                assert await state(b, grows) is end
                for job in (inner, place):
                    with pytest.raises(UnknownJob):
                        await b.records.find(job.id)
                assert await parts(b, added) == []
                assert await parts(b, join) == [(0, grows.id, end)]
                assert await state(b, waiter) is QUEUED
                await worker.end(waiter)
                assert await b.joins.drop(g.group)

    @backend_test()
    async def test_a_cancellation_that_was_requested_in_an_earlier_run_still_prevents_growth(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        join = g.join(grows := g.job())
        await g.add()
        worker = await OneWorker.start(b)
        await worker.holds(grows)
        await b.control.cancel([grows.id], "not wanted")
        await worker.end(grows, Interrupted("stopping"))
        more = Graph(b, g.group)
        place = more.job()
        assert await worker.end(grows, growth=growth_of(more, place)) == []
        with pytest.raises(UnknownJob):
            await b.records.find(place.id)
        assert await parts(b, join) == [(0, grows.id, CANCELLED)]
        assert (await b.records.find(grows.id)).reason == "not wanted"

    @backend_test()
    async def test_a_job_that_was_cancelled_and_reopened_grows_again(self, b: Adapters) -> None:
        g = Graph(b)
        join = g.join(grows := g.job())
        await g.add()
        worker = await OneWorker.start(b)
        await worker.holds(grows)
        await b.control.cancel([grows.id], "not wanted")
        await worker.end(grows, Cancelled("not wanted"))
        assert await b.joins.reopen([grows.id]) == [grows.id]
        more = Graph(b, g.group)
        place = more.job()
        assert await worker.end(grows, growth=growth_of(more, place)) == []
        assert await parts(b, join) == [(0, place.id, QUEUED)]

    @backend_test()
    async def test_of_a_batch_only_the_jobs_grow_that_are_not_to_be_cancelled(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        join = g.join(*(jobs := g.jobs(3)))
        await g.add()
        worker = await OneWorker.start(b)
        held = await worker.holds(*jobs)
        await b.control.cancel([jobs[1].id], "not wanted")
        growths = [Graph(b, g.group) for _ in jobs]
        places = [more.job() for more in growths]
        batch = [
            settlement(one, Succeeded(RESULT), growth=growth_of(more, place))
            for one, more, place in zip(held, growths, places, strict=True)
        ]
        assert await b.broker.settle(batch) == []
        assert await parts(b, join) == [
            *((0, places[0].id, QUEUED), (1, jobs[1].id, CANCELLED), (2, places[2].id, QUEUED))
        ]
        with pytest.raises(UnknownJob):
            await b.records.find(places[1].id)

    @backend_test()
    async def test_a_growth_of_which_the_place_ended_at_once_is_counted(self, b: Adapters) -> None:
        holder = await publish(b, unique="only", queue="other")
        g = Graph(b)
        waiter = g.job(after=(join := g.join(grows := g.job(), fire="failure")))
        await g.add()
        more = Graph(b, g.group)
        place = more.job(unique="only")
        await (await OneWorker.start(b)).end(grows, growth=Growth(more.publication(), place.id))
        await advance(b)
        assert await states(b, grows, place, waiter) == [SUCCEEDED, CANCELLED, QUEUED]
        assert await reason(b, place) == key_taken("only", holder.id)
        assert [one.job for one in await results(b, join)] == [place.id]

    @backend_test()
    async def test_growths_and_follow_ups_are_settled_in_one_batch(self, b: Adapters) -> None:
        g = Graph(b)
        jobs = g.jobs(3)
        waiter = g.job(after=(join := g.join(*jobs)))
        await g.add()
        worker = await OneWorker.start(b)
        held = await worker.holds(*jobs)
        more = Graph(b, g.group)
        place = more.job()
        after = envelope(b, queue="after")
        batch = [
            settlement(held[0], Succeeded(RESULT)),
            settlement(held[1], Succeeded(RESULT), growth=Growth(more.publication(), place.id)),
            settlement(held[2], Failed(FAILURE), follow_ups=(after,)),
        ]
        assert await b.broker.settle(batch) == []
        assert await states(b, after, place, waiter) == [QUEUED, QUEUED, BLOCKED]
        assert [one[:2] for one in await parts(b, join)] == [
            *((0, jobs[0].id), (1, place.id), (2, jobs[2].id))
        ]
        worker.held.clear()
        await worker.end(place)
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_growth_without_edges_needs_only_its_place(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(grows := g.job()))
        await g.add()
        place = envelope(b)
        worker = await OneWorker.start(b)
        growth = Growth(Publication(envelopes=(place,)), place.id)
        await worker.end(grows, growth=growth)
        await worker.end(place)
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_growth_whose_place_was_published_before_is_counted(self, b: Adapters) -> None:
        worker = await OneWorker.start(b)
        for has_ended in (False, True):
            place = await publish(b)
            if has_ended:
                await worker.end(place)
            g = Graph(b)
            waiter = g.job(after=(join := g.join(grows := g.job())))
            await g.add()
            more = Graph(b, g.group)
            other = more.job()
            more.envelopes.append(place)
            assert await worker.end(grows, growth=Growth(more.publication(), place.id)) == []
            if not has_ended:
                assert await state(b, waiter) is BLOCKED
                await worker.end(place, keep=False)
            await advance(b)
            assert await state(b, waiter) is QUEUED
            assert await parts(b, join) == [(0, place.id, SUCCEEDED)]
            for job in (other, waiter):
                await worker.end(job)

    @backend_test()
    async def test_a_growth_that_cannot_be_added_changes_nothing(self, b: Adapters) -> None:
        ended = await publish_and_settle(b)
        g = Graph(b)
        waiter = g.job(after=(join := g.join(grows := g.job())))
        await g.add()
        worker = await OneWorker.start(b)
        (held,) = await worker.holds(grows)
        fine, late = Graph(b, g.group), Graph(b, g.group)
        new = [fine.job(), late.job(), late.job(delay=math.nan)]
        cases: list[tuple[Growth, type[Exception], str]] = [
            (Growth(fine.publication(), fresh_id()), ConfigurationError, "place"),
            (Growth(fine.publication(), ended), ConfigurationError, "place"),
            (Growth(late.publication(), new[1].id), BadMessage, "delay"),
        ]
        for growth, error, field in cases:
            with pytest.raises(error, match=field):
                await settle(b, held, Succeeded(RESULT), growth=growth)
            assert await states(b, grows, waiter) == [RUNNING, BLOCKED]
            assert await parts(b, join) == [(0, grows.id, RUNNING)]
        for job in new:
            with pytest.raises(UnknownJob):
                await b.records.find(job.id)
        assert await worker.end(grows) == []
        assert await state(b, waiter) is QUEUED

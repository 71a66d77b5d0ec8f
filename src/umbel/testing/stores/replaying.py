"""Replay: finished jobs queued anew."""

from __future__ import annotations

import asyncio

from umbel.backends import Changes
from umbel.messages import Body, Cancelled, Expired, Failed, Retry, State, Succeeded, fresh_id
from umbel.testing.acts import (
    FAILURE,
    PATIENCE,
    RESULT,
    enlist,
    finished,
    kill,
    publish,
    running,
    settle,
    take,
    take_one,
)
from umbel.testing.backend import Backend, story


class Replaying:
    """With payload, id and story; attempts start over."""

    @story("records")
    async def test_a_buried_job_is_queued_anew_with_its_payload(self, b: Backend) -> None:
        held = await running(b, priority=3, headers={"note": "x"}, traceparent="00-a-b-01")
        await settle(b, held, Failed(FAILURE))
        assert await b.records.replay([held.id]) == [held.id]
        again = await take_one(b, held.lease.owner)
        sent, got = held.envelope, again.envelope
        assert (got.id, got.subject, got.body) == (sent.id, sent.subject, sent.body)
        assert (got.queue, got.kind, got.priority) == (sent.queue, sent.kind, sent.priority)
        assert (got.headers, got.traceparent) == (sent.headers, sent.traceparent)

    @story("records")
    async def test_whatever_did_not_succeed_can_be_replayed(self, b: Backend) -> None:
        for outcome in (Failed(FAILURE), Cancelled("no"), Expired()):
            job = await finished(b, outcome)
            assert await b.records.replay([job]) == [job], outcome
            await b.broker.purge("default")

    @story("records")
    async def test_a_job_is_changed_as_it_is_replayed(self, b: Backend) -> None:
        held = await running(b)
        await settle(b, held, Failed(FAILURE))
        body = Body("application/msgpack", b"\x80")
        changes = Changes(task="tests.other", kind="cpu", queue="other", priority=7, body=body)
        assert await b.records.replay([held.id], changes) == [held.id]
        again = await take_one(b, held.lease.owner, queues=("other",))
        got = again.envelope
        assert (got.id, got.subject, got.kind) == (held.id, "tests.other", "cpu")
        assert (got.queue, got.priority, got.body) == ("other", 7, body)

    @story("records")
    async def test_what_is_not_changed_stays(self, b: Backend) -> None:
        held = await running(b, priority=3)
        await settle(b, held, Failed(FAILURE))
        await b.records.replay([held.id], Changes(queue="other"))
        got = (await take_one(b, held.lease.owner, queues=("other",))).envelope
        assert (got.subject, got.kind) == (held.envelope.subject, held.envelope.kind)
        assert (got.priority, got.body) == (3, held.envelope.body)

    @story("records")
    async def test_a_job_that_lives_is_not_changed(self, b: Backend) -> None:
        sent = await publish(b)
        assert await b.records.replay([sent.id], Changes(queue="other")) == []
        assert (await b.records.find(sent.id)).queue == sent.queue

    @story("records")
    async def test_attempts_deaths_and_sections_start_over(self, b: Backend) -> None:
        dead, owner = await enlist(b, "dead"), await enlist(b)
        await running(b, dead)
        await kill(b, dead)
        await b.broker.recover()
        for outcome in (Retry(FAILURE, 0), Retry(FAILURE, 0, "mail")):
            await settle(b, await take_one(b, owner), outcome)
        held = await take_one(b, owner)
        assert (held.attempt, held.deaths, held.sections) == (2, 1, {"mail": 1})
        await settle(b, held, Failed(FAILURE))
        await b.records.replay([held.id])
        again = await take_one(b, owner)
        assert (again.attempt, again.deaths, again.sections) == (1, 0, {})

    @story("records")
    async def test_the_story_so_far_is_kept(self, b: Backend) -> None:
        held = await running(b)
        await settle(b, held, Failed(FAILURE))
        await b.records.replay([held.id])
        again = await take_one(b, held.lease.owner)
        await settle(b, again, Succeeded(RESULT))
        found = await b.records.find(held.id)
        assert [one.ended for one in found.attempts] == ["failed", "succeeded"]
        assert (found.state, found.failure, found.reason) == (State.SUCCEEDED, None, "")

    @story("records")
    async def test_an_expired_job_does_not_expire_again_at_once(self, b: Backend) -> None:
        held = await running(b, expires=b.clock.now() - 60)
        await settle(b, held, Expired())
        await b.records.replay([held.id])
        assert (await take_one(b, held.lease.owner)).envelope.expires is None

    @story("records")
    async def test_a_job_that_succeeded_is_left_alone(self, b: Backend) -> None:
        job = await finished(b, Succeeded(RESULT))
        assert await b.records.replay([job]) == []
        assert (await b.records.find(job)).result == RESULT

    @story("records")
    async def test_jobs_that_live_and_unknown_ones_are_left_alone(self, b: Backend) -> None:
        held, sent = await running(b), await publish(b)
        assert await b.records.replay([held.id, sent.id, fresh_id()]) == []
        assert await settle(b, held, Succeeded(RESULT)) == []
        assert (await take_one(b, held.lease.owner)).id == sent.id

    @story("records")
    async def test_replaying_twice_queues_once(self, b: Backend) -> None:
        job = await finished(b, Failed(FAILURE))
        assert await b.records.replay([job, job]) == [job]
        assert await b.records.replay([job]) == []
        assert len(await take(b, await enlist(b))) == 1

    @story("records")
    async def test_processes_that_replay_at_once_queue_once(self, b: Backend) -> None:
        jobs = [await finished(b, Failed(FAILURE)) for _ in range(10)]
        async with b.another() as other:
            both = await asyncio.gather(b.records.replay(jobs), other.records.replay(jobs))
        assert sorted(both[0] + both[1]) == sorted(jobs)
        assert len(await take(b, await enlist(b))) == 10

    @story("records")
    async def test_a_replayed_job_wakes_a_waiting_fetch(self, b: Backend) -> None:
        job = await finished(b, Failed(FAILURE))
        async with b.another() as other:
            waiting = asyncio.create_task(take(other, await enlist(other), wait=PATIENCE))
            await b.records.replay([job])
            assert [one.id for one in await waiting] == [job]

    @story("records", "unique")
    async def test_a_job_whose_key_is_taken_meanwhile_does_not_break_the_replay(
        self, b: Backend
    ) -> None:
        held = await running(b, unique="only")
        await settle(b, held, Failed(FAILURE))
        other = await finished(b, Failed(FAILURE))
        await publish(b, unique="only")
        answer = await b.records.replay([held.id, other])
        assert other in answer
        state = (await b.records.find(held.id)).state
        assert state is (State.QUEUED if held.id in answer else State.BURIED)

    @story("records")
    async def test_replay_stays_in_its_namespace(self, b: Backend) -> None:
        job = await finished(b, Failed(FAILURE))
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.records.replay([job]) == []
        assert (await b.records.find(job)).state is State.BURIED

"""Replay: finished jobs are queued again."""

from __future__ import annotations

import asyncio

from umbel.backends import Changes
from umbel.messages import Body, Cancelled, Expired, Failed, Retry, State, Succeeded, fresh_id
from umbel.testing.actions import (
    FAILURE,
    LONG_WAIT,
    RESULT,
    claim,
    claim_one,
    kill,
    publish,
    publish_and_claim,
    publish_and_settle,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test


class Replaying:
    """A replayed job keeps payload, id and history; its attempts start again."""

    @backend_test("records")
    async def test_a_buried_job_is_queued_anew_with_its_payload(self, b: Adapters) -> None:
        held = await publish_and_claim(
            b, priority=3, headers={"note": "x"}, traceparent="00-a-b-01"
        )
        await settle(b, held, Failed(FAILURE))
        assert await b.records.replay([held.id]) == [held.id]
        again = await claim_one(b, held.lease.owner)
        sent, got = held.envelope, again.envelope
        assert (got.id, got.subject, got.body) == (sent.id, sent.subject, sent.body)
        assert (got.queue, got.kind, got.priority) == (sent.queue, sent.kind, sent.priority)
        assert (got.headers, got.traceparent) == (sent.headers, sent.traceparent)

    @backend_test("records")
    async def test_whatever_did_not_succeed_can_be_replayed(self, b: Adapters) -> None:
        for outcome in (Failed(FAILURE), Cancelled("no"), Expired()):
            job = await publish_and_settle(b, outcome)
            assert await b.records.replay([job]) == [job], outcome
            await b.broker.purge("default")

    @backend_test("records")
    async def test_a_job_is_changed_as_it_is_replayed(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await settle(b, held, Failed(FAILURE))
        body = Body("application/msgpack", b"\x80")
        changes = Changes(task="tests.other", kind="cpu", queue="other", priority=7, body=body)
        assert await b.records.replay([held.id], changes) == [held.id]
        again = await claim_one(b, held.lease.owner, queues=("other",))
        got = again.envelope
        assert (got.id, got.subject, got.kind) == (held.id, "tests.other", "cpu")
        assert (got.queue, got.priority, got.body) == ("other", 7, body)

    @backend_test("records")
    async def test_unchanged_fields_stay(self, b: Adapters) -> None:
        held = await publish_and_claim(b, priority=3)
        await settle(b, held, Failed(FAILURE))
        await b.records.replay([held.id], Changes(queue="other"))
        got = (await claim_one(b, held.lease.owner, queues=("other",))).envelope
        assert (got.subject, got.kind) == (held.envelope.subject, held.envelope.kind)
        assert (got.priority, got.body) == (3, held.envelope.body)

    @backend_test("records")
    async def test_a_live_job_is_not_changed(self, b: Adapters) -> None:
        sent = await publish(b)
        assert await b.records.replay([sent.id], Changes(queue="other")) == []
        assert (await b.records.find(sent.id)).queue == sent.queue

    @backend_test("records")
    async def test_attempts_deaths_and_sections_start_over(self, b: Adapters) -> None:
        dead, owner = await register(b, "dead"), await register(b)
        await publish_and_claim(b, dead)
        await kill(b, dead)
        await b.broker.recover()
        for outcome in (Retry(FAILURE, 0), Retry(FAILURE, 0, "mail")):
            await settle(b, await claim_one(b, owner), outcome)
        held = await claim_one(b, owner)
        assert (held.attempt, held.deaths, held.sections) == (2, 1, {"mail": 1})
        await settle(b, held, Failed(FAILURE))
        await b.records.replay([held.id])
        again = await claim_one(b, owner)
        assert (again.attempt, again.deaths, again.sections) == (1, 0, {})

    @backend_test("records")
    async def test_the_history_is_kept(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await settle(b, held, Failed(FAILURE))
        await b.records.replay([held.id])
        again = await claim_one(b, held.lease.owner)
        await settle(b, again, Succeeded(RESULT))
        found = await b.records.find(held.id)
        assert [one.ended for one in found.attempts] == ["failed", "succeeded"]
        assert (found.state, found.failure, found.reason) == (State.SUCCEEDED, None, "")

    @backend_test("records")
    async def test_an_expired_job_does_not_expire_again_at_once(self, b: Adapters) -> None:
        held = await publish_and_claim(b, expires=b.clock.now() - 60)
        await settle(b, held, Expired())
        await b.records.replay([held.id])
        assert (await claim_one(b, held.lease.owner)).envelope.expires is None

    @backend_test("records")
    async def test_a_succeeded_job_is_not_replayed(self, b: Adapters) -> None:
        job = await publish_and_settle(b, Succeeded(RESULT))
        assert await b.records.replay([job]) == []
        assert (await b.records.find(job)).result == RESULT

    @backend_test("records")
    async def test_live_and_unknown_jobs_are_not_replayed(self, b: Adapters) -> None:
        held, sent = await publish_and_claim(b), await publish(b)
        assert await b.records.replay([held.id, sent.id, fresh_id()]) == []
        assert await settle(b, held, Succeeded(RESULT)) == []
        assert (await claim_one(b, held.lease.owner)).id == sent.id

    @backend_test("records")
    async def test_replaying_twice_queues_once(self, b: Adapters) -> None:
        job = await publish_and_settle(b, Failed(FAILURE))
        assert await b.records.replay([job, job]) == [job]
        assert await b.records.replay([job]) == []
        assert len(await claim(b, await register(b))) == 1

    @backend_test("records")
    async def test_processes_that_replay_at_once_queue_once(self, b: Adapters) -> None:
        jobs = [await publish_and_settle(b, Failed(FAILURE)) for _ in range(10)]
        async with b.another() as other:
            both = await asyncio.gather(b.records.replay(jobs), other.records.replay(jobs))
        assert sorted(both[0] + both[1]) == sorted(jobs)
        assert len(await claim(b, await register(b))) == 10

    @backend_test("records")
    async def test_a_replayed_job_wakes_a_waiting_fetch(self, b: Adapters) -> None:
        job = await publish_and_settle(b, Failed(FAILURE))
        async with b.another() as other:
            waiting = asyncio.create_task(claim(other, await register(other), wait=LONG_WAIT))
            await b.records.replay([job])
            assert [one.id for one in await waiting] == [job]

    @backend_test("records", "unique")
    async def test_a_job_whose_unique_key_is_held_does_not_break_the_replay(
        self, b: Adapters
    ) -> None:
        held = await publish_and_claim(b, unique="only")
        await settle(b, held, Failed(FAILURE))
        other = await publish_and_settle(b, Failed(FAILURE))
        await publish(b, unique="only")
        answer = await b.records.replay([held.id, other])
        assert other in answer
        state = (await b.records.find(held.id)).state
        assert state is (State.QUEUED if held.id in answer else State.BURIED)

    @backend_test("records")
    async def test_replay_stays_in_its_namespace(self, b: Adapters) -> None:
        job = await publish_and_settle(b, Failed(FAILURE))
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.records.replay([job]) == []
        assert (await b.records.find(job)).state is State.BURIED

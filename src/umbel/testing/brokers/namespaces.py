"""Namespaces: the same job id in two namespaces of one database names two jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from umbel.backends import Changes, InboxReceipt, ProgressNote
from umbel.messages import (
    JSON,
    Body,
    Delivery,
    Failed,
    KeptStep,
    Record,
    Retry,
    State,
    Step,
    Succeeded,
    fresh_id,
)
from umbel.testing.actions import (
    FAILURE,
    FAR,
    LONG_WAIT,
    OUTCOMES,
    RESULT,
    claim_one,
    envelope,
    ids,
    kill,
    publish,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test

THEIRS = Body(JSON, b"[7]")


@asynccontextmanager
async def elsewhere(b: Adapters) -> AsyncIterator[Adapters]:
    """Open another namespace of the same database."""
    async with b.another(f"{b.namespace}2") as other:
        yield other


async def publish_both(b: Adapters, other: Adapters, **changes: Any) -> str:
    """Publish one job in each namespace, both with the same id. Returns the id."""
    job = (await publish(b, **changes)).id
    (published,) = await other.broker.publish([envelope(other, id=job, **changes)])
    assert (published.id, published.existing) == (job, False)
    return job


async def hold_both(b: Adapters, other: Adapters, **changes: Any) -> tuple[Delivery, Delivery]:
    """Publish a job in each namespace, and claim both, with one worker each."""
    job = await publish_both(b, other, **changes)
    held = await claim_one(b, await register(b)), await claim_one(other, await register(other))
    assert ids(held) == [job, job]
    return held


def step(held: Delivery, data: bytes) -> KeptStep:
    """Return the first step of a delivery's run."""
    made = Step(number=1, name="fetch", result=Body(JSON, data), started=1.0, finished=2.0)
    return KeptStep(held.lease, made)


@asynccontextmanager
async def unchanged(other: Adapters, job: str) -> AsyncIterator[Record]:
    """Check that the block changes nothing about this job."""
    before = await other.records.find(job)
    steps = await other.steps.steps(job)
    yield before
    assert await other.records.find(job) == before
    assert await other.steps.steps(job) == steps


class Namespaces:
    """No operation on a job changes the job with the same id in another namespace."""

    @backend_test("records")
    async def test_an_id_names_one_job_in_each_namespace(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            held, theirs = await hold_both(b, other)
            assert await settle(b, held, Succeeded(RESULT)) == []
            assert await settle(other, theirs, Succeeded(THEIRS)) == []
            assert (await b.records.find(held.id)).result == RESULT
            assert (await other.records.find(held.id)).result == THEIRS

    @backend_test("records")
    async def test_an_id_that_is_used_in_another_namespace_is_new_here(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            live, done = (await publish(b, queue="q")).id, (await publish(b)).id
            await settle(b, await claim_one(b, await register(b)), Succeeded(RESULT))
            for batch in ([live], [done], [live, done, fresh_id()]):
                # A batch is published by other statements than a single job.
                sent = [envelope(other, id=job, queue=f"q{len(batch)}") for job in batch]
                answer = await other.broker.publish(sent)
                again = await other.broker.publish(sent)
                assert all(one.existing for one in again), "each id is there once"
                for one in answer:
                    assert (await other.records.find(one.id)).state is State.QUEUED
            assert (await b.records.find(live)).queue == "q"
            assert (await b.records.find(done)).state is State.SUCCEEDED

    @backend_test("records")
    async def test_a_batch_of_ids_that_are_known_elsewhere_is_added(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            sent = [envelope(b, id=fresh_id()) for _ in range(5)]
            await b.broker.publish(sent)
            copies = [msgspec.structs.replace(one, namespace=other.namespace) for one in sent]
            answer = await other.broker.publish(copies)
            assert [one.existing for one in answer] == [False] * 5
            for one in sent:
                assert (await other.records.find(one.id)).state is State.QUEUED

    @backend_test("records")
    async def test_no_outcome_here_changes_the_run_elsewhere(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            for outcome in OUTCOMES:
                held, theirs = await hold_both(b, other, queue="default")
                async with unchanged(other, held.id) as before:
                    assert before.state is State.RUNNING
                    assert await settle(b, held, outcome) == []
                assert await settle(other, theirs, Succeeded(THEIRS)) == []
                await b.broker.purge("default")

    @backend_test("records")
    async def test_a_result_that_is_not_kept_takes_no_step_elsewhere_with_it(
        self, b: Adapters
    ) -> None:
        async with elsewhere(b) as other:
            held, theirs = await hold_both(b, other)
            await b.steps.keep([step(held, b"1")])
            await other.steps.keep([step(theirs, b"2")])
            async with unchanged(other, held.id):
                assert await settle(b, held, Succeeded(None), keep=False) == []

    @backend_test("records")
    async def test_follow_ups_of_one_id_are_published_in_each_namespace(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            held, theirs = await hold_both(b, other)
            follow_up = fresh_id()
            for side, one in ((b, held), (other, theirs)):
                after = envelope(side, id=follow_up, queue="next")
                assert await settle(side, one, Succeeded(RESULT), follow_ups=(after,)) == []
                assert (await side.records.find(follow_up)).state is State.QUEUED

    @backend_test("records")
    async def test_leases_end_in_their_own_namespace(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            held, theirs = await hold_both(b, other)
            async with unchanged(other, held.id):
                assert await b.broker.extend(held.lease.owner, [], -1.0) == []
            assert (await b.records.find(held.id)).state is State.QUEUED
            again = await claim_one(b, await register(b))
            await kill(b, again.lease.owner)
            async with unchanged(other, held.id):
                assert await b.broker.recover() == [held.id]
            assert await other.broker.recover() == []
            assert await other.broker.extend(theirs.lease.owner, [theirs.lease], FAR) == []
            assert await settle(other, theirs, Succeeded(RESULT)) == []

    @backend_test("records")
    async def test_a_burial_for_deaths_stays_in_its_namespace(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            held, _ = await hold_both(b, other, max_deaths=1)
            async with unchanged(other, held.id):
                await kill(b, held.lease.owner)
                await b.broker.recover()
            assert (await b.records.find(held.id)).state is State.BURIED

    @backend_test("records")
    async def test_cancelling_a_waiting_job_leaves_the_other_waiting(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            job = await publish_both(b, other)
            async with unchanged(other, job):
                assert await b.control.cancel([job], "no") == {job: State.CANCELLED}
            assert await other.control.cancel([job], "no") == {job: State.CANCELLED}

    @backend_test("records")
    async def test_cancelling_a_running_job_asks_only_its_own_worker(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            held, _ = await hold_both(b, other)
            async with unchanged(other, held.id):
                assert await b.control.cancel([held.id], "no") == {held.id: State.RUNNING}
            assert await b.control.cancellations([held.id]) == {held.id: "no"}
            assert await other.control.cancellations([held.id]) == {}

    @backend_test("records")
    async def test_purging_a_queue_leaves_the_same_queue_elsewhere(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            job = await publish_both(b, other)
            async with unchanged(other, job):
                assert await b.broker.purge("default") == 1
            assert (await b.records.find(job)).state is State.CANCELLED

    @backend_test("records", "move")
    async def test_moving_a_queue_leaves_the_same_queue_elsewhere(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            job = await publish_both(b, other)
            async with unchanged(other, job):
                assert await b.broker.move("default", "other") == 1
            assert (await b.records.find(job)).queue == "other"

    @backend_test("records", "delay")
    async def test_a_job_that_is_due_here_stays_scheduled_elsewhere(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            now = b.clock.now()
            job = (await publish(b, not_before=now + 0.05)).id
            await publish(other, id=job, not_before=now + FAR)
            async with unchanged(other, job) as before:
                assert before.state is State.SCHEDULED
                if b.time_travels:
                    b.advance(0.1)
                assert (await claim_one(b, await register(b), wait=LONG_WAIT)).id == job

    @backend_test("records", "unique")
    async def test_a_unique_key_is_held_once_in_each_namespace(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            job = await publish_both(b, other, unique="k")
            async with unchanged(other, job):
                (replaced,) = await b.broker.publish(
                    [envelope(b, unique="k", on_conflict="replace")]
                )
                assert not replaced.existing
            assert (await b.records.find(job)).state is State.CANCELLED

    @backend_test("records")
    async def test_sorting_here_leaves_unknown_kinds_elsewhere(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            job = await publish_both(b, other, kind="")
            async with unchanged(other, job):
                assert await b.broker.assign_kinds(["default"], {"tests.add": "cpu"}) == 1
            assert (await b.records.find(job)).kind == "cpu"

    @backend_test("records")
    async def test_progress_and_steps_belong_to_one_namespace(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            held, theirs = await hold_both(b, other)
            async with unchanged(other, held.id):
                for fence in {held.lease.fence, theirs.lease.fence}:
                    await b.records.record_progress([ProgressNote(held.id, fence, 3.0, 4.0)])
                assert await b.steps.keep([step(held, b"1")]) == []
            assert await other.steps.keep([step(theirs, b"2")]) == []
            assert (await b.steps.steps(held.id))[0].result.data == b"1"
            assert (await other.steps.steps(held.id))[0].result.data == b"2"

    @backend_test("records")
    async def test_removing_pruning_and_replaying_here_change_nothing_elsewhere(
        self, b: Adapters
    ) -> None:
        async with elsewhere(b) as other:
            for verb in ("remove", "prune", "replay"):
                held, theirs = await hold_both(b, other)
                await b.steps.keep([step(held, b"1")])
                await other.steps.keep([step(theirs, b"2")])
                outcome = Failed(FAILURE) if verb == "replay" else Succeeded(RESULT)
                assert await settle(b, held, outcome) == []
                assert await settle(other, theirs, outcome) == []
                async with unchanged(other, held.id) as before:
                    assert before.state.finished
                    if verb == "remove":
                        assert await b.records.remove([held.id]) == 1
                    elif verb == "prune":
                        assert await b.records.prune(older_than=FAR, keep=0, limit=100) == 1
                    else:
                        changed = Changes(queue="edited", from_scratch=True)
                        assert await b.records.replay([held.id], changed) == [held.id]
                        assert (await b.records.find(held.id)).queue == "edited"
                assert await b.steps.steps(held.id) == []

    @backend_test("records")
    async def test_steps_of_a_job_elsewhere_are_not_looked_for_after_a_replay(
        self, b: Adapters
    ) -> None:
        async with elsewhere(b) as other:
            held, theirs = await hold_both(b, other)
            await other.steps.keep([step(theirs, b"2")])
            await settle(b, held, Failed(FAILURE))
            await b.records.replay([held.id])
            again = await claim_one(b, await register(b))
            assert await b.steps.steps(again.id) == []
            assert await settle(b, again, Succeeded(RESULT)) == []
            assert len(await other.steps.steps(held.id)) == 1

    @backend_test("records")
    async def test_a_waiter_is_not_woken_by_the_other_namespace(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            held, theirs = await hold_both(b, other)
            waiting = asyncio.create_task(b.records.wait_finished(held.id, LONG_WAIT))
            assert await settle(other, theirs, Succeeded(THEIRS)) == []
            assert (await other.records.wait_finished(held.id, LONG_WAIT)).result == THEIRS
            assert await settle(b, held, Retry(FAILURE, 0.0)) == []
            again = await claim_one(b, await register(b))
            assert await settle(b, again, Succeeded(RESULT)) == []
            assert (await waiting).result == RESULT

    @backend_test()
    async def test_a_message_received_here_is_not_marked_elsewhere(self, b: Adapters) -> None:
        async with elsewhere(b) as other:
            held, _ = await hold_both(b, other)
            until = {held.id: b.clock.now() + 60}
            assert await b.registry.record_inbox_receipts(until) == {held.id: InboxReceipt.FIRST}
            assert await other.registry.record_inbox_receipts(until) == {
                held.id: InboxReceipt.FIRST
            }
            assert await b.registry.record_inbox_receipts(until) == {
                held.id: InboxReceipt.REDELIVERED
            }

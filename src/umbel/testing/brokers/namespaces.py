"""Namespaces: the same job id in two namespaces of one database names two jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from umbel.backends import Changes, Hearing, ProgressNote
from umbel.messages import (
    JSON,
    Body,
    Delivery,
    Failed,
    Kept,
    Record,
    Retry,
    State,
    Step,
    Succeeded,
    fresh_id,
)
from umbel.testing.acts import (
    FAILURE,
    FAR,
    OUTCOMES,
    PATIENCE,
    RESULT,
    enlist,
    envelope,
    ids,
    kill,
    publish,
    settle,
    take_one,
)
from umbel.testing.backend import Backend, story

THEIRS = Body(JSON, b"[7]")


@asynccontextmanager
async def elsewhere(b: Backend) -> AsyncIterator[Backend]:
    """Another namespace of the same database."""
    async with b.another(f"{b.namespace}2") as other:
        yield other


async def publish_both(b: Backend, other: Backend, **changes: Any) -> str:
    """Publish one job in each namespace, both with the same id. Returns the id."""
    job = (await publish(b, **changes)).id
    (published,) = await other.broker.publish([envelope(other, id=job, **changes)])
    assert (published.id, published.existing) == (job, False)
    return job


async def hold_both(b: Backend, other: Backend, **changes: Any) -> tuple[Delivery, Delivery]:
    """Both of them, claimed by one worker each."""
    job = await publish_both(b, other, **changes)
    held = await take_one(b, await enlist(b)), await take_one(other, await enlist(other))
    assert ids(held) == [job, job]
    return held


def step(held: Delivery, data: bytes) -> Kept:
    """The first step of a delivery's run."""
    made = Step(number=1, name="fetch", result=Body(JSON, data), started=1.0, finished=2.0)
    return Kept(held.lease, made)


@asynccontextmanager
async def unchanged(other: Backend, job: str) -> AsyncIterator[Record]:
    """What happens inside the block changes nothing about this job."""
    before = await other.records.find(job)
    steps = await other.steps.steps(job)
    yield before
    assert await other.records.find(job) == before
    assert await other.steps.steps(job) == steps


class Namespaces:
    """Whatever is done to a job leaves the job of the same id in another namespace alone."""

    @story("records")
    async def test_an_id_names_one_job_in_each_namespace(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            held, theirs = await hold_both(b, other)
            assert await settle(b, held, Succeeded(RESULT)) == []
            assert await settle(other, theirs, Succeeded(THEIRS)) == []
            assert (await b.records.find(held.id)).result == RESULT
            assert (await other.records.find(held.id)).result == THEIRS

    @story("records")
    async def test_an_id_of_a_job_that_lives_or_has_finished_elsewhere_is_new_here(
        self, b: Backend
    ) -> None:
        async with elsewhere(b) as other:
            live, done = (await publish(b, queue="q")).id, (await publish(b)).id
            await settle(b, await take_one(b, await enlist(b)), Succeeded(RESULT))
            for batch in ([live], [done], [live, done, fresh_id()]):
                # A batch is published in other statements than a lone job is.
                sent = [envelope(other, id=job, queue=f"q{len(batch)}") for job in batch]
                answer = await other.broker.publish(sent)
                again = await other.broker.publish(sent)
                assert all(one.existing for one in again), "each id is there once"
                for one in answer:
                    assert (await other.records.find(one.id)).state is State.QUEUED
            assert (await b.records.find(live)).queue == "q"
            assert (await b.records.find(done)).state is State.SUCCEEDED

    @story("records")
    async def test_a_batch_of_ids_that_are_known_elsewhere_is_added(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            sent = [envelope(b, id=fresh_id()) for _ in range(5)]
            await b.broker.publish(sent)
            copies = [msgspec.structs.replace(one, namespace=other.namespace) for one in sent]
            answer = await other.broker.publish(copies)
            assert [one.existing for one in answer] == [False] * 5
            for one in sent:
                assert (await other.records.find(one.id)).state is State.QUEUED

    @story("records")
    async def test_every_outcome_here_leaves_the_run_elsewhere_alone(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            for outcome in OUTCOMES:
                held, theirs = await hold_both(b, other, queue="default")
                async with unchanged(other, held.id) as before:
                    assert before.state is State.RUNNING
                    assert await settle(b, held, outcome) == []
                assert await settle(other, theirs, Succeeded(THEIRS)) == []
                await b.broker.purge("default")

    @story("records")
    async def test_a_result_that_is_not_kept_takes_no_step_elsewhere_with_it(
        self, b: Backend
    ) -> None:
        async with elsewhere(b) as other:
            held, theirs = await hold_both(b, other)
            await b.steps.keep([step(held, b"1")])
            await other.steps.keep([step(theirs, b"2")])
            async with unchanged(other, held.id):
                assert await settle(b, held, Succeeded(None), keep=False) == []

    @story("records")
    async def test_follow_ups_of_one_id_are_published_in_each_namespace(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            held, theirs = await hold_both(b, other)
            follow_up = fresh_id()
            for side, one in ((b, held), (other, theirs)):
                after = envelope(side, id=follow_up, queue="next")
                assert await settle(side, one, Succeeded(RESULT), follow_ups=(after,)) == []
                assert (await side.records.find(follow_up)).state is State.QUEUED

    @story("records")
    async def test_leases_end_in_their_own_namespace(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            held, theirs = await hold_both(b, other)
            async with unchanged(other, held.id):
                assert await b.broker.extend(held.lease.owner, [], -1.0) == []
            assert (await b.records.find(held.id)).state is State.QUEUED
            again = await take_one(b, await enlist(b))
            await kill(b, again.lease.owner)
            async with unchanged(other, held.id):
                assert await b.broker.recover() == [held.id]
            assert await other.broker.recover() == []
            assert await other.broker.extend(theirs.lease.owner, [theirs.lease], FAR) == []
            assert await settle(other, theirs, Succeeded(RESULT)) == []

    @story("records")
    async def test_a_burial_for_deaths_stays_in_its_namespace(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            held, _ = await hold_both(b, other, max_deaths=1)
            async with unchanged(other, held.id):
                await kill(b, held.lease.owner)
                await b.broker.recover()
            assert (await b.records.find(held.id)).state is State.BURIED

    @story("records")
    async def test_cancelling_a_waiting_job_leaves_the_other_waiting(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            job = await publish_both(b, other)
            async with unchanged(other, job):
                assert await b.control.cancel([job], "no") == {job: State.CANCELLED}
            assert await other.control.cancel([job], "no") == {job: State.CANCELLED}

    @story("records")
    async def test_cancelling_a_running_job_asks_its_own_worker_alone(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            held, _ = await hold_both(b, other)
            async with unchanged(other, held.id):
                assert await b.control.cancel([held.id], "no") == {held.id: State.RUNNING}
            assert await b.control.cancellations([held.id]) == {held.id: "no"}
            assert await other.control.cancellations([held.id]) == {}

    @story("records")
    async def test_purging_a_queue_leaves_the_same_queue_elsewhere(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            job = await publish_both(b, other)
            async with unchanged(other, job):
                assert await b.broker.purge("default") == 1
            assert (await b.records.find(job)).state is State.CANCELLED

    @story("records", "move")
    async def test_moving_a_queue_leaves_the_same_queue_elsewhere(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            job = await publish_both(b, other)
            async with unchanged(other, job):
                assert await b.broker.move("default", "other") == 1
            assert (await b.records.find(job)).queue == "other"

    @story("records", "delay")
    async def test_a_job_that_is_due_here_stays_scheduled_elsewhere(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            now = b.clock.now()
            job = (await publish(b, not_before=now + 0.05)).id
            await publish(other, id=job, not_before=now + FAR)
            async with unchanged(other, job) as before:
                assert before.state is State.SCHEDULED
                if b.time_travels:
                    b.advance(0.1)
                assert (await take_one(b, await enlist(b), wait=PATIENCE)).id == job

    @story("records", "unique")
    async def test_a_unique_key_is_held_once_in_each_namespace(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            job = await publish_both(b, other, unique="k")
            async with unchanged(other, job):
                (replaced,) = await b.broker.publish(
                    [envelope(b, unique="k", on_conflict="replace")]
                )
                assert not replaced.existing
            assert (await b.records.find(job)).state is State.CANCELLED

    @story("records")
    async def test_sorting_here_leaves_unknown_kinds_elsewhere(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            job = await publish_both(b, other, kind="")
            async with unchanged(other, job):
                assert await b.broker.sort(["default"], {"tests.add": "cpu"}) == 1
            assert (await b.records.find(job)).kind == "cpu"

    @story("records")
    async def test_progress_and_steps_belong_to_one_namespace(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            held, theirs = await hold_both(b, other)
            async with unchanged(other, held.id):
                for fence in {held.lease.fence, theirs.lease.fence}:
                    await b.records.progress([ProgressNote(held.id, fence, 3.0, 4.0)])
                assert await b.steps.keep([step(held, b"1")]) == []
            assert await other.steps.keep([step(theirs, b"2")]) == []
            assert (await b.steps.steps(held.id))[0].result.data == b"1"
            assert (await other.steps.steps(held.id))[0].result.data == b"2"

    @story("records")
    async def test_what_is_removed_pruned_or_replayed_here_stays_elsewhere(
        self, b: Backend
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

    @story("records")
    async def test_steps_of_a_job_elsewhere_are_not_looked_for_after_a_replay(
        self, b: Backend
    ) -> None:
        async with elsewhere(b) as other:
            held, theirs = await hold_both(b, other)
            await other.steps.keep([step(theirs, b"2")])
            await settle(b, held, Failed(FAILURE))
            await b.records.replay([held.id])
            again = await take_one(b, await enlist(b))
            assert await b.steps.steps(again.id) == []
            assert await settle(b, again, Succeeded(RESULT)) == []
            assert len(await other.steps.steps(held.id)) == 1

    @story("records")
    async def test_who_waits_for_a_result_is_not_woken_by_the_other_one(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            held, theirs = await hold_both(b, other)
            waiting = asyncio.create_task(b.records.finished(held.id, PATIENCE))
            assert await settle(other, theirs, Succeeded(THEIRS)) == []
            assert (await other.records.finished(held.id, PATIENCE)).result == THEIRS
            assert await settle(b, held, Retry(FAILURE, 0.0)) == []
            again = await take_one(b, await enlist(b))
            assert await settle(b, again, Succeeded(RESULT)) == []
            assert (await waiting).result == RESULT

    @story()
    async def test_a_message_that_was_heard_here_is_not_marked_elsewhere(self, b: Backend) -> None:
        async with elsewhere(b) as other:
            held, _ = await hold_both(b, other)
            until = {held.id: b.clock.now() + 60}
            assert await b.registry.witness(until) == {held.id: Hearing.FIRST}
            assert await other.registry.witness(until) == {held.id: Hearing.FIRST}
            assert await b.registry.witness(until) == {held.id: Hearing.AGAIN}

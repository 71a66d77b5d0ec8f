"""What operators ask for: pauses and cancellations."""

from __future__ import annotations

import asyncio

from umbel.backends.control import MISSING, NO_WORKER, Scope
from umbel.messages import Failed, Interrupted, State, Succeeded, fresh_id
from umbel.testing.acts import (
    FAILURE,
    FAR,
    PATIENCE,
    RESULT,
    enlist,
    finished,
    publish,
    publish_many,
    running,
    settle,
    take,
)
from umbel.testing.backend import Backend, story


class Pauses:
    """What is paused, and the number that grows with every change of it."""

    @story()
    async def test_at_first_nothing_is_paused(self, b: Backend) -> None:
        assert (await b.control.state()).pauses == ()

    @story()
    async def test_a_pause_is_told_with_its_reason(self, b: Backend) -> None:
        await b.control.pause("queue", "mail", "relay is down")
        (pause,) = (await b.control.state()).pauses
        assert (pause.scope, pause.name, pause.reason) == ("queue", "mail", "relay is down")
        assert pause.since > 0

    @story()
    async def test_pauses_of_every_scope_stand_side_by_side(self, b: Backend) -> None:
        wanted: set[tuple[Scope, str]] = {
            *(("all", ""), ("queue", "mail"), ("task", "tests.add")),
            *(("gate", "limit:tests.add"), ("worker", "anna")),
        }
        for scope, name in wanted:
            await b.control.pause(scope, name, "")
        assert {(p.scope, p.name) for p in (await b.control.state()).pauses} == wanted

    @story()
    async def test_every_change_raises_the_epoch(self, b: Backend) -> None:
        before = (await b.control.state()).epoch
        paused = await b.control.pause("all", "", "")
        assert paused > before
        assert (await b.control.state()).epoch == paused
        resumed = await b.control.resume("all", "")
        assert resumed > paused
        assert (await b.control.state()).epoch == resumed

    @story()
    async def test_pausing_twice_is_one_pause(self, b: Backend) -> None:
        await b.control.pause("all", "", "first")
        await b.control.pause("all", "", "second")
        assert len((await b.control.state()).pauses) == 1
        await b.control.resume("all", "")
        assert (await b.control.state()).pauses == ()

    @story()
    async def test_resuming_what_is_not_paused_is_fine(self, b: Backend) -> None:
        await b.control.resume("queue", "mail")
        assert (await b.control.state()).pauses == ()

    @story()
    async def test_pauses_outlive_the_process_that_made_them(self, b: Backend) -> None:
        async with b.another() as other:
            await other.control.pause("all", "", "deploy")
        assert len((await b.control.state()).pauses) == 1

    @story()
    async def test_processes_that_pause_at_once_get_different_epochs(self, b: Backend) -> None:
        async with b.another() as other:
            pauses = [
                side.control.pause("queue", f"q{i}", "") for i in range(5) for side in (b, other)
            ]
            epochs = await asyncio.gather(*pauses)
        assert len(set(epochs)) == 10
        assert (await b.control.state()).epoch == max(epochs)

    @story()
    async def test_pauses_of_two_holders_are_independent(self, b: Backend) -> None:
        await b.control.pause("task", "tests.add", "an operator's")
        await b.control.change_missing(["tests.add", "tests.other"], [])
        await b.control.resume("task", "tests.add")
        missing = (await b.control.state()).pauses
        assert [(one.holder, one.name) for one in missing] == [
            (MISSING, "tests.add"),
            (MISSING, "tests.other"),
        ]
        await b.control.change_missing([], ["tests.add"])
        (left,) = (await b.control.state()).pauses
        assert (left.name, left.reason) == ("tests.other", NO_WORKER)

    @story()
    async def test_a_missing_task_is_not_fetched_until_it_is_found(self, b: Backend) -> None:
        owner = await enlist(b)
        await b.control.change_missing(["tests.add"], [])
        await publish(b)
        assert await take(b, owner) == []
        await b.control.change_missing([], ["tests.add"])
        assert len(await take(b, owner)) == 1

    @story()
    async def test_a_missing_task_that_is_reported_again_is_one_pause(self, b: Backend) -> None:
        await b.control.change_missing(["tests.add"], [])
        (first,) = (await b.control.state()).pauses
        await b.control.change_missing(["tests.add", "tests.add"], [])
        (second,) = (await b.control.state()).pauses
        assert second.since == first.since

    @story()
    async def test_a_pause_says_how_long_it_has_lasted(self, b: Backend) -> None:
        await b.control.change_missing(["tests.add"], [])
        (pause,) = (await b.control.state()).pauses
        assert 0 <= pause.age < PATIENCE

    @story()
    async def test_control_stays_in_its_namespace(self, b: Backend) -> None:
        async with b.another(f"{b.namespace}2") as elsewhere:
            before = await elsewhere.control.state()
            await b.control.pause("all", "", "")
            assert await elsewhere.control.state() == before


class Cancelling:
    """What waits is cancelled at once; what runs is asked to stop."""

    @story("records", "delay")
    async def test_jobs_that_wait_are_cancelled_at_once(self, b: Backend) -> None:
        queued = await publish(b)
        scheduled = await publish(b, not_before=b.clock.now() + FAR)
        answer = await b.control.cancel([queued.id, scheduled.id], "not wanted")
        assert answer == {queued.id: State.CANCELLED, scheduled.id: State.CANCELLED}
        for job in answer:
            found = await b.records.find(job)
            assert (found.state, found.reason) == (State.CANCELLED, "not wanted")
        assert await take(b, await enlist(b)) == []

    @story("records", "delay")
    async def test_jobs_that_wait_are_buried_and_others_are_left_alone(self, b: Backend) -> None:
        held, done = await running(b), await finished(b)
        queued = await publish(b)
        scheduled = await publish(b, not_before=b.clock.now() + FAR)
        jobs = [held.id, done, queued.id, scheduled.id, fresh_id()]
        assert {*await b.control.bury(jobs, "no use")} == {queued.id, scheduled.id}
        assert await b.control.bury(jobs, "again") == []
        for job in (queued.id, scheduled.id):
            found = await b.records.find(job)
            assert (found.state, found.reason) == (State.BURIED, "no use")
        assert (await b.records.find(held.id)).state is State.RUNNING
        assert (await b.records.find(done)).state is State.SUCCEEDED
        assert await take(b, await enlist(b)) == []

    @story()
    async def test_a_running_job_is_asked_to_stop(self, b: Backend) -> None:
        held = await running(b)
        assert await b.control.cancel([held.id], "not wanted") == {held.id: State.RUNNING}
        assert await b.control.cancellations([held.id]) == {held.id: "not wanted"}
        async with b.another() as other:
            assert await other.control.cancellations([held.id]) == {held.id: "not wanted"}

    @story()
    async def test_a_running_job_may_end_as_it_likes_after_being_asked(self, b: Backend) -> None:
        held = await running(b)
        await b.control.cancel([held.id], "not wanted")
        assert await settle(b, held, Succeeded(RESULT)) == []
        assert (await b.records.find(held.id)).state is State.SUCCEEDED
        assert await b.control.cancellations([held.id]) == {}

    @story()
    async def test_only_what_somebody_wants_stopped_is_told(self, b: Backend) -> None:
        await publish_many(b, 2)
        wanted, other = await take(b, await enlist(b))
        await b.control.cancel([wanted.id], "x")
        found = await b.control.cancellations([wanted.id, other.id, fresh_id()])
        assert found == {wanted.id: "x"}
        assert await b.control.cancellations([other.id]) == {}
        assert await b.control.cancellations([]) == {}

    @story()
    async def test_the_first_reason_stays(self, b: Backend) -> None:
        held = await running(b)
        await b.control.cancel([held.id], "first")
        await b.control.cancel([held.id], "second")
        assert await b.control.cancellations([held.id]) == {held.id: "first"}

    @story("records")
    async def test_a_finished_job_keeps_its_state(self, b: Backend) -> None:
        done, buried = await finished(b), await finished(b, Failed(FAILURE))
        answer = await b.control.cancel([done, buried], "too late")
        assert answer == {done: State.SUCCEEDED, buried: State.BURIED}
        assert (await b.records.find(done)).state is State.SUCCEEDED

    @story()
    async def test_cancelling_twice_is_the_same_as_once(self, b: Backend) -> None:
        sent = await publish(b)
        for _ in range(2):
            assert await b.control.cancel([sent.id], "x") == {sent.id: State.CANCELLED}

    @story()
    async def test_unknown_jobs_are_missing_from_the_answer(self, b: Backend) -> None:
        sent = await publish(b)
        assert await b.control.cancel([fresh_id(), sent.id], "x") == {sent.id: State.CANCELLED}

    @story()
    async def test_a_wish_to_stop_outlives_an_interruption(self, b: Backend) -> None:
        held = await running(b)
        await b.control.cancel([held.id], "not wanted")
        await settle(b, held, Interrupted("worker stops"))
        again = await take(b, held.lease.owner)
        asked = await b.control.cancellations([held.id])
        cancelled = (await b.records.find(held.id)).state is State.CANCELLED
        assert cancelled or (len(again) == 1 and asked == {held.id: "not wanted"})

    @story("records")
    async def test_a_replayed_job_is_not_asked_to_stop_any_more(self, b: Backend) -> None:
        held = await running(b)
        await b.control.cancel([held.id], "not wanted")
        await settle(b, held, Failed(FAILURE))
        await b.records.replay([held.id])
        await take(b, held.lease.owner)
        assert await b.control.cancellations([held.id]) == {}

    @story("records")
    async def test_cancelling_stays_in_its_namespace(self, b: Backend) -> None:
        waiting, held = await publish(b, queue="other"), await running(b)
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.control.cancel([waiting.id, held.id], "mine") == {}
        assert (await b.records.find(waiting.id)).state is State.QUEUED
        assert await b.control.cancellations([held.id]) == {}


class Changes:
    """``changed``: a hint that there is something to look at."""

    @story()
    async def test_nothing_changed_since_the_epoch_that_is_known_is_false(self, b: Backend) -> None:
        epoch = await b.control.pause("all", "", "")
        assert await b.control.changed(-1, PATIENCE), "who has just come knows nothing yet"
        assert not await b.control.changed(epoch, 0.05)
        assert not await b.control.changed((await b.control.state()).epoch, 0)

    @story()
    async def test_a_pause_of_another_process_is_a_change(self, b: Backend) -> None:
        epoch = (await b.control.state()).epoch
        async with b.another() as other:
            for _ in range(3):
                waiting = asyncio.create_task(b.control.changed(epoch, PATIENCE))
                epoch = await other.control.pause("all", "", "")
                assert await waiting
                waiting = asyncio.create_task(b.control.changed(epoch, PATIENCE))
                epoch = await other.control.resume("all", "")
                assert await waiting

    @story()
    async def test_all_that_wait_hear_of_a_change(self, b: Backend) -> None:
        epoch = (await b.control.state()).epoch
        waiting = [asyncio.create_task(b.control.changed(epoch, PATIENCE)) for _ in range(3)]
        await asyncio.sleep(0)
        async with b.another() as other:
            await other.control.pause("all", "", "")
        assert await asyncio.gather(*waiting) == [True, True, True]

    @story()
    async def test_a_wish_to_stop_a_running_job_is_a_change(self, b: Backend) -> None:
        held = await running(b)
        epoch = (await b.control.state()).epoch
        async with b.another() as other:
            waiting = asyncio.create_task(b.control.changed(epoch, PATIENCE))
            await other.control.cancel([held.id], "x")
            assert await waiting
        assert not await b.control.changed((await b.control.state()).epoch, 0)

    @story()
    async def test_a_change_between_two_calls_is_not_missed(self, b: Backend) -> None:
        before = (await b.control.state()).epoch
        epoch = await b.control.pause("all", "", "")
        assert await b.control.changed(before, PATIENCE)
        assert not await b.control.changed(epoch, 0)

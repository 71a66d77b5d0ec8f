"""Control by operators: pauses and cancellations."""

from __future__ import annotations

import asyncio

from umbel.backends import CANCELLATIONS, PAUSES
from umbel.control import MISSING, NO_WORKER, Scope
from umbel.messages import Failed, Interrupted, State, Succeeded, fresh_id
from umbel.testing.actions import (
    FAILURE,
    FAR,
    LONG_WAIT,
    RESULT,
    claim,
    publish,
    publish_and_claim,
    publish_and_settle,
    publish_many,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test


class Pauses:
    """Pauses, and the epoch, which grows with every change."""

    @backend_test()
    async def test_at_first_nothing_is_paused(self, b: Adapters) -> None:
        assert (await b.pauses.state()).pauses == ()

    @backend_test()
    async def test_a_pause_has_a_reason(self, b: Adapters) -> None:
        await b.pauses.pause("queue", "mail", "relay is down")
        (pause,) = (await b.pauses.state()).pauses
        assert (pause.scope, pause.name, pause.reason) == ("queue", "mail", "relay is down")
        assert pause.since > 0

    @backend_test()
    async def test_pauses_of_every_scope_stand_side_by_side(self, b: Adapters) -> None:
        wanted: set[tuple[Scope, str]] = {
            *(("all", ""), ("queue", "mail"), ("task", "tests.add")),
            *(("gate", "limit:tests.add"), ("worker", "anna")),
        }
        for scope, name in wanted:
            await b.pauses.pause(scope, name, "")
        assert {(p.scope, p.name) for p in (await b.pauses.state()).pauses} == wanted

    @backend_test()
    async def test_every_change_raises_the_epoch(self, b: Adapters) -> None:
        before = (await b.pauses.state()).epoch
        paused = await b.pauses.pause("all", "", "")
        assert paused > before
        assert (await b.pauses.state()).epoch == paused
        resumed = (await b.pauses.resume("all", "")).epoch
        assert resumed > paused
        assert (await b.pauses.state()).epoch == resumed

    @backend_test()
    async def test_pausing_twice_is_one_pause(self, b: Adapters) -> None:
        await b.pauses.pause("all", "", "first")
        await b.pauses.pause("all", "", "second")
        assert len((await b.pauses.state()).pauses) == 1
        await b.pauses.resume("all", "")
        assert (await b.pauses.state()).pauses == ()

    @backend_test()
    async def test_resuming_without_a_pause_has_no_effect(self, b: Adapters) -> None:
        await b.pauses.pause("queue", "mail.other", "")
        before = await b.pauses.state()
        resumed = await b.pauses.resume("queue", "mail")
        assert (resumed.existed, resumed.epoch) == (False, before.epoch)
        assert [(p.scope, p.name) for p in (await b.pauses.state()).pauses] == [
            ("queue", "mail.other")
        ]

    @backend_test()
    async def test_resuming_says_that_a_pause_existed(self, b: Adapters) -> None:
        await b.pauses.pause("queue", "mail", "")
        assert (await b.pauses.resume("queue", "mail")).existed
        assert not (await b.pauses.resume("queue", "mail")).existed

    @backend_test()
    async def test_pauses_outlive_the_process_that_made_them(self, b: Adapters) -> None:
        async with b.another() as other:
            await other.pauses.pause("all", "", "deploy")
        assert len((await b.pauses.state()).pauses) == 1

    @backend_test()
    async def test_processes_that_pause_at_once_get_different_epochs(self, b: Adapters) -> None:
        async with b.another() as other:
            sides = [b, other] * 5
            pauses = [side.pauses.pause("queue", f"q{n}", "") for n, side in enumerate(sides)]
            epochs = await asyncio.gather(*pauses)
        assert len(set(epochs)) == 10
        assert (await b.pauses.state()).epoch == max(epochs)

    @backend_test()
    async def test_pauses_of_two_holders_are_independent(self, b: Adapters) -> None:
        await b.pauses.pause("task", "tests.add", "an operator's")
        await b.pauses.change_missing(["tests.add", "tests.other"], [])
        await b.pauses.resume("task", "tests.add")
        missing = (await b.pauses.state()).pauses
        assert [(one.holder, one.name) for one in missing] == [
            (MISSING, "tests.add"),
            (MISSING, "tests.other"),
        ]
        await b.pauses.change_missing([], ["tests.add"])
        (left,) = (await b.pauses.state()).pauses
        assert (left.name, left.reason) == ("tests.other", NO_WORKER)

    @backend_test()
    async def test_a_missing_task_is_not_fetched_until_it_is_found(self, b: Adapters) -> None:
        owner = await register(b)
        await b.pauses.change_missing(["tests.add"], [])
        await publish(b)
        assert await claim(b, owner) == []
        await b.pauses.change_missing([], ["tests.add"])
        assert len(await claim(b, owner)) == 1

    @backend_test()
    async def test_a_missing_task_that_is_reported_again_is_one_pause(self, b: Adapters) -> None:
        await b.pauses.change_missing(["tests.add"], [])
        (first,) = (await b.pauses.state()).pauses
        await b.pauses.change_missing(["tests.add", "tests.add"], [])
        (second,) = (await b.pauses.state()).pauses
        assert second.since == first.since

    @backend_test()
    async def test_a_pause_says_how_long_it_has_lasted(self, b: Adapters) -> None:
        await b.pauses.change_missing(["tests.add"], [])
        (pause,) = (await b.pauses.state()).pauses
        assert 0 <= pause.age < LONG_WAIT

    @backend_test()
    async def test_control_stays_in_its_namespace(self, b: Adapters) -> None:
        async with b.another(f"{b.namespace}2") as elsewhere:
            before = await elsewhere.pauses.state()
            await b.pauses.pause("all", "", "")
            assert await elsewhere.pauses.state() == before


class Cancelling:
    """Waiting jobs are cancelled immediately; running jobs are asked to stop."""

    @backend_test("records", "delay")
    async def test_jobs_that_wait_are_cancelled_at_once(self, b: Adapters) -> None:
        queued = await publish(b)
        scheduled = await publish(b, not_before=b.clock.now() + FAR)
        answer = await b.control.cancel([queued.id, scheduled.id], "not wanted")
        assert answer == {queued.id: State.CANCELLED, scheduled.id: State.CANCELLED}
        for job in answer:
            found = await b.records.find(job)
            assert (found.state, found.reason) == (State.CANCELLED, "not wanted")
        assert await claim(b, await register(b)) == []

    @backend_test("records", "delay")
    async def test_waiting_jobs_are_buried_and_others_are_not_changed(self, b: Adapters) -> None:
        held, done = await publish_and_claim(b), await publish_and_settle(b)
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
        assert await claim(b, await register(b)) == []

    @backend_test()
    async def test_a_running_job_is_asked_to_stop(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        assert await b.control.cancel([held.id], "not wanted") == {held.id: State.RUNNING}
        assert await b.control.cancellations([held.id]) == {held.id: "not wanted"}
        async with b.another() as other:
            assert await other.control.cancellations([held.id]) == {held.id: "not wanted"}

    @backend_test()
    async def test_a_running_job_may_end_as_it_likes_after_being_asked(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.control.cancel([held.id], "not wanted")
        assert await settle(b, held, Succeeded(RESULT)) == []
        assert (await b.records.find(held.id)).state is State.SUCCEEDED
        assert await b.control.cancellations([held.id]) == {}

    @backend_test()
    async def test_only_jobs_that_were_cancelled_are_returned(self, b: Adapters) -> None:
        await publish_many(b, 2)
        wanted, other = await claim(b, await register(b))
        await b.control.cancel([wanted.id], "x")
        found = await b.control.cancellations([wanted.id, other.id, fresh_id()])
        assert found == {wanted.id: "x"}
        assert await b.control.cancellations([other.id]) == {}
        assert await b.control.cancellations([]) == {}

    @backend_test()
    async def test_the_first_reason_stays(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.control.cancel([held.id], "first")
        await b.control.cancel([held.id], "second")
        assert await b.control.cancellations([held.id]) == {held.id: "first"}

    @backend_test("records")
    async def test_a_finished_job_keeps_its_state(self, b: Adapters) -> None:
        done, buried = await publish_and_settle(b), await publish_and_settle(b, Failed(FAILURE))
        answer = await b.control.cancel([done, buried], "too late")
        assert answer == {done: State.SUCCEEDED, buried: State.BURIED}
        assert (await b.records.find(done)).state is State.SUCCEEDED

    @backend_test()
    async def test_cancelling_twice_is_the_same_as_once(self, b: Adapters) -> None:
        sent = await publish(b)
        for _ in range(2):
            assert await b.control.cancel([sent.id], "x") == {sent.id: State.CANCELLED}

    @backend_test()
    async def test_unknown_jobs_are_missing_from_the_answer(self, b: Adapters) -> None:
        sent = await publish(b)
        assert await b.control.cancel([fresh_id(), sent.id], "x") == {sent.id: State.CANCELLED}

    @backend_test()
    async def test_a_cancellation_survives_an_interruption(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.control.cancel([held.id], "not wanted")
        await settle(b, held, Interrupted("worker stops"))
        again = await claim(b, held.lease.owner)
        asked = await b.control.cancellations([held.id])
        cancelled = (await b.records.find(held.id)).state is State.CANCELLED
        assert cancelled or (len(again) == 1 and asked == {held.id: "not wanted"})

    @backend_test("records")
    async def test_a_replayed_job_is_not_asked_to_stop_any_more(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.control.cancel([held.id], "not wanted")
        await settle(b, held, Failed(FAILURE))
        await b.records.replay([held.id])
        await claim(b, held.lease.owner)
        assert await b.control.cancellations([held.id]) == {}

    @backend_test("records")
    async def test_cancelling_stays_in_its_namespace(self, b: Adapters) -> None:
        waiting, held = await publish(b, queue="other"), await publish_and_claim(b)
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.control.cancel([waiting.id, held.id], "mine") == {}
        assert (await b.records.find(waiting.id)).state is State.QUEUED
        assert await b.control.cancellations([held.id]) == {}


async def known(b: Adapters) -> dict[str, int]:
    """Return the revisions that a worker knows when it has read the pauses."""
    cancellations = await b.coordination.read(CANCELLATIONS)
    return {PAUSES: (await b.pauses.state()).epoch, CANCELLATIONS: cancellations.revision}


class Changes:
    """``changed``: wakes up a worker when it has to read the pauses or the cancellations."""

    @backend_test()
    async def test_nothing_changed_since_the_epoch_that_is_known_is_false(
        self, b: Adapters
    ) -> None:
        epoch = await b.pauses.pause("all", "", "")
        found = await b.coordination.changed({PAUSES: -1}, LONG_WAIT)
        assert found == {PAUSES: epoch}, "who has just come knows nothing yet"
        assert await b.coordination.changed({PAUSES: epoch}, 0.05) == {}
        assert await b.coordination.changed(await known(b), 0) == {}

    @backend_test()
    async def test_a_pause_of_another_process_is_a_change(self, b: Adapters) -> None:
        now = await known(b)
        async with b.another() as other:
            for _ in range(3):
                for is_pause in (True, False):
                    waiting = asyncio.create_task(b.coordination.changed(now, LONG_WAIT))
                    if is_pause:
                        epoch = await other.pauses.pause("all", "", "")
                    else:
                        epoch = (await other.pauses.resume("all", "")).epoch
                    assert await waiting == {PAUSES: epoch}
                    now[PAUSES] = epoch

    @backend_test()
    async def test_all_that_wait_hear_of_a_change(self, b: Adapters) -> None:
        now = await known(b)
        waiting = [asyncio.create_task(b.coordination.changed(now, LONG_WAIT)) for _ in range(3)]
        await asyncio.sleep(0)
        async with b.another() as other:
            epoch = await other.pauses.pause("all", "", "")
        assert await asyncio.gather(*waiting) == [{PAUSES: epoch}] * 3

    @backend_test()
    async def test_a_wish_to_stop_a_running_job_is_a_change(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        now = await known(b)
        async with b.another() as other:
            waiting = asyncio.create_task(b.coordination.changed(now, LONG_WAIT))
            await other.control.cancel([held.id], "x")
            assert [*await waiting] == [CANCELLATIONS]
        assert await b.coordination.changed(await known(b), 0) == {}

    @backend_test()
    async def test_a_change_between_two_calls_is_not_missed(self, b: Adapters) -> None:
        before = await known(b)
        epoch = await b.pauses.pause("all", "", "")
        assert await b.coordination.changed(before, LONG_WAIT) == {PAUSES: epoch}
        assert await b.coordination.changed(before | {PAUSES: epoch}, 0) == {}

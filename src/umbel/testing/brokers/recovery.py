"""Recovery: the jobs of workers that died."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from umbel.messages import JSON, Body, Delivery, KeptStep, Retry, State, Step, Succeeded
from umbel.resilience import MAX_LAPSES
from umbel.testing.actions import (
    FAILURE,
    LONG_WAIT,
    RESULT,
    claim,
    claim_one,
    ids,
    kill,
    publish,
    publish_and_claim,
    publish_many,
    register,
    settle,
    worker,
)
from umbel.testing.backend import Adapters, backend_test


class Recovery:
    """``recover``: requeues jobs, counts deaths, and buries jobs with too many."""

    @backend_test()
    async def test_the_jobs_of_a_running_worker_are_not_recovered(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        assert await b.broker.recover() == []
        assert await settle(b, held, Succeeded(RESULT)) == []

    @backend_test()
    async def test_nothing_is_recovered_without_a_dead_worker(self, b: Adapters) -> None:
        await publish(b)
        assert await b.broker.recover() == []

    @backend_test()
    async def test_the_jobs_of_a_dead_worker_go_back_with_the_death_counted(
        self, b: Adapters
    ) -> None:
        dead = await register(b, "dead")
        sent = await publish_many(b, 3)
        await claim(b, dead)
        await kill(b, dead)
        assert sorted(await b.broker.recover()) == sorted(ids(sent))
        again = await claim(b, await register(b, "heir"))
        assert ids(again) == ids(sent)
        assert {(one.attempt, one.deaths) for one in again} == {(1, 1)}

    @backend_test()
    async def test_the_jobs_of_a_worker_that_left_go_back_too(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.registry.unregister(held.lease.owner)
        assert await b.broker.recover() == [held.id]

    @backend_test()
    async def test_a_recovered_job_has_a_higher_fence_and_the_late_outcome_is_refused(
        self, b: Adapters
    ) -> None:
        held, heir = await _orphan(b), await register(b, "heir")
        await b.broker.recover()
        assert await settle(b, held, Succeeded(RESULT)) == [held.lease]
        again = await claim_one(b, heir)
        assert again.lease.fence > held.lease.fence
        assert await settle(b, held, Succeeded(RESULT)) == [held.lease]
        assert await settle(b, again, Succeeded(RESULT)) == []

    @backend_test("records")
    async def test_the_history_has_the_attempt_that_was_lost(self, b: Adapters) -> None:
        held = await _orphan(b)
        await b.broker.recover()
        found = await b.records.find(held.id)
        assert [(one.ended, one.worker) for one in found.attempts] == [("lost", "dead")]
        assert (found.state, found.deaths, found.worker) == (State.QUEUED, 1, None)

    @backend_test("records")
    async def test_a_job_whose_worker_died_three_times_is_buried(self, b: Adapters) -> None:
        sent = await publish(b)
        for death in range(3):
            assert (await _die_with_a_job(b)).deaths == death
        found = await b.records.find(sent.id)
        assert (found.state, found.deaths) == (State.BURIED, 3)
        assert "died" in found.reason
        assert [one.ended for one in found.attempts] == ["lost", "lost", "lost"]

    @backend_test("records")
    async def test_a_job_may_say_how_many_deaths_are_too_many(self, b: Adapters) -> None:
        fragile = await publish(b, max_deaths=1)
        await _die_with_a_job(b)
        assert (await b.records.find(fragile.id)).state is State.BURIED
        sturdy = await publish(b, max_deaths=5)
        for _ in range(4):
            await _die_with_a_job(b)
        assert (await b.records.find(sturdy.id)).state is State.QUEUED

    @backend_test("records")
    async def test_jobs_that_die_together_are_not_buried_for_it(self, b: Adapters) -> None:
        sent = await publish_many(b, 3)
        for death in range(1, 4):
            await _die_with(b, 3)
            found = [await b.records.find(one) for one in ids(sent)]
            assert [one.deaths for one in found] == [death] * 3
            assert not any(one.state.finished for one in found)

    @backend_test("records")
    async def test_the_only_suspect_among_others_is_blamed(self, b: Adapters) -> None:
        guilty, innocent = await publish_many(b, 2, max_deaths=2)
        await _die_with(b, 2)
        await _die_with(b, 2)
        held = {one.id: one for one in await _together(b, 2)}
        await settle(b, held[innocent.id], Succeeded(RESULT))
        owner = held[guilty.id].lease.owner
        others = await publish_many(b, 2)
        await claim(b, owner)
        await kill(b, owner)
        await b.broker.recover()
        assert not (await b.records.find(guilty.id)).state.finished, "one death may be chance"
        await _die_with(b, 3)
        assert (await b.records.find(guilty.id)).state is State.BURIED
        for one in others:
            assert not (await b.records.find(one.id)).state.finished

    @backend_test("records", "delay")
    async def test_suspects_come_back_one_by_one(self, b: Adapters) -> None:
        sent = await publish_many(b, 4)
        await _die_with(b, 4)
        again = await claim(b, await register(b, "heir"))
        assert ids(again) == ids(sent), "after one death all come back at once"
        await kill(b, again[0].lease.owner)
        await b.broker.recover()
        due = {(await b.records.find(one)).not_before for one in ids(sent)}
        assert len(due) == 4
        assert sorted(ids(await _together(b, 4))) == sorted(ids(sent))

    @backend_test("records")
    async def test_a_job_that_may_die_once_is_not_run_again(self, b: Adapters) -> None:
        fragile, sturdy = await publish(b, max_deaths=1), await publish(b)
        await _die_with(b, 2)
        assert (await b.records.find(fragile.id)).state is State.BURIED
        assert (await b.records.find(sturdy.id)).state is State.QUEUED

    @backend_test()
    async def test_deaths_and_attempts_are_counted_apart(self, b: Adapters) -> None:
        held = await _orphan(b)
        await b.broker.recover()
        heir = await register(b, "heir")
        await settle(b, await claim_one(b, heir), Retry(FAILURE, 0.0))
        again = await claim_one(b, heir)
        assert (again.id, again.attempt, again.deaths) == (held.id, 2, 1)

    @backend_test()
    async def test_recovering_twice_counts_a_death_once(self, b: Adapters) -> None:
        held = await _orphan(b)
        assert await b.broker.recover() == [held.id]
        assert await b.broker.recover() == []
        assert (await claim_one(b, await register(b))).deaths == 1

    @backend_test()
    async def test_processes_that_recover_at_once_count_each_death_once(self, b: Adapters) -> None:
        dead = await register(b, "dead")
        sent = await publish_many(b, 30)
        await claim(b, dead)
        await kill(b, dead)
        async with b.another() as other:
            found = await asyncio.gather(*(side.broker.recover() for side in (b, other) * 3))
        assert sorted(job for one in found for job in one) == sorted(ids(sent))
        again = await claim(b, await register(b))
        assert {one.deaths for one in again} == {1}

    @backend_test()
    async def test_a_waiting_fetch_gets_a_recovered_job(self, b: Adapters) -> None:
        held = await _orphan(b)
        async with b.another() as other:
            waiting = asyncio.create_task(claim(other, await register(other), wait=LONG_WAIT))
            await b.broker.recover()
            assert ids(await waiting) == [held.id]

    @backend_test()
    async def test_recovery_stays_in_its_namespace(self, b: Adapters) -> None:
        async with b.another(f"{b.namespace}2") as elsewhere:
            held = await _orphan(elsewhere)
            assert await b.broker.recover() == []
            assert await elsewhere.broker.recover() == [held.id]


class Lapses:
    """A worker that lost its lease while it was running comes back: that is not a death."""

    @backend_test("records")
    async def test_a_worker_that_comes_back_takes_its_deaths_back(self, b: Adapters) -> None:
        dead = await register(b, "dead")
        sent = await publish_many(b, 3)
        await claim(b, dead)
        await kill(b, dead)
        await b.broker.recover()
        assert [(await b.records.find(one.id)).deaths for one in sent] == [1, 1, 1]
        await come_back(b, dead)
        assert [(await b.records.find(one.id)).deaths for one in sent] == [0, 0, 0]
        again = await claim(b, await register(b, "heir"))
        assert [(one.id, one.deaths) for one in again] == [(one.id, 0) for one in sent]

    @backend_test("records")
    async def test_a_worker_that_comes_back_before_its_jobs_are_recovered_has_not_died(
        self, b: Adapters
    ) -> None:
        held = await _orphan(b)
        await come_back(b, held.lease.owner)
        assert await b.broker.recover() == [held.id]
        assert (await b.records.find(held.id)).deaths == 0
        assert (await claim_one(b, await register(b, "heir"))).deaths == 0

    @backend_test("records")
    async def test_a_worker_that_comes_back_before_it_was_removed_has_not_died(
        self, b: Adapters
    ) -> None:
        held = await publish_and_claim(b, await register(b, "dead"), max_deaths=2)
        for _ in range(3):
            await come_back(b, held.lease.owner)
            await kill(b, held.lease.owner)
            await b.broker.recover()
            assert (await b.records.find(held.id)).state is State.QUEUED
            held = await claim_one(b, await register(b, "dead"))
            assert held.deaths == 0

    @backend_test("records")
    async def test_a_death_is_uncounted_once_however_often_it_is_reported(
        self, b: Adapters
    ) -> None:
        sent = await publish(b, max_deaths=5)
        owners = [(await _die_with_a_job(b)).lease.owner for _ in range(3)]
        assert (await b.records.find(sent.id)).deaths == 3
        entry = replace(worker("dead"), former=(owners[0],))
        for _ in range(3):
            await b.registry.register(entry)
            await come_back(b, owners[0])
            await b.broker.recover()
            assert (await b.records.find(sent.id)).deaths == 2

    @backend_test("records")
    async def test_several_incarnations_of_one_worker_are_reported_together(
        self, b: Adapters
    ) -> None:
        sent = await publish(b, max_deaths=5)
        owners = [(await _die_with_a_job(b)).lease.owner for _ in range(3)]
        await come_back(b, *owners)
        assert (await b.records.find(sent.id)).deaths == 0

    @backend_test("records")
    async def test_a_job_that_runs_again_keeps_its_lease_when_the_death_is_uncounted(
        self, b: Adapters
    ) -> None:
        held = await _orphan(b)
        await b.broker.recover()
        again = await claim_one(b, await register(b, "heir"))
        await come_back(b, held.lease.owner)
        assert await settle(b, held, Succeeded(RESULT)) == [held.lease]
        assert await settle(b, again, Succeeded(RESULT)) == []
        assert (await b.records.find(held.id)).deaths == 0

    @backend_test("records")
    async def test_a_job_that_has_ended_meanwhile_stays_ended(self, b: Adapters) -> None:
        held = await _orphan(b)
        await b.broker.recover()
        await settle(b, await claim_one(b, await register(b, "heir")), Succeeded(RESULT))
        await come_back(b, held.lease.owner)
        found = await b.records.find(held.id)
        assert (found.state, found.deaths) == (State.SUCCEEDED, 0)

    @backend_test("records")
    async def test_a_job_that_was_buried_for_deaths_comes_back(self, b: Adapters) -> None:
        sent = await publish(b)
        first = await _die_with_a_job(b)
        for _ in range(2):
            await _die_with_a_job(b)
        assert (await b.records.find(sent.id)).state is State.BURIED
        await come_back(b, first.lease.owner)
        found = await b.records.find(sent.id)
        assert (found.state, found.deaths, found.reason) == (State.QUEUED, 2, "")
        assert [one.ended for one in found.attempts] == ["lost", "lost", "lost"]
        again = await claim_one(b, await register(b, "heir"))
        assert (again.id, again.deaths, again.envelope.body) == (sent.id, 2, sent.body)
        assert again.lease.fence > first.lease.fence
        await kill(b, again.lease.owner)
        await b.broker.recover()
        assert (await b.records.find(sent.id)).state is State.BURIED, "the other deaths count"

    @backend_test("records")
    async def test_a_waiting_fetch_gets_a_job_that_comes_back(self, b: Adapters) -> None:
        sent = await publish(b)
        owner = ""
        for _ in range(3):
            owner = (await _die_with_a_job(b)).lease.owner
        async with b.another() as other:
            waiting = asyncio.create_task(claim(other, await register(other), wait=LONG_WAIT))
            await come_back(b, owner)
            assert ids(await waiting) == [sent.id]

    @backend_test("records", "unique")
    async def test_a_job_comes_back_without_the_unique_key_that_another_has_now(
        self, b: Adapters
    ) -> None:
        for taken in (False, True):
            job = (await publish(b, unique="k")).id
            owner = ""
            for _ in range(3):
                owner = (await _die_with_a_job(b)).lease.owner
            if taken:
                await publish(b, unique="k", queue="other")
            await come_back(b, owner)
            found = await b.records.find(job)
            assert found.state is State.QUEUED
            assert found.unique == (None if taken else "k")
            await b.broker.purge("default")

    @backend_test("records")
    async def test_a_job_that_may_die_once_stays_buried(self, b: Adapters) -> None:
        sent = await publish(b, max_deaths=1)
        owner = (await _die_with_a_job(b)).lease.owner
        await come_back(b, owner)
        await b.broker.recover()
        assert (await b.records.find(sent.id)).state is State.BURIED

    @backend_test("records")
    async def test_a_burial_stands_that_other_deaths_are_to_blame_for(self, b: Adapters) -> None:
        other, sent = await publish(b), await publish(b, max_deaths=2)
        innocent = (await _die_with(b, 2))[0].lease.owner
        await b.control.cancel([other.id], "no")
        for _ in range(2):
            await _die_with_a_job(b)
        assert (await b.records.find(sent.id)).state is State.BURIED
        await come_back(b, innocent)
        found = await b.records.find(sent.id)
        assert (found.state, found.deaths) == (State.BURIED, 2)

    @backend_test("records")
    async def test_a_job_whose_lease_lapses_again_and_again_is_buried(self, b: Adapters) -> None:
        sent = await publish(b)
        for _ in range(MAX_LAPSES):
            await _lapse_with_a_job(b)
            assert (await b.records.find(sent.id)).state is State.QUEUED
        owner = await _lapse_with_a_job(b)
        found = await b.records.find(sent.id)
        assert found.state is State.BURIED
        assert found.reason.startswith(f"lapses: its lease lapsed {MAX_LAPSES} times")
        await come_back(b, owner)
        assert (await b.records.find(sent.id)).state is State.BURIED
        assert await b.records.replay([sent.id]) == [sent.id]
        await _lapse_with_a_job(b)
        assert (await b.records.find(sent.id)).state is State.QUEUED, "it begins anew"

    @backend_test("records")
    async def test_a_job_that_keeps_steps_may_lapse_as_often_as_it_likes(self, b: Adapters) -> None:
        sent = await publish(b)
        for number in range(1, MAX_LAPSES + 4):
            held = await claim_one(b, await register(b, "dead"))
            if number == MAX_LAPSES:
                body = Body(JSON, b"1")
                done = Step(number=1, name="n", result=body, started=1.0, finished=2.0)
                assert await b.steps.keep([KeptStep(held.lease, done)]) == []
            await kill(b, held.lease.owner)
            await b.broker.recover()
            await come_back(b, held.lease.owner)
        assert (await b.records.find(sent.id)).state is State.QUEUED

    @backend_test("records")
    async def test_jobs_that_lapse_together_are_suspects_and_come_back_apart(
        self, b: Adapters
    ) -> None:
        sent = await publish_many(b, 3)
        for _ in range(2):
            owner = (await _die_with(b, 3))[0].lease.owner
            await come_back(b, owner)
        found = [await b.records.find(one.id) for one in sent]
        assert [one.deaths for one in found] == [0, 0, 0]
        assert len({one.not_before for one in found}) == 3

    @backend_test("records")
    async def test_a_report_stays_in_its_namespace(self, b: Adapters) -> None:
        held = await _orphan(b)
        await b.broker.recover()
        async with b.another(f"{b.namespace}2") as elsewhere:
            await publish(elsewhere, id=held.id)
            theirs = await _die_with_a_job(elsewhere)
            await come_back(b, held.lease.owner)
            assert (await elsewhere.records.find(held.id)).deaths == 1
            await come_back(elsewhere, theirs.lease.owner)
            assert (await elsewhere.records.find(held.id)).deaths == 0
        assert (await b.records.find(held.id)).deaths == 0


async def come_back(b: Adapters, *former: str) -> str:
    """Register a worker that reports its former incarnations. Return the new incarnation."""
    entry = replace(worker("dead"), former=former)
    await b.registry.register(entry)
    return entry.incarnation


async def _lapse_with_a_job(b: Adapters) -> str:
    """Let a worker claim a job, lose its lease and come back. Return the ended incarnation."""
    owner = (await _die_with_a_job(b)).lease.owner
    await come_back(b, owner)
    return owner


async def _orphan(b: Adapters) -> Delivery:
    dead = await register(b, "dead")
    held = await publish_and_claim(b, dead)
    await kill(b, dead)
    return held


async def _die_with_a_job(b: Adapters) -> Delivery:
    return (await _die_with(b, 1))[0]


async def _die_with(b: Adapters, jobs: int) -> list[Delivery]:
    """Let a worker claim jobs and die, and recover the jobs."""
    held = await _together(b, jobs)
    await kill(b, held[0].lease.owner)
    await b.broker.recover()
    return held


async def _together(b: Adapters, jobs: int) -> list[Delivery]:
    """Let one worker claim a number of jobs."""
    owner = await register(b, "dead")
    held: list[Delivery] = []
    while len(held) < jobs:
        found = await claim(b, owner, wait=LONG_WAIT)
        assert found, f"only {len(held)} of {jobs} jobs came"
        held += found
    return held

"""Recovery: the jobs of workers that died."""

from __future__ import annotations

import asyncio

from umbel.messages import Delivery, Retry, State, Succeeded
from umbel.testing.acts import (
    FAILURE,
    PATIENCE,
    RESULT,
    enlist,
    ids,
    kill,
    publish,
    publish_many,
    running,
    settle,
    take,
    take_one,
)
from umbel.testing.backend import Backend, story


class Recovery:
    """``recover``: put back, count the death, bury the poisonous."""

    @story()
    async def test_the_jobs_of_a_living_worker_are_left_alone(self, b: Backend) -> None:
        held = await running(b)
        assert await b.broker.recover() == []
        assert await settle(b, held, Succeeded(RESULT)) == []

    @story()
    async def test_nothing_is_recovered_where_nobody_died(self, b: Backend) -> None:
        await publish(b)
        assert await b.broker.recover() == []

    @story()
    async def test_the_jobs_of_a_dead_worker_go_back_with_the_death_counted(
        self, b: Backend
    ) -> None:
        dead = await enlist(b, "dead")
        sent = await publish_many(b, 3)
        await take(b, dead)
        await kill(b, dead)
        assert sorted(await b.broker.recover()) == sorted(ids(sent))
        again = await take(b, await enlist(b, "heir"))
        assert ids(again) == ids(sent)
        assert {(one.attempt, one.deaths) for one in again} == {(1, 1)}

    @story()
    async def test_the_jobs_of_a_worker_that_left_go_back_too(self, b: Backend) -> None:
        held = await running(b)
        await b.registry.leave(held.lease.owner)
        assert await b.broker.recover() == [held.id]

    @story()
    async def test_a_recovered_job_has_a_higher_fence_and_the_late_outcome_is_refused(
        self, b: Backend
    ) -> None:
        held, heir = await _orphan(b), await enlist(b, "heir")
        await b.broker.recover()
        assert await settle(b, held, Succeeded(RESULT)) == [held.lease]
        again = await take_one(b, heir)
        assert again.lease.fence > held.lease.fence
        assert await settle(b, held, Succeeded(RESULT)) == [held.lease]
        assert await settle(b, again, Succeeded(RESULT)) == []

    @story("records")
    async def test_the_story_tells_of_the_attempt_that_was_lost(self, b: Backend) -> None:
        held = await _orphan(b)
        await b.broker.recover()
        found = await b.records.find(held.id)
        assert [(one.ended, one.worker) for one in found.attempts] == [("lost", "dead")]
        assert (found.state, found.deaths, found.worker) == (State.QUEUED, 1, None)

    @story("records")
    async def test_a_job_whose_worker_died_three_times_is_buried(self, b: Backend) -> None:
        sent = await publish(b)
        for death in range(3):
            assert (await _die_with_a_job(b)).deaths == death
        found = await b.records.find(sent.id)
        assert (found.state, found.deaths) == (State.BURIED, 3)
        assert "died" in found.reason
        assert [one.ended for one in found.attempts] == ["lost", "lost", "lost"]

    @story("records")
    async def test_a_job_may_say_how_many_deaths_are_too_many(self, b: Backend) -> None:
        fragile = await publish(b, max_deaths=1)
        await _die_with_a_job(b)
        assert (await b.records.find(fragile.id)).state is State.BURIED
        sturdy = await publish(b, max_deaths=5)
        for _ in range(4):
            await _die_with_a_job(b)
        assert (await b.records.find(sturdy.id)).state is State.QUEUED

    @story("records")
    async def test_jobs_that_die_together_are_not_buried_for_it(self, b: Backend) -> None:
        sent = await publish_many(b, 3)
        for death in range(1, 4):
            await _die_with(b, 3)
            found = [await b.records.find(one) for one in ids(sent)]
            assert [one.deaths for one in found] == [death] * 3
            assert not any(one.state.finished for one in found)

    @story("records")
    async def test_the_only_suspect_among_others_is_blamed(self, b: Backend) -> None:
        guilty, innocent = await publish_many(b, 2, max_deaths=2)
        await _die_with(b, 2)
        await _die_with(b, 2)
        held = {one.id: one for one in await _together(b, 2)}
        await settle(b, held[innocent.id], Succeeded(RESULT))
        owner = held[guilty.id].lease.owner
        others = await publish_many(b, 2)
        await take(b, owner)
        await kill(b, owner)
        await b.broker.recover()
        assert not (await b.records.find(guilty.id)).state.finished, "one death may be chance"
        await _die_with(b, 3)
        assert (await b.records.find(guilty.id)).state is State.BURIED
        for one in others:
            assert not (await b.records.find(one.id)).state.finished

    @story("records", "delay")
    async def test_suspects_come_back_one_by_one(self, b: Backend) -> None:
        sent = await publish_many(b, 4)
        await _die_with(b, 4)
        again = await take(b, await enlist(b, "heir"))
        assert ids(again) == ids(sent), "after one death all come back at once"
        await kill(b, again[0].lease.owner)
        await b.broker.recover()
        due = {(await b.records.find(one)).not_before for one in ids(sent)}
        assert len(due) == 4
        assert sorted(ids(await _together(b, 4))) == sorted(ids(sent))

    @story("records")
    async def test_a_job_that_may_die_once_is_not_run_again(self, b: Backend) -> None:
        fragile, sturdy = await publish(b, max_deaths=1), await publish(b)
        await _die_with(b, 2)
        assert (await b.records.find(fragile.id)).state is State.BURIED
        assert (await b.records.find(sturdy.id)).state is State.QUEUED

    @story()
    async def test_deaths_and_attempts_are_counted_apart(self, b: Backend) -> None:
        held = await _orphan(b)
        await b.broker.recover()
        heir = await enlist(b, "heir")
        await settle(b, await take_one(b, heir), Retry(FAILURE, 0.0))
        again = await take_one(b, heir)
        assert (again.id, again.attempt, again.deaths) == (held.id, 2, 1)

    @story()
    async def test_recovering_twice_counts_a_death_once(self, b: Backend) -> None:
        held = await _orphan(b)
        assert await b.broker.recover() == [held.id]
        assert await b.broker.recover() == []
        assert (await take_one(b, await enlist(b))).deaths == 1

    @story()
    async def test_processes_that_recover_at_once_count_each_death_once(self, b: Backend) -> None:
        dead = await enlist(b, "dead")
        sent = await publish_many(b, 30)
        await take(b, dead)
        await kill(b, dead)
        async with b.another() as other:
            found = await asyncio.gather(*(side.broker.recover() for side in (b, other) * 3))
        assert sorted(job for one in found for job in one) == sorted(ids(sent))
        again = await take(b, await enlist(b))
        assert {one.deaths for one in again} == {1}

    @story()
    async def test_a_waiting_fetch_gets_a_recovered_job(self, b: Backend) -> None:
        held = await _orphan(b)
        async with b.another() as other:
            waiting = asyncio.create_task(take(other, await enlist(other), wait=PATIENCE))
            await b.broker.recover()
            assert ids(await waiting) == [held.id]

    @story()
    async def test_recovery_stays_in_its_namespace(self, b: Backend) -> None:
        async with b.another(f"{b.namespace}2") as elsewhere:
            held = await _orphan(elsewhere)
            assert await b.broker.recover() == []
            assert await elsewhere.broker.recover() == [held.id]


async def _orphan(b: Backend) -> Delivery:
    dead = await enlist(b, "dead")
    held = await running(b, dead)
    await kill(b, dead)
    return held


async def _die_with_a_job(b: Backend) -> Delivery:
    return (await _die_with(b, 1))[0]


async def _die_with(b: Backend, jobs: int) -> list[Delivery]:
    """A worker takes so many jobs, dies, and they are recovered."""
    held = await _together(b, jobs)
    await kill(b, held[0].lease.owner)
    await b.broker.recover()
    return held


async def _together(b: Backend, jobs: int) -> list[Delivery]:
    """So many jobs in the hands of one worker."""
    owner = await enlist(b, "dead")
    held: list[Delivery] = []
    while len(held) < jobs:
        found = await take(b, owner, wait=PATIENCE)
        assert found, f"only {len(held)} of {jobs} jobs came"
        held += found
    return held

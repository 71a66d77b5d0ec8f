"""Waiting for a job to be final."""

from __future__ import annotations

import asyncio

import pytest

from umbel.backends import PromptRecords
from umbel.errors import ResultTimeout, UnknownJob
from umbel.messages import Cancelled, Delivery, Failed, Interrupted, State, Succeeded, fresh_id
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
    settlement,
    take,
    take_one,
)
from umbel.testing.backend import Backend, story


class Results:
    """``finished``: woken when the job is final."""

    @story("records")
    async def test_a_job_that_is_final_already_is_returned_at_once(self, b: Backend) -> None:
        job = await finished(b)
        found = await b.records.finished(job, 0)
        assert (found.state, found.result) == (State.SUCCEEDED, RESULT)

    @story("records")
    async def test_a_look_without_a_loop_finds_what_is_final_and_nothing_else(
        self, b: Backend
    ) -> None:
        if not isinstance(b.records, PromptRecords):
            pytest.skip("records are found on an event loop only")
        held = await running(b)
        assert b.records.look(fresh_id(), PATIENCE) is None
        assert b.records.look(held.id, PATIENCE) is None
        waiting = asyncio.create_task(b.records.finished(held.id, PATIENCE))
        await settle(b, held, Succeeded(RESULT))
        assert b.records.look(held.id, PATIENCE) == await waiting

    @story("records")
    async def test_a_waiter_gets_what_another_process_settles(self, b: Backend) -> None:
        async with b.another() as other:
            for outcome in (Succeeded(RESULT), Failed(FAILURE), Cancelled("no")):
                held = await running(other)
                waiting = asyncio.create_task(b.records.finished(held.id, None))
                await settle(other, held, outcome)
                assert (await waiting).state.finished

    @story("records")
    async def test_a_waiter_is_not_woken_for_good_by_a_job_that_goes_back(self, b: Backend) -> None:
        held = await running(b)
        waiting = asyncio.create_task(b.records.finished(held.id, PATIENCE))
        await settle(b, held, Interrupted())
        again = await take_one(b, held.lease.owner, wait=PATIENCE)
        await settle(b, again, Succeeded(RESULT))
        assert (await waiting).state is State.SUCCEEDED

    @story("records")
    async def test_a_waiter_hears_of_a_cancelled_job(self, b: Backend) -> None:
        sent = await publish(b)
        waiting = asyncio.create_task(b.records.finished(sent.id, PATIENCE))
        async with b.another() as other:
            await other.control.cancel([sent.id], "not wanted")
            found = await waiting
        assert (found.state, found.reason) == (State.CANCELLED, "not wanted")

    @story("records")
    async def test_a_waiter_hears_of_a_job_buried_by_recovery(self, b: Backend) -> None:
        dead = await enlist(b, "dead")
        held = await running(b, dead, max_deaths=1)
        waiting = asyncio.create_task(b.records.finished(held.id, PATIENCE))
        await kill(b, dead)
        await b.broker.recover()
        assert (await waiting).state is State.BURIED

    @story("records")
    async def test_a_waiter_hears_of_a_purged_job(self, b: Backend) -> None:
        sent = await publish(b)
        waiting = asyncio.create_task(b.records.finished(sent.id, PATIENCE))
        await b.broker.purge("default")
        assert (await waiting).state is State.CANCELLED

    @story("records")
    async def test_many_waiters_each_get_their_own_job(self, b: Backend) -> None:
        owner = await enlist(b)
        async with b.another() as other:
            sent = [await publish(b) for _ in range(20)]
            waiting = [
                asyncio.create_task(other.records.finished(one.id, PATIENCE)) for one in sent
            ]
            held: list[Delivery] = []
            while len(held) < len(sent):  # a waiter may hide a job from a fetch for a moment
                held += await take(b, owner, wait=PATIENCE)
            await b.broker.settle([settlement(one, Succeeded(RESULT)) for one in held])
            found = await asyncio.gather(*waiting)
        assert [one.id for one in found] == [one.id for one in sent]

    @story("records")
    async def test_a_job_that_is_not_final_in_time_is_a_result_timeout(self, b: Backend) -> None:
        sent = await publish(b)
        for timeout in (0, 0.05):
            with pytest.raises(ResultTimeout):
                await b.records.finished(sent.id, timeout)

    @story("records")
    async def test_waiting_for_an_unknown_job_is_an_error_at_once(self, b: Backend) -> None:
        with pytest.raises(UnknownJob):
            await b.records.finished(fresh_id(), None)

    @story("records", "forgets")
    async def test_a_waiter_learns_that_a_job_ended_without_a_record(self, b: Backend) -> None:
        held = await running(b)
        waiting = asyncio.create_task(b.records.finished(held.id, PATIENCE))
        await settle(b, held, Succeeded(RESULT), keep=False)
        with pytest.raises(UnknownJob):
            await waiting

"""Waiting until a job is final."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from umbel.backends import BlockingRecords
from umbel.errors import ResultTimeout, UnknownJob
from umbel.messages import Cancelled, Delivery, Failed, Interrupted, State, Succeeded, fresh_id
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
    settlement,
)
from umbel.testing.backend import Adapters, backend_test


class Results:
    """``wait_finished``: woken when the job is final."""

    @backend_test("records")
    async def test_a_job_that_is_final_already_is_returned_at_once(self, b: Adapters) -> None:
        job = await publish_and_settle(b)
        found = await b.records.wait_finished(job, 0)
        assert (found.state, found.result) == (State.SUCCEEDED, RESULT)

    @backend_test("records")
    async def test_a_blocking_lookup_finds_final_jobs_only(self, b: Adapters) -> None:
        if not b.broker.capabilities.blocking_records:
            pytest.skip("records are found on an event loop only")
        records = cast(BlockingRecords, b.records)
        held = await publish_and_claim(b)
        assert records.find_finished_blocking(fresh_id(), LONG_WAIT) is None
        assert records.find_finished_blocking(held.id, LONG_WAIT) is None
        waiting = asyncio.create_task(b.records.wait_finished(held.id, LONG_WAIT))
        await settle(b, held, Succeeded(RESULT))
        assert records.find_finished_blocking(held.id, LONG_WAIT) == await waiting

    @backend_test("records")
    async def test_a_waiter_gets_the_outcome_that_another_process_settles(
        self, b: Adapters
    ) -> None:
        async with b.another() as other:
            for outcome in (Succeeded(RESULT), Failed(FAILURE), Cancelled("no")):
                held = await publish_and_claim(other)
                waiting = asyncio.create_task(b.records.wait_finished(held.id, None))
                await settle(other, held, outcome)
                assert (await waiting).state.finished

    @backend_test("records")
    async def test_a_waiter_is_not_woken_for_good_by_a_job_that_goes_back(
        self, b: Adapters
    ) -> None:
        held = await publish_and_claim(b)
        waiting = asyncio.create_task(b.records.wait_finished(held.id, LONG_WAIT))
        await settle(b, held, Interrupted())
        again = await claim_one(b, held.lease.owner, wait=LONG_WAIT)
        await settle(b, again, Succeeded(RESULT))
        assert (await waiting).state is State.SUCCEEDED

    @backend_test("records")
    async def test_a_waiter_is_woken_for_a_cancelled_job(self, b: Adapters) -> None:
        sent = await publish(b)
        waiting = asyncio.create_task(b.records.wait_finished(sent.id, LONG_WAIT))
        async with b.another() as other:
            await other.control.cancel([sent.id], "not wanted")
            found = await waiting
        assert (found.state, found.reason) == (State.CANCELLED, "not wanted")

    @backend_test("records")
    async def test_a_waiter_is_woken_for_a_job_buried_by_recovery(self, b: Adapters) -> None:
        dead = await register(b, "dead")
        held = await publish_and_claim(b, dead, max_deaths=1)
        waiting = asyncio.create_task(b.records.wait_finished(held.id, LONG_WAIT))
        await kill(b, dead)
        await b.broker.recover()
        assert (await waiting).state is State.BURIED

    @backend_test("records")
    async def test_a_waiter_is_woken_for_a_purged_job(self, b: Adapters) -> None:
        sent = await publish(b)
        waiting = asyncio.create_task(b.records.wait_finished(sent.id, LONG_WAIT))
        await b.broker.purge("default")
        assert (await waiting).state is State.CANCELLED

    @backend_test("records")
    async def test_many_waiters_each_get_their_own_job(self, b: Adapters) -> None:
        owner = await register(b)
        async with b.another() as other:
            sent = [await publish(b) for _ in range(20)]
            waiting = [
                asyncio.create_task(other.records.wait_finished(one.id, LONG_WAIT)) for one in sent
            ]
            held: list[Delivery] = []
            while len(held) < len(sent):  # a waiter may hide a job from a fetch for a short time
                held += await claim(b, owner, wait=LONG_WAIT)
            await b.broker.settle([settlement(one, Succeeded(RESULT)) for one in held])
            found = await asyncio.gather(*waiting)
        assert [one.id for one in found] == [one.id for one in sent]

    @backend_test("records")
    async def test_a_job_that_is_not_final_in_time_is_a_result_timeout(self, b: Adapters) -> None:
        sent = await publish(b)
        for timeout in (0, 0.05):
            with pytest.raises(ResultTimeout):
                await b.records.wait_finished(sent.id, timeout)

    @backend_test("records")
    async def test_waiting_for_an_unknown_job_is_an_error_at_once(self, b: Adapters) -> None:
        with pytest.raises(UnknownJob):
            await b.records.wait_finished(fresh_id(), None)

    @backend_test("records", "forgets")
    async def test_a_waiter_learns_that_a_job_ended_without_a_record(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        waiting = asyncio.create_task(b.records.wait_finished(held.id, LONG_WAIT))
        await settle(b, held, Succeeded(RESULT), keep=False)
        with pytest.raises(UnknownJob):
            await waiting

"""Delays: a job is not fetched before it is due, and a fetch wakes up when it is."""

from __future__ import annotations

import asyncio

from umbel.messages import Retry, Snoozed, State, Succeeded
from umbel.testing.actions import (
    FAILURE,
    FAR,
    LONG_WAIT,
    RESULT,
    SOON,
    claim,
    claim_one,
    depths,
    envelope,
    ids,
    publish,
    publish_and_claim,
    register,
    settle,
    settlement,
)
from umbel.testing.backend import Adapters, backend_test


class StoreTime:
    """The store's clock measures delays; the callers' clocks do not matter."""

    @backend_test("delay", "records")
    async def test_seconds_until_a_job_may_run_are_counted_by_the_store(self, b: Adapters) -> None:
        before = (await publish_and_claim(b)).claimed
        sent = await publish(b, delay=FAR)
        after = (await publish_and_claim(b)).claimed
        found = await b.records.find(sent.id)
        assert found.state is State.SCHEDULED
        assert _lies(found.not_before, before + FAR, after + FAR)

    @backend_test("delay")
    async def test_a_job_runs_when_its_seconds_are_over(self, b: Adapters) -> None:
        sent, owner = await publish(b, delay=SOON), await register(b)
        assert ids(await claim(b, owner, wait=LONG_WAIT)) == [sent.id]

    @backend_test()
    async def test_seconds_until_a_job_expires_are_counted_by_the_store(self, b: Adapters) -> None:
        before = (await publish_and_claim(b)).claimed
        held = await publish_and_claim(b, expires_in=FAR)
        assert _lies(held.envelope.expires, before + FAR, held.claimed + FAR)

    @backend_test()
    async def test_a_batch_keeps_the_seconds_of_each(self, b: Adapters) -> None:
        before = (await publish_and_claim(b)).claimed
        await b.broker.publish([envelope(b, expires_in=FAR * n) for n in (1, 2, 3)])
        held = await claim(b, await register(b))
        for n, one in enumerate(held, 1):
            assert _lies(one.envelope.expires, before + n * FAR, one.claimed + n * FAR)
        assert len(held) == 3

    @backend_test("delay", "records")
    async def test_seconds_of_a_follow_up_are_counted_by_the_store(self, b: Adapters) -> None:
        held, after = await publish_and_claim(b), envelope(b, delay=FAR, expires_in=2 * FAR)
        await b.broker.settle([settlement(held, Succeeded(RESULT), follow_ups=(after,))])
        last = (await publish_and_claim(b)).claimed
        found = await b.records.find(after.id)
        assert _lies(found.not_before, held.claimed + FAR, last + FAR)
        assert _lies(found.expires, held.claimed + 2 * FAR, last + 2 * FAR)

    @backend_test("delay", "records")
    async def test_the_delay_of_a_retry_is_counted_by_the_store(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await settle(b, held, Retry(FAILURE, FAR))
        last = (await publish_and_claim(b)).claimed
        found = await b.records.find(held.id)
        assert _lies(found.not_before, held.claimed + FAR, last + FAR)

    @backend_test("records")
    async def test_the_store_says_when_a_job_was_published_and_when_it_ended(
        self, b: Adapters
    ) -> None:
        before = (await publish_and_claim(b)).claimed
        held = await publish_and_claim(b, created=0.0)
        await settle(b, held, Succeeded(RESULT))
        last = (await publish_and_claim(b)).claimed
        found = await b.records.find(held.id)
        assert _lies(found.created, before, held.claimed)
        assert _lies(found.finished, held.claimed, last)


class Delays:
    """``not_before``, and the delays of retries and snoozes."""

    @backend_test("delay", "records")
    async def test_a_job_for_later_is_scheduled_and_not_fetched(self, b: Adapters) -> None:
        sent = await publish(b, not_before=b.clock.now() + FAR)
        assert await claim(b, await register(b)) == []
        assert (await b.records.find(sent.id)).state is State.SCHEDULED

    @backend_test("delay")
    async def test_a_moment_that_has_passed_delays_nothing(self, b: Adapters) -> None:
        sent = await publish(b, not_before=b.clock.now() - FAR)
        assert (await claim_one(b, await register(b))).id == sent.id

    @backend_test("delay")
    async def test_a_scheduled_job_is_fetched_once_it_is_due(self, b: Adapters) -> None:
        sent, owner = await publish(b, not_before=b.clock.now() + 60), await register(b)
        b.advance(59)
        assert await claim(b, owner) == []
        b.advance(2)
        assert (await claim_one(b, owner)).id == sent.id

    @backend_test("delay")
    async def test_a_waiting_fetch_gets_a_job_when_it_falls_due(self, b: Adapters) -> None:
        sent, owner = await publish(b, not_before=b.clock.now() + SOON), await register(b)
        assert ids(await claim(b, owner, wait=LONG_WAIT)) == [sent.id]

    @backend_test("delay")
    async def test_a_waiting_fetch_gets_a_job_scheduled_meanwhile_when_it_falls_due(
        self, b: Adapters
    ) -> None:
        waiting = asyncio.create_task(claim(b, await register(b), wait=LONG_WAIT))
        async with b.another() as other:
            sent = await publish(other, not_before=b.clock.now() + SOON)
            assert ids(await waiting) == [sent.id]

    @backend_test("delay", "priority")
    async def test_jobs_that_fell_due_go_by_priority(self, b: Adapters) -> None:
        at = b.clock.now() + 60
        await b.broker.publish([envelope(b, priority=p, not_before=at) for p in (1, 3, 2)])
        await publish(b, priority=2)
        owner = await register(b)
        b.advance(61)
        got = [one.envelope.priority for one in await claim(b, owner)]
        assert got == [3, 2, 2, 1]

    @backend_test("delay", "records")
    async def test_a_retry_with_a_delay_is_scheduled_for_then(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await settle(b, held, Retry(FAILURE, 60.0))
        found = await b.records.find(held.id)
        assert found.state is State.SCHEDULED
        assert found.not_before is not None
        assert found.not_before > held.claimed + 30

    @backend_test("delay")
    async def test_a_snoozed_job_comes_back_when_its_time_is_over(self, b: Adapters) -> None:
        owner = await register(b)
        held = await publish_and_claim(b, owner)
        await settle(b, held, Snoozed(SOON))
        assert ids(await claim(b, owner, wait=LONG_WAIT)) == [held.id]

    @backend_test("delay")
    async def test_a_job_that_is_due_far_off_stays_where_it_is(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await settle(b, held, Snoozed(FAR))
        assert await claim(b, held.lease.owner, wait=0.05) == []
        assert await depths(b) == {("default", "scheduled"): 1}

    @backend_test("delay")
    async def test_more_jobs_fall_due_at_once_than_fit_a_batch_and_all_are_fetched(
        self, b: Adapters
    ) -> None:
        at = b.clock.now() + 60
        await b.broker.publish([envelope(b, not_before=at) for _ in range(2500)])
        owner, got = await register(b), 0
        b.advance(61)
        while found := await claim(b, owner):
            got += len(found)
        assert got == 2500


def _lies(moment: float | None, first: float, last: float) -> bool:
    """Return whether a time is between two times of the store, rounded to microseconds."""
    return moment is not None and first - 0.001 <= moment <= last + 0.001

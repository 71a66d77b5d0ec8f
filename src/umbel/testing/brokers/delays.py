"""Delays: what is not due is not fetched, and what falls due comes by itself."""

from __future__ import annotations

import asyncio

from umbel.messages import Retry, Snoozed, State, Succeeded
from umbel.testing.acts import (
    FAILURE,
    FAR,
    PATIENCE,
    RESULT,
    SOON,
    depths,
    enlist,
    envelope,
    ids,
    publish,
    running,
    settle,
    settlement,
    take,
    take_one,
)
from umbel.testing.backend import Backend, story


class StoreTime:
    """Seconds are counted by the store's clock, whatever the clocks of those say who call."""

    @story("delay", "records")
    async def test_seconds_until_a_job_may_run_are_counted_by_the_store(self, b: Backend) -> None:
        before = (await running(b)).claimed
        sent = await publish(b, delay=FAR)
        after = (await running(b)).claimed
        found = await b.records.find(sent.id)
        assert found.state is State.SCHEDULED
        assert _lies(found.not_before, before + FAR, after + FAR)

    @story("delay")
    async def test_a_job_runs_when_its_seconds_are_over(self, b: Backend) -> None:
        sent, owner = await publish(b, delay=SOON), await enlist(b)
        assert ids(await take(b, owner, wait=PATIENCE)) == [sent.id]

    @story()
    async def test_seconds_until_a_job_expires_are_counted_by_the_store(self, b: Backend) -> None:
        before = (await running(b)).claimed
        held = await running(b, expires_in=FAR)
        assert _lies(held.envelope.expires, before + FAR, held.claimed + FAR)

    @story()
    async def test_a_batch_keeps_the_seconds_of_each(self, b: Backend) -> None:
        before = (await running(b)).claimed
        await b.broker.publish([envelope(b, expires_in=FAR * n) for n in (1, 2, 3)])
        held = await take(b, await enlist(b))
        for n, one in enumerate(held, 1):
            assert _lies(one.envelope.expires, before + n * FAR, one.claimed + n * FAR)
        assert len(held) == 3

    @story("delay", "records")
    async def test_seconds_of_a_follow_up_are_counted_by_the_store(self, b: Backend) -> None:
        held, after = await running(b), envelope(b, delay=FAR, expires_in=2 * FAR)
        await b.broker.settle([settlement(held, Succeeded(RESULT), follow_ups=(after,))])
        last = (await running(b)).claimed
        found = await b.records.find(after.id)
        assert _lies(found.not_before, held.claimed + FAR, last + FAR)
        assert _lies(found.expires, held.claimed + 2 * FAR, last + 2 * FAR)

    @story("delay", "records")
    async def test_the_delay_of_a_retry_is_counted_by_the_store(self, b: Backend) -> None:
        held = await running(b)
        await settle(b, held, Retry(FAILURE, FAR))
        last = (await running(b)).claimed
        found = await b.records.find(held.id)
        assert _lies(found.not_before, held.claimed + FAR, last + FAR)

    @story("records")
    async def test_the_store_says_when_a_job_was_published_and_when_it_ended(
        self, b: Backend
    ) -> None:
        before = (await running(b)).claimed
        held = await running(b, created=0.0)
        await settle(b, held, Succeeded(RESULT))
        last = (await running(b)).claimed
        found = await b.records.find(held.id)
        assert _lies(found.created, before, held.claimed)
        assert _lies(found.finished, held.claimed, last)


class Delays:
    """``not_before``, and the delay of a retry or a snooze."""

    @story("delay", "records")
    async def test_a_job_for_later_is_scheduled_and_not_fetched(self, b: Backend) -> None:
        sent = await publish(b, not_before=b.clock.now() + FAR)
        assert await take(b, await enlist(b)) == []
        assert (await b.records.find(sent.id)).state is State.SCHEDULED

    @story("delay")
    async def test_a_moment_that_has_passed_delays_nothing(self, b: Backend) -> None:
        sent = await publish(b, not_before=b.clock.now() - FAR)
        assert (await take_one(b, await enlist(b))).id == sent.id

    @story("delay")
    async def test_a_scheduled_job_is_fetched_once_it_is_due(self, b: Backend) -> None:
        sent, owner = await publish(b, not_before=b.clock.now() + 60), await enlist(b)
        b.advance(59)
        assert await take(b, owner) == []
        b.advance(2)
        assert (await take_one(b, owner)).id == sent.id

    @story("delay")
    async def test_a_waiting_fetch_gets_a_job_when_it_falls_due(self, b: Backend) -> None:
        sent, owner = await publish(b, not_before=b.clock.now() + SOON), await enlist(b)
        assert ids(await take(b, owner, wait=PATIENCE)) == [sent.id]

    @story("delay")
    async def test_a_waiting_fetch_gets_a_job_scheduled_meanwhile_when_it_falls_due(
        self, b: Backend
    ) -> None:
        waiting = asyncio.create_task(take(b, await enlist(b), wait=PATIENCE))
        async with b.another() as other:
            sent = await publish(other, not_before=b.clock.now() + SOON)
            assert ids(await waiting) == [sent.id]

    @story("delay", "priority")
    async def test_jobs_that_fell_due_go_by_priority(self, b: Backend) -> None:
        at = b.clock.now() + 60
        await b.broker.publish([envelope(b, priority=p, not_before=at) for p in (1, 3, 2)])
        await publish(b, priority=2)
        owner = await enlist(b)
        b.advance(61)
        got = [one.envelope.priority for one in await take(b, owner)]
        assert got == [3, 2, 2, 1]

    @story("delay", "records")
    async def test_a_retry_with_a_delay_is_scheduled_for_then(self, b: Backend) -> None:
        held = await running(b)
        await settle(b, held, Retry(FAILURE, 60.0))
        found = await b.records.find(held.id)
        assert found.state is State.SCHEDULED
        assert found.not_before is not None
        assert found.not_before > held.claimed + 30

    @story("delay")
    async def test_a_snoozed_job_comes_back_when_its_time_is_over(self, b: Backend) -> None:
        owner = await enlist(b)
        held = await running(b, owner)
        await settle(b, held, Snoozed(SOON))
        assert ids(await take(b, owner, wait=PATIENCE)) == [held.id]

    @story("delay")
    async def test_a_job_that_is_due_far_off_stays_where_it_is(self, b: Backend) -> None:
        held = await running(b)
        await settle(b, held, Snoozed(FAR))
        assert await take(b, held.lease.owner, wait=0.05) == []
        assert await depths(b) == {("default", "scheduled"): 1}

    @story("delay")
    async def test_more_jobs_fall_due_at_once_than_fit_a_batch_and_all_are_fetched(
        self, b: Backend
    ) -> None:
        at = b.clock.now() + 60
        await b.broker.publish([envelope(b, not_before=at) for _ in range(2500)])
        owner, got = await enlist(b), 0
        b.advance(61)
        while found := await take(b, owner):
            got += len(found)
        assert got == 2500


def _lies(moment: float | None, first: float, last: float) -> bool:
    """Whether it is between two moments of the store, which may keep only millionths of seconds."""
    return moment is not None and first - 0.001 <= moment <= last + 0.001

"""Fetching: only what could start now, only once, and without polling for it."""

from __future__ import annotations

import asyncio

import pytest

from umbel.backends import Demand
from umbel.backends.control import Scope
from umbel.errors import LeaseLost
from umbel.messages import Delivery, Interrupted, State, Succeeded
from umbel.testing.acts import (
    PATIENCE,
    PLENTY,
    RESULT,
    enlist,
    ids,
    kill,
    publish,
    publish_many,
    settle,
    take,
    take_one,
)
from umbel.testing.backend import Backend, story


class Fetching:
    """Who gets what, and when."""

    @story()
    async def test_an_empty_queue_gives_nothing(self, b: Backend) -> None:
        assert await take(b, await enlist(b)) == []

    @story()
    async def test_a_fetch_that_may_wait_gives_up_when_its_time_is_over(self, b: Backend) -> None:
        assert await take(b, await enlist(b), wait=0.05) == []

    @story()
    async def test_a_delivery_is_under_a_lease_of_its_owner(self, b: Backend) -> None:
        sent, owner = await publish(b), await enlist(b)
        got = await take_one(b, owner)
        assert (got.lease.job, got.lease.owner) == (sent.id, owner)
        assert got.lease.fence > 0

    @story("records")
    async def test_a_claimed_job_runs_on_its_worker(self, b: Backend) -> None:
        sent = await publish(b)
        await take_one(b, await enlist(b, "anna"))
        found = await b.records.find(sent.id)
        assert (found.state, found.worker) == (State.RUNNING, "anna")
        assert found.started is not None

    @story()
    async def test_a_fetch_never_claims_more_than_was_asked_for(self, b: Backend) -> None:
        await publish_many(b, 10)
        assert len(await take(b, await enlist(b), Demand(io=3))) == 3

    @story()
    async def test_no_demand_claims_nothing(self, b: Backend) -> None:
        await publish(b)
        assert await take(b, await enlist(b), Demand()) == []

    @story()
    async def test_only_the_queues_asked_for_are_fetched(self, b: Backend) -> None:
        await publish(b, queue="mail")
        sent, owner = await publish(b, queue="reports"), await enlist(b)
        assert ids(await take(b, owner, queues=["reports"])) == [sent.id]
        assert await take(b, owner, queues=["reports", "unheard-of"]) == []

    @story()
    async def test_one_demand_covers_all_queues_of_a_fetch(self, b: Backend) -> None:
        await publish_many(b, 3, queue="mail")
        await publish_many(b, 3, queue="reports")
        got = await take(b, await enlist(b), Demand(io=4), queues=["mail", "reports"])
        assert len(got) == 4

    @story()
    async def test_a_claimed_job_is_not_fetched_again(self, b: Backend) -> None:
        await publish(b)
        await take_one(b, await enlist(b))
        assert await take(b, await enlist(b)) == []

    @story()
    async def test_jobs_of_another_namespace_are_not_fetched(self, b: Backend) -> None:
        async with b.another(f"{b.namespace}2") as elsewhere:
            await publish(elsewhere)
            assert await take(b, await enlist(b)) == []

    @story()
    async def test_a_worker_that_never_enlisted_gets_nothing(self, b: Backend) -> None:
        await publish(b)
        with pytest.raises(LeaseLost):
            await take(b, "nobody")
        assert len(await take(b, await enlist(b))) == 1

    @story()
    async def test_a_worker_that_was_removed_gets_nothing(self, b: Backend) -> None:
        owner = await enlist(b)
        await kill(b, owner)
        await publish(b)
        with pytest.raises(LeaseLost):
            await take(b, owner)

    @story()
    async def test_a_worker_that_left_gets_nothing(self, b: Backend) -> None:
        owner = await enlist(b)
        await b.registry.leave(owner)
        await publish(b)
        with pytest.raises(LeaseLost):
            await take(b, owner)

    @story()
    async def test_a_waiting_fetch_gets_what_another_process_publishes(self, b: Backend) -> None:
        owner = await enlist(b)
        async with b.another() as other:
            for _ in range(5):
                waiting = asyncio.create_task(take(b, owner, wait=PATIENCE))
                sent = await publish(other)
                got = await waiting
                assert ids(got) == [sent.id]
                await settle(b, got[0], Succeeded(RESULT))

    @story()
    async def test_a_waiting_fetch_gets_what_its_own_process_publishes(self, b: Backend) -> None:
        owner = await enlist(b)
        for _ in range(5):
            waiting = asyncio.create_task(take(b, owner, wait=PATIENCE))
            sent = await publish(b)
            assert ids(await waiting) == [sent.id]

    @story()
    async def test_a_waiting_fetch_gets_a_job_that_goes_back(self, b: Backend) -> None:
        owner = await enlist(b)
        await publish(b)
        held = await take_one(b, owner)
        async with b.another() as other:
            waiting = asyncio.create_task(take(other, await enlist(other), wait=PATIENCE))
            await settle(b, held, Interrupted())
            assert ids(await waiting) == [held.id]

    @story()
    async def test_a_nudge_ends_a_waiting_fetch(self, b: Backend) -> None:
        waiting = asyncio.create_task(take(b, await enlist(b), wait=3600))
        while not waiting.done():
            b.broker.nudge()
            await asyncio.sleep(0)
        assert await waiting == []

    @story()
    async def test_many_fetchers_at_once_never_hold_the_same_job(self, b: Backend) -> None:
        sent = await publish_many(b, 200)
        async with b.another() as other:
            sides = [(side, await enlist(side)) for side in (b, other, b, other)]
            hands = await asyncio.gather(*(_drain(side, owner) for side, owner in sides))
        held = [one.id for hand in hands for one in hand]
        assert sorted(held) == sorted(ids(sent))

    @story()
    async def test_one_job_wakes_many_and_goes_to_one(self, b: Backend) -> None:
        async with b.another() as other:
            fetches = [
                asyncio.create_task(take(side, await enlist(side), wait=PATIENCE))
                for side in (b, other, b, other)
            ]
            await publish(b)
            done, pending = await asyncio.wait(fetches, return_when=asyncio.FIRST_COMPLETED)
            assert [len(fetch.result()) for fetch in done] == [1]
            await publish_many(b, len(pending) * PLENTY.io)
            hands = await asyncio.gather(*pending)
        got = [one.id for hand in hands for one in hand]
        assert len(got) == len(set(got))
        assert [hand for hand in hands if not hand] == [], "a fetch waited beside work for it"


class Waiting:
    """``waiting`` says whether a fetch would find something now."""

    @story()
    async def test_an_empty_queue_has_nothing_waiting(self, b: Backend) -> None:
        assert not await b.broker.waiting(["default"], ["io", "cpu"])

    @story()
    async def test_a_queued_job_is_waiting(self, b: Backend) -> None:
        await publish(b)
        assert await b.broker.waiting(["mail", "default"], ["io"])

    @story()
    async def test_a_job_of_another_queue_or_kind_is_not_waiting(self, b: Backend) -> None:
        await publish(b, kind="io")
        assert not await b.broker.waiting(["mail"], ["io"])
        assert not await b.broker.waiting(["default"], ["cpu"])

    @story()
    async def test_a_job_of_unknown_kind_waits_for_room_of_both_kinds(self, b: Backend) -> None:
        await publish(b, kind="")
        assert await b.broker.waiting(["default"], ["io", "cpu"])
        assert not await b.broker.waiting(["default"], ["io"])

    @story()
    async def test_a_running_job_is_not_waiting(self, b: Backend) -> None:
        await publish(b)
        await take_one(b, await enlist(b))
        assert not await b.broker.waiting(["default"], ["io", "cpu"])

    @story("delay")
    async def test_a_scheduled_job_is_waiting_once_it_is_due(self, b: Backend) -> None:
        await publish(b, not_before=b.clock.now() + 60)
        assert not await b.broker.waiting(["default"], ["io"])
        b.advance(61)
        assert await b.broker.waiting(["default"], ["io"])

    @story()
    async def test_jobs_of_tasks_to_do_without_are_not_waiting(self, b: Backend) -> None:
        await publish(b)
        assert not await b.broker.waiting(["default"], ["io"], ["tests.other", "tests.add"])
        assert await b.broker.waiting(["default"], ["io"], ["tests.other"])

    @story()
    async def test_nothing_is_waiting_where_everything_is_paused(self, b: Backend) -> None:
        await publish(b)
        pauses: list[tuple[Scope, str]] = [("all", ""), ("queue", "default"), ("task", "tests.add")]
        for scope, name in pauses:
            await b.control.pause(scope, name, "")
            assert not await b.broker.waiting(["default"], ["io"]), scope
            await b.control.resume(scope, name)
        assert await b.broker.waiting(["default"], ["io"])


async def _drain(side: Backend, owner: str) -> list[Delivery]:
    held: list[Delivery] = []
    while got := await take(side, owner, Demand(io=7)):
        held += got
    return held

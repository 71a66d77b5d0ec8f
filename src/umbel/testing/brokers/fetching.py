"""Fetching: only jobs that could start now, each once, and without polling."""

from __future__ import annotations

import asyncio

import pytest

from umbel.backends import Demand
from umbel.control import Scope
from umbel.errors import LeaseLost
from umbel.messages import Delivery, Interrupted, State, Succeeded
from umbel.testing.actions import (
    FULL_DEMAND,
    LONG_WAIT,
    RESULT,
    claim,
    claim_one,
    ids,
    kill,
    publish,
    publish_many,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test


class Fetching:
    """Which fetch gets which jobs."""

    @backend_test()
    async def test_an_empty_queue_gives_nothing(self, b: Adapters) -> None:
        assert await claim(b, await register(b)) == []

    @backend_test()
    async def test_a_fetch_that_may_wait_gives_up_when_its_time_is_over(self, b: Adapters) -> None:
        assert await claim(b, await register(b), wait=0.05) == []

    @backend_test()
    async def test_a_delivery_is_under_a_lease_of_its_owner(self, b: Adapters) -> None:
        sent, owner = await publish(b), await register(b)
        got = await claim_one(b, owner)
        assert (got.lease.job, got.lease.owner) == (sent.id, owner)
        assert got.lease.fence > 0

    @backend_test("records")
    async def test_a_claimed_job_runs_on_its_worker(self, b: Adapters) -> None:
        sent = await publish(b)
        await claim_one(b, await register(b, "anna"))
        found = await b.records.find(sent.id)
        assert (found.state, found.worker) == (State.RUNNING, "anna")
        assert found.started is not None

    @backend_test()
    async def test_a_fetch_never_claims_more_than_was_asked_for(self, b: Adapters) -> None:
        await publish_many(b, 10)
        assert len(await claim(b, await register(b), Demand.of(io=3))) == 3

    @backend_test()
    async def test_no_demand_claims_nothing(self, b: Adapters) -> None:
        await publish(b)
        assert await claim(b, await register(b), Demand()) == []

    @backend_test()
    async def test_only_the_queues_asked_for_are_fetched(self, b: Adapters) -> None:
        await publish(b, queue="mail")
        sent, owner = await publish(b, queue="reports"), await register(b)
        assert ids(await claim(b, owner, queues=["reports"])) == [sent.id]
        assert await claim(b, owner, queues=["reports", "unheard-of"]) == []

    @backend_test()
    async def test_one_demand_covers_all_queues_of_a_fetch(self, b: Adapters) -> None:
        await publish_many(b, 3, queue="mail")
        await publish_many(b, 3, queue="reports")
        got = await claim(b, await register(b), Demand.of(io=4), queues=["mail", "reports"])
        assert len(got) == 4

    @backend_test()
    async def test_a_claimed_job_is_not_fetched_again(self, b: Adapters) -> None:
        await publish(b)
        await claim_one(b, await register(b))
        assert await claim(b, await register(b)) == []

    @backend_test()
    async def test_jobs_of_another_namespace_are_not_fetched(self, b: Adapters) -> None:
        async with b.another(f"{b.namespace}2") as elsewhere:
            await publish(elsewhere)
            assert await claim(b, await register(b)) == []

    @backend_test()
    async def test_an_unregistered_worker_gets_nothing(self, b: Adapters) -> None:
        await publish(b)
        with pytest.raises(LeaseLost):
            await claim(b, "unknown")
        assert len(await claim(b, await register(b))) == 1

    @backend_test()
    async def test_a_worker_that_was_removed_gets_nothing(self, b: Adapters) -> None:
        owner = await register(b)
        await kill(b, owner)
        await publish(b)
        with pytest.raises(LeaseLost):
            await claim(b, owner)

    @backend_test()
    async def test_a_worker_that_left_gets_nothing(self, b: Adapters) -> None:
        owner = await register(b)
        await b.registry.unregister(owner)
        await publish(b)
        with pytest.raises(LeaseLost):
            await claim(b, owner)

    @backend_test()
    async def test_a_waiting_fetch_gets_a_job_that_another_process_publishes(
        self, b: Adapters
    ) -> None:
        owner = await register(b)
        async with b.another() as other:
            for _ in range(5):
                waiting = asyncio.create_task(claim(b, owner, wait=LONG_WAIT))
                sent = await publish(other)
                got = await waiting
                assert ids(got) == [sent.id]
                await settle(b, got[0], Succeeded(RESULT))

    @backend_test()
    async def test_a_waiting_fetch_gets_a_job_that_its_own_process_publishes(
        self, b: Adapters
    ) -> None:
        owner = await register(b)
        for _ in range(5):
            waiting = asyncio.create_task(claim(b, owner, wait=LONG_WAIT))
            sent = await publish(b)
            assert ids(await waiting) == [sent.id]

    @backend_test()
    async def test_a_waiting_fetch_gets_a_job_that_goes_back(self, b: Adapters) -> None:
        owner = await register(b)
        await publish(b)
        held = await claim_one(b, owner)
        async with b.another() as other:
            waiting = asyncio.create_task(claim(other, await register(other), wait=LONG_WAIT))
            await settle(b, held, Interrupted())
            assert ids(await waiting) == [held.id]

    @backend_test()
    async def test_a_nudge_ends_a_waiting_fetch(self, b: Adapters) -> None:
        waiting = asyncio.create_task(claim(b, await register(b), wait=3600))
        while not waiting.done():
            b.broker.stop_waiting()
            await asyncio.sleep(0)
        assert await waiting == []

    @backend_test()
    async def test_many_fetchers_at_once_never_hold_the_same_job(self, b: Adapters) -> None:
        sent = await publish_many(b, 200)
        async with b.another() as other:
            sides = [(side, await register(side)) for side in (b, other, b, other)]
            hands = await asyncio.gather(*(_drain(side, owner) for side, owner in sides))
        held = [one.id for hand in hands for one in hand]
        assert sorted(held) == sorted(ids(sent))

    @backend_test()
    async def test_one_job_wakes_many_and_goes_to_one(self, b: Adapters) -> None:
        async with b.another() as other:
            fetches = [
                asyncio.create_task(claim(side, await register(side), wait=LONG_WAIT))
                for side in (b, other, b, other)
            ]
            await publish(b)
            done, pending = await asyncio.wait(fetches, return_when=asyncio.FIRST_COMPLETED)
            assert [len(fetch.result()) for fetch in done] == [1]
            await publish_many(b, len(pending) * FULL_DEMAND.capacity("io"))
            hands = await asyncio.gather(*pending)
        got = [one.id for hand in hands for one in hand]
        assert len(got) == len(set(got))
        assert [hand for hand in hands if not hand] == [], "a fetch waited beside work for it"


class Waiting:
    """``has_waiting_jobs`` says whether a fetch would find a job now."""

    @backend_test()
    async def test_an_empty_queue_has_nothing_waiting(self, b: Adapters) -> None:
        assert not await b.broker.has_waiting_jobs(["default"], ["io", "cpu"])

    @backend_test()
    async def test_a_queued_job_is_waiting(self, b: Adapters) -> None:
        await publish(b)
        assert await b.broker.has_waiting_jobs(["mail", "default"], ["io"])

    @backend_test()
    async def test_a_job_of_another_queue_or_kind_is_not_waiting(self, b: Adapters) -> None:
        await publish(b, kind="io")
        assert not await b.broker.has_waiting_jobs(["mail"], ["io"])
        assert not await b.broker.has_waiting_jobs(["default"], ["cpu"])

    @backend_test()
    async def test_a_job_of_unknown_kind_waits_for_room_of_both_kinds(self, b: Adapters) -> None:
        await publish(b, kind="")
        assert await b.broker.has_waiting_jobs(["default"], ["io", "cpu"])
        assert not await b.broker.has_waiting_jobs(["default"], ["io"])

    @backend_test()
    async def test_a_running_job_is_not_waiting(self, b: Adapters) -> None:
        await publish(b)
        await claim_one(b, await register(b))
        assert not await b.broker.has_waiting_jobs(["default"], ["io", "cpu"])

    @backend_test("delay")
    async def test_a_scheduled_job_is_waiting_once_it_is_due(self, b: Adapters) -> None:
        await publish(b, not_before=b.clock.now() + 60)
        assert not await b.broker.has_waiting_jobs(["default"], ["io"])
        b.advance(61)
        assert await b.broker.has_waiting_jobs(["default"], ["io"])

    @backend_test()
    async def test_jobs_of_tasks_to_do_without_are_not_waiting(self, b: Adapters) -> None:
        await publish(b)
        assert not await b.broker.has_waiting_jobs(
            ["default"], ["io"], ["tests.other", "tests.add"]
        )
        assert await b.broker.has_waiting_jobs(["default"], ["io"], ["tests.other"])

    @backend_test()
    async def test_nothing_is_waiting_where_everything_is_paused(self, b: Adapters) -> None:
        await publish(b)
        pauses: list[tuple[Scope, str]] = [("all", ""), ("queue", "default"), ("task", "tests.add")]
        for scope, name in pauses:
            await b.pauses.pause(scope, name, "")
            assert not await b.broker.has_waiting_jobs(["default"], ["io"]), scope
            await b.pauses.resume(scope, name)
        assert await b.broker.has_waiting_jobs(["default"], ["io"])


async def _drain(side: Adapters, owner: str) -> list[Delivery]:
    held: list[Delivery] = []
    while got := await claim(side, owner, Demand.of(io=7)):
        held += got
    return held

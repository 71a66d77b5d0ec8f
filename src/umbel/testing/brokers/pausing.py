"""Pausing: a pause holds for each fetch that starts after it."""

from __future__ import annotations

import asyncio

from umbel.backends import Demand
from umbel.messages import Retry, Succeeded
from umbel.testing.actions import (
    FAILURE,
    LONG_WAIT,
    RESULT,
    claim,
    claim_one,
    ids,
    publish,
    publish_and_claim,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test


class Pausing:
    """What a pause stops, and what it does not."""

    @backend_test()
    async def test_nothing_is_fetched_while_everything_is_paused(self, b: Adapters) -> None:
        sent, owner = await publish(b), await register(b)
        await b.pauses.pause("all", "", "deploy")
        assert await claim(b, owner) == []
        await b.pauses.resume("all", "")
        assert ids(await claim(b, owner)) == [sent.id]

    @backend_test()
    async def test_a_paused_queue_is_not_fetched_and_others_are(self, b: Adapters) -> None:
        mail, other = await publish(b, queue="mail"), await publish(b, queue="reports")
        owner, queues = await register(b), ["mail", "reports"]
        await b.pauses.pause("queue", "mail", "")
        assert ids(await claim(b, owner, queues=queues)) == [other.id]
        await b.pauses.resume("queue", "mail")
        assert ids(await claim(b, owner, queues=queues)) == [mail.id]

    @backend_test()
    async def test_a_paused_task_is_not_fetched_and_others_are(self, b: Adapters) -> None:
        paused = await publish(b, subject="tests.paused")
        other, owner = await publish(b), await register(b)
        await b.pauses.pause("task", "tests.paused", "")
        assert ids(await claim(b, owner)) == [other.id]
        await b.pauses.resume("task", "tests.paused")
        assert ids(await claim(b, owner)) == [paused.id]

    @backend_test()
    async def test_a_paused_task_does_not_use_up_the_demand(self, b: Adapters) -> None:
        for _ in range(5):
            await publish(b, subject="tests.paused", priority=9)
        other = await publish(b)
        await b.pauses.pause("task", "tests.paused", "")
        assert ids(await claim(b, await register(b), Demand.of(io=1))) == [other.id]

    @backend_test()
    async def test_a_pause_holds_for_another_process(self, b: Adapters) -> None:
        await publish(b)
        async with b.another() as other:
            await other.pauses.pause("queue", "default", "")
        assert await claim(b, await register(b)) == []

    @backend_test()
    async def test_a_fetch_that_waits_ends_with_nothing_while_paused(self, b: Adapters) -> None:
        await b.pauses.pause("all", "", "")
        await publish(b)
        assert await claim(b, await register(b), wait=0.05) == []

    @backend_test()
    async def test_a_waiting_fetch_goes_on_when_resumed(self, b: Adapters) -> None:
        sent = await publish(b)
        await b.pauses.pause("all", "", "")
        async with b.another() as other:
            waiting = asyncio.create_task(claim(other, await register(other), wait=LONG_WAIT))
            await b.pauses.resume("all", "")
            assert ids(await waiting) == [sent.id]

    @backend_test()
    async def test_a_running_job_may_be_settled_during_a_pause(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.pauses.pause("all", "", "")
        assert await settle(b, held, Succeeded(RESULT)) == []

    @backend_test()
    async def test_a_job_requeued_during_a_pause_waits_for_its_end(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.pauses.pause("queue", "default", "")
        await settle(b, held, Retry(FAILURE, 0.0))
        assert await claim(b, held.lease.owner) == []
        await b.pauses.resume("queue", "default")
        assert (await claim_one(b, held.lease.owner)).id == held.id

    @backend_test()
    async def test_overlapping_pauses_each_hold(self, b: Adapters) -> None:
        await publish(b)
        owner = await register(b)
        await b.pauses.pause("all", "", "")
        await b.pauses.pause("queue", "default", "")
        await b.pauses.resume("all", "")
        assert await claim(b, owner) == []
        await b.pauses.resume("queue", "default")
        assert len(await claim(b, owner)) == 1

    @backend_test()
    async def test_a_queue_and_a_task_of_one_name_are_paused_apart(self, b: Adapters) -> None:
        await publish(b)
        await b.pauses.pause("task", "default", "")
        await b.pauses.pause("queue", "tests.add", "")
        assert len(await claim(b, await register(b))) == 1

    @backend_test()
    async def test_a_pause_stays_in_its_namespace(self, b: Adapters) -> None:
        async with b.another(f"{b.namespace}2") as elsewhere:
            await elsewhere.pauses.pause("all", "", "")
            await publish(b)
            assert len(await claim(b, await register(b))) == 1

    @backend_test()
    async def test_publishing_goes_on_during_a_pause(self, b: Adapters) -> None:
        await b.pauses.pause("all", "", "")
        sent = await publish(b)
        assert (await b.records.find(sent.id)).id == sent.id

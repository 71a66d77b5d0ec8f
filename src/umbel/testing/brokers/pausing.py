"""Pausing: a pause holds for each fetch that starts after it."""

from __future__ import annotations

import asyncio

from umbel.backends import Demand
from umbel.messages import Retry, Succeeded
from umbel.testing.acts import (
    FAILURE,
    PATIENCE,
    RESULT,
    enlist,
    ids,
    publish,
    running,
    settle,
    take,
    take_one,
)
from umbel.testing.backend import Backend, story


class Pausing:
    """What a pause stops, and what it does not."""

    @story()
    async def test_nothing_is_fetched_while_everything_is_paused(self, b: Backend) -> None:
        sent, owner = await publish(b), await enlist(b)
        await b.control.pause("all", "", "deploy")
        assert await take(b, owner) == []
        await b.control.resume("all", "")
        assert ids(await take(b, owner)) == [sent.id]

    @story()
    async def test_a_paused_queue_is_not_fetched_and_others_are(self, b: Backend) -> None:
        mail, other = await publish(b, queue="mail"), await publish(b, queue="reports")
        owner, queues = await enlist(b), ["mail", "reports"]
        await b.control.pause("queue", "mail", "")
        assert ids(await take(b, owner, queues=queues)) == [other.id]
        await b.control.resume("queue", "mail")
        assert ids(await take(b, owner, queues=queues)) == [mail.id]

    @story()
    async def test_a_paused_task_is_not_fetched_and_others_are(self, b: Backend) -> None:
        paused = await publish(b, subject="tests.paused")
        other, owner = await publish(b), await enlist(b)
        await b.control.pause("task", "tests.paused", "")
        assert ids(await take(b, owner)) == [other.id]
        await b.control.resume("task", "tests.paused")
        assert ids(await take(b, owner)) == [paused.id]

    @story()
    async def test_a_paused_task_does_not_use_up_the_demand(self, b: Backend) -> None:
        for _ in range(5):
            await publish(b, subject="tests.paused", priority=9)
        other = await publish(b)
        await b.control.pause("task", "tests.paused", "")
        assert ids(await take(b, await enlist(b), Demand(io=1))) == [other.id]

    @story()
    async def test_a_pause_holds_for_another_process(self, b: Backend) -> None:
        await publish(b)
        async with b.another() as other:
            await other.control.pause("queue", "default", "")
        assert await take(b, await enlist(b)) == []

    @story()
    async def test_a_fetch_that_waits_ends_with_nothing_while_paused(self, b: Backend) -> None:
        await b.control.pause("all", "", "")
        await publish(b)
        assert await take(b, await enlist(b), wait=0.05) == []

    @story()
    async def test_a_waiting_fetch_goes_on_when_resumed(self, b: Backend) -> None:
        sent = await publish(b)
        await b.control.pause("all", "", "")
        async with b.another() as other:
            waiting = asyncio.create_task(take(other, await enlist(other), wait=PATIENCE))
            await b.control.resume("all", "")
            assert ids(await waiting) == [sent.id]

    @story()
    async def test_what_runs_may_be_settled_during_a_pause(self, b: Backend) -> None:
        held = await running(b)
        await b.control.pause("all", "", "")
        assert await settle(b, held, Succeeded(RESULT)) == []

    @story()
    async def test_what_goes_back_during_a_pause_waits_for_its_end(self, b: Backend) -> None:
        held = await running(b)
        await b.control.pause("queue", "default", "")
        await settle(b, held, Retry(FAILURE, 0.0))
        assert await take(b, held.lease.owner) == []
        await b.control.resume("queue", "default")
        assert (await take_one(b, held.lease.owner)).id == held.id

    @story()
    async def test_overlapping_pauses_each_hold(self, b: Backend) -> None:
        await publish(b)
        owner = await enlist(b)
        await b.control.pause("all", "", "")
        await b.control.pause("queue", "default", "")
        await b.control.resume("all", "")
        assert await take(b, owner) == []
        await b.control.resume("queue", "default")
        assert len(await take(b, owner)) == 1

    @story()
    async def test_a_queue_and_a_task_of_one_name_are_paused_apart(self, b: Backend) -> None:
        await publish(b)
        await b.control.pause("task", "default", "")
        await b.control.pause("queue", "tests.add", "")
        assert len(await take(b, await enlist(b))) == 1

    @story()
    async def test_a_pause_stays_in_its_namespace(self, b: Backend) -> None:
        async with b.another(f"{b.namespace}2") as elsewhere:
            await elsewhere.control.pause("all", "", "")
            await publish(b)
            assert len(await take(b, await enlist(b))) == 1

    @story()
    async def test_publishing_goes_on_during_a_pause(self, b: Backend) -> None:
        await b.control.pause("all", "", "")
        sent = await publish(b)
        assert (await b.records.find(sent.id)).id == sent.id

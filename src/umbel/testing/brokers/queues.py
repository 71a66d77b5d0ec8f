"""Queues as operators see them: depths, purge, move."""

from __future__ import annotations

import pytest

from umbel.errors import DuplicateJob
from umbel.messages import State, Succeeded
from umbel.testing.actions import (
    FAR,
    RESULT,
    claim,
    depths,
    ids,
    publish,
    publish_and_claim,
    publish_many,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test


class Depths:
    """The numbers of live jobs by queue and state."""

    @backend_test()
    async def test_an_empty_broker_has_no_depths(self, b: Adapters) -> None:
        assert await depths(b) == {}

    @backend_test("delay")
    async def test_jobs_are_counted_by_queue_and_state(self, b: Adapters) -> None:
        await publish_and_claim(b)
        await publish_many(b, 2)
        await publish_many(b, 3, queue="mail")
        await publish(b, queue="mail", not_before=b.clock.now() + FAR)
        assert await depths(b) == {
            ("default", "running"): 1,
            ("default", "queued"): 2,
            ("mail", "queued"): 3,
            ("mail", "scheduled"): 1,
        }

    @backend_test()
    async def test_the_age_of_the_oldest_job_is_returned(self, b: Adapters) -> None:
        for created in (1_700_000_300.0, 1_700_000_100.0, 1_700_000_200.0):
            await publish(b, created=created)
        (depth,) = await b.broker.depths()
        assert abs(b.clock.now() - depth.age - 1_700_000_100.0) < 5

    @backend_test()
    async def test_other_namespaces_are_not_counted(self, b: Adapters) -> None:
        async with b.another(f"{b.namespace}2") as elsewhere:
            await publish(elsewhere)
            assert await depths(b) == {}


class Purging:
    """``purge`` cancels the jobs of a queue that are not running."""

    @backend_test("delay", "records")
    async def test_waiting_jobs_are_cancelled_and_counted(self, b: Adapters) -> None:
        sent = await publish_many(b, 3)
        sent.append(await publish(b, not_before=b.clock.now() + FAR))
        assert await b.broker.purge("default") == 4
        assert await claim(b, await register(b)) == []
        states = {(await b.records.find(one.id)).state for one in sent}
        assert states == {State.CANCELLED}

    @backend_test()
    async def test_running_jobs_are_not_purged(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        assert await b.broker.purge("default") == 0
        assert await settle(b, held, Succeeded(RESULT)) == []

    @backend_test()
    async def test_other_queues_and_namespaces_are_left_alone(self, b: Adapters) -> None:
        kept = await publish(b, queue="mail")
        async with b.another(f"{b.namespace}2") as elsewhere:
            await publish(elsewhere)
            assert await b.broker.purge("default") == 0
            assert len(await claim(elsewhere, await register(elsewhere))) == 1
        assert ids(await claim(b, await register(b), queues=["mail"])) == [kept.id]

    @backend_test()
    async def test_an_unknown_queue_is_empty(self, b: Adapters) -> None:
        assert await b.broker.purge("unheard-of") == 0


class Moving:
    """``move`` moves the jobs that are not running to another queue."""

    @backend_test("move")
    async def test_moved_jobs_are_fetched_from_the_other_queue(self, b: Adapters) -> None:
        sent, owner = await publish_many(b, 3), await register(b)
        assert await b.broker.move("default", "slow") == 3
        assert await claim(b, owner) == []
        assert ids(await claim(b, owner, queues=["slow"])) == ids(sent)

    @backend_test("move", "priority", "delay")
    async def test_a_moved_job_keeps_its_priority_and_delay(self, b: Adapters) -> None:
        await publish(b, priority=1)
        await publish(b, priority=5)
        later = await publish(b, priority=9, not_before=b.clock.now() + FAR)
        await b.broker.move("default", "slow")
        got = await claim(b, await register(b), queues=["slow"])
        assert [one.envelope.priority for one in got] == [5, 1]
        assert (await b.records.find(later.id)).state is State.SCHEDULED

    @backend_test("move")
    async def test_running_jobs_are_not_moved_and_can_be_settled(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        assert await b.broker.move("default", "slow") == 0
        assert await settle(b, held, Succeeded(RESULT)) == []

    @backend_test("move")
    async def test_moving_stays_in_its_namespace(self, b: Adapters) -> None:
        async with b.another(f"{b.namespace}2") as elsewhere:
            await publish(elsewhere)
            assert await b.broker.move("default", "slow") == 0

    @backend_test("move", "unique")
    async def test_a_moved_job_keeps_its_unique_key(self, b: Adapters) -> None:
        await publish(b, unique="only")
        await b.broker.move("default", "slow")
        with pytest.raises(DuplicateJob):
            await publish(b, unique="only")

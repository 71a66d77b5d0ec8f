"""Queues as operators see them: depths, purge, move."""

from __future__ import annotations

import pytest

from umbel.errors import DuplicateJob
from umbel.messages import State, Succeeded
from umbel.testing.acts import (
    FAR,
    RESULT,
    depths,
    enlist,
    ids,
    publish,
    publish_many,
    running,
    settle,
    take,
)
from umbel.testing.backend import Backend, story


class Depths:
    """How many live jobs, where and in which state."""

    @story()
    async def test_an_empty_broker_has_no_depths(self, b: Backend) -> None:
        assert await depths(b) == {}

    @story("delay")
    async def test_jobs_are_counted_by_queue_and_state(self, b: Backend) -> None:
        await running(b)
        await publish_many(b, 2)
        await publish_many(b, 3, queue="mail")
        await publish(b, queue="mail", not_before=b.clock.now() + FAR)
        assert await depths(b) == {
            ("default", "running"): 1,
            ("default", "queued"): 2,
            ("mail", "queued"): 3,
            ("mail", "scheduled"): 1,
        }

    @story()
    async def test_the_oldest_is_told(self, b: Backend) -> None:
        for created in (1_700_000_300.0, 1_700_000_100.0, 1_700_000_200.0):
            await publish(b, created=created)
        (depth,) = await b.broker.depths()
        assert abs(b.clock.now() - depth.age - 1_700_000_100.0) < 5

    @story()
    async def test_other_namespaces_are_not_counted(self, b: Backend) -> None:
        async with b.another(f"{b.namespace}2") as elsewhere:
            await publish(elsewhere)
            assert await depths(b) == {}


class Purging:
    """Cancel everything in a queue that does not run."""

    @story("delay", "records")
    async def test_what_waits_is_cancelled_and_counted(self, b: Backend) -> None:
        sent = await publish_many(b, 3)
        sent.append(await publish(b, not_before=b.clock.now() + FAR))
        assert await b.broker.purge("default") == 4
        assert await take(b, await enlist(b)) == []
        states = {(await b.records.find(one.id)).state for one in sent}
        assert states == {State.CANCELLED}

    @story()
    async def test_what_runs_is_left_alone(self, b: Backend) -> None:
        held = await running(b)
        assert await b.broker.purge("default") == 0
        assert await settle(b, held, Succeeded(RESULT)) == []

    @story()
    async def test_other_queues_and_namespaces_are_left_alone(self, b: Backend) -> None:
        kept = await publish(b, queue="mail")
        async with b.another(f"{b.namespace}2") as elsewhere:
            await publish(elsewhere)
            assert await b.broker.purge("default") == 0
            assert len(await take(elsewhere, await enlist(elsewhere))) == 1
        assert ids(await take(b, await enlist(b), queues=["mail"])) == [kept.id]

    @story()
    async def test_a_queue_nobody_knows_is_empty(self, b: Backend) -> None:
        assert await b.broker.purge("unheard-of") == 0


class Moving:
    """Put everything that does not run into another queue."""

    @story("move")
    async def test_what_waits_is_fetched_from_the_other_queue(self, b: Backend) -> None:
        sent, owner = await publish_many(b, 3), await enlist(b)
        assert await b.broker.move("default", "slow") == 3
        assert await take(b, owner) == []
        assert ids(await take(b, owner, queues=["slow"])) == ids(sent)

    @story("move", "priority", "delay")
    async def test_a_moved_job_keeps_its_priority_and_delay(self, b: Backend) -> None:
        await publish(b, priority=1)
        await publish(b, priority=5)
        later = await publish(b, priority=9, not_before=b.clock.now() + FAR)
        await b.broker.move("default", "slow")
        got = await take(b, await enlist(b), queues=["slow"])
        assert [one.envelope.priority for one in got] == [5, 1]
        assert (await b.records.find(later.id)).state is State.SCHEDULED

    @story("move")
    async def test_what_runs_stays_and_can_be_settled(self, b: Backend) -> None:
        held = await running(b)
        assert await b.broker.move("default", "slow") == 0
        assert await settle(b, held, Succeeded(RESULT)) == []

    @story("move")
    async def test_moving_stays_in_its_namespace(self, b: Backend) -> None:
        async with b.another(f"{b.namespace}2") as elsewhere:
            await publish(elsewhere)
            assert await b.broker.move("default", "slow") == 0

    @story("move", "unique")
    async def test_a_moved_job_keeps_its_unique_key(self, b: Backend) -> None:
        await publish(b, unique="only")
        await b.broker.move("default", "slow")
        with pytest.raises(DuplicateJob):
            await publish(b, unique="only")

"""Follow-ups: published exactly when the outcome is recorded."""

from __future__ import annotations

from umbel.messages import Interrupted, State, Succeeded
from umbel.testing.acts import (
    FAR,
    OUTCOMES,
    RESULT,
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


class FollowUps:
    """Jobs that come into being with the end of another."""

    @story()
    async def test_follow_ups_can_be_fetched_once_the_outcome_is_recorded(self, b: Backend) -> None:
        held = await running(b)
        after = tuple(envelope(b) for _ in range(3))
        assert await settle(b, held, Succeeded(RESULT), follow_ups=after) == []
        assert ids(await take(b, held.lease.owner)) == ids(after)

    @story()
    async def test_every_accepted_outcome_publishes_its_follow_ups(self, b: Backend) -> None:
        for outcome in OUTCOMES:
            held = await running(b)
            after = envelope(b, queue="after")
            await settle(b, held, outcome, follow_ups=(after,))
            got = await take_one(b, held.lease.owner, queues=["after"])
            assert got.id == after.id, outcome
            await b.control.cancel([held.id], "make room")

    @story()
    async def test_a_refused_outcome_publishes_nothing(self, b: Backend) -> None:
        owner = await enlist(b)
        held = await running(b, owner)
        await settle(b, held, Succeeded(RESULT))
        assert await settle(b, held, Succeeded(RESULT), follow_ups=(envelope(b),)) == [held.lease]
        assert await take(b, owner) == []

    @story()
    async def test_a_follow_up_of_a_known_id_is_published_once(self, b: Backend) -> None:
        owner = await enlist(b)
        known = envelope(b)
        for outcome in (Interrupted(), Succeeded(RESULT)):
            await publish(b, queue="first")
            held = await take_one(b, owner, queues=["first"])
            assert await settle(b, held, outcome, follow_ups=(known,)) == []
            await b.control.cancel([held.id], "make room")
        assert ids(await take(b, owner)) == [known.id]

    @story()
    async def test_follow_ups_of_a_batch_are_those_of_its_accepted_settlements(
        self, b: Backend
    ) -> None:
        owner = await enlist(b)
        gone = await running(b, owner)
        await settle(b, gone, Succeeded(RESULT))
        held = await running(b, owner)
        wanted, unwanted = envelope(b), envelope(b)
        batch = [
            settlement(gone, Succeeded(RESULT), follow_ups=(unwanted,)),
            settlement(held, Succeeded(RESULT), follow_ups=(wanted,)),
        ]
        assert await b.broker.settle(batch) == [gone.lease]
        assert ids(await take(b, owner)) == [wanted.id]

    @story("delay")
    async def test_a_follow_up_may_be_for_later(self, b: Backend) -> None:
        held = await running(b)
        after = envelope(b, not_before=b.clock.now() + FAR)
        await settle(b, held, Succeeded(RESULT), follow_ups=(after,))
        assert await depths(b) == {("default", "scheduled"): 1}

    @story()
    async def test_a_success_that_is_not_kept_publishes_its_follow_ups(self, b: Backend) -> None:
        held = await running(b)
        after = envelope(b)
        await settle(b, held, Succeeded(RESULT), keep=False, follow_ups=(after,))
        assert ids(await take(b, held.lease.owner)) == [after.id]

    @story("unique", "records")
    async def test_a_follow_up_whose_key_is_taken_does_not_undo_the_outcome(
        self, b: Backend
    ) -> None:
        held = await running(b)
        await publish(b, unique="only", queue="other")
        after = envelope(b, unique="only")
        assert await settle(b, held, Succeeded(RESULT), follow_ups=(after,)) == []
        assert (await b.records.find(held.id)).state is State.SUCCEEDED

    @story("unique")
    async def test_a_job_may_be_followed_by_one_with_its_own_key(self, b: Backend) -> None:
        held = await running(b, unique="only")
        after = envelope(b, unique="only")
        assert await settle(b, held, Succeeded(RESULT), follow_ups=(after,)) == []
        assert ids(await take(b, held.lease.owner)) == [after.id]

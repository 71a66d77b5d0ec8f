"""Follow-ups: published exactly when the outcome is recorded."""

from __future__ import annotations

from umbel.messages import Interrupted, State, Succeeded
from umbel.testing.actions import (
    FAR,
    OUTCOMES,
    RESULT,
    claim,
    claim_one,
    depths,
    envelope,
    ids,
    key_taken,
    publish,
    publish_and_claim,
    register,
    settle,
    settlement,
)
from umbel.testing.backend import Adapters, backend_test


class FollowUps:
    """Jobs that are published with the outcome of another job."""

    @backend_test()
    async def test_follow_ups_can_be_fetched_once_the_outcome_is_recorded(
        self, b: Adapters
    ) -> None:
        held = await publish_and_claim(b)
        after = tuple(envelope(b) for _ in range(3))
        assert await settle(b, held, Succeeded(RESULT), follow_ups=after) == []
        assert ids(await claim(b, held.lease.owner)) == ids(after)

    @backend_test()
    async def test_every_accepted_outcome_publishes_its_follow_ups(self, b: Adapters) -> None:
        for outcome in OUTCOMES:
            held = await publish_and_claim(b)
            after = envelope(b, queue="after")
            await settle(b, held, outcome, follow_ups=(after,))
            got = await claim_one(b, held.lease.owner, queues=["after"])
            assert got.id == after.id, outcome
            await b.control.cancel([held.id], "make room")

    @backend_test()
    async def test_a_refused_outcome_publishes_nothing(self, b: Adapters) -> None:
        owner = await register(b)
        held = await publish_and_claim(b, owner)
        await settle(b, held, Succeeded(RESULT))
        assert await settle(b, held, Succeeded(RESULT), follow_ups=(envelope(b),)) == [held.lease]
        assert await claim(b, owner) == []

    @backend_test()
    async def test_a_follow_up_of_a_known_id_is_published_once(self, b: Adapters) -> None:
        owner = await register(b)
        known = envelope(b)
        for outcome in (Interrupted(), Succeeded(RESULT)):
            await publish(b, queue="first")
            held = await claim_one(b, owner, queues=["first"])
            assert await settle(b, held, outcome, follow_ups=(known,)) == []
            await b.control.cancel([held.id], "make room")
        assert ids(await claim(b, owner)) == [known.id]

    @backend_test()
    async def test_follow_ups_of_a_batch_are_those_of_its_accepted_settlements(
        self, b: Adapters
    ) -> None:
        owner = await register(b)
        gone = await publish_and_claim(b, owner)
        await settle(b, gone, Succeeded(RESULT))
        held = await publish_and_claim(b, owner)
        wanted, unwanted = envelope(b), envelope(b)
        batch = [
            settlement(gone, Succeeded(RESULT), follow_ups=(unwanted,)),
            settlement(held, Succeeded(RESULT), follow_ups=(wanted,)),
        ]
        assert await b.broker.settle(batch) == [gone.lease]
        assert ids(await claim(b, owner)) == [wanted.id]

    @backend_test("delay")
    async def test_a_follow_up_may_be_for_later(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        after = envelope(b, not_before=b.clock.now() + FAR)
        await settle(b, held, Succeeded(RESULT), follow_ups=(after,))
        assert await depths(b) == {("default", "scheduled"): 1}

    @backend_test()
    async def test_a_success_that_is_not_kept_publishes_its_follow_ups(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        after = envelope(b)
        await settle(b, held, Succeeded(RESULT), keep=False, follow_ups=(after,))
        assert ids(await claim(b, held.lease.owner)) == [after.id]

    @backend_test("unique", "records")
    async def test_a_follow_up_whose_unique_key_is_held_does_not_undo_the_outcome(
        self, b: Adapters
    ) -> None:
        held = await publish_and_claim(b)
        await publish(b, unique="only", queue="other")
        after = envelope(b, unique="only")
        assert await settle(b, held, Succeeded(RESULT), follow_ups=(after,)) == []
        assert (await b.records.find(held.id)).state is State.SUCCEEDED

    @backend_test("unique", "records")
    async def test_a_follow_up_whose_unique_key_is_held_becomes_a_cancelled_record(
        self, b: Adapters
    ) -> None:
        held = await publish_and_claim(b)
        holder = await publish(b, unique="only", queue="other")
        after, fine = envelope(b, unique="only"), envelope(b, unique="free")
        assert await settle(b, held, Succeeded(RESULT), follow_ups=(after, fine)) == []
        found = await b.records.find(after.id)
        assert (found.state, found.reason) == (State.CANCELLED, key_taken("only", holder.id))
        assert ids(await claim(b, held.lease.owner)) == [fine.id]
        assert (await b.records.find(holder.id)).state is State.QUEUED

    @backend_test("unique")
    async def test_a_job_may_be_followed_by_one_with_its_own_key(self, b: Adapters) -> None:
        held = await publish_and_claim(b, unique="only")
        after = envelope(b, unique="only")
        assert await settle(b, held, Succeeded(RESULT), follow_ups=(after,)) == []
        assert ids(await claim(b, held.lease.owner)) == [after.id]

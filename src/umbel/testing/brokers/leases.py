"""Leases and their fencing numbers: which worker may settle a job, and which leases are lost."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from umbel.messages import Cancelled, Interrupted, Lease, State, Succeeded
from umbel.testing.actions import (
    FAR,
    OUTCOMES,
    RESULT,
    claim,
    claim_one,
    depths,
    envelope,
    kill,
    publish,
    publish_and_claim,
    publish_many,
    register,
    settle,
    settlement,
)
from umbel.testing.backend import Adapters, backend_test


class Fences:
    """The fencing number, which only grows, decides which outcome is recorded."""

    @backend_test()
    async def test_every_claim_has_a_higher_fence_than_the_last(self, b: Adapters) -> None:
        owner = await register(b)
        held = await publish_and_claim(b, owner)
        fences = [held.lease.fence]
        for _ in range(3):
            await settle(b, held, Interrupted())
            held = await claim_one(b, owner)
            fences.append(held.lease.fence)
        assert all(later > earlier for earlier, later in pairwise(fences))

    @backend_test("records")
    async def test_a_replayed_job_has_a_higher_fence_than_before(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await settle(b, held, Cancelled())
        await b.records.replay([held.id])
        again = await claim_one(b, held.lease.owner)
        assert again.lease.fence > held.lease.fence

    @backend_test()
    async def test_an_outcome_under_an_old_fence_is_refused(self, b: Adapters) -> None:
        owner = await register(b)
        old = await publish_and_claim(b, owner)
        await settle(b, old, Interrupted())
        current = await claim_one(b, owner)
        for outcome in OUTCOMES:
            assert await settle(b, old, outcome) == [old.lease], outcome
        assert await settle(b, current, Succeeded(RESULT)) == []

    @backend_test()
    async def test_an_outcome_under_a_fence_from_the_future_is_refused(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        forged = _released(held.lease, fence=held.lease.fence + 1)
        refused = settlement(held, Succeeded(RESULT), lease=forged)
        assert await b.broker.settle([refused]) == [forged]
        assert await settle(b, held, Succeeded(RESULT)) == []

    @backend_test()
    async def test_an_outcome_of_another_owner_is_refused(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        stolen = _released(held.lease, owner=await register(b, "thief"))
        for outcome in OUTCOMES:
            refused = settlement(held, outcome, lease=stolen)
            assert await b.broker.settle([refused]) == [stolen], outcome
        assert await settle(b, held, Succeeded(RESULT)) == []

    @backend_test("records")
    async def test_a_refused_outcome_leaves_no_trace(self, b: Adapters) -> None:
        owner = await register(b)
        old = await publish_and_claim(b, owner)
        await settle(b, old, Interrupted())
        await claim_one(b, owner)
        before = await b.records.find(old.id)
        follow_up = envelope(b)
        for outcome in OUTCOMES:
            await settle(b, old, outcome, follow_ups=(follow_up,))
        assert await b.records.find(old.id) == before
        assert await claim(b, owner) == []


class Extending:
    """``extend``: compares what a worker holds with what the broker knows."""

    @backend_test()
    async def test_a_lease_that_is_held_is_not_lost(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        assert await b.broker.extend(held.lease.owner, [held.lease], 0.0) == []
        assert await settle(b, held, Succeeded(RESULT)) == []

    @backend_test()
    async def test_a_settled_lease_is_lost(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await settle(b, held, Succeeded(RESULT))
        assert await b.broker.extend(held.lease.owner, [held.lease], FAR) == [held.lease]

    @backend_test()
    async def test_a_lease_that_another_worker_has_now_is_lost(self, b: Adapters) -> None:
        dead = await register(b, "dead")
        held = await publish_and_claim(b, dead)
        await kill(b, dead)
        await b.broker.recover()
        await claim_one(b, await register(b, "heir"))
        assert await b.broker.extend(dead, [held.lease], FAR) == [held.lease]

    @backend_test()
    async def test_only_lost_leases_are_returned(self, b: Adapters) -> None:
        owner = await register(b)
        await publish_many(b, 3)
        first, second, third = await claim(b, owner)
        await settle(b, second, Succeeded(RESULT))
        leases = [first.lease, second.lease, third.lease]
        assert await b.broker.extend(owner, leases, FAR) == [second.lease]

    @backend_test()
    async def test_a_claim_that_was_never_received_goes_back(self, b: Adapters) -> None:
        owner = await register(b)
        await publish_many(b, 2)
        received, missed = await claim(b, owner)
        await _let_time_pass(b, missed.id)
        assert await b.broker.extend(owner, [received.lease], 0.0) == []
        again = await claim_one(b, await register(b))
        assert again.id == missed.id
        assert (again.attempt, again.deaths) == (1, 0)
        assert again.lease.fence > missed.lease.fence

    @backend_test()
    async def test_a_claim_that_went_back_is_lost_to_its_owner(self, b: Adapters) -> None:
        missed = await publish_and_claim(b)
        await _let_time_pass(b, missed.id)
        await b.broker.extend(missed.lease.owner, [], 0.0)
        assert await settle(b, missed, Succeeded(RESULT)) == [missed.lease]

    @backend_test()
    async def test_a_claim_whose_answer_may_be_on_its_way_does_not_go_back(
        self, b: Adapters
    ) -> None:
        held = await publish_and_claim(b)
        await b.broker.extend(held.lease.owner, [], FAR)
        assert await depths(b) == {("default", "running"): 1}
        assert await settle(b, held, Succeeded(RESULT)) == []

    @backend_test()
    async def test_jobs_of_other_owners_are_not_requeued(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await _let_time_pass(b, held.id)
        await b.broker.extend(await register(b, "other"), [], 0.0)
        assert await settle(b, held, Succeeded(RESULT)) == []

    @backend_test()
    async def test_extending_twice_is_the_same_as_once(self, b: Adapters) -> None:
        owner = await register(b)
        await publish_many(b, 2)
        received, missed = await claim(b, owner)
        await _let_time_pass(b, missed.id)
        for _ in range(2):
            assert await b.broker.extend(owner, [received.lease], 0.0) == []
        assert await depths(b) == {("default", "running"): 1, ("default", "queued"): 1}

    @backend_test()
    async def test_an_unknown_job_is_a_lost_lease(self, b: Adapters) -> None:
        owner = await register(b)
        ghost = Lease((await publish(b)).id, owner, 1)
        assert await b.broker.extend(owner, [ghost], FAR) == [ghost]

    @backend_test("records")
    async def test_a_worker_that_says_it_holds_nothing_keeps_nothing(self, b: Adapters) -> None:
        sent = await publish_many(b, 5)
        owner = await register(b)
        await claim(b, owner)
        await _let_time_pass(b, sent[-1].id)
        await b.broker.extend(owner, [], 0.0)
        states = {(await b.records.find(one.id)).state for one in sent}
        assert states == {State.QUEUED}


def _released(lease: Lease, **changes: object) -> Lease:
    return msgspec.structs.replace(lease, **changes)


async def _let_time_pass(b: Adapters, job: str) -> None:
    """Make a claim old enough. If the server's clock is used, its next answer is later anyway."""
    if b.time_travels:
        b.advance(1)
    else:
        await b.records.find(job)

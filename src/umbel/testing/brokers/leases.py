"""Leases and their fencing numbers: who may settle, and what is lost."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from umbel.messages import Cancelled, Interrupted, Lease, State, Succeeded
from umbel.testing.acts import (
    FAR,
    OUTCOMES,
    RESULT,
    depths,
    enlist,
    envelope,
    kill,
    publish,
    publish_many,
    running,
    settle,
    settlement,
    take,
    take_one,
)
from umbel.testing.backend import Backend, story


class Fences:
    """A number that only grows decides whose outcome counts."""

    @story()
    async def test_every_claim_has_a_higher_fence_than_the_last(self, b: Backend) -> None:
        owner = await enlist(b)
        held = await running(b, owner)
        fences = [held.lease.fence]
        for _ in range(3):
            await settle(b, held, Interrupted())
            held = await take_one(b, owner)
            fences.append(held.lease.fence)
        assert all(later > earlier for earlier, later in pairwise(fences))

    @story("records")
    async def test_a_replayed_job_has_a_higher_fence_than_in_its_former_life(
        self, b: Backend
    ) -> None:
        held = await running(b)
        await settle(b, held, Cancelled())
        await b.records.replay([held.id])
        again = await take_one(b, held.lease.owner)
        assert again.lease.fence > held.lease.fence

    @story()
    async def test_an_outcome_under_an_old_fence_is_refused(self, b: Backend) -> None:
        owner = await enlist(b)
        old = await running(b, owner)
        await settle(b, old, Interrupted())
        current = await take_one(b, owner)
        for outcome in OUTCOMES:
            assert await settle(b, old, outcome) == [old.lease], outcome
        assert await settle(b, current, Succeeded(RESULT)) == []

    @story()
    async def test_an_outcome_under_a_fence_from_the_future_is_refused(self, b: Backend) -> None:
        held = await running(b)
        forged = _released(held.lease, fence=held.lease.fence + 1)
        claim = settlement(held, Succeeded(RESULT), lease=forged)
        assert await b.broker.settle([claim]) == [forged]
        assert await settle(b, held, Succeeded(RESULT)) == []

    @story()
    async def test_an_outcome_of_somebody_else_is_refused(self, b: Backend) -> None:
        held = await running(b)
        stolen = _released(held.lease, owner=await enlist(b, "thief"))
        for outcome in OUTCOMES:
            claim = settlement(held, outcome, lease=stolen)
            assert await b.broker.settle([claim]) == [stolen], outcome
        assert await settle(b, held, Succeeded(RESULT)) == []

    @story("records")
    async def test_a_refused_outcome_leaves_no_trace(self, b: Backend) -> None:
        owner = await enlist(b)
        old = await running(b, owner)
        await settle(b, old, Interrupted())
        await take_one(b, owner)
        before = await b.records.find(old.id)
        follow_up = envelope(b)
        for outcome in OUTCOMES:
            await settle(b, old, outcome, follow_ups=(follow_up,))
        assert await b.records.find(old.id) == before
        assert await take(b, owner) == []


class Extending:
    """``extend``: what an owner says it holds, and what the broker knows."""

    @story()
    async def test_a_lease_that_is_held_is_not_lost(self, b: Backend) -> None:
        held = await running(b)
        assert await b.broker.extend(held.lease.owner, [held.lease], 0.0) == []
        assert await settle(b, held, Succeeded(RESULT)) == []

    @story()
    async def test_a_settled_lease_is_lost(self, b: Backend) -> None:
        held = await running(b)
        await settle(b, held, Succeeded(RESULT))
        assert await b.broker.extend(held.lease.owner, [held.lease], FAR) == [held.lease]

    @story()
    async def test_a_lease_that_somebody_else_has_now_is_lost(self, b: Backend) -> None:
        dead = await enlist(b, "dead")
        held = await running(b, dead)
        await kill(b, dead)
        await b.broker.recover()
        await take_one(b, await enlist(b, "heir"))
        assert await b.broker.extend(dead, [held.lease], FAR) == [held.lease]

    @story()
    async def test_only_what_is_lost_is_named(self, b: Backend) -> None:
        owner = await enlist(b)
        await publish_many(b, 3)
        first, second, third = await take(b, owner)
        await settle(b, second, Succeeded(RESULT))
        leases = [first.lease, second.lease, third.lease]
        assert await b.broker.extend(owner, leases, FAR) == [second.lease]

    @story()
    async def test_a_claim_that_was_never_received_goes_back(self, b: Backend) -> None:
        owner = await enlist(b)
        await publish_many(b, 2)
        received, missed = await take(b, owner)
        await _let_time_pass(b, missed.id)
        assert await b.broker.extend(owner, [received.lease], 0.0) == []
        again = await take_one(b, await enlist(b))
        assert again.id == missed.id
        assert (again.attempt, again.deaths) == (1, 0)
        assert again.lease.fence > missed.lease.fence

    @story()
    async def test_a_claim_that_went_back_is_lost_to_its_owner(self, b: Backend) -> None:
        missed = await running(b)
        await _let_time_pass(b, missed.id)
        await b.broker.extend(missed.lease.owner, [], 0.0)
        assert await settle(b, missed, Succeeded(RESULT)) == [missed.lease]

    @story()
    async def test_a_claim_whose_answer_may_be_on_its_way_does_not_go_back(
        self, b: Backend
    ) -> None:
        held = await running(b)
        await b.broker.extend(held.lease.owner, [], FAR)
        assert await depths(b) == {("default", "running"): 1}
        assert await settle(b, held, Succeeded(RESULT)) == []

    @story()
    async def test_what_others_hold_does_not_go_back(self, b: Backend) -> None:
        held = await running(b)
        await _let_time_pass(b, held.id)
        await b.broker.extend(await enlist(b, "other"), [], 0.0)
        assert await settle(b, held, Succeeded(RESULT)) == []

    @story()
    async def test_extending_twice_is_the_same_as_once(self, b: Backend) -> None:
        owner = await enlist(b)
        await publish_many(b, 2)
        received, missed = await take(b, owner)
        await _let_time_pass(b, missed.id)
        for _ in range(2):
            assert await b.broker.extend(owner, [received.lease], 0.0) == []
        assert await depths(b) == {("default", "running"): 1, ("default", "queued"): 1}

    @story()
    async def test_an_unknown_job_is_a_lost_lease(self, b: Backend) -> None:
        owner = await enlist(b)
        ghost = Lease((await publish(b)).id, owner, 1)
        assert await b.broker.extend(owner, [ghost], FAR) == [ghost]

    @story("records")
    async def test_a_worker_that_says_it_holds_nothing_keeps_nothing(self, b: Backend) -> None:
        sent = await publish_many(b, 5)
        owner = await enlist(b)
        await take(b, owner)
        await _let_time_pass(b, sent[-1].id)
        await b.broker.extend(owner, [], 0.0)
        states = {(await b.records.find(one.id)).state for one in sent}
        assert states == {State.QUEUED}


def _released(lease: Lease, **changes: object) -> Lease:
    return msgspec.structs.replace(lease, **changes)


async def _let_time_pass(b: Backend, job: str) -> None:
    """Make a claim old enough; where the server keeps the time, its next answer is later."""
    if b.time_travels:
        b.advance(1)
    else:
        await b.records.find(job)

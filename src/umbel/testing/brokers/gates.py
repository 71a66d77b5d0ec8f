"""Gates: which jobs may run, and in which order the others wait."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from umbel.backends import Demand
from umbel.messages import (
    Failed,
    Interrupted,
    Outcome,
    Parked,
    Rejected,
    Retry,
    Rule,
    Snoozed,
    State,
    Succeeded,
)
from umbel.testing.actions import (
    FAILURE,
    FAR,
    LONG_WAIT,
    RESULT,
    claim,
    claim_one,
    depths,
    envelope,
    ids,
    kill,
    publish,
    publish_many,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test
from umbel.testing.brokers.gate_machine import GateMachineSuite

ALL = "limit:tests.add"
ENDS: tuple[Outcome, ...] = (
    Succeeded(RESULT),
    Failed(FAILURE),
    Rejected("no"),
    Retry(FAILURE, FAR),
    Snoozed(FAR),
)


async def limit(b: Adapters, capacity: int, name: str = ALL, *, rejects: bool = False) -> None:
    await b.gates.declare([Rule(name=name, capacity=capacity, rejects=rejects)])


async def rate(b: Adapters, *rates: tuple[int, float], burst: int = 1) -> str:
    await b.gates.declare([Rule(name="rate:t", kind="rate", rates=rates, burst=burst)])
    return "rate:t"


async def pool(b: Adapters, *names: str) -> str:
    await b.gates.declare([Rule(name="pool:p", kind="pool")])
    await b.gates.add_members("p", {name: {"at": name} for name in names})
    return "pool:p"


class Limits:
    """A gate never admits more than its capacity, and never fewer than it could."""

    @backend_test()
    async def test_no_more_run_than_the_limit_says(self, b: Adapters) -> None:
        await limit(b, 2)
        sent, owner = await publish_many(b, 5, gates=(ALL,)), await register(b)
        assert ids(await claim(b, owner)) == ids(sent[:2])
        assert await claim(b, owner) == []
        assert await depths(b) == {("default", "running"): 2, ("default", "waiting"): 3}

    @backend_test()
    async def test_two_fetches_of_two_processes_share_a_limit(self, b: Adapters) -> None:
        await limit(b, 3)
        await publish_many(b, 10, gates=(ALL,))
        async with b.another() as other:
            mine, theirs = await register(b, "mine"), await register(other, "theirs")
            found = await asyncio.gather(
                *(
                    claim(side, owner, Demand.of(io=2))
                    for side, owner in ((b, mine), (other, theirs), (b, mine), (other, theirs))
                )
            )
            assert sum(map(len, found)) <= 3
            found.append(await claim(b, mine))
            assert sum(map(len, found)) == 3

    @backend_test()
    async def test_whatever_its_end_a_job_frees_its_slot(self, b: Adapters) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, len(ENDS) + 1, gates=(ALL,)), await register(b)
        for outcome, expected in zip(ENDS, sent, strict=False):
            held = await claim_one(b, owner)
            assert held.id == expected.id
            assert [slot.gate for slot in held.slots] == [ALL]
            assert await settle(b, held, outcome) == []
        assert ids(await claim(b, owner)) == [sent[-1].id]

    @backend_test()
    async def test_a_job_that_is_requeued_immediately_keeps_its_position(self, b: Adapters) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, 2, gates=(ALL,)), await register(b)
        held = await claim_one(b, owner)
        await settle(b, held, Interrupted("stopping"))
        again = await claim_one(b, owner)
        assert (again.id, again.attempt) == (sent[0].id, 1)
        assert again.lease.fence > held.lease.fence

    @backend_test()
    async def test_a_worker_that_dies_frees_its_slots(self, b: Adapters) -> None:
        await limit(b, 2)
        await publish_many(b, 4, gates=(ALL,))
        owner, other = await register(b), await register(b)
        first = await claim(b, owner)
        await kill(b, owner)
        assert await claim(b, other) == []
        await b.broker.recover()
        assert ids(await claim(b, other)) == ids(first)

    @backend_test()
    async def test_a_claim_that_never_arrived_frees_its_slot(self, b: Adapters) -> None:
        await limit(b, 1)
        (sent,) = await publish_many(b, 1, gates=(ALL,))
        owner = await register(b)
        await claim_one(b, owner)
        await b.broker.extend(owner, [], -FAR)
        assert ids(await claim(b, owner)) == [sent.id]

    @backend_test()
    async def test_a_job_that_is_cancelled_at_a_gate_is_gone(self, b: Adapters) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, 3, gates=(ALL,)), await register(b)
        held = await claim_one(b, owner)
        cancelled = await b.control.cancel([sent[1].id], "not wanted")
        assert cancelled == {sent[1].id: State.CANCELLED}
        await settle(b, held, Succeeded(RESULT))
        assert ids(await claim(b, owner)) == [sent[2].id]

    @backend_test()
    async def test_a_purge_removes_jobs_that_wait_at_a_gate(self, b: Adapters) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, 3, gates=(ALL,)), await register(b)
        held = await claim_one(b, owner)
        assert await b.broker.purge("default") == 2
        await settle(b, held, Succeeded(RESULT))
        assert await claim(b, owner) == []
        assert (await b.records.find(sent[1].id)).state is State.CANCELLED

    @backend_test("move")
    async def test_jobs_that_wait_at_a_gate_move_with_their_queue(self, b: Adapters) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, 2, gates=(ALL,)), await register(b)
        held = await claim_one(b, owner)
        await b.broker.move("default", "other")
        assert await claim(b, owner, queues=["other"]) == []
        await settle(b, held, Succeeded(RESULT))
        assert await claim(b, owner) == []
        assert ids(await claim(b, owner, queues=["other"])) == [sent[1].id]

    @backend_test("priority")
    async def test_at_a_gate_the_highest_priority_is_first(self, b: Adapters) -> None:
        await limit(b, 1)
        low = await publish(b, gates=(ALL,), priority=1)
        high = await publish(b, gates=(ALL,), priority=9)
        owner = await register(b)
        held = await claim_one(b, owner)
        assert held.id == high.id
        await settle(b, held, Succeeded(RESULT))
        assert (await claim_one(b, owner)).id == low.id

    @backend_test()
    async def test_other_jobs_pass_jobs_that_wait_at_a_gate(self, b: Adapters) -> None:
        await limit(b, 0)
        await publish_many(b, 3, gates=(ALL,))
        free = await publish(b)
        assert ids(await claim(b, await register(b), Demand.of(io=1))) == [free.id]

    @backend_test()
    async def test_an_undeclared_limit_admits_no_job(self, b: Adapters) -> None:
        sent, owner = await publish(b, gates=(ALL,)), await register(b)
        assert await claim(b, owner) == []
        await limit(b, 1)
        assert ids(await claim(b, owner)) == [sent.id]

    @backend_test()
    async def test_a_removed_limit_admits_every_job(self, b: Adapters) -> None:
        await limit(b, 0)
        sent, owner = await publish_many(b, 3, gates=(ALL,)), await register(b)
        assert await claim(b, owner) == []
        await b.gates.declare([], [ALL])
        assert ids(await claim(b, owner)) == ids(sent)

    @backend_test()
    async def test_a_limit_of_nothing_rejects_when_asked_to(self, b: Adapters) -> None:
        await limit(b, 0, rejects=True)
        sent, owner = await publish(b, gates=(ALL,)), await register(b)
        held = await claim_one(b, owner)
        assert (held.id, [slot.rejected for slot in held.slots]) == (sent.id, [True])

    @backend_test()
    async def test_a_raised_limit_admits_more_and_a_lowered_one_stops_no_run(
        self, b: Adapters
    ) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, 6, gates=(ALL,)), await register(b)
        held = await claim(b, owner)
        await limit(b, 3)
        held += await claim(b, owner)
        assert ids(held) == ids(sent[:3])
        await limit(b, 1)
        for done in held[:2]:
            await settle(b, done, Succeeded(RESULT))
            assert await claim(b, owner) == []
        await settle(b, held[2], Succeeded(RESULT))
        assert ids(await claim(b, owner)) == [sent[3].id]

    @backend_test()
    async def test_an_operators_limit_holds_until_it_is_removed(self, b: Adapters) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, 4, gates=(ALL,)), await register(b)
        assert await b.limits.override(ALL, 3)
        await limit(b, 1)
        held = await claim(b, owner)
        assert ids(held) == ids(sent[:3])
        await b.limits.override(ALL, None)
        await settle(b, held[0], Succeeded(RESULT))
        assert await claim(b, owner) == []
        assert not await b.limits.override("limit:nothing", 3)

    @backend_test()
    async def test_a_fetch_that_waits_is_woken_by_a_slot_set_free(self, b: Adapters) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, 2, gates=(ALL,)), await register(b)
        held = await claim_one(b, owner)
        async with b.another() as other:
            waiting = asyncio.create_task(claim(other, await register(other), wait=LONG_WAIT))
            await asyncio.sleep(0.05)
            await settle(b, held, Succeeded(RESULT))
            assert ids(await waiting) == [sent[1].id]

    @backend_test()
    async def test_a_fetch_that_waits_is_woken_by_a_limit_raised(self, b: Adapters) -> None:
        await limit(b, 0)
        sent = await publish(b, gates=(ALL,))
        async with b.another() as other:
            waiting = asyncio.create_task(claim(other, await register(other), wait=LONG_WAIT))
            await asyncio.sleep(0.05)
            await b.limits.override(ALL, 1)
            assert ids(await waiting) == [sent.id]

    @backend_test()
    async def test_a_job_that_is_due_later_waits_then(self, b: Adapters) -> None:
        await limit(b, 1)
        soon = b.clock.now() + 0.05
        sent, owner = await publish(b, gates=(ALL,), not_before=soon), await register(b)
        (held,) = await claim(b, owner, wait=LONG_WAIT)
        assert (held.id, len(held.slots)) == (sent.id, 1)

    @backend_test()
    async def test_a_job_is_parked_without_an_attempt(self, b: Adapters) -> None:
        await limit(b, 0)
        sent, owner = await publish(b), await register(b)
        held = await claim_one(b, owner)
        assert held.slots == ()
        assert await settle(b, held, Parked((ALL,))) == []
        found = await b.records.find(sent.id)
        assert (found.state, found.attempt, found.attempts) == (State.WAITING, 1, ())
        assert await claim(b, owner) == []
        await limit(b, 1)
        again = await claim_one(b, owner)
        assert (again.id, again.attempt, again.deaths) == (sent.id, 1, 0)
        assert [slot.gate for slot in again.slots] == [ALL]

    @backend_test()
    async def test_parked_without_gates_it_is_back_in_its_queue(self, b: Adapters) -> None:
        sent, owner = await publish(b), await register(b)
        held = await claim_one(b, owner)
        assert await settle(b, held, Parked(())) == []
        found = await b.records.find(sent.id)
        assert (found.state, found.attempt, found.attempts) == (State.QUEUED, 1, ())
        again = await claim_one(b, owner)
        assert (again.id, again.lease.fence > held.lease.fence) == (sent.id, True)

    @backend_test()
    async def test_a_task_that_is_not_wanted_is_left_to_others(self, b: Adapters) -> None:
        """A broker may ignore ``without``, but a fetch that asks for all jobs must get all."""
        await limit(b, 5)
        unwanted = await publish(b, subject="tests.unwanted")
        waiting = await publish(b, subject="tests.unwanted", gates=(ALL,))
        wanted, owner = await publish(b), await register(b)
        found = await claim(b, owner, Demand({"io": 9}, ("tests.unwanted",)))
        assert wanted.id in ids(found)
        found += await claim(b, owner)
        assert sorted(ids(found)) == sorted(ids([unwanted, waiting, wanted]))

    @backend_test()
    async def test_jobs_wait_at_gates_of_their_own_namespace(self, b: Adapters) -> None:
        await limit(b, 1)
        await publish_many(b, 2, gates=(ALL,))
        await claim_one(b, await register(b))
        async with b.another(f"{b.namespace}2") as elsewhere:
            await limit(elsewhere, 1)
            sent = await publish(elsewhere, gates=(ALL,))
            assert ids(await claim(elsewhere, await register(elsewhere))) == [sent.id]

    @backend_test("priority")  # only a broker that keeps a queue's order knows which job is next
    async def test_the_first_job_of_a_queue_leaves_no_slot_idle(self, b: Adapters) -> None:
        """A slot is given to the job that would be claimed next, not to one behind it."""
        await limit(b, 1)
        before = await publish_many(b, 3)
        gated = await publish(b, gates=(ALL,))
        owner = await register(b)
        assert ids(await claim(b, owner, Demand.of(io=2))) == ids(before[:2])
        (gate,) = await b.gates.gates(ALL)
        assert (gate.held, gate.waiting) == (0, 1)
        assert sorted(ids(await claim(b, owner, Demand.of(io=2)))) == sorted(
            ids([before[2], gated])
        )


class Tokens:
    """One gate for each token, and several gates for one job."""

    @backend_test()
    async def test_each_token_has_a_gate_of_its_own(self, b: Adapters) -> None:
        await limit(b, 1, "limit:t/user")
        ann = await publish_many(b, 3, gates=("limit:t/user#ann",))
        bob = await publish_many(b, 2, gates=("limit:t/user#bob",))
        owner = await register(b)
        assert sorted(ids(await claim(b, owner))) == sorted(ids([ann[0], bob[0]]))

    @backend_test("priority")
    async def test_many_waiting_jobs_at_one_gate_do_not_starve_another(self, b: Adapters) -> None:
        await limit(b, 50, "limit:t/user")
        await publish_many(b, 60, gates=("limit:t/user#ann",))
        bob = await publish_many(b, 2, gates=("limit:t/user#bob",))
        owner, seen = await register(b), list[str]()
        for _ in range(3):
            seen += ids(await claim(b, owner, Demand.of(io=4)))
        assert {*ids(bob)} <= {*seen}

    @backend_test()
    async def test_several_gates_hold_at_once(self, b: Adapters) -> None:
        await limit(b, 1, "limit:t/user")
        await limit(b, 2)
        for user in ("ann", "ann", "bob", "eve"):
            await publish(b, gates=(f"limit:t/user#{user}", ALL))
        owner = await register(b)
        held = await claim(b, owner)
        users = [slot.gate.partition("#")[2] for one in held for slot in one.slots]
        assert sorted(filter(None, users)) == ["ann", "bob"]
        await settle(b, held[0], Succeeded(RESULT))
        assert len(await claim(b, owner)) == 1

    @backend_test()
    async def test_a_paused_gate_stops_only_jobs_of_its_token(self, b: Adapters) -> None:
        await limit(b, 5, "limit:t/user")
        ann = await publish(b, gates=("limit:t/user#ann",))
        bob = await publish(b, gates=("limit:t/user#bob",))
        owner = await register(b)
        await b.pauses.pause("gate", "limit:t/user#ann", "too much")
        assert ids(await claim(b, owner)) == [bob.id]
        await b.pauses.resume("gate", "limit:t/user#ann")
        assert ids(await claim(b, owner)) == [ann.id]

    @backend_test()
    async def test_a_paused_task_in_the_queue_blocks_no_job_at_a_gate(self, b: Adapters) -> None:
        await limit(b, 5)
        await publish(b, subject="tests.paused")
        gated, owner = await publish(b, gates=(ALL,)), await register(b)
        await b.pauses.pause("task", "tests.paused", "")
        assert ids(await claim(b, owner, Demand.of(io=1))) == [gated.id]

    @backend_test()
    async def test_a_paused_task_at_a_gate_lets_others_pass(self, b: Adapters) -> None:
        await limit(b, 1, "limit:shared")
        paused = await publish(b, gates=("limit:shared",), subject="tests.paused")
        other = await publish(b, gates=("limit:shared",))
        owner = await register(b)
        await b.pauses.pause("task", "tests.paused", "")
        held = await claim_one(b, owner)
        assert held.id == other.id
        await settle(b, held, Succeeded(RESULT))
        assert await claim(b, owner) == []
        await b.pauses.resume("task", "tests.paused")
        assert ids(await claim(b, owner)) == [paused.id]


class Rates:
    """Rates: a number of jobs in a time. No worker holds a job that must wait."""

    @backend_test()
    async def test_a_rate_is_kept(self, b: Adapters) -> None:
        gate = await rate(b, (10, 100.0))
        sent, owner = await publish_many(b, 30, gates=(gate,)), await register(b)
        seen: list[str] = []
        for _ in range(100):
            b.advance(2.0)
            seen += ids(await claim(b, owner))
        assert ids(sent)[: len(seen)] == seen
        assert 19 <= len(seen) <= 21

    @backend_test()
    async def test_a_burst_starts_at_once(self, b: Adapters) -> None:
        gate = await rate(b, (10, 86_400.0), burst=4)
        sent, owner = await publish_many(b, 9, gates=(gate,)), await register(b)
        assert ids(await claim(b, owner)) == ids(sent[:4])
        assert await claim(b, owner) == []

    @backend_test()
    async def test_two_rates_hold_at_once(self, b: Adapters) -> None:
        gate = await rate(b, (10, 86_400.0), (3, 86_400.0), burst=5)
        await publish_many(b, 9, gates=(gate,))
        owner = await register(b)
        assert len(await claim(b, owner)) == 5
        b.advance(86_400.0 / 3 * 1.1)
        assert len(await claim(b, owner)) == 1

    @backend_test()
    async def test_a_fetch_wakes_when_the_next_is_due(self, b: Adapters) -> None:
        gate = await rate(b, (10, 1.0))
        await publish_many(b, 3, gates=(gate,))
        owner, left = await register(b), 3
        while left:
            found = await claim(b, owner, wait=LONG_WAIT)
            assert found
            left -= len(found)

    @backend_test()
    async def test_the_slower_of_two_rates_is_kept_as_time_goes_by(self, b: Adapters) -> None:
        gate = await rate(b, (1000, 1.0), (50, 1.0))
        await publish_many(b, 15, gates=(gate,))
        owner, began, seen = await register(b), b.clock.monotonic(), 0
        while seen < 12:
            seen += len(await claim(b, owner, wait=LONG_WAIT))
        assert b.clock.monotonic() - began > 0.9 * (seen - 2) / 50

    @backend_test()
    async def test_an_ended_job_returns_no_rate(self, b: Adapters) -> None:
        gate = await rate(b, (1, 86_400.0))
        await publish_many(b, 3, gates=(gate,))
        owner = await register(b)
        await settle(b, await claim_one(b, owner), Succeeded(RESULT))
        assert await claim(b, owner) == []

    @backend_test()
    async def test_a_rate_that_is_raised_lets_jobs_start_at_once(self, b: Adapters) -> None:
        gate = await rate(b, (1, 86_400.0))
        tokens = [f"{gate}/user#{user}" for user in ("a", "b")]
        by_token = Rule(name=f"{gate}/user", kind="rate", rates=((1, 86_400.0),))
        await b.gates.declare([by_token])
        sent = await publish_many(b, 2, gates=(gate,))
        for token in tokens:
            sent += await publish_many(b, 2, gates=(token,))
        owner = await register(b)
        assert len(await claim(b, owner)) == 3
        assert await claim(b, owner) == []
        await rate(b, (1, 86_400.0))
        assert await claim(b, owner) == [], "declaring the same rate again changes nothing"
        await b.gates.declare([replace(by_token, rates=((1000, 1.0),))])
        await rate(b, (1000, 1.0))
        seen: list[str] = []
        while len(seen) < 3:
            found = ids(await claim(b, owner, wait=LONG_WAIT))
            assert found
            seen += found
        assert {*seen} == {*ids(sent[1::2])}

    @backend_test()
    async def test_a_rate_that_is_lowered_holds_from_the_next_start_on(self, b: Adapters) -> None:
        # So slow that the relay of a pair lets no other job pass before the rate is lowered.
        gate = await rate(b, (10, 10_000.0))
        await publish_many(b, 9, gates=(gate,))
        owner = await register(b)
        assert await claim(b, owner)
        await rate(b, (1, 86_400.0))
        assert len(await claim(b, owner)) == 1
        assert await claim(b, owner) == []


class Pools:
    """Two jobs never have the same member, and no member is free while a job waits for it."""

    @backend_test()
    async def test_a_job_is_given_a_member(self, b: Adapters) -> None:
        gate = await pool(b, "one", "two")
        sent, owner = await publish_many(b, 3, gates=(gate,)), await register(b)
        held = await claim(b, owner)
        assert ids(held) == ids(sent[:2])
        slots = [slot for one in held for slot in one.slots]
        assert [(s.gate, s.member, s.data) for s in slots] == [
            (gate, "one", {"at": "one"}),
            (gate, "two", {"at": "two"}),
        ]
        found = await b.gates.members("p")
        assert [(m.name, m.job) for m in found] == [("one", held[0].id), ("two", held[1].id)]

    @backend_test()
    async def test_the_least_recently_used_member_is_next_with_a_higher_fence(
        self, b: Adapters
    ) -> None:
        gate = await pool(b, "one", "two")
        await publish_many(b, 4, gates=(gate,))
        owner, seen = await register(b), list[tuple[str, int]]()
        for _ in range(4):
            held = await claim_one(b, owner, demand=Demand.of(io=1))
            seen.append((held.slots[0].member, held.slots[0].fence))
            await settle(b, held, Succeeded(RESULT))
        assert seen == [("one", 1), ("two", 1), ("one", 2), ("two", 2)]

    @backend_test()
    async def test_a_member_comes_back_from_the_dead(self, b: Adapters) -> None:
        gate = await pool(b, "one")
        await publish_many(b, 2, gates=(gate,))
        owner, other = await register(b), await register(b)
        held = await claim_one(b, owner)
        await kill(b, owner)
        assert await claim(b, other) == []
        await b.broker.recover()
        again = await claim_one(b, other)
        assert again.id == held.id
        assert again.slots[0].fence > held.slots[0].fence

    @backend_test()
    async def test_drained_and_dismissed_members_are_not_handed_out(self, b: Adapters) -> None:
        gate = await pool(b, "one", "two", "three")
        await publish_many(b, 4, gates=(gate,))
        owner = await register(b)
        assert await b.gates.set_condition("p", ["one", "none"], "drained") == ["one"]
        assert await b.gates.remove_members("p", ["two", "none"]) == ["two"]
        held = await claim_one(b, owner)
        assert held.slots[0].member == "three"
        await b.gates.set_condition("p", ["one"], "ready")
        assert (await claim_one(b, owner)).slots[0].member == "one"

    @backend_test()
    async def test_a_member_that_leaves_while_it_is_held_is_kept_to_the_end(
        self, b: Adapters
    ) -> None:
        gate = await pool(b, "one")
        await publish_many(b, 2, gates=(gate,))
        owner = await register(b)
        held = await claim_one(b, owner)
        assert await b.gates.remove_members("p", ["one"]) == ["one"]
        assert [m.name for m in await b.gates.members("p")] == ["one"]
        await settle(b, held, Succeeded(RESULT))
        assert await b.gates.members("p") == []
        assert await claim(b, owner) == []
        await b.gates.add_members("p", {"one": {}})
        assert (await claim_one(b, owner)).slots[0].fence > held.slots[0].fence

    @backend_test()
    async def test_a_member_that_leaves_and_returns_is_in_one_hand_still(self, b: Adapters) -> None:
        gate = await pool(b, "one")
        await publish_many(b, 2, gates=(gate,))
        owner = await register(b)
        held = await claim_one(b, owner)
        await b.gates.remove_members("p", ["one"])
        await b.gates.add_members("p", {"one": {}})
        assert await claim(b, owner) == []
        await settle(b, held, Succeeded(RESULT))
        assert len(await claim(b, owner)) == 1

    @backend_test()
    async def test_a_fetch_that_waits_is_woken_by_a_new_member(self, b: Adapters) -> None:
        gate = await pool(b)
        sent = await publish(b, gates=(gate,))
        async with b.another() as other:
            waiting = asyncio.create_task(claim(other, await register(other), wait=LONG_WAIT))
            await asyncio.sleep(0.05)
            await b.gates.add_members("p", {"one": {}})
            assert ids(await waiting) == [sent.id]

    @backend_test()
    async def test_two_pools_in_opposite_order_do_not_lock_each_other(self, b: Adapters) -> None:
        for name in ("a", "b"):
            await b.gates.declare([Rule(name=f"pool:{name}", kind="pool")])
            await b.gates.add_members(name, {f"{name}1": {}})
        both = ("pool:a", "pool:b")  # the caller sorts gates
        await b.broker.publish([envelope(b, gates=both) for _ in range(4)])
        owner = await register(b)
        for _ in range(4):
            held = await claim_one(b, owner)
            assert [slot.member for slot in held.slots] == ["a1", "b1"]
            await settle(b, held, Succeeded(RESULT))

    @backend_test()
    async def test_a_suspect_is_not_handed_out_before_it_is_ready_again(self, b: Adapters) -> None:
        gate = await pool(b, "one")
        await publish_many(b, 2, gates=(gate,))
        owner = await register(b)
        held = await claim_one(b, owner)
        await b.gates.quarantine("p", "one", 0.0)
        await settle(b, held, Parked((gate,)))
        assert await claim(b, owner) == []
        (found,) = await b.gates.claim_due_checks("p", FAR)
        assert (found.name, found.condition, found.failures) == ("one", "quarantined", 1)
        assert await b.gates.claim_due_checks("p", FAR) == []
        await b.gates.set_condition("p", ["one"], "ready")
        again = await claim_one(b, owner)
        assert (again.id, again.attempt) == (held.id, 1)

    @backend_test()
    async def test_the_code_names_members_and_operators_have_the_last_word(
        self, b: Adapters
    ) -> None:
        await b.gates.add_members("p", {"one": {}, "two": {}}, only=True)
        await b.gates.add_members("p", {"mine": {}})
        await b.gates.remove_members("p", ["two"])
        await b.gates.add_members("p", {"one": {"new": 1}, "two": {}}, only=True)
        assert {m.name: m.data for m in await b.gates.members("p")} == {
            "mine": {},
            "one": {"new": 1},
        }
        await b.gates.add_members("p", {"three": {}}, only=True)
        assert [m.name for m in await b.gates.members("p")] == ["mine", "three"]
        await b.gates.add_members("p", {"one": {}, "three": {}}, only=True)
        assert [m.name for m in await b.gates.members()] == ["mine", "one", "three"]
        await b.gates.set_condition("p", ["one"], "drained")
        await b.gates.add_members("p", {"one": {}}, only=True)
        found = {m.name: m.condition for m in await b.gates.members("p")}
        assert found == {"mine": "ready", "one": "drained"}


class ListingGates:
    """What operators see of gates."""

    @backend_test()
    async def test_a_gate_shows_held_slots_and_waiting_jobs(self, b: Adapters) -> None:
        await limit(b, 1)
        await publish_many(b, 3, gates=(ALL,))
        await claim_one(b, await register(b))
        (gate,) = await b.gates.gates()
        assert (gate.key, gate.kind, gate.capacity, gate.imposed) == (ALL, "limit", 1, False)
        assert (gate.held, gate.waiting) == (1, 2)
        await b.limits.override(ALL, 7)
        (gate,) = await b.gates.gates(ALL)
        assert (gate.capacity, gate.imposed) == (7, True)

    @backend_test()
    async def test_tokens_show_while_they_are_in_use(self, b: Adapters) -> None:
        await limit(b, 1, "limit:t/user")
        await publish(b, gates=("limit:t/user#ann",))
        owner = await register(b)
        held = await claim_one(b, owner)
        keys = [(gate.key, gate.held) for gate in await b.gates.gates("limit:t/user")]
        assert ("limit:t/user#ann", 1) in keys
        await settle(b, held, Succeeded(RESULT))
        assert ("limit:t/user#ann", 1) not in [(g.key, g.held) for g in await b.gates.gates()]


class GateNamespaces:
    """Jobs with the same id in two namespaces wait and hold slots separately."""

    @backend_test()
    async def test_one_id_waits_at_the_gates_of_each_namespace(self, b: Adapters) -> None:
        async with b.another(f"{b.namespace}2") as other:
            for side in (b, other):
                await limit(side, 1)
            first, second = await publish_many(b, 2, gates=(ALL,))
            for one in (first, second):
                await publish(other, id=one.id, gates=(ALL,))
            owner = await register(b)
            for one in (first, second):
                held = await claim_one(b, owner)
                assert held.id == one.id
                assert await depths(other) == {("default", "waiting"): 2}
                await settle(b, held, Succeeded(RESULT))
            assert (await claim_one(other, await register(other))).id == first.id
            assert await depths(other) == {("default", "running"): 1, ("default", "waiting"): 1}

    @backend_test()
    async def test_a_member_stays_with_its_job_when_the_other_of_that_id_ends(
        self, b: Adapters
    ) -> None:
        async with b.another(f"{b.namespace}2") as other:
            ways: tuple[tuple[Outcome, ...], ...] = ((Succeeded(RESULT),), (Failed(FAILURE),))
            ways = (*ways, (Retry(FAILURE, FAR),), ())
            for outcomes in ways:
                for side in (b, other):
                    await pool(side, "only")
                job = (await publish(b, gates=("pool:p",))).id
                await publish(other, id=job, gates=("pool:p",))
                held = await claim_one(b, await register(b))
                theirs = await claim_one(other, await register(other))
                for outcome in outcomes:
                    assert await settle(b, held, outcome) == []
                if not outcomes:
                    await kill(b, held.lease.owner)
                    assert await b.broker.recover() == [job]
                (member,) = await other.gates.members("p")
                assert member.job == job, "it is held to the end"
                assert await settle(other, theirs, Succeeded(RESULT)) == []
                (member,) = await other.gates.members("p")
                assert member.job is None
                await b.broker.purge("default")


class GateTopics(Limits, Tokens, Rates, Pools, ListingGates, GateNamespaces):
    """Tests of each promise of gates."""


class GateSuite(GateTopics, GateMachineSuite):
    """Gates over a broker and its store. Inherit it beside a ``backend`` fixture."""

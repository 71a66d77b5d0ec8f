"""Gates: who may run, and who has to wait for that, in which order."""

from __future__ import annotations

import asyncio

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
from umbel.testing.acts import (
    FAILURE,
    FAR,
    PATIENCE,
    RESULT,
    depths,
    enlist,
    envelope,
    ids,
    kill,
    publish,
    publish_many,
    settle,
    take,
    take_one,
)
from umbel.testing.backend import Backend, story
from umbel.testing.brokers.gate_machine import GateMachineSuite

ALL = "limit:tests.add"
ENDS: tuple[Outcome, ...] = (
    Succeeded(RESULT),
    Failed(FAILURE),
    Rejected("no"),
    Retry(FAILURE, FAR),
    Snoozed(FAR),
)


async def limit(b: Backend, capacity: int, name: str = ALL, *, rejects: bool = False) -> None:
    await b.gates.declare([Rule(name=name, capacity=capacity, rejects=rejects)])


async def rate(b: Backend, *rates: tuple[int, float], burst: int = 1) -> str:
    await b.gates.declare([Rule(name="rate:t", kind="rate", rates=rates, burst=burst)])
    return "rate:t"


async def pool(b: Backend, *names: str) -> str:
    await b.gates.declare([Rule(name="pool:p", kind="pool")])
    await b.gates.enrol("p", {name: {"at": name} for name in names})
    return "pool:p"


class Limits:
    """A gate never admits more than its capacity, and never fewer than it could."""

    @story()
    async def test_no_more_run_than_the_limit_says(self, b: Backend) -> None:
        await limit(b, 2)
        sent, owner = await publish_many(b, 5, gates=(ALL,)), await enlist(b)
        assert ids(await take(b, owner)) == ids(sent[:2])
        assert await take(b, owner) == []
        assert await depths(b) == {("default", "running"): 2, ("default", "waiting"): 3}

    @story()
    async def test_two_fetches_of_two_processes_share_a_limit(self, b: Backend) -> None:
        await limit(b, 3)
        await publish_many(b, 10, gates=(ALL,))
        async with b.another() as other:
            mine, theirs = await enlist(b, "mine"), await enlist(other, "theirs")
            found = await asyncio.gather(
                *(
                    take(side, owner, Demand(io=2))
                    for side, owner in ((b, mine), (other, theirs), (b, mine), (other, theirs))
                )
            )
            assert sum(map(len, found)) <= 3
            found.append(await take(b, mine))
            assert sum(map(len, found)) == 3

    @story()
    async def test_whatever_its_end_a_job_frees_its_slot(self, b: Backend) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, len(ENDS) + 1, gates=(ALL,)), await enlist(b)
        for outcome, expected in zip(ENDS, sent, strict=False):
            held = await take_one(b, owner)
            assert held.id == expected.id
            assert [slot.gate for slot in held.slots] == [ALL]
            assert await settle(b, held, outcome) == []
        assert ids(await take(b, owner)) == [sent[-1].id]

    @story()
    async def test_what_goes_back_at_once_keeps_its_place(self, b: Backend) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, 2, gates=(ALL,)), await enlist(b)
        held = await take_one(b, owner)
        await settle(b, held, Interrupted("stopping"))
        again = await take_one(b, owner)
        assert (again.id, again.attempt) == (sent[0].id, 1)
        assert again.lease.fence > held.lease.fence

    @story()
    async def test_a_worker_that_dies_frees_its_slots(self, b: Backend) -> None:
        await limit(b, 2)
        await publish_many(b, 4, gates=(ALL,))
        owner, other = await enlist(b), await enlist(b)
        first = await take(b, owner)
        await kill(b, owner)
        assert await take(b, other) == []
        await b.broker.recover()
        assert ids(await take(b, other)) == ids(first)

    @story()
    async def test_a_claim_that_never_arrived_frees_its_slot(self, b: Backend) -> None:
        await limit(b, 1)
        (sent,) = await publish_many(b, 1, gates=(ALL,))
        owner = await enlist(b)
        await take_one(b, owner)
        await b.broker.extend(owner, [], -FAR)
        assert ids(await take(b, owner)) == [sent.id]

    @story()
    async def test_a_job_that_is_cancelled_in_the_line_is_gone(self, b: Backend) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, 3, gates=(ALL,)), await enlist(b)
        held = await take_one(b, owner)
        cancelled = await b.control.cancel([sent[1].id], "not wanted")
        assert cancelled == {sent[1].id: State.CANCELLED}
        await settle(b, held, Succeeded(RESULT))
        assert ids(await take(b, owner)) == [sent[2].id]

    @story()
    async def test_a_purge_empties_the_line(self, b: Backend) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, 3, gates=(ALL,)), await enlist(b)
        held = await take_one(b, owner)
        assert await b.broker.purge("default") == 2
        await settle(b, held, Succeeded(RESULT))
        assert await take(b, owner) == []
        assert (await b.records.find(sent[1].id)).state is State.CANCELLED

    @story("move")
    async def test_a_line_moves_with_its_queue(self, b: Backend) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, 2, gates=(ALL,)), await enlist(b)
        held = await take_one(b, owner)
        await b.broker.move("default", "other")
        assert await take(b, owner, queues=["other"]) == []
        await settle(b, held, Succeeded(RESULT))
        assert await take(b, owner) == []
        assert ids(await take(b, owner, queues=["other"])) == [sent[1].id]

    @story("priority")
    async def test_in_a_line_the_highest_priority_is_first(self, b: Backend) -> None:
        await limit(b, 1)
        low = await publish(b, gates=(ALL,), priority=1)
        high = await publish(b, gates=(ALL,), priority=9)
        owner = await enlist(b)
        held = await take_one(b, owner)
        assert held.id == high.id
        await settle(b, held, Succeeded(RESULT))
        assert (await take_one(b, owner)).id == low.id

    @story()
    async def test_others_pass_a_line_that_stands(self, b: Backend) -> None:
        await limit(b, 0)
        await publish_many(b, 3, gates=(ALL,))
        free = await publish(b)
        assert ids(await take(b, await enlist(b), Demand(io=1))) == [free.id]

    @story()
    async def test_a_limit_nobody_has_declared_keeps_everybody(self, b: Backend) -> None:
        sent, owner = await publish(b, gates=(ALL,)), await enlist(b)
        assert await take(b, owner) == []
        await limit(b, 1)
        assert ids(await take(b, owner)) == [sent.id]

    @story()
    async def test_a_lifted_limit_keeps_nobody(self, b: Backend) -> None:
        await limit(b, 0)
        sent, owner = await publish_many(b, 3, gates=(ALL,)), await enlist(b)
        assert await take(b, owner) == []
        await b.gates.declare([], [ALL])
        assert ids(await take(b, owner)) == ids(sent)

    @story()
    async def test_a_limit_of_nothing_rejects_when_asked_to(self, b: Backend) -> None:
        await limit(b, 0, rejects=True)
        sent, owner = await publish(b, gates=(ALL,)), await enlist(b)
        held = await take_one(b, owner)
        assert (held.id, [slot.rejected for slot in held.slots]) == (sent.id, [True])

    @story()
    async def test_a_limit_raised_lets_more_pass_and_a_lowered_one_stops_nobody(
        self, b: Backend
    ) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, 6, gates=(ALL,)), await enlist(b)
        held = await take(b, owner)
        await limit(b, 3)
        held += await take(b, owner)
        assert ids(held) == ids(sent[:3])
        await limit(b, 1)
        for done in held[:2]:
            await settle(b, done, Succeeded(RESULT))
            assert await take(b, owner) == []
        await settle(b, held[2], Succeeded(RESULT))
        assert ids(await take(b, owner)) == [sent[3].id]

    @story()
    async def test_an_operators_limit_wins_until_it_is_taken_back(self, b: Backend) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, 4, gates=(ALL,)), await enlist(b)
        assert await b.gates.impose(ALL, 3)
        await limit(b, 1)
        held = await take(b, owner)
        assert ids(held) == ids(sent[:3])
        await b.gates.impose(ALL, None)
        await settle(b, held[0], Succeeded(RESULT))
        assert await take(b, owner) == []
        assert not await b.gates.impose("limit:nothing", 3)

    @story()
    async def test_a_fetch_that_waits_is_woken_by_a_slot_set_free(self, b: Backend) -> None:
        await limit(b, 1)
        sent, owner = await publish_many(b, 2, gates=(ALL,)), await enlist(b)
        held = await take_one(b, owner)
        async with b.another() as other:
            waiting = asyncio.create_task(take(other, await enlist(other), wait=PATIENCE))
            await asyncio.sleep(0.05)
            await settle(b, held, Succeeded(RESULT))
            assert ids(await waiting) == [sent[1].id]

    @story()
    async def test_a_fetch_that_waits_is_woken_by_a_limit_raised(self, b: Backend) -> None:
        await limit(b, 0)
        sent = await publish(b, gates=(ALL,))
        async with b.another() as other:
            waiting = asyncio.create_task(take(other, await enlist(other), wait=PATIENCE))
            await asyncio.sleep(0.05)
            await b.gates.impose(ALL, 1)
            assert ids(await waiting) == [sent.id]

    @story()
    async def test_a_job_that_is_due_later_waits_then(self, b: Backend) -> None:
        await limit(b, 1)
        soon = b.clock.now() + 0.05
        sent, owner = await publish(b, gates=(ALL,), not_before=soon), await enlist(b)
        (held,) = await take(b, owner, wait=PATIENCE)
        assert (held.id, len(held.slots)) == (sent.id, 1)

    @story()
    async def test_a_job_is_parked_without_an_attempt(self, b: Backend) -> None:
        await limit(b, 0)
        sent, owner = await publish(b), await enlist(b)
        held = await take_one(b, owner)
        assert held.slots == ()
        assert await settle(b, held, Parked((ALL,))) == []
        found = await b.records.find(sent.id)
        assert (found.state, found.attempt, found.attempts) == (State.WAITING, 1, ())
        assert await take(b, owner) == []
        await limit(b, 1)
        again = await take_one(b, owner)
        assert (again.id, again.attempt, again.deaths) == (sent.id, 1, 0)
        assert [slot.gate for slot in again.slots] == [ALL]

    @story()
    async def test_parked_without_gates_it_is_back_in_its_queue(self, b: Backend) -> None:
        sent, owner = await publish(b), await enlist(b)
        held = await take_one(b, owner)
        assert await settle(b, held, Parked(())) == []
        found = await b.records.find(sent.id)
        assert (found.state, found.attempt, found.attempts) == (State.QUEUED, 1, ())
        again = await take_one(b, owner)
        assert (again.id, again.lease.fence > held.lease.fence) == (sent.id, True)

    @story()
    async def test_a_task_that_is_not_wanted_is_left_to_others(self, b: Backend) -> None:
        """A broker need not spare the worker, but whoever asks for all must get all."""
        await limit(b, 5)
        unwanted = await publish(b, subject="tests.unwanted")
        waiting = await publish(b, subject="tests.unwanted", gates=(ALL,))
        wanted, owner = await publish(b), await enlist(b)
        found = await take(b, owner, Demand(io=9, without=("tests.unwanted",)))
        assert wanted.id in ids(found)
        found += await take(b, owner)
        assert sorted(ids(found)) == sorted(ids([unwanted, waiting, wanted]))

    @story()
    async def test_the_line_stays_in_its_namespace(self, b: Backend) -> None:
        await limit(b, 1)
        await publish_many(b, 2, gates=(ALL,))
        await take_one(b, await enlist(b))
        async with b.another(f"{b.namespace}2") as elsewhere:
            await limit(elsewhere, 1)
            sent = await publish(elsewhere, gates=(ALL,))
            assert ids(await take(elsewhere, await enlist(elsewhere))) == [sent.id]

    @story("priority")  # who keeps a queue's order can tell what is claimed next
    async def test_what_is_first_in_the_queue_leaves_no_slot_idle(self, b: Backend) -> None:
        """A slot is given to what would be claimed now, not to what is behind others."""
        await limit(b, 1)
        before = await publish_many(b, 3)
        gated = await publish(b, gates=(ALL,))
        owner = await enlist(b)
        assert ids(await take(b, owner, Demand(io=2))) == ids(before[:2])
        (gate,) = await b.gates.gates(ALL)
        assert (gate.held, gate.waiting) == (0, 1)
        assert sorted(ids(await take(b, owner, Demand(io=2)))) == sorted(ids([before[2], gated]))


class Tokens:
    """One gate for each token, and several gates for one job."""

    @story()
    async def test_each_token_has_a_gate_of_its_own(self, b: Backend) -> None:
        await limit(b, 1, "limit:t/user")
        ann = await publish_many(b, 3, gates=("limit:t/user#ann",))
        bob = await publish_many(b, 2, gates=("limit:t/user#bob",))
        owner = await enlist(b)
        assert sorted(ids(await take(b, owner))) == sorted(ids([ann[0], bob[0]]))

    @story("priority")
    async def test_a_long_line_starves_no_other(self, b: Backend) -> None:
        await limit(b, 50, "limit:t/user")
        await publish_many(b, 60, gates=("limit:t/user#ann",))
        bob = await publish_many(b, 2, gates=("limit:t/user#bob",))
        owner, seen = await enlist(b), list[str]()
        for _ in range(3):
            seen += ids(await take(b, owner, Demand(io=4)))
        assert {*ids(bob)} <= {*seen}

    @story()
    async def test_several_gates_hold_at_once(self, b: Backend) -> None:
        await limit(b, 1, "limit:t/user")
        await limit(b, 2)
        for user in ("ann", "ann", "bob", "eve"):
            await publish(b, gates=(f"limit:t/user#{user}", ALL))
        owner = await enlist(b)
        held = await take(b, owner)
        users = [slot.gate.partition("#")[2] for one in held for slot in one.slots]
        assert sorted(filter(None, users)) == ["ann", "bob"]
        await settle(b, held[0], Succeeded(RESULT))
        assert len(await take(b, owner)) == 1

    @story()
    async def test_a_paused_gate_keeps_those_of_its_token_alone(self, b: Backend) -> None:
        await limit(b, 5, "limit:t/user")
        ann = await publish(b, gates=("limit:t/user#ann",))
        bob = await publish(b, gates=("limit:t/user#bob",))
        owner = await enlist(b)
        await b.control.pause("gate", "limit:t/user#ann", "too much")
        assert ids(await take(b, owner)) == [bob.id]
        await b.control.resume("gate", "limit:t/user#ann")
        assert ids(await take(b, owner)) == [ann.id]

    @story()
    async def test_a_paused_task_in_the_queue_keeps_nobody_at_a_gate(self, b: Backend) -> None:
        await limit(b, 5)
        await publish(b, subject="tests.paused")
        gated, owner = await publish(b, gates=(ALL,)), await enlist(b)
        await b.control.pause("task", "tests.paused", "")
        assert ids(await take(b, owner, Demand(io=1))) == [gated.id]

    @story()
    async def test_a_paused_task_in_the_line_lets_others_pass(self, b: Backend) -> None:
        await limit(b, 1, "limit:shared")
        paused = await publish(b, gates=("limit:shared",), subject="tests.paused")
        other = await publish(b, gates=("limit:shared",))
        owner = await enlist(b)
        await b.control.pause("task", "tests.paused", "")
        held = await take_one(b, owner)
        assert held.id == other.id
        await settle(b, held, Succeeded(RESULT))
        assert await take(b, owner) == []
        await b.control.resume("task", "tests.paused")
        assert ids(await take(b, owner)) == [paused.id]


class Rates:
    """So many in a time, without anybody holding what has to wait."""

    @story()
    async def test_a_rate_is_kept(self, b: Backend) -> None:
        gate = await rate(b, (10, 100.0))
        sent, owner = await publish_many(b, 30, gates=(gate,)), await enlist(b)
        seen: list[str] = []
        for _ in range(100):
            b.advance(2.0)
            seen += ids(await take(b, owner))
        assert ids(sent)[: len(seen)] == seen
        assert 19 <= len(seen) <= 21

    @story()
    async def test_a_burst_starts_at_once(self, b: Backend) -> None:
        gate = await rate(b, (10, 86_400.0), burst=4)
        sent, owner = await publish_many(b, 9, gates=(gate,)), await enlist(b)
        assert ids(await take(b, owner)) == ids(sent[:4])
        assert await take(b, owner) == []

    @story()
    async def test_two_rates_hold_at_once(self, b: Backend) -> None:
        gate = await rate(b, (10, 86_400.0), (3, 86_400.0), burst=5)
        await publish_many(b, 9, gates=(gate,))
        owner = await enlist(b)
        assert len(await take(b, owner)) == 5
        b.advance(86_400.0 / 3 * 1.1)
        assert len(await take(b, owner)) == 1

    @story()
    async def test_a_fetch_wakes_when_the_next_is_due(self, b: Backend) -> None:
        gate = await rate(b, (10, 1.0))
        await publish_many(b, 3, gates=(gate,))
        owner, left = await enlist(b), 3
        while left:
            found = await take(b, owner, wait=PATIENCE)
            assert found
            left -= len(found)

    @story()
    async def test_the_slower_of_two_rates_is_kept_as_time_goes_by(self, b: Backend) -> None:
        gate = await rate(b, (1000, 1.0), (50, 1.0))
        await publish_many(b, 15, gates=(gate,))
        owner, began, seen = await enlist(b), b.clock.monotonic(), 0
        while seen < 12:
            seen += len(await take(b, owner, wait=PATIENCE))
        assert b.clock.monotonic() - began > 0.9 * (seen - 2) / 50

    @story()
    async def test_what_has_ended_gives_no_rate_back(self, b: Backend) -> None:
        gate = await rate(b, (1, 86_400.0))
        await publish_many(b, 3, gates=(gate,))
        owner = await enlist(b)
        await settle(b, await take_one(b, owner), Succeeded(RESULT))
        assert await take(b, owner) == []


class Pools:
    """A member is never in two hands, and a free one never idle while somebody waits for it."""

    @story()
    async def test_a_job_is_given_a_member(self, b: Backend) -> None:
        gate = await pool(b, "one", "two")
        sent, owner = await publish_many(b, 3, gates=(gate,)), await enlist(b)
        held = await take(b, owner)
        assert ids(held) == ids(sent[:2])
        slots = [slot for one in held for slot in one.slots]
        assert [(s.gate, s.member, s.data) for s in slots] == [
            (gate, "one", {"at": "one"}),
            (gate, "two", {"at": "two"}),
        ]
        found = await b.gates.members("p")
        assert [(m.name, m.job) for m in found] == [("one", held[0].id), ("two", held[1].id)]

    @story()
    async def test_the_least_recently_used_member_is_next_with_a_higher_fence(
        self, b: Backend
    ) -> None:
        gate = await pool(b, "one", "two")
        await publish_many(b, 4, gates=(gate,))
        owner, seen = await enlist(b), list[tuple[str, int]]()
        for _ in range(4):
            held = await take_one(b, owner, demand=Demand(io=1))
            seen.append((held.slots[0].member, held.slots[0].fence))
            await settle(b, held, Succeeded(RESULT))
        assert seen == [("one", 1), ("two", 1), ("one", 2), ("two", 2)]

    @story()
    async def test_a_member_comes_back_from_the_dead(self, b: Backend) -> None:
        gate = await pool(b, "one")
        await publish_many(b, 2, gates=(gate,))
        owner, other = await enlist(b), await enlist(b)
        held = await take_one(b, owner)
        await kill(b, owner)
        assert await take(b, other) == []
        await b.broker.recover()
        again = await take_one(b, other)
        assert again.id == held.id
        assert again.slots[0].fence > held.slots[0].fence

    @story()
    async def test_drained_and_dismissed_members_are_not_handed_out(self, b: Backend) -> None:
        gate = await pool(b, "one", "two", "three")
        await publish_many(b, 4, gates=(gate,))
        owner = await enlist(b)
        assert await b.gates.turn("p", ["one", "none"], "drained") == ["one"]
        assert await b.gates.dismiss("p", ["two", "none"]) == ["two"]
        held = await take_one(b, owner)
        assert held.slots[0].member == "three"
        await b.gates.turn("p", ["one"], "ready")
        assert (await take_one(b, owner)).slots[0].member == "one"

    @story()
    async def test_a_member_that_leaves_while_it_is_held_is_kept_to_the_end(
        self, b: Backend
    ) -> None:
        gate = await pool(b, "one")
        await publish_many(b, 2, gates=(gate,))
        owner = await enlist(b)
        held = await take_one(b, owner)
        assert await b.gates.dismiss("p", ["one"]) == ["one"]
        assert [m.name for m in await b.gates.members("p")] == ["one"]
        await settle(b, held, Succeeded(RESULT))
        assert await b.gates.members("p") == []
        assert await take(b, owner) == []
        await b.gates.enrol("p", {"one": {}})
        assert (await take_one(b, owner)).slots[0].fence > held.slots[0].fence

    @story()
    async def test_a_member_that_leaves_and_returns_is_in_one_hand_still(self, b: Backend) -> None:
        gate = await pool(b, "one")
        await publish_many(b, 2, gates=(gate,))
        owner = await enlist(b)
        held = await take_one(b, owner)
        await b.gates.dismiss("p", ["one"])
        await b.gates.enrol("p", {"one": {}})
        assert await take(b, owner) == []
        await settle(b, held, Succeeded(RESULT))
        assert len(await take(b, owner)) == 1

    @story()
    async def test_a_fetch_that_waits_is_woken_by_a_new_member(self, b: Backend) -> None:
        gate = await pool(b)
        sent = await publish(b, gates=(gate,))
        async with b.another() as other:
            waiting = asyncio.create_task(take(other, await enlist(other), wait=PATIENCE))
            await asyncio.sleep(0.05)
            await b.gates.enrol("p", {"one": {}})
            assert ids(await waiting) == [sent.id]

    @story()
    async def test_two_pools_in_opposite_order_do_not_lock_each_other(self, b: Backend) -> None:
        for name in ("a", "b"):
            await b.gates.declare([Rule(name=f"pool:{name}", kind="pool")])
            await b.gates.enrol(name, {f"{name}1": {}})
        both = ("pool:a", "pool:b")  # whoever makes gates sorts them
        await b.broker.publish([envelope(b, gates=both) for _ in range(4)])
        owner = await enlist(b)
        for _ in range(4):
            held = await take_one(b, owner)
            assert [slot.member for slot in held.slots] == ["a1", "b1"]
            await settle(b, held, Succeeded(RESULT))

    @story()
    async def test_a_suspect_is_not_handed_out_before_it_is_ready_again(self, b: Backend) -> None:
        gate = await pool(b, "one")
        await publish_many(b, 2, gates=(gate,))
        owner = await enlist(b)
        held = await take_one(b, owner)
        await b.gates.suspect("p", "one", 0.0)
        await settle(b, held, Parked((gate,)))
        assert await take(b, owner) == []
        (found,) = await b.gates.suspects("p", FAR)
        assert (found.name, found.condition, found.failures) == ("one", "quarantined", 1)
        assert await b.gates.suspects("p", FAR) == []
        await b.gates.turn("p", ["one"], "ready")
        again = await take_one(b, owner)
        assert (again.id, again.attempt) == (held.id, 1)

    @story()
    async def test_the_code_names_members_and_operators_have_the_last_word(
        self, b: Backend
    ) -> None:
        await b.gates.enrol("p", {"one": {}, "two": {}}, only=True)
        await b.gates.enrol("p", {"mine": {}})
        await b.gates.dismiss("p", ["two"])
        await b.gates.enrol("p", {"one": {"new": 1}, "two": {}}, only=True)
        assert {m.name: m.data for m in await b.gates.members("p")} == {
            "mine": {},
            "one": {"new": 1},
        }
        await b.gates.enrol("p", {"three": {}}, only=True)
        assert [m.name for m in await b.gates.members("p")] == ["mine", "three"]
        await b.gates.enrol("p", {"one": {}, "three": {}}, only=True)
        assert [m.name for m in await b.gates.members()] == ["mine", "one", "three"]
        await b.gates.turn("p", ["one"], "drained")
        await b.gates.enrol("p", {"one": {}}, only=True)
        found = {m.name: m.condition for m in await b.gates.members("p")}
        assert found == {"mine": "ready", "one": "drained"}


class Showing:
    """What people see of gates."""

    @story()
    async def test_a_gate_shows_what_is_held_and_who_waits(self, b: Backend) -> None:
        await limit(b, 1)
        await publish_many(b, 3, gates=(ALL,))
        await take_one(b, await enlist(b))
        (gate,) = await b.gates.gates()
        assert (gate.key, gate.kind, gate.capacity, gate.imposed) == (ALL, "limit", 1, False)
        assert (gate.held, gate.waiting) == (1, 2)
        await b.gates.impose(ALL, 7)
        (gate,) = await b.gates.gates(ALL)
        assert (gate.capacity, gate.imposed) == (7, True)

    @story()
    async def test_tokens_show_while_they_are_in_use(self, b: Backend) -> None:
        await limit(b, 1, "limit:t/user")
        await publish(b, gates=("limit:t/user#ann",))
        owner = await enlist(b)
        held = await take_one(b, owner)
        keys = [(gate.key, gate.held) for gate in await b.gates.gates("limit:t/user")]
        assert ("limit:t/user#ann", 1) in keys
        await settle(b, held, Succeeded(RESULT))
        assert ("limit:t/user#ann", 1) not in [(g.key, g.held) for g in await b.gates.gates()]


class GatesOfNamespaces:
    """The same job id in two namespaces stands in two lines and holds two slots."""

    @story()
    async def test_one_id_stands_in_the_line_of_each_namespace(self, b: Backend) -> None:
        async with b.another(f"{b.namespace}2") as other:
            for side in (b, other):
                await limit(side, 1)
            first, second = await publish_many(b, 2, gates=(ALL,))
            for one in (first, second):
                await publish(other, id=one.id, gates=(ALL,))
            owner = await enlist(b)
            for one in (first, second):
                held = await take_one(b, owner)
                assert held.id == one.id
                assert await depths(other) == {("default", "waiting"): 2}
                await settle(b, held, Succeeded(RESULT))
            assert (await take_one(other, await enlist(other))).id == first.id
            assert await depths(other) == {("default", "running"): 1, ("default", "waiting"): 1}

    @story()
    async def test_a_member_stays_with_its_job_when_the_other_of_that_id_ends(
        self, b: Backend
    ) -> None:
        async with b.another(f"{b.namespace}2") as other:
            ways: tuple[tuple[Outcome, ...], ...] = ((Succeeded(RESULT),), (Failed(FAILURE),))
            ways = (*ways, (Retry(FAILURE, FAR),), ())
            for outcomes in ways:
                for side in (b, other):
                    await pool(side, "only")
                job = (await publish(b, gates=("pool:p",))).id
                await publish(other, id=job, gates=("pool:p",))
                held = await take_one(b, await enlist(b))
                theirs = await take_one(other, await enlist(other))
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


class GateTopics(Limits, Tokens, Rates, Pools, Showing, GatesOfNamespaces):
    """All that gates promise, one by one."""


class GateSuite(GateTopics, GateMachineSuite):
    """Gates over a broker and its store. Inherit it beside a ``backend`` fixture."""

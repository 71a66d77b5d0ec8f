"""The gates at which a job waits and the slots that it holds, in its record."""

from __future__ import annotations

from umbel.backends import Demand, JobFilter
from umbel.messages import Cancelled, Retry, Rule, Slot, State, Succeeded
from umbel.testing.actions import (
    FAILURE,
    RESULT,
    claim,
    claim_one,
    publish,
    publish_many,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test

LIMIT = "limit:tests.add"
TOKEN = "limit:tests.add/user#7"
POOL = "pool:executors"


async def _gates(b: Adapters, *names: str, limit: int = 1) -> None:
    await b.gates.declare(
        [
            Rule(name=LIMIT, capacity=limit),
            Rule(name="limit:tests.add/user", capacity=limit),
            Rule(name=POOL, kind="pool"),
        ]
    )
    await b.gates.add_members("executors", {name: {"at": name} for name in names})


class GatePositions:
    """The gate at which a job waits, its position there, and its slots."""

    @backend_test("records")
    async def test_a_waiting_job_shows_its_gate_and_its_position(self, b: Adapters) -> None:
        await _gates(b)
        sent = await publish_many(b, 3, gates=(TOKEN,))
        for place, job in enumerate(sent):
            found = await b.records.find(job.id)
            assert (found.state, found.gate, found.ahead) == (State.WAITING, TOKEN, place)
            assert (found.slots, found.waiting_since) == ((), found.created)

    @backend_test("records")
    async def test_the_position_counts_jobs_at_the_same_gate_only(self, b: Adapters) -> None:
        await _gates(b)
        await publish_many(b, 2, gates=(LIMIT,))
        await publish_many(b, 2, gates=(TOKEN,), queue="other")
        await publish(b)
        job = await publish(b, gates=(TOKEN,))
        assert (await b.records.find(job.id)).ahead == 0

    @backend_test("records", "priority")
    async def test_a_job_with_higher_priority_is_ahead_of_older_jobs(self, b: Adapters) -> None:
        await _gates(b)
        first = await publish(b, gates=(LIMIT,))
        high = await publish(b, gates=(LIMIT,), priority=5)
        low = await publish(b, gates=(LIMIT,), priority=-1)
        places = [(await b.records.find(job.id)).ahead for job in (high, first, low)]
        assert places == [0, 1, 2]

    @backend_test("records")
    async def test_jobs_that_pass_or_leave_no_longer_count_for_positions(self, b: Adapters) -> None:
        await _gates(b)
        sent = await publish_many(b, 4, gates=(LIMIT,))
        await claim_one(b, await register(b))
        await b.control.cancel([sent[1].id], "not wanted")
        assert [(await b.records.find(job.id)).ahead for job in sent[2:]] == [0, 1]

    @backend_test("records")
    async def test_a_job_between_two_gates_shows_its_slot_and_its_gate(self, b: Adapters) -> None:
        await _gates(b)
        job = await publish(b, gates=(TOKEN, POOL))
        assert await claim(b, await register(b)) == []
        found = await b.records.find(job.id)
        assert (found.state, found.gate, found.ahead) == (State.WAITING, POOL, 0)
        assert found.slots == (Slot(TOKEN),)

    @backend_test("records")
    async def test_a_running_job_names_the_members_it_has(self, b: Adapters) -> None:
        await _gates(b, "one")
        owner = await register(b)
        for fence in (1, 2):
            await publish(b, gates=(LIMIT, POOL))
            held = await claim_one(b, owner)
            found = await b.records.find(held.id)
            assert found.slots == held.slots
            assert found.slots == (Slot(LIMIT), Slot(POOL, "one", fence, {"at": "one"}))
            assert (found.gate, found.ahead, found.waiting_since) == (None, None, None)
            await settle(b, held, Succeeded(RESULT))

    @backend_test("records")
    async def test_an_ended_job_holds_no_slot_and_waits_at_no_gate(self, b: Adapters) -> None:
        await _gates(b, "one")
        owner = await register(b)
        for outcome in (Succeeded(RESULT), Cancelled("no")):
            job = await publish(b, gates=(LIMIT, POOL))
            await settle(b, await claim_one(b, owner), outcome)
            found = await b.records.find(job.id)
            assert (found.gate, found.ahead, found.slots) == (None, None, ())
        job = await publish(b, gates=(LIMIT,))
        await b.control.cancel([job.id], "not wanted")
        found = await b.records.find(job.id)
        assert (found.state, found.gate, found.ahead) == (State.CANCELLED, None, None)

    @backend_test("records")
    async def test_a_retried_job_waits_since_its_last_attempt(self, b: Adapters) -> None:
        await _gates(b, "one")
        await publish(b, gates=(POOL,))
        held = await claim_one(b, await register(b))
        await b.gates.set_condition(
            "executors", ["one"], "drained"
        )  # otherwise it may have passed again by then
        await settle(b, held, Retry(FAILURE, 0.0))
        found = await b.records.find(held.id)
        assert (found.gate, found.ahead, found.slots) == (POOL, 0, ())
        assert found.waiting_since == found.attempts[-1].finished

    @backend_test("records")
    async def test_lists_name_gates_and_members_too(self, b: Adapters) -> None:
        await _gates(b, "one")
        sent = await publish_many(b, 2, gates=(POOL,))
        free = await publish(b, queue="other")
        await claim_one(b, await register(b), demand=Demand.of(io=1))
        found = {one.id: one for one in await b.records.search(JobFilter())}
        runs, waits, other = (found[job.id] for job in (*sent, free))
        assert (runs.gate, runs.slots) == (None, (Slot(POOL, "one", 1, {"at": "one"}),))
        assert (waits.gate, waits.slots) == (POOL, ())
        assert (other.gate, other.slots) == (None, ())
        (found_alone,) = await b.records.search(JobFilter(states=(State.WAITING,)))
        assert (found_alone.id, found_alone.gate) == (sent[1].id, POOL)

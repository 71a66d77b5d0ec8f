"""Where a job waits, and what it holds, as its record tells."""

from __future__ import annotations

from umbel.backends import Demand, JobFilter
from umbel.messages import Cancelled, Retry, Rule, Slot, State, Succeeded
from umbel.testing.acts import (
    FAILURE,
    RESULT,
    enlist,
    publish,
    publish_many,
    settle,
    take,
    take_one,
)
from umbel.testing.backend import Backend, story

LIMIT = "limit:tests.add"
TOKEN = "limit:tests.add/user#7"
POOL = "pool:executors"


async def _gates(b: Backend, *names: str, limit: int = 1) -> None:
    await b.gates.declare(
        [
            Rule(name=LIMIT, capacity=limit),
            Rule(name="limit:tests.add/user", capacity=limit),
            Rule(name=POOL, kind="pool"),
        ]
    )
    await b.gates.enrol("executors", {name: {"at": name} for name in names})


class Standing:
    """The line a job stands in, and the slots it has."""

    @story("records")
    async def test_a_waiting_job_names_its_gate_and_who_is_before_it(self, b: Backend) -> None:
        await _gates(b)
        sent = await publish_many(b, 3, gates=(TOKEN,))
        for place, job in enumerate(sent):
            found = await b.records.find(job.id)
            assert (found.state, found.gate, found.ahead) == (State.WAITING, TOKEN, place)
            assert (found.slots, found.waiting_since) == ((), found.created)

    @story("records")
    async def test_who_is_before_it_is_of_its_own_line(self, b: Backend) -> None:
        await _gates(b)
        await publish_many(b, 2, gates=(LIMIT,))
        await publish_many(b, 2, gates=(TOKEN,), queue="other")
        await publish(b)
        job = await publish(b, gates=(TOKEN,))
        assert (await b.records.find(job.id)).ahead == 0

    @story("records", "priority")
    async def test_who_has_priority_is_before_who_came_first(self, b: Backend) -> None:
        await _gates(b)
        first = await publish(b, gates=(LIMIT,))
        high = await publish(b, gates=(LIMIT,), priority=5)
        low = await publish(b, gates=(LIMIT,), priority=-1)
        places = [(await b.records.find(job.id)).ahead for job in (high, first, low)]
        assert places == [0, 1, 2]

    @story("records")
    async def test_who_passes_or_leaves_is_before_nobody_any_more(self, b: Backend) -> None:
        await _gates(b)
        sent = await publish_many(b, 4, gates=(LIMIT,))
        await take_one(b, await enlist(b))
        await b.control.cancel([sent[1].id], "not wanted")
        assert [(await b.records.find(job.id)).ahead for job in sent[2:]] == [0, 1]

    @story("records")
    async def test_a_job_between_two_gates_names_what_it_has_and_what_it_waits_for(
        self, b: Backend
    ) -> None:
        await _gates(b)
        job = await publish(b, gates=(TOKEN, POOL))
        assert await take(b, await enlist(b)) == []
        found = await b.records.find(job.id)
        assert (found.state, found.gate, found.ahead) == (State.WAITING, POOL, 0)
        assert found.slots == (Slot(TOKEN),)

    @story("records")
    async def test_a_running_job_names_the_members_it_has(self, b: Backend) -> None:
        await _gates(b, "one")
        owner = await enlist(b)
        for fence in (1, 2):
            await publish(b, gates=(LIMIT, POOL))
            held = await take_one(b, owner)
            found = await b.records.find(held.id)
            assert found.slots == held.slots
            assert found.slots == (Slot(LIMIT), Slot(POOL, "one", fence, {"at": "one"}))
            assert (found.gate, found.ahead, found.waiting_since) == (None, None, None)
            await settle(b, held, Succeeded(RESULT))

    @story("records")
    async def test_what_has_ended_holds_nothing_and_waits_nowhere(self, b: Backend) -> None:
        await _gates(b, "one")
        owner = await enlist(b)
        for outcome in (Succeeded(RESULT), Cancelled("no")):
            job = await publish(b, gates=(LIMIT, POOL))
            await settle(b, await take_one(b, owner), outcome)
            found = await b.records.find(job.id)
            assert (found.gate, found.ahead, found.slots) == (None, None, ())
        job = await publish(b, gates=(LIMIT,))
        await b.control.cancel([job.id], "not wanted")
        found = await b.records.find(job.id)
        assert (found.state, found.gate, found.ahead) == (State.CANCELLED, None, None)

    @story("records")
    async def test_what_is_tried_again_waits_since_its_last_try(self, b: Backend) -> None:
        await _gates(b, "one")
        await publish(b, gates=(POOL,))
        held = await take_one(b, await enlist(b))
        await b.gates.turn("executors", ["one"], "drained")  # else it may have passed again by then
        await settle(b, held, Retry(FAILURE, 0.0))
        found = await b.records.find(held.id)
        assert (found.gate, found.ahead, found.slots) == (POOL, 0, ())
        assert found.waiting_since == found.attempts[-1].finished

    @story("records")
    async def test_lists_name_gates_and_members_too(self, b: Backend) -> None:
        await _gates(b, "one")
        sent = await publish_many(b, 2, gates=(POOL,))
        free = await publish(b, queue="other")
        await take_one(b, await enlist(b), demand=Demand(io=1))
        found = {one.id: one for one in await b.records.search(JobFilter())}
        runs, waits, other = (found[job.id] for job in (*sent, free))
        assert (runs.gate, runs.slots) == (None, (Slot(POOL, "one", 1, {"at": "one"}),))
        assert (waits.gate, waits.slots) == (POOL, ())
        assert (other.gate, other.slots) == (None, ())
        (found_alone,) = await b.records.search(JobFilter(states=(State.WAITING,)))
        assert (found_alone.id, found_alone.gate) == (sent[1].id, POOL)

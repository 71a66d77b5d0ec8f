"""Forgetting finished jobs."""

from __future__ import annotations

import pytest

from umbel.backends import Demand, JobFilter
from umbel.errors import UnknownJob
from umbel.messages import Cancelled, Delivery, Failed, Outcome, Rule, State, Succeeded
from umbel.testing.acts import (
    FAILURE,
    FAR,
    PATIENCE,
    SOON,
    depths,
    enlist,
    finished,
    publish,
    publish_many,
    running,
    settlement,
    take,
)
from umbel.testing.backend import Backend, story

ALL = 1_000_000


class Pruning:
    """By age and by number; never the buried, never the living."""

    @story("records")
    async def test_jobs_older_than_the_moment_are_forgotten(self, b: Backend) -> None:
        job = await finished(b)
        assert await b.records.prune(older_than=0, keep=ALL, limit=ALL) == 1
        with pytest.raises(UnknownJob):
            await b.records.find(job)

    @story("records")
    async def test_jobs_younger_than_the_moment_are_kept(self, b: Backend) -> None:
        job = await finished(b)
        assert await b.records.prune(older_than=FAR, keep=ALL, limit=ALL) == 0
        assert (await b.records.find(job)).state is State.SUCCEEDED

    @story("records")
    async def test_the_newest_are_kept_and_the_oldest_beyond_them_forgotten(
        self, b: Backend
    ) -> None:
        jobs = [await finished(b) for _ in range(6)]
        assert await b.records.prune(older_than=FAR, keep=2, limit=ALL) == 4
        assert await _known(b) == set(jobs[-2:])

    @story("records")
    async def test_keeping_none_forgets_all_that_are_not_buried(self, b: Backend) -> None:
        for _ in range(3):
            await finished(b)
        assert await b.records.prune(older_than=FAR, keep=0, limit=ALL) == 3

    @story("records")
    async def test_fewer_than_are_to_be_kept_are_all_kept(self, b: Backend) -> None:
        for _ in range(3):
            await finished(b)
        assert await b.records.prune(older_than=FAR, keep=3, limit=ALL) == 0

    @story("records")
    async def test_jobs_settled_in_the_same_moment_are_pruned_one_by_one(self, b: Backend) -> None:
        await publish_many(b, 10)
        held = await take(b, await enlist(b))
        await b.broker.settle([settlement(one, Succeeded()) for one in held])
        await b.records.prune(older_than=FAR, keep=4, limit=ALL)
        assert len(await _known(b)) == 4

    @story("records")
    async def test_buried_jobs_are_never_pruned(self, b: Backend) -> None:
        buried = await finished(b, Failed(FAILURE))
        await finished(b, Cancelled("no"))
        assert await b.records.prune(older_than=0, keep=0, limit=ALL) == 1
        assert await _known(b) == {buried}

    @story("records")
    async def test_buried_jobs_do_not_count(self, b: Backend) -> None:
        outcomes: list[Outcome] = [
            Succeeded(),
            Failed(FAILURE),
            Succeeded(),
            Succeeded(),
            Failed(FAILURE),
        ]
        jobs = [await finished(b, outcome) for outcome in outcomes]
        assert await b.records.prune(older_than=FAR, keep=2, limit=ALL) == 1
        assert await _known(b) == {*jobs[1:]}

    @story("records")
    async def test_many_are_forgotten_in_one_call(self, b: Backend) -> None:
        await publish_many(b, 2_300)
        owner = await enlist(b)
        while held := await take(b, owner, Demand(500, 0)):
            await b.broker.settle([settlement(one, Succeeded()) for one in held])
        assert await b.records.prune(older_than=FAR, keep=100, limit=ALL) == 2_200
        assert len(await _known(b)) == 100

    @story("records")
    async def test_live_jobs_are_never_pruned(self, b: Backend) -> None:
        held, sent = await running(b), await publish(b)
        assert await b.records.prune(older_than=0, keep=0, limit=ALL) == 0
        assert await _known(b) == {held.id, sent.id}

    @story("records")
    async def test_a_call_forgets_no_more_than_its_limit(self, b: Backend) -> None:
        for _ in range(8):
            await finished(b)
        assert await b.records.prune(older_than=0, keep=0, limit=3) == 3
        assert len(await _known(b)) == 5

    @story("records")
    async def test_the_oldest_are_forgotten_first(self, b: Backend) -> None:
        jobs = [await finished(b) for _ in range(4)]
        await b.records.prune(older_than=0, keep=ALL, limit=2)
        assert await _known(b) == set(jobs[2:])

    @story("records")
    async def test_pruning_stays_in_its_namespace(self, b: Backend) -> None:
        job = await finished(b)
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.records.prune(older_than=0, keep=0, limit=ALL) == 0
        assert await _known(b) == {job}


class Forgetting:
    """Gates of tokens that have had their turn: a new one does as well."""

    @story("records")
    async def test_tokens_whose_rate_is_past_are_nowhere_any_more(self, b: Backend) -> None:
        await b.gates.declare([Rule(name="rate:t/user", kind="rate", rates=((10, 0.1),))])
        owner = await enlist(b)
        for _ in range(2):  # who comes again finds a gate as new
            for user in range(50):
                await publish(b, gates=(f"rate:t/user#{user}",))
            held: list[Delivery] = []
            while len(held) < 50:
                held += await take(b, owner, wait=PATIENCE)
            assert {slot.gate for one in held for slot in one.slots} == _tokens(50)
            await b.records.prune(older_than=FAR, keep=ALL, limit=ALL)
            assert {gate.key for gate in await b.gates.gates() if gate.held} == _tokens(50)
            await b.broker.settle([settlement(one, Succeeded()) for one in held])
            if b.time_travels:
                b.advance(1.0)
            while len(await b.gates.gates()) > 1:  # whoever fetches next sees that nobody waits
                assert await take(b, owner, wait=SOON) == []
            await b.records.prune(older_than=FAR, keep=ALL, limit=ALL)

    @story("records")
    async def test_pruning_gives_no_rate_back(self, b: Backend) -> None:
        await b.gates.declare([Rule(name="rate:t/user", kind="rate", rates=((1, FAR), (9, 0.1)))])
        await publish(b, gates=("rate:t/user#ann",))
        owner = await enlist(b)
        await b.broker.settle([settlement(one, Succeeded()) for one in await take(b, owner)])
        for _ in range(3):
            assert await take(b, owner) == []
            await b.records.prune(older_than=0, keep=0, limit=ALL)
        await publish(b, gates=("rate:t/user#ann",))
        assert await take(b, owner) == []
        assert await depths(b) == {("default", "waiting"): 1}


class Removing:
    """Forgetting some on purpose."""

    @story("records")
    async def test_finished_jobs_are_removed_buried_ones_included(self, b: Backend) -> None:
        jobs = [await finished(b), await finished(b, Failed(FAILURE))]
        assert await b.records.remove(jobs) == 2
        assert await b.records.remove(jobs) == 0
        assert await _known(b) == set()

    @story("records")
    async def test_live_jobs_are_not_removed(self, b: Backend) -> None:
        held, sent = await running(b), await publish(b)
        assert await b.records.remove([held.id, sent.id]) == 0
        assert await _known(b) == {held.id, sent.id}

    @story("records")
    async def test_removing_stays_in_its_namespace(self, b: Backend) -> None:
        job = await finished(b)
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.records.remove([job]) == 0


def _tokens(many: int) -> set[str]:
    return {f"rate:t/user#{user}" for user in range(many)}


async def _known(b: Backend) -> set[str]:
    return {one.id for one in await b.records.search(JobFilter(limit=ALL))}

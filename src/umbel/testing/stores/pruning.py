"""Forgetting finished jobs and unused gates."""

from __future__ import annotations

from typing import Any

import pytest

from umbel.backends import Demand, JobFilter
from umbel.errors import UnknownJob
from umbel.messages import (
    GRAPH_TASK,
    Cancelled,
    Delivery,
    Expired,
    Failed,
    Outcome,
    Rule,
    State,
    Succeeded,
    fresh_id,
)
from umbel.testing.actions import (
    FAILURE,
    FAR,
    LONG_WAIT,
    RESULT,
    SOON,
    claim,
    depths,
    let_time_pass,
    prune_until_gone,
    publish,
    publish_and_claim,
    publish_and_settle,
    publish_many,
    register,
    settle,
    settlement,
)
from umbel.testing.backend import Adapters, backend_test
from umbel.testing.stores.graphs import Graph, OneWorker

ALL = 1_000_000


class Pruning:
    """Records are pruned by age and by number, but never buried or live jobs."""

    @backend_test("records")
    async def test_jobs_older_than_the_moment_are_forgotten(self, b: Adapters) -> None:
        job = await publish_and_settle(b)
        assert await b.records.prune(older_than=0, keep=ALL, limit=ALL) == 1
        with pytest.raises(UnknownJob):
            await b.records.find(job)

    @backend_test("records")
    async def test_jobs_younger_than_the_moment_are_kept(self, b: Adapters) -> None:
        job = await publish_and_settle(b)
        assert await b.records.prune(older_than=FAR, keep=ALL, limit=ALL) == 0
        assert (await b.records.find(job)).state is State.SUCCEEDED

    @backend_test("records")
    async def test_the_newest_are_kept_and_the_oldest_beyond_them_forgotten(
        self, b: Adapters
    ) -> None:
        jobs = [await publish_and_settle(b) for _ in range(6)]
        assert await b.records.prune(older_than=FAR, keep=2, limit=ALL) == 4
        assert await _known(b) == set(jobs[-2:])

    @backend_test("records")
    async def test_keeping_none_forgets_all_that_are_not_buried(self, b: Adapters) -> None:
        for _ in range(3):
            await publish_and_settle(b)
        assert await b.records.prune(older_than=FAR, keep=0, limit=ALL) == 3

    @backend_test("records")
    async def test_fewer_than_are_to_be_kept_are_all_kept(self, b: Adapters) -> None:
        for _ in range(3):
            await publish_and_settle(b)
        assert await b.records.prune(older_than=FAR, keep=3, limit=ALL) == 0

    @backend_test("records")
    async def test_a_success_is_forgotten_after_a_time_of_its_own(self, b: Adapters) -> None:
        short = [await publish_and_settle(b, Succeeded(RESULT, keep_for=0.01)) for _ in range(3)]
        others = [
            await publish_and_settle(b, Succeeded(RESULT, keep_for=FAR)),
            await publish_and_settle(b, Succeeded(RESULT)),
        ]
        await prune_until_gone(b, *short)
        assert await _known(b) == set(others)

    @backend_test("records")
    async def test_successes_settled_together_have_their_own_times(self, b: Adapters) -> None:
        await publish_many(b, 4)
        held = await claim(b, await register(b))
        times = (0.01, FAR, None, 0.01)
        await b.broker.settle(
            [settlement(one, Succeeded(keep_for=t)) for one, t in zip(held, times, strict=True)]
        )
        await prune_until_gone(b, held[0].id, held[3].id)
        assert await _known(b) == {held[1].id, held[2].id}

    @backend_test("records")
    async def test_a_time_of_its_own_keeps_no_job_beyond_age_and_number(self, b: Adapters) -> None:
        for _ in range(3):
            await publish_and_settle(b, Succeeded(RESULT, keep_for=FAR))
        assert await b.records.prune(older_than=FAR, keep=2, limit=ALL) == 1
        assert await b.records.prune(older_than=0, keep=ALL, limit=ALL) == 2
        assert await _known(b) == set()

    @backend_test("records")
    async def test_a_call_forgets_no_more_than_its_limit_by_all_rules(self, b: Adapters) -> None:
        short = [await publish_and_settle(b, Succeeded(keep_for=0.01)) for _ in range(2)]
        long = [await publish_and_settle(b) for _ in range(3)]
        while await b.records.prune(older_than=FAR, keep=ALL, limit=1) == 0:
            let_time_pass(b)
        assert await _known(b) == {short[1], *long}
        await prune_until_gone(b, short[1])
        assert await b.records.prune(older_than=0, keep=0, limit=2) == 2
        assert len(await _known(b)) == 1

    @backend_test("records")
    async def test_a_job_that_is_deleted_by_hand_is_not_pruned_again(self, b: Adapters) -> None:
        job = await publish_and_settle(b, Succeeded(keep_for=0.01))
        assert await b.records.remove([job]) == 1
        marker = await publish_and_settle(b, Succeeded(keep_for=0.01))
        assert await prune_until_gone(b, marker) == 1

    @backend_test("records")
    async def test_jobs_settled_in_the_same_moment_are_pruned_one_by_one(self, b: Adapters) -> None:
        await publish_many(b, 10)
        held = await claim(b, await register(b))
        await b.broker.settle([settlement(one, Succeeded()) for one in held])
        await b.records.prune(older_than=FAR, keep=4, limit=ALL)
        assert len(await _known(b)) == 4

    @backend_test("records")
    async def test_buried_jobs_are_never_pruned(self, b: Adapters) -> None:
        buried = await publish_and_settle(b, Failed(FAILURE))
        await publish_and_settle(b, Cancelled("no"))
        assert await b.records.prune(older_than=0, keep=0, limit=ALL) == 1
        assert await _known(b) == {buried}

    @backend_test("records")
    async def test_buried_jobs_do_not_count(self, b: Adapters) -> None:
        outcomes: list[Outcome] = [
            Succeeded(),
            Failed(FAILURE),
            Succeeded(),
            Succeeded(),
            Failed(FAILURE),
        ]
        jobs = [await publish_and_settle(b, outcome) for outcome in outcomes]
        assert await b.records.prune(older_than=FAR, keep=2, limit=ALL) == 1
        assert await _known(b) == {*jobs[1:]}

    @backend_test("records")
    async def test_many_are_forgotten_in_one_call(self, b: Adapters) -> None:
        await publish_many(b, 2_300)
        owner = await register(b)
        while held := await claim(b, owner, Demand.of(io=500)):
            await b.broker.settle([settlement(one, Succeeded()) for one in held])
        assert await b.records.prune(older_than=FAR, keep=100, limit=ALL) == 2_200
        assert len(await _known(b)) == 100

    @backend_test("records")
    async def test_live_jobs_are_never_pruned(self, b: Adapters) -> None:
        held, sent = await publish_and_claim(b), await publish(b)
        assert await b.records.prune(older_than=0, keep=0, limit=ALL) == 0
        assert await _known(b) == {held.id, sent.id}

    @backend_test("records")
    async def test_a_call_forgets_no_more_than_its_limit(self, b: Adapters) -> None:
        for _ in range(8):
            await publish_and_settle(b)
        assert await b.records.prune(older_than=0, keep=0, limit=3) == 3
        assert len(await _known(b)) == 5

    @backend_test("records")
    async def test_the_oldest_are_forgotten_first(self, b: Adapters) -> None:
        jobs = [await publish_and_settle(b) for _ in range(4)]
        await b.records.prune(older_than=0, keep=ALL, limit=2)
        assert await _known(b) == set(jobs[2:])

    @backend_test("records")
    async def test_pruning_stays_in_its_namespace(self, b: Adapters) -> None:
        job = await publish_and_settle(b)
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.records.prune(older_than=0, keep=0, limit=ALL) == 0
        assert await _known(b) == {job}


class PruningGraphs:
    """The groups that are kept only because they have joins are found by the rules of pruning."""

    @backend_test("records")
    async def test_the_group_of_an_old_root_is_found_until_its_joins_are_dropped(
        self, b: Adapters
    ) -> None:
        worker = await OneWorker.start(b)
        group = await ended_graph(b, worker)
        assert await prunable(b, older_than=FAR) == []
        assert await prunable(b) == [group]
        assert await b.records.prune(older_than=0, keep=0, limit=ALL) == 0
        assert await prunable(b) == [group]
        assert await b.joins.drop(group)
        assert await prunable(b) == []
        assert await b.records.prune(older_than=0, keep=ALL, limit=ALL) == 2
        assert await _known(b) == set()

    @backend_test("records")
    async def test_the_groups_of_roots_beyond_the_number_are_found(self, b: Adapters) -> None:
        worker = await OneWorker.start(b)
        groups = [await ended_graph(b, worker) for _ in range(3)]
        await publish_and_settle(b)
        for keep, found in ((0, 3), (1, 3), (2, 2), (3, 2), (4, 1), (6, 0), (7, 0)):
            assert await prunable(b, older_than=FAR, keep=keep) == groups[:found]

    @backend_test("records")
    async def test_buried_jobs_do_not_count_among_the_newest(self, b: Adapters) -> None:
        worker = await OneWorker.start(b)
        group = await ended_graph(b, worker)
        for _ in range(3):
            await publish_and_settle(b, Failed(FAILURE))
        assert await prunable(b, older_than=FAR, keep=1) == []
        assert await prunable(b, older_than=FAR, keep=0) == [group]

    @backend_test("records")
    async def test_every_end_of_a_root_but_its_burial_counts(self, b: Adapters) -> None:
        worker = await OneWorker.start(b)
        ends: tuple[Outcome, ...] = (Succeeded(), Cancelled("no"), Expired())
        groups = [await ended_graph(b, worker, end) for end in ends]
        buried = await ended_graph(b, worker, Failed(FAILURE))
        assert await prunable(b) == groups
        for group in groups:
            assert await b.joins.drop(group)
        assert await b.records.prune(older_than=0, keep=0, limit=ALL) == 6
        assert buried in await _known(b)
        assert len(await _known(b)) == 2

    @backend_test("records")
    async def test_only_roots_of_groups_with_joins_are_found(self, b: Adapters) -> None:
        worker = await OneWorker.start(b)
        await publish_and_settle(b, subject=GRAPH_TASK)
        await ended_graph(b, worker, subject="tests.add")
        await ended_graph(b, worker, id=fresh_id())
        live = Graph(b)
        live.job(id=live.group, subject=GRAPH_TASK, after=live.join(live.job()))
        await live.add()
        assert await prunable(b) == []

    @backend_test("records")
    async def test_a_root_that_runs_again_is_not_found(self, b: Adapters) -> None:
        worker = await OneWorker.start(b)
        first, second = await ended_graph(b, worker), await ended_graph(b, worker, Cancelled("no"))
        assert await b.joins.reopen([first]) == [first]
        assert await b.records.replay([second]) == [second]
        assert await prunable(b) == []
        for _ in range(2):
            await worker.fetch()
        for root in (second, first):
            await settle(b, worker.held.pop(root), Succeeded())
            let_time_pass(b)
        assert await prunable(b, older_than=FAR) == []
        assert sorted(await prunable(b)) == sorted((first, second))

    @backend_test("records")
    async def test_groups_are_found_in_pages_after_one_of_them(self, b: Adapters) -> None:
        worker = await OneWorker.start(b)
        groups = [await ended_graph(b, worker) for _ in range(5)]
        assert await prunable(b, limit=2) == groups[:2]
        assert await prunable(b, limit=2, after=groups[1]) == groups[2:4]
        assert await prunable(b, limit=2, after=groups[3]) == groups[4:]
        assert await prunable(b, after=groups[4]) == []
        assert await b.joins.drop(groups[0])
        assert await b.records.prune(older_than=0, keep=0, limit=ALL) == 2
        assert await prunable(b, after=groups[0]) == groups[1:]

    @backend_test("records")
    async def test_groups_are_found_in_their_namespace(self, b: Adapters) -> None:
        await ended_graph(b, await OneWorker.start(b))
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await prunable(elsewhere) == []


async def ended_graph(
    b: Adapters, worker: OneWorker, outcome: Outcome | None = None, **changes: Any
) -> str:
    """Let a graph of one job and a root end, a moment after other jobs. Return its group."""
    let_time_pass(b)
    g = Graph(b)
    part = g.job()
    root = g.job(after=g.join(part), **{"id": g.group, "subject": GRAPH_TASK, **changes})
    await g.add()
    await worker.end(part)
    await worker.end(root, outcome or Succeeded())
    return g.group


async def prunable(
    b: Adapters, *, older_than: float = 0, keep: int = ALL, after: str = "", limit: int = ALL
) -> list[str]:
    """Return the groups that only their joins keep from being pruned."""
    return await b.records.prunable_groups(
        older_than=older_than, keep=keep, after=after, limit=limit
    )


class ForgettingGates:
    """Gates of tokens without jobs are forgotten; a new job gets a new gate."""

    @backend_test("records")
    async def test_tokens_whose_rate_is_past_are_nowhere_any_more(self, b: Adapters) -> None:
        await b.gates.declare([Rule(name="rate:t/user", kind="rate", rates=((10, 0.1),))])
        owner = await register(b)
        for _ in range(2):  # a new job finds a new gate
            for user in range(50):
                await publish(b, gates=(f"rate:t/user#{user}",))
            held: list[Delivery] = []
            while len(held) < 50:
                held += await claim(b, owner, wait=LONG_WAIT)
            assert {slot.gate for one in held for slot in one.slots} == _tokens(50)
            await b.records.prune(older_than=FAR, keep=ALL, limit=ALL)
            assert {gate.key for gate in await b.gates.gates() if gate.held} == _tokens(50)
            await b.broker.settle([settlement(one, Succeeded()) for one in held])
            if b.time_travels:
                b.advance(1.0)
            while len(await b.gates.gates()) > 1:  # the next fetch sees that no job waits
                assert await claim(b, owner, wait=SOON) == []
            await b.records.prune(older_than=FAR, keep=ALL, limit=ALL)

    @backend_test("records")
    async def test_pruning_gives_no_rate_back(self, b: Adapters) -> None:
        await b.gates.declare([Rule(name="rate:t/user", kind="rate", rates=((1, FAR), (9, 0.1)))])
        await publish(b, gates=("rate:t/user#ann",))
        owner = await register(b)
        await b.broker.settle([settlement(one, Succeeded()) for one in await claim(b, owner)])
        for _ in range(3):
            assert await claim(b, owner) == []
            await b.records.prune(older_than=0, keep=0, limit=ALL)
        await publish(b, gates=("rate:t/user#ann",))
        assert await claim(b, owner) == []
        assert await depths(b) == {("default", "waiting"): 1}


class Removing:
    """Records are removed by id."""

    @backend_test("records")
    async def test_finished_jobs_are_removed_buried_ones_included(self, b: Adapters) -> None:
        jobs = [await publish_and_settle(b), await publish_and_settle(b, Failed(FAILURE))]
        assert await b.records.remove(jobs) == 2
        assert await b.records.remove(jobs) == 0
        assert await _known(b) == set()

    @backend_test("records")
    async def test_live_jobs_are_not_removed(self, b: Adapters) -> None:
        held, sent = await publish_and_claim(b), await publish(b)
        assert await b.records.remove([held.id, sent.id]) == 0
        assert await _known(b) == {held.id, sent.id}

    @backend_test("records")
    async def test_removing_stays_in_its_namespace(self, b: Adapters) -> None:
        job = await publish_and_settle(b)
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.records.remove([job]) == 0


def _tokens(many: int) -> set[str]:
    return {f"rate:t/user#{user}" for user in range(many)}


async def _known(b: Adapters) -> set[str]:
    return {one.id for one in await b.records.search(JobFilter(limit=ALL))}

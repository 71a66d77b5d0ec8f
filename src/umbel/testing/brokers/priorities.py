"""Priorities within a queue, and the demand of a worker by kind."""

from __future__ import annotations

from umbel.backends import Demand
from umbel.errors import UmbelError
from umbel.messages import Interrupted
from umbel.testing.actions import (
    claim,
    claim_one,
    envelope,
    ids,
    publish,
    publish_many,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test


class Priorities:
    """Higher first; among equals the oldest."""

    @backend_test("priority")
    async def test_a_higher_priority_goes_first(self, b: Adapters) -> None:
        batch = [envelope(b, priority=p) for p in (0, 5, -3, 9, 5)]
        await b.broker.publish(batch)
        owner = await register(b)
        got = [(await claim_one(b, owner, demand=Demand.of(io=1))).envelope.priority for _ in batch]
        assert got == [9, 5, 5, 0, -3]

    @backend_test("priority")
    async def test_a_fetch_returns_jobs_in_the_order_of_priority(self, b: Adapters) -> None:
        await b.broker.publish([envelope(b, priority=p) for p in (0, 5, -3, 9, 5)])
        got = [one.envelope.priority for one in await claim(b, await register(b))]
        assert got == [9, 5, 5, 0, -3]

    @backend_test()
    async def test_among_equals_the_oldest_goes_first(self, b: Adapters) -> None:
        sent = await publish_many(b, 20)
        owner = await register(b)
        first = await claim(b, owner, Demand.of(io=8))
        second = await claim(b, owner, Demand.of(io=100))
        assert ids(first) + ids(second) == ids(sent)

    @backend_test("priority")
    async def test_a_job_that_goes_back_is_not_behind_younger_ones(self, b: Adapters) -> None:
        owner = await register(b)
        await publish(b)
        held = await claim_one(b, owner)
        await publish_many(b, 3)
        await settle(b, held, Interrupted())
        assert (await claim_one(b, owner, demand=Demand.of(io=1))).id == held.id

    @backend_test("priority")
    async def test_the_extremes_of_priority_are_kept(self, b: Adapters) -> None:
        await b.broker.publish([envelope(b, priority=p) for p in (-32767, 32767)])
        got = [one.envelope.priority for one in await claim(b, await register(b))]
        assert got == [32767, -32767]


class Kinds:
    """Demand is per kind: a worker never gets a job that it cannot start."""

    @backend_test()
    async def test_each_kind_is_fetched_up_to_its_own_demand(self, b: Adapters) -> None:
        await publish_many(b, 5, kind="io")
        await publish_many(b, 5, kind="cpu")
        got = [
            one.envelope.kind for one in await claim(b, await register(b), Demand.of(io=3, cpu=2))
        ]
        assert sorted(got) == ["cpu", "cpu", "io", "io", "io"]

    @backend_test()
    async def test_a_kind_without_demand_is_not_fetched(self, b: Adapters) -> None:
        await publish(b, kind="cpu")
        owner = await register(b)
        assert await claim(b, owner, Demand.of(io=10)) == []
        assert len(await claim(b, owner, Demand.of(cpu=1))) == 1

    @backend_test()
    async def test_a_job_of_unknown_kind_is_fetched_only_where_either_could_start(
        self, b: Adapters
    ) -> None:
        await publish(b, kind="")
        owner = await register(b)
        assert await claim(b, owner, Demand.of(io=5)) == []
        assert await claim(b, owner, Demand.of(cpu=5)) == []
        assert len(await claim(b, owner, Demand.of(io=1, cpu=1))) == 1

    @backend_test()
    async def test_jobs_of_unknown_kind_count_against_both_demands(self, b: Adapters) -> None:
        await publish_many(b, 3, kind="")
        await publish_many(b, 3, kind="io")
        await publish_many(b, 3, kind="cpu")
        got = [
            one.envelope.kind for one in await claim(b, await register(b), Demand.of(io=2, cpu=3))
        ]
        unknown = got.count("")
        assert got.count("io") + unknown <= 2
        assert got.count("cpu") + unknown <= 3

    @backend_test()
    async def test_a_kind_that_can_be_published_can_be_fetched(self, b: Adapters) -> None:
        for kind in ("", "io", "cpu", "box"):
            try:
                sent = await publish(b, kind=kind)
            except UmbelError:
                continue  # a job may be rejected with a reason, but must not wait for ever
            assert ids(await claim(b, await register(b))) == [sent.id], kind

    @backend_test("priority")
    async def test_priority_decides_between_known_and_unknown_kinds(self, b: Adapters) -> None:
        await publish(b, kind="", priority=0)
        urgent = await publish(b, kind="io", priority=9)
        got = await claim(b, await register(b), Demand.of(io=1, cpu=1))
        assert urgent.id in ids(got)

"""Which job of a queue goes first, and which kinds a worker has room for."""

from __future__ import annotations

from umbel.backends import Demand
from umbel.errors import UmbelError
from umbel.messages import Interrupted
from umbel.testing.acts import enlist, envelope, ids, publish, publish_many, settle, take, take_one
from umbel.testing.backend import Backend, story


class Priorities:
    """Higher first; among equals the oldest."""

    @story("priority")
    async def test_a_higher_priority_goes_first(self, b: Backend) -> None:
        batch = [envelope(b, priority=p) for p in (0, 5, -3, 9, 5)]
        await b.broker.publish(batch)
        owner = await enlist(b)
        got = [(await take_one(b, owner, demand=Demand(io=1))).envelope.priority for _ in batch]
        assert got == [9, 5, 5, 0, -3]

    @story("priority")
    async def test_a_fetch_hands_over_in_the_order_of_priority(self, b: Backend) -> None:
        await b.broker.publish([envelope(b, priority=p) for p in (0, 5, -3, 9, 5)])
        got = [one.envelope.priority for one in await take(b, await enlist(b))]
        assert got == [9, 5, 5, 0, -3]

    @story()
    async def test_among_equals_the_oldest_goes_first(self, b: Backend) -> None:
        sent = await publish_many(b, 20)
        owner = await enlist(b)
        first = await take(b, owner, Demand(io=8))
        second = await take(b, owner, Demand(io=100))
        assert ids(first) + ids(second) == ids(sent)

    @story("priority")
    async def test_a_job_that_goes_back_is_not_behind_younger_ones(self, b: Backend) -> None:
        owner = await enlist(b)
        await publish(b)
        held = await take_one(b, owner)
        await publish_many(b, 3)
        await settle(b, held, Interrupted())
        assert (await take_one(b, owner, demand=Demand(io=1))).id == held.id

    @story("priority")
    async def test_the_extremes_of_priority_are_kept(self, b: Backend) -> None:
        await b.broker.publish([envelope(b, priority=p) for p in (-32767, 32767)])
        got = [one.envelope.priority for one in await take(b, await enlist(b))]
        assert got == [32767, -32767]


class Kinds:
    """Demand is per kind: a worker never holds what it cannot start."""

    @story()
    async def test_each_kind_is_fetched_up_to_its_own_demand(self, b: Backend) -> None:
        await publish_many(b, 5, kind="io")
        await publish_many(b, 5, kind="cpu")
        got = [one.envelope.kind for one in await take(b, await enlist(b), Demand(io=3, cpu=2))]
        assert sorted(got) == ["cpu", "cpu", "io", "io", "io"]

    @story()
    async def test_a_kind_without_demand_is_left_alone(self, b: Backend) -> None:
        await publish(b, kind="cpu")
        owner = await enlist(b)
        assert await take(b, owner, Demand(io=10)) == []
        assert len(await take(b, owner, Demand(cpu=1))) == 1

    @story()
    async def test_a_job_of_unknown_kind_is_fetched_only_where_either_could_start(
        self, b: Backend
    ) -> None:
        await publish(b, kind="")
        owner = await enlist(b)
        assert await take(b, owner, Demand(io=5)) == []
        assert await take(b, owner, Demand(cpu=5)) == []
        assert len(await take(b, owner, Demand(io=1, cpu=1))) == 1

    @story()
    async def test_jobs_of_unknown_kind_count_against_both_demands(self, b: Backend) -> None:
        await publish_many(b, 3, kind="")
        await publish_many(b, 3, kind="io")
        await publish_many(b, 3, kind="cpu")
        got = [one.envelope.kind for one in await take(b, await enlist(b), Demand(io=2, cpu=3))]
        unknown = got.count("")
        assert got.count("io") + unknown <= 2
        assert got.count("cpu") + unknown <= 3

    @story()
    async def test_a_kind_that_can_be_published_can_be_fetched(self, b: Backend) -> None:
        for kind in ("", "io", "cpu", "box"):
            try:
                sent = await publish(b, kind=kind)
            except UmbelError:
                continue  # refused with a reason is fine; kept for ever is not
            assert ids(await take(b, await enlist(b))) == [sent.id], kind

    @story("priority")
    async def test_priority_decides_between_known_and_unknown_kinds(self, b: Backend) -> None:
        await publish(b, kind="", priority=0)
        urgent = await publish(b, kind="io", priority=9)
        got = await take(b, await enlist(b), Demand(io=1, cpu=1))
        assert urgent.id in ids(got)

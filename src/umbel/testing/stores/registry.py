"""Which workers live."""

from __future__ import annotations

import asyncio

from umbel.testing.acts import enlist, kill, worker
from umbel.testing.backend import Backend, story


class Lives:
    """Enlist, beat, remove, leave."""

    @story()
    async def test_an_enlisted_worker_is_a_member(self, b: Backend) -> None:
        entry = worker("anna")
        await b.registry.enlist(entry)
        (member,) = await b.registry.members()
        assert (member.entry, member.stopping, member.running) == (entry, False, 0)

    @story()
    async def test_a_member_is_seen_by_other_processes(self, b: Backend) -> None:
        incarnation = await enlist(b)
        async with b.another() as other:
            assert [m.entry.incarnation for m in await other.registry.members()] == [incarnation]

    @story()
    async def test_enlisting_twice_is_one_life_with_its_beats(self, b: Backend) -> None:
        entry = worker()
        await b.registry.enlist(entry)
        await b.registry.beat(entry.incarnation, running=2, epoch=1, stopping=False)
        (before,) = await b.registry.members()
        await b.registry.enlist(entry)
        (after,) = await b.registry.members()
        assert (after.entry, after.beat, after.running) == (before.entry, before.beat, 2)

    @story()
    async def test_every_beat_counts_and_tells_how_the_worker_is(self, b: Backend) -> None:
        incarnation = await enlist(b)
        (first,) = await b.registry.members()
        assert await b.registry.beat(incarnation, running=3, epoch=7, stopping=True)
        (second,) = await b.registry.members()
        assert second.beat > first.beat
        assert (second.running, second.epoch, second.stopping) == (3, 7, True)
        assert 0 <= second.silent <= second.age

    @story()
    async def test_a_worker_that_is_not_enlisted_is_told_so_when_it_beats(self, b: Backend) -> None:
        assert not await b.registry.beat("nobody", running=0, epoch=0, stopping=False)
        incarnation = await enlist(b)
        await kill(b, incarnation)
        assert not await b.registry.beat(incarnation, running=0, epoch=0, stopping=False)
        assert await b.registry.members() == []

    @story()
    async def test_a_worker_that_has_beaten_since_is_not_removed(self, b: Backend) -> None:
        incarnation = await enlist(b)
        (seen,) = await b.registry.members()
        await b.registry.beat(incarnation, running=0, epoch=0, stopping=False)
        assert not await b.registry.remove(incarnation, seen.beat)
        assert len(await b.registry.members()) == 1

    @story()
    async def test_a_worker_that_stood_still_is_removed_once(self, b: Backend) -> None:
        incarnation = await enlist(b)
        (seen,) = await b.registry.members()
        async with b.another() as other:
            both = await asyncio.gather(
                b.registry.remove(incarnation, seen.beat),
                other.registry.remove(incarnation, seen.beat),
            )
        assert sorted(both) == [False, True]

    @story()
    async def test_removing_a_stranger_is_refused(self, b: Backend) -> None:
        assert not await b.registry.remove("nobody", 0)

    @story()
    async def test_leaving_ends_a_life_and_may_be_repeated(self, b: Backend) -> None:
        gone, stays = await enlist(b, "gone"), await enlist(b, "stays")
        await b.registry.leave(gone)
        await b.registry.leave(gone)
        assert [m.entry.incarnation for m in await b.registry.members()] == [stays]

    @story()
    async def test_several_lives_may_have_one_name(self, b: Backend) -> None:
        lives = {await enlist(b, "anna"), await enlist(b, "anna")}
        assert {m.entry.incarnation for m in await b.registry.members()} == lives

    @story()
    async def test_members_stay_in_their_namespace(self, b: Backend) -> None:
        await enlist(b, "anna")
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.registry.members() == []

"""Which workers live, and what they have heard."""

from __future__ import annotations

import asyncio

import msgspec

from umbel.backends import Hearing
from umbel.messages import Interrupted, Rejected, Succeeded, fresh_id
from umbel.testing.acts import enlist, kill, publish, settle, take, take_one, worker
from umbel.testing.backend import Backend, story


class Lives:
    """Enlist, beat, remove, leave."""

    @story()
    async def test_an_enlisted_worker_is_a_member(self, b: Backend) -> None:
        entry = worker("anna")
        await b.registry.enlist(entry)
        (member,) = await b.registry.members()
        seated = msgspec.structs.replace(entry, index=0)
        assert (member.entry, member.stopping, member.running) == (seated, False, 0)

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


class Heard:
    """Messages to one worker, each heard once."""

    @story()
    async def test_a_message_is_heard_for_the_first_time_once(self, b: Backend) -> None:
        job, now = fresh_id(), b.clock.now()
        assert await b.registry.witness({job: now + 60}) == {job: Hearing.FIRST}
        assert await b.registry.witness({job: now + 60}) == {job: Hearing.COPY}
        async with b.another() as other:
            assert await other.registry.witness({job: now + 60}) == {job: Hearing.COPY}

    @story()
    async def test_a_job_that_comes_back_is_heard_again_however_late(self, b: Backend) -> None:
        owner, now = await enlist(b), b.clock.now()
        job = (await publish(b)).id
        (held,) = await take(b, owner)
        assert await b.registry.witness({job: now + 60}) == {job: Hearing.FIRST}
        await settle(b, held, Interrupted("given back"))
        (held,) = await take(b, owner)
        assert await b.registry.witness({job: now + 60}) == {job: Hearing.AGAIN}
        assert await b.registry.witness({job: now - 3600}) == {job: Hearing.AGAIN}

    @story()
    async def test_a_job_of_the_same_id_is_a_copy_whose_record_is_gone(self, b: Backend) -> None:
        owner, now = await enlist(b), b.clock.now()
        job = (await publish(b)).id
        (held,) = await take(b, owner)
        assert await b.registry.witness({job: now + 60}) == {job: Hearing.FIRST}
        await settle(b, held, Succeeded())
        await b.records.remove([job])
        await publish(b, id=job)
        for _ in range(2):  # also when it was claimed, and given back unchecked
            (held,) = await take(b, owner)
            assert await b.registry.witness({job: now + 60}) == {job: Hearing.COPY}
            await settle(b, held, Interrupted("given back"))

    @story()
    async def test_a_job_that_ran_and_is_replayed_was_heard(self, b: Backend) -> None:
        owner, now = await enlist(b), b.clock.now()
        await publish(b, queue="worker-7")
        held = await take_one(b, owner, queues=("worker-7",))
        await b.registry.witness({held.id: now + 60})
        await settle(b, held, Rejected("it cannot run"))
        assert await b.records.replay([held.id]) == [held.id]
        found = await b.registry.witness({held.id: now - 60})
        assert found == {held.id: Hearing.AGAIN}

    @story()
    async def test_a_job_that_was_refused_and_is_replayed_was_not(self, b: Backend) -> None:
        owner, now = await enlist(b), b.clock.now()
        await publish(b, queue="worker-7")
        held = await take_one(b, owner, queues=("worker-7",))
        await settle(b, held, Rejected("inbox: it is not signed"))
        assert await b.records.replay([held.id]) == [held.id]
        found = await b.registry.witness({held.id: now - 60})
        assert found == {held.id: Hearing.LATE}

    @story()
    async def test_what_comes_too_late_is_not_noted(self, b: Backend) -> None:
        job, now = fresh_id(), b.clock.now()
        assert await b.registry.witness({job: now - 1}) == {job: Hearing.LATE}
        assert await b.registry.witness({job: now + 60}) == {job: Hearing.FIRST}

    @story()
    async def test_of_many_at_once_one_hears_it_first(self, b: Backend) -> None:
        now = b.clock.now()
        jobs = {fresh_id(): now + 60 for _ in range(5)}
        backwards = dict(reversed(jobs.items()))
        async with b.another() as other:
            answers = await asyncio.gather(
                *(b.registry.witness(jobs) for _ in range(5)),
                *(other.registry.witness(backwards) for _ in range(5)),
            )
        for job in jobs:
            assert sum(found[job] is Hearing.FIRST for found in answers) == 1
            assert sum(found[job] is Hearing.COPY for found in answers) == 9

    @story()
    async def test_who_asks_at_once_for_one_job_is_told_of_no_copy(self, b: Backend) -> None:
        owner, now = await enlist(b), b.clock.now()
        job = (await publish(b)).id
        await take(b, owner)
        async with b.another() as other:
            answers = await asyncio.gather(
                *(b.registry.witness({job: now + 60}) for _ in range(5)),
                *(other.registry.witness({job: now + 60}) for _ in range(5)),
            )
        assert sorted(found[job] for found in answers) == [*["again"] * 9, "first"]

    @story()
    async def test_what_was_heard_is_another_matter_elsewhere(self, b: Backend) -> None:
        job, now = fresh_id(), b.clock.now()
        assert await b.registry.witness({job: now + 60}) == {job: Hearing.FIRST}
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.registry.witness({job: now + 60}) == {job: Hearing.FIRST}

    @story()
    async def test_nothing_was_heard(self, b: Backend) -> None:
        assert await b.registry.witness({}) == {}

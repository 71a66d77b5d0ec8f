"""The registry: workers, and the inbox messages that they have received."""

from __future__ import annotations

import asyncio

import msgspec

from umbel.backends import InboxReceipt
from umbel.messages import Interrupted, Rejected, Succeeded, fresh_id
from umbel.testing.actions import claim, claim_one, kill, publish, register, settle, worker
from umbel.testing.backend import Adapters, backend_test


class WorkerLifecycle:
    """Workers register, send heartbeats, unregister, or are removed."""

    @backend_test()
    async def test_a_registered_worker_is_listed(self, b: Adapters) -> None:
        entry = worker("anna")
        await b.registry.register(entry)
        (member,) = await b.registry.workers()
        seated = msgspec.structs.replace(entry, index=0)
        assert (member.entry, member.stopping, member.running) == (seated, False, 0)

    @backend_test()
    async def test_a_member_is_seen_by_other_processes(self, b: Adapters) -> None:
        incarnation = await register(b)
        async with b.another() as other:
            assert [m.entry.incarnation for m in await other.registry.workers()] == [incarnation]

    @backend_test()
    async def test_registering_twice_keeps_one_incarnation_and_its_heartbeats(
        self, b: Adapters
    ) -> None:
        entry = worker()
        await b.registry.register(entry)
        await b.registry.heartbeat(entry.incarnation, running=2, epoch=1, stopping=False)
        (before,) = await b.registry.workers()
        await b.registry.register(entry)
        (after,) = await b.registry.workers()
        assert (after.entry, after.heartbeats, after.running) == (
            before.entry,
            before.heartbeats,
            2,
        )

    @backend_test()
    async def test_every_heartbeat_is_counted_and_updates_the_worker(self, b: Adapters) -> None:
        incarnation = await register(b)
        (first,) = await b.registry.workers()
        assert await b.registry.heartbeat(incarnation, running=3, epoch=7, stopping=True)
        (second,) = await b.registry.workers()
        assert second.heartbeats > first.heartbeats
        assert (second.running, second.epoch, second.stopping) == (3, 7, True)
        assert 0 <= second.silent <= second.age

    @backend_test()
    async def test_a_heartbeat_of_an_unregistered_worker_returns_false(self, b: Adapters) -> None:
        assert not await b.registry.heartbeat("unknown", running=0, epoch=0, stopping=False)
        incarnation = await register(b)
        await kill(b, incarnation)
        assert not await b.registry.heartbeat(incarnation, running=0, epoch=0, stopping=False)
        assert await b.registry.workers() == []

    @backend_test()
    async def test_a_worker_that_has_beaten_since_is_not_removed(self, b: Adapters) -> None:
        incarnation = await register(b)
        (seen,) = await b.registry.workers()
        await b.registry.heartbeat(incarnation, running=0, epoch=0, stopping=False)
        assert not await b.registry.remove(incarnation, seen.heartbeats)
        assert len(await b.registry.workers()) == 1

    @backend_test()
    async def test_a_worker_that_stood_still_is_removed_once(self, b: Adapters) -> None:
        incarnation = await register(b)
        (seen,) = await b.registry.workers()
        async with b.another() as other:
            both = await asyncio.gather(
                b.registry.remove(incarnation, seen.heartbeats),
                other.registry.remove(incarnation, seen.heartbeats),
            )
        assert sorted(both) == [False, True]

    @backend_test()
    async def test_removing_an_unknown_worker_is_refused(self, b: Adapters) -> None:
        assert not await b.registry.remove("unknown", 0)

    @backend_test()
    async def test_unregistering_ends_an_incarnation_and_may_be_repeated(self, b: Adapters) -> None:
        gone, stays = await register(b, "gone"), await register(b, "stays")
        await b.registry.unregister(gone)
        await b.registry.unregister(gone)
        assert [m.entry.incarnation for m in await b.registry.workers()] == [stays]

    @backend_test()
    async def test_several_incarnations_may_have_the_same_name(self, b: Adapters) -> None:
        lives = {await register(b, "anna"), await register(b, "anna")}
        assert {m.entry.incarnation for m in await b.registry.workers()} == lives

    @backend_test()
    async def test_members_stay_in_their_namespace(self, b: Adapters) -> None:
        await register(b, "anna")
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.registry.workers() == []


class InboxReceipts:
    """Inbox messages to one worker, each received once."""

    @backend_test()
    async def test_a_message_is_received_for_the_first_time_once(self, b: Adapters) -> None:
        job, now = fresh_id(), b.clock.now()
        assert await b.registry.record_inbox_receipts({job: now + 60}) == {job: InboxReceipt.FIRST}
        assert await b.registry.record_inbox_receipts({job: now + 60}) == {
            job: InboxReceipt.DUPLICATE
        }
        async with b.another() as other:
            assert await other.registry.record_inbox_receipts({job: now + 60}) == {
                job: InboxReceipt.DUPLICATE
            }

    @backend_test()
    async def test_a_redelivered_message_is_accepted_however_late(self, b: Adapters) -> None:
        owner, now = await register(b), b.clock.now()
        job = (await publish(b)).id
        (held,) = await claim(b, owner)
        assert await b.registry.record_inbox_receipts({job: now + 60}) == {job: InboxReceipt.FIRST}
        await settle(b, held, Interrupted("given back"))
        (held,) = await claim(b, owner)
        assert await b.registry.record_inbox_receipts({job: now + 60}) == {
            job: InboxReceipt.REDELIVERED
        }
        assert await b.registry.record_inbox_receipts({job: now - 3600}) == {
            job: InboxReceipt.REDELIVERED
        }

    @backend_test()
    async def test_a_job_of_the_same_id_is_a_copy_whose_record_is_gone(self, b: Adapters) -> None:
        owner, now = await register(b), b.clock.now()
        job = (await publish(b)).id
        (held,) = await claim(b, owner)
        assert await b.registry.record_inbox_receipts({job: now + 60}) == {job: InboxReceipt.FIRST}
        await settle(b, held, Succeeded())
        await b.records.remove([job])
        await publish(b, id=job)
        for _ in range(2):  # also after it was claimed and returned without a check
            (held,) = await claim(b, owner)
            assert await b.registry.record_inbox_receipts({job: now + 60}) == {
                job: InboxReceipt.DUPLICATE
            }
            await settle(b, held, Interrupted("given back"))

    @backend_test()
    async def test_a_replayed_message_that_ran_is_a_duplicate(self, b: Adapters) -> None:
        owner, now = await register(b), b.clock.now()
        await publish(b, queue="worker-7")
        held = await claim_one(b, owner, queues=("worker-7",))
        await b.registry.record_inbox_receipts({held.id: now + 60})
        await settle(b, held, Rejected("it cannot run"))
        assert await b.records.replay([held.id]) == [held.id]
        found = await b.registry.record_inbox_receipts({held.id: now - 60})
        assert found == {held.id: InboxReceipt.REDELIVERED}

    @backend_test()
    async def test_a_job_that_was_refused_and_is_replayed_was_not(self, b: Adapters) -> None:
        owner, now = await register(b), b.clock.now()
        await publish(b, queue="worker-7")
        held = await claim_one(b, owner, queues=("worker-7",))
        await settle(b, held, Rejected("inbox: it is not signed"))
        assert await b.records.replay([held.id]) == [held.id]
        found = await b.registry.record_inbox_receipts({held.id: now - 60})
        assert found == {held.id: InboxReceipt.EXPIRED}

    @backend_test()
    async def test_an_expired_message_is_not_recorded(self, b: Adapters) -> None:
        job, now = fresh_id(), b.clock.now()
        assert await b.registry.record_inbox_receipts({job: now - 1}) == {job: InboxReceipt.EXPIRED}
        assert await b.registry.record_inbox_receipts({job: now + 60}) == {job: InboxReceipt.FIRST}

    @backend_test()
    async def test_of_many_concurrent_receipts_one_is_first(self, b: Adapters) -> None:
        now = b.clock.now()
        jobs = {fresh_id(): now + 60 for _ in range(5)}
        backwards = dict(reversed(jobs.items()))
        async with b.another() as other:
            answers = await asyncio.gather(
                *(b.registry.record_inbox_receipts(jobs) for _ in range(5)),
                *(other.registry.record_inbox_receipts(backwards) for _ in range(5)),
            )
        for job in jobs:
            assert sum(found[job] is InboxReceipt.FIRST for found in answers) == 1
            assert sum(found[job] is InboxReceipt.DUPLICATE for found in answers) == 9

    @backend_test()
    async def test_concurrent_receipts_of_one_job_are_not_duplicates(self, b: Adapters) -> None:
        owner, now = await register(b), b.clock.now()
        job = (await publish(b)).id
        await claim(b, owner)
        async with b.another() as other:
            answers = await asyncio.gather(
                *(b.registry.record_inbox_receipts({job: now + 60}) for _ in range(5)),
                *(other.registry.record_inbox_receipts({job: now + 60}) for _ in range(5)),
            )
        assert sorted(found[job] for found in answers) == [*["again"] * 9, "first"]

    @backend_test()
    async def test_receipts_belong_to_their_namespace(self, b: Adapters) -> None:
        job, now = fresh_id(), b.clock.now()
        assert await b.registry.record_inbox_receipts({job: now + 60}) == {job: InboxReceipt.FIRST}
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.registry.record_inbox_receipts({job: now + 60}) == {
                job: InboxReceipt.FIRST
            }

    @backend_test()
    async def test_no_receipts_return_an_empty_answer(self, b: Adapters) -> None:
        assert await b.registry.record_inbox_receipts({}) == {}

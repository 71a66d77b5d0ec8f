"""The job store of a pair: records the jobs whose messages a transport carries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from msgspec.structs import replace

from umbel.backends import JobFilter, JobStore, Published
from umbel.errors import LeaseLost
from umbel.messages import Delivery, Envelope, Interrupted, State, Succeeded, fresh_id
from umbel.testing.actions import (
    RESULT,
    claim,
    depths,
    envelope,
    ids,
    kill,
    publish,
    publish_and_claim,
    publish_many,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test

QUEUES = ("default", "other")


def job_store(backend: Adapters) -> JobStore:
    """Return the broker, which must be a job store here."""
    return cast(JobStore, backend.broker)


async def find_unsent(backend: Adapters, limit: int = 100, wait: float = 0.0) -> list[Envelope]:
    """Return the jobs that must be sent by a transport."""
    return await job_store(backend).find_unsent(QUEUES, limit, wait)


async def claim_sent(
    backend: Adapters, owner: str, sent: Sequence[Envelope | Delivery], queue: str = "default"
) -> list[str]:
    """Claim the jobs of these messages. Return the ids of the deliveries."""
    answer = await job_store(backend).claim({one.id: queue for one in sent}, owner)
    return ids(answer.deliveries)


def lanes(*queues: str) -> list[tuple[str, str]]:
    """Return all lanes of these queues."""
    return [(queue, kind) for queue in queues for kind in ("", "io", "cpu")]


async def record_sent_job(backend: Adapters) -> Envelope:
    """Record a job as sent, and return it."""
    made = envelope(backend)
    await job_store(backend).record_sent([made])
    return made


class RecordingSent:
    """A job that is recorded as sent is queued and need not be sent again."""

    @backend_test()
    async def test_a_sent_job_is_queued_for_every_process(self, b: Adapters) -> None:
        one = await record_sent_job(b)
        assert (await b.records.find(one.id)).state is State.QUEUED
        assert ids(await b.records.search(JobFilter(states=(State.QUEUED,)))) == [one.id]  # type: ignore[arg-type]
        assert await depths(b) == {("default", "queued"): 1}

    @backend_test()
    async def test_a_sent_job_is_neither_unsent_nor_fetched(self, b: Adapters) -> None:
        await record_sent_job(b)
        assert await find_unsent(b) == []
        assert await claim(b, await register(b)) == []

    @backend_test()
    async def test_noting_a_known_id_changes_nothing(self, b: Adapters) -> None:
        waits, runs = await publish(b, queue="other"), await publish_and_claim(b)
        answer = await job_store(b).record_sent([envelope(b, id=waits.id), envelope(b, id=runs.id)])
        assert [one.existing for one in answer] == [True, True]
        assert ids(await find_unsent(b)) == [waits.id]
        assert (await b.records.find(runs.id)).state is State.RUNNING

    @backend_test()
    async def test_a_sent_job_can_be_cancelled_moved_and_purged(self, b: Adapters) -> None:
        one, two, three = (
            await record_sent_job(b),
            await record_sent_job(b),
            await record_sent_job(b),
        )
        assert await b.control.cancel([one.id], "x") == {one.id: State.CANCELLED}
        assert await b.broker.move("default", "other") == 2
        assert ids(await find_unsent(b)) == [two.id, three.id]
        await job_store(b).mark_sent([two.id, three.id])
        assert await b.broker.purge("other") == 2
        assert (await b.records.find(two.id)).state is State.CANCELLED


class FindingUnsent:
    """Queued jobs that no transport has must be sent, in order."""

    @backend_test()
    async def test_published_jobs_are_unsent_in_order_until_they_are_sent(
        self, b: Adapters
    ) -> None:
        made = await publish_many(b, 5)
        assert ids(await find_unsent(b)) == ids(made)
        assert ids(await find_unsent(b, limit=2)) == ids(made[:2])
        await job_store(b).mark_sent(ids(made[:3]))
        assert ids(await find_unsent(b)) == ids(made[3:])

    @backend_test("priority")
    async def test_the_more_urgent_are_sent_first(self, b: Adapters) -> None:
        low, high = await publish(b), await publish(b, priority=5)
        assert ids(await find_unsent(b)) == [high.id, low.id]

    @backend_test()
    async def test_each_kind_and_queue_is_sent(self, b: Adapters) -> None:
        made = [await publish(b, kind=kind, queue=q) for kind in ("", "io", "cpu") for q in QUEUES]
        assert sorted(ids(await find_unsent(b))) == sorted(ids(made))

    @backend_test()
    async def test_a_paused_job_stays_unsent_until_it_is_resumed(self, b: Adapters) -> None:
        one, other = await publish(b), await publish(b, queue="other", subject="tests.mail")
        await b.pauses.pause("queue", "default", "")
        assert ids(await find_unsent(b)) == [other.id]
        await b.pauses.pause("task", "tests.mail", "")
        assert await find_unsent(b) == []
        await b.pauses.resume("queue", "default")
        assert ids(await find_unsent(b)) == [one.id]
        await b.pauses.pause("all", "", "")
        assert await find_unsent(b) == []

    @backend_test("delay")
    async def test_a_job_that_is_not_due_is_not_to_be_sent(self, b: Adapters) -> None:
        await publish(b, not_before=b.clock.now() + 3600)
        assert await find_unsent(b) == []

    @backend_test("delay")
    async def test_a_job_that_becomes_due_is_to_be_sent(self, b: Adapters) -> None:
        one = await publish(b, not_before=b.clock.now() + 5)
        b.advance(6)
        assert ids(await find_unsent(b)) == [one.id]

    @backend_test("notify")
    async def test_a_caller_that_waits_for_unsent_jobs_is_woken(self, b: Adapters) -> None:
        async with b.another() as other:
            waiting = asyncio.create_task(find_unsent(other, wait=30))
            await asyncio.sleep(0.3)
            one = await publish(b)
            async with asyncio.timeout(10):
                assert ids(await waiting) == [one.id]

    @backend_test()
    async def test_a_requeued_job_is_sent_again(self, b: Adapters) -> None:
        owner = await register(b)
        one = await record_sent_job(b)
        (delivery,) = (await job_store(b).claim({one.id: "default"}, owner)).deliveries
        await settle(b, delivery, Interrupted())
        assert ids(await find_unsent(b)) == [one.id]

    @backend_test()
    async def test_a_job_of_a_dead_worker_is_sent_again(self, b: Adapters) -> None:
        owner = await register(b)
        one = await record_sent_job(b)
        assert await claim_sent(b, owner, [one]) == [one.id]
        await kill(b, owner)
        assert await b.broker.recover() == [one.id]
        assert ids(await find_unsent(b)) == [one.id]

    @backend_test()
    async def test_a_job_that_was_claimed_meanwhile_is_not_marked_sent(self, b: Adapters) -> None:
        one = await publish(b)
        assert await claim_sent(b, await register(b), [one]) == [one.id]
        await job_store(b).mark_sent([one.id])
        assert (await b.records.find(one.id)).state is State.RUNNING

    @backend_test()
    async def test_a_job_that_was_claimed_and_requeued_meanwhile_is_to_be_sent_again(
        self, b: Adapters
    ) -> None:
        one = await publish(b)
        assert ids(await find_unsent(b)) == [one.id]
        (held,) = (await job_store(b).claim({one.id: "default"}, await register(b))).deliveries
        await settle(b, held, Interrupted("stopping"))
        await job_store(b).mark_sent([one.id])
        assert ids(await find_unsent(b)) == [one.id]

    @backend_test()
    async def test_a_job_that_was_paused_meanwhile_is_to_be_sent_again(self, b: Adapters) -> None:
        one = await publish(b)
        assert ids(await find_unsent(b)) == [one.id]
        await b.pauses.pause("queue", "default", "")
        assert await claim_sent(b, await register(b), [one]) == []
        await job_store(b).mark_sent([one.id])
        await b.pauses.resume("queue", "default")
        assert ids(await find_unsent(b)) == [one.id]

    @backend_test()
    async def test_a_job_that_was_recalled_or_moved_meanwhile_is_to_be_sent_again(
        self, b: Adapters
    ) -> None:
        one = await publish(b)
        async with b.another() as late:
            for move in (False, True):
                assert ids(await find_unsent(b)) == ids(await find_unsent(late)) == [one.id]
                await job_store(b).mark_sent([one.id])
                await (
                    b.broker.move(*QUEUES)
                    if move
                    else job_store(b).mark_lanes_unsent(lanes(*QUEUES))
                )
                await job_store(late).mark_sent([one.id])
                assert ids(await find_unsent(b)) == [one.id]

    @backend_test()
    async def test_a_job_whose_message_was_lost_is_sent_again(self, b: Adapters) -> None:
        one, two = await record_sent_job(b), await record_sent_job(b)
        await claim_sent(b, await register(b), [two])
        assert await job_store(b).mark_lanes_unsent(lanes("other")) == 0
        assert await job_store(b).mark_lanes_unsent([("default", "cpu")]) == 0
        assert await job_store(b).mark_lanes_unsent(lanes("default", "other")) == 1
        assert ids(await find_unsent(b)) == [one.id]


class Claiming:
    """The first worker that claims with a message gets its job; no other worker does."""

    @backend_test()
    async def test_a_job_is_claimed_under_a_lease(self, b: Adapters) -> None:
        owner, one = await register(b), await record_sent_job(b)
        (delivery,) = (await job_store(b).claim({one.id: "default"}, owner)).deliveries
        assert (delivery.id, delivery.envelope.body) == (one.id, one.body)
        assert (delivery.lease.owner, delivery.lease.fence) == (owner, 1)
        assert await settle(b, delivery, Succeeded(RESULT)) == []
        assert (await b.records.find(one.id)).state is State.SUCCEEDED

    @backend_test()
    async def test_a_repeated_message_gives_nothing(self, b: Adapters) -> None:
        owner, one = await register(b), await record_sent_job(b)
        (delivery,) = (await job_store(b).claim({one.id: "default"}, owner)).deliveries
        assert await claim_sent(b, owner, [one]) == []
        await settle(b, delivery, Succeeded(RESULT))
        answer = await job_store(b).claim({one.id: "default"}, owner)
        assert (answer.deliveries, answer.unknown) == ([], [])

    @backend_test()
    async def test_two_workers_with_the_same_messages_share_the_jobs(self, b: Adapters) -> None:
        made = [await record_sent_job(b) for _ in range(20)]
        async with b.another() as other:
            mine, theirs = await register(b), await register(other)
            found = await asyncio.gather(
                claim_sent(b, mine, made), claim_sent(other, theirs, [*reversed(made)])
            )
        assert sorted(found[0] + found[1]) == sorted(ids(made))

    @backend_test()
    async def test_a_job_that_is_still_unsent_can_be_claimed(self, b: Adapters) -> None:
        one = await publish(b)
        assert await claim_sent(b, await register(b), [one]) == [one.id]

    @backend_test()
    async def test_the_order_is_that_of_the_messages(self, b: Adapters) -> None:
        made = [await record_sent_job(b) for _ in range(4)]
        turned = [*reversed(made)]
        assert await claim_sent(b, await register(b), turned) == ids(turned)

    @backend_test()
    async def test_an_unrecorded_job_is_recorded_and_claimed_in_one_step(self, b: Adapters) -> None:
        owner, made = await register(b), [envelope(b) for _ in range(2)]
        asked = {one.id: "default" for one in made}
        answer = await job_store(b).claim(asked, owner, made)
        assert (ids(answer.deliveries), answer.unknown) == (ids(made), [])
        again = await job_store(b).claim(asked, owner, made)
        assert (again.deliveries, again.unknown) == ([], [])
        assert await job_store(b).record_sent(made) == [
            Published(one.id, existing=True) for one in made
        ]

    @backend_test()
    async def test_an_ended_job_is_not_recorded_again(self, b: Adapters) -> None:
        owner, one = await register(b), await record_sent_job(b)
        (held,) = (await job_store(b).claim({one.id: "default"}, owner)).deliveries
        await settle(b, held, Succeeded(RESULT))
        answer = await job_store(b).claim({one.id: "default"}, owner, [one])
        assert (answer.deliveries, answer.unknown) == ([], [])
        assert (await b.records.find(one.id)).state is State.SUCCEEDED

    @backend_test()
    async def test_a_late_record_does_not_bring_an_ended_job_back(self, b: Adapters) -> None:
        owner = await register(b)

        async def run(one: Envelope) -> None:
            (held,) = (await job_store(b).claim({one.id: "default"}, owner, [one])).deliveries
            await settle(b, held, Succeeded(RESULT))

        async with b.another() as other:
            for turn in range(150):
                one = envelope(b)
                publish_and_claim = asyncio.create_task(run(one))
                await asyncio.sleep(
                    turn % 30 / 10_000
                )  # so that it happens at every stage of the run
                await job_store(other).record_sent([one])
                await publish_and_claim
        assert await b.broker.depths() == []

    @backend_test()
    async def test_unknown_jobs_are_returned(self, b: Adapters) -> None:
        stranger, one = envelope(b), await record_sent_job(b)
        owner = await register(b)
        answer = await job_store(b).claim({stranger.id: "default", one.id: "default"}, owner)
        assert (ids(answer.deliveries), answer.unknown) == ([one.id], [stranger.id])
        await job_store(b).record_sent([stranger])
        assert await claim_sent(b, owner, [stranger]) == [stranger.id]

    @backend_test()
    async def test_a_message_that_arrives_before_its_record_is_not_lost(self, b: Adapters) -> None:
        owner, made = await register(b), [envelope(b) for _ in range(100)]
        async with b.another() as other:
            for one in made:
                noting = asyncio.create_task(job_store(other).record_sent([one]))
                answer = await job_store(b).claim({one.id: "default"}, owner)
                await noting
                if answer.unknown:
                    await job_store(b).record_sent([one])
                    answer = await job_store(b).claim({one.id: "default"}, owner)
                assert ids(answer.deliveries) == [one.id]

    @backend_test()
    async def test_a_moved_job_is_not_claimed_from_its_old_queue(self, b: Adapters) -> None:
        owner, one = await register(b), await record_sent_job(b)
        await b.broker.move("default", "other")
        assert await claim_sent(b, owner, [one], "default") == []
        assert await claim_sent(b, owner, [one], "other") == [one.id]

    @backend_test()
    async def test_a_paused_job_is_not_claimed_and_is_sent_again_when_resumed(
        self, b: Adapters
    ) -> None:
        owner = await register(b)
        for scope, name in (("all", ""), ("queue", "default"), ("task", "tests.add")):
            one = await record_sent_job(b)
            await b.pauses.pause(scope, name, "")  # type: ignore[arg-type]
            assert await claim_sent(b, owner, [one]) == []
            await b.pauses.resume(scope, name)  # type: ignore[arg-type]
            assert ids(await find_unsent(b)) == [one.id]
            assert await claim_sent(b, owner, [one]) == [one.id]

    @backend_test()
    async def test_an_unregistered_worker_claims_nothing(self, b: Adapters) -> None:
        one = await record_sent_job(b)
        with pytest.raises(LeaseLost):
            await claim_sent(b, f"unknown-{fresh_id()}", [one])
        assert await claim_sent(b, await register(b), [one]) == [one.id]

    @backend_test()
    async def test_a_namespace_takes_its_own_only(self, b: Adapters) -> None:
        one = await record_sent_job(b)
        async with b.another("elsewhere") as other:
            answer = await job_store(other).claim({one.id: "default"}, await register(other))
            assert answer.deliveries == []

    @backend_test()
    async def test_one_id_is_recorded_sent_and_claimed_in_each_namespace(self, b: Adapters) -> None:
        async with b.another(f"{b.namespace}2") as other:
            one, several = envelope(b), [envelope(b), envelope(b, priority=1)]
            for side in (b, other):
                for batch in ([one], several):
                    here = [replace(each, namespace=side.namespace) for each in batch]
                    answer = await job_store(side).record_sent(here)
                    assert [published.existing for published in answer] == [False] * len(batch)
            await job_store(b).mark_lanes_unsent(lanes("default"))
            assert {*ids(await find_unsent(b))} == {*ids([one, *several])}
            assert await find_unsent(other) == []
            await job_store(other).mark_lanes_unsent(lanes("default"))
            assert len(await find_unsent(other)) == 3
            await job_store(b).mark_sent(ids([one, *several]))
            assert len(await find_unsent(other)) == 3, "they were sent in one namespace only"
            await b.pauses.pause("task", "tests.add", "")
            assert await claim_sent(b, await register(b), [one]) == []
            await b.pauses.resume("task", "tests.add")
            owner, theirs = await register(b), await register(other)
            assert await claim_sent(b, owner, [one, *several]) == ids([one, *several])
            assert await claim_sent(other, theirs, [one, *several]) == ids([one, *several])

    @backend_test()
    async def test_an_id_that_ended_here_can_be_recorded_in_another_namespace(
        self, b: Adapters
    ) -> None:
        async with b.another(f"{b.namespace}2") as other:
            ended = [await publish_and_claim(b) for _ in range(3)]
            for held in ended:
                await settle(b, held, Succeeded(RESULT))
            for batch in (ended[:1], ended[1:]):
                copies = [envelope(other, id=one.id) for one in batch]
                answers = await job_store(other).record_sent(copies)
                assert [one.existing for one in answers] == [False] * len(batch)
                assert await claim_sent(other, await register(other), copies) == ids(copies)
            given = await job_store(b).claim(
                {one.id: "default" for one in ended}, await register(b)
            )
            assert (given.deliveries, [*given.unknown]) == ([], [])


class JobStoreSuite(RecordingSent, FindingUnsent, Claiming):
    """Tests of what the job store's port promises in addition to the broker's."""

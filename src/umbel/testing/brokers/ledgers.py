"""A ledger keeps the books of jobs whose messages something else carries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from msgspec.structs import replace

from umbel.backends import JobFilter, JobStore, Published
from umbel.errors import LeaseLost
from umbel.messages import Delivery, Envelope, Interrupted, State, Succeeded, fresh_id
from umbel.testing.acts import (
    RESULT,
    depths,
    enlist,
    envelope,
    ids,
    kill,
    publish,
    publish_many,
    running,
    settle,
    take,
)
from umbel.testing.backend import Backend, story

QUEUES = ("default", "other")


def books(backend: Backend) -> JobStore:
    """The broker as the ledger it has to be here."""
    return cast(JobStore, backend.broker)


async def unsent(backend: Backend, limit: int = 100, wait: float = 0.0) -> list[Envelope]:
    """What is to be handed to a transport."""
    return await books(backend).unsent(QUEUES, limit, wait)


async def taken(
    backend: Backend, owner: str, sent: Sequence[Envelope | Delivery], queue: str = "default"
) -> list[str]:
    """What is given for the messages of these jobs."""
    answer = await books(backend).take({one.id: queue for one in sent}, owner)
    return ids(answer.deliveries)


def lanes(*queues: str) -> list[tuple[str, str]]:
    """All lanes of these queues."""
    return [(queue, kind) for queue in queues for kind in ("", "io", "cpu")]


async def noted(backend: Backend) -> Envelope:
    """A job whose message is on its way."""
    made = envelope(backend)
    await books(backend).note([made])
    return made


class Noting:
    """What a transport carries is a queued job that nobody has to send."""

    @story()
    async def test_a_noted_job_is_queued_for_everybody(self, b: Backend) -> None:
        one = await noted(b)
        assert (await b.records.find(one.id)).state is State.QUEUED
        assert ids(await b.records.search(JobFilter(states=(State.QUEUED,)))) == [one.id]  # type: ignore[arg-type]
        assert await depths(b) == {("default", "queued"): 1}

    @story()
    async def test_a_noted_job_is_neither_sent_nor_fetched(self, b: Backend) -> None:
        await noted(b)
        assert await unsent(b) == []
        assert await take(b, await enlist(b)) == []

    @story()
    async def test_noting_a_known_id_changes_nothing(self, b: Backend) -> None:
        waits, runs = await publish(b, queue="other"), await running(b)
        answer = await books(b).note([envelope(b, id=waits.id), envelope(b, id=runs.id)])
        assert [one.existing for one in answer] == [True, True]
        assert ids(await unsent(b)) == [waits.id]
        assert (await b.records.find(runs.id)).state is State.RUNNING

    @story()
    async def test_a_noted_job_can_be_cancelled_moved_and_purged(self, b: Backend) -> None:
        one, two, three = await noted(b), await noted(b), await noted(b)
        assert await b.control.cancel([one.id], "x") == {one.id: State.CANCELLED}
        assert await b.broker.move("default", "other") == 2
        assert ids(await unsent(b)) == [two.id, three.id]
        await books(b).sent([two.id, three.id])
        assert await b.broker.purge("other") == 2
        assert (await b.records.find(two.id)).state is State.CANCELLED


class Sending:
    """What is queued here and in no transport has to be sent, in order."""

    @story()
    async def test_published_jobs_are_unsent_in_order_until_they_are_sent(self, b: Backend) -> None:
        made = await publish_many(b, 5)
        assert ids(await unsent(b)) == ids(made)
        assert ids(await unsent(b, limit=2)) == ids(made[:2])
        await books(b).sent(ids(made[:3]))
        assert ids(await unsent(b)) == ids(made[3:])

    @story("priority")
    async def test_the_more_urgent_are_sent_first(self, b: Backend) -> None:
        low, high = await publish(b), await publish(b, priority=5)
        assert ids(await unsent(b)) == [high.id, low.id]

    @story()
    async def test_each_kind_and_queue_is_sent(self, b: Backend) -> None:
        made = [await publish(b, kind=kind, queue=q) for kind in ("", "io", "cpu") for q in QUEUES]
        assert sorted(ids(await unsent(b))) == sorted(ids(made))

    @story()
    async def test_what_is_paused_stays_until_it_is_resumed(self, b: Backend) -> None:
        one, other = await publish(b), await publish(b, queue="other", subject="tests.mail")
        await b.control.pause("queue", "default", "")
        assert ids(await unsent(b)) == [other.id]
        await b.control.pause("task", "tests.mail", "")
        assert await unsent(b) == []
        await b.control.resume("queue", "default")
        assert ids(await unsent(b)) == [one.id]
        await b.control.pause("all", "", "")
        assert await unsent(b) == []

    @story("delay")
    async def test_what_is_not_due_stays_here(self, b: Backend) -> None:
        await publish(b, not_before=b.clock.now() + 3600)
        assert await unsent(b) == []

    @story("delay")
    async def test_what_becomes_due_is_to_be_sent(self, b: Backend) -> None:
        one = await publish(b, not_before=b.clock.now() + 5)
        b.advance(6)
        assert ids(await unsent(b)) == [one.id]

    @story("notify")
    async def test_whoever_waits_for_work_to_send_is_woken(self, b: Backend) -> None:
        async with b.another() as other:
            waiting = asyncio.create_task(unsent(other, wait=30))
            await asyncio.sleep(0.3)
            one = await publish(b)
            async with asyncio.timeout(10):
                assert ids(await waiting) == [one.id]

    @story()
    async def test_what_goes_back_to_its_queue_is_sent_again(self, b: Backend) -> None:
        owner = await enlist(b)
        one = await noted(b)
        (delivery,) = (await books(b).take({one.id: "default"}, owner)).deliveries
        await settle(b, delivery, Interrupted())
        assert ids(await unsent(b)) == [one.id]

    @story()
    async def test_what_its_worker_died_with_is_sent_again(self, b: Backend) -> None:
        owner = await enlist(b)
        one = await noted(b)
        assert await taken(b, owner, [one]) == [one.id]
        await kill(b, owner)
        assert await b.broker.recover() == [one.id]
        assert ids(await unsent(b)) == [one.id]

    @story()
    async def test_what_was_taken_meanwhile_does_not_count_as_sent(self, b: Backend) -> None:
        one = await publish(b)
        assert await taken(b, await enlist(b), [one]) == [one.id]
        await books(b).sent([one.id])
        assert (await b.records.find(one.id)).state is State.RUNNING

    @story()
    async def test_what_was_taken_and_put_back_meanwhile_is_to_be_sent_again(
        self, b: Backend
    ) -> None:
        one = await publish(b)
        assert ids(await unsent(b)) == [one.id]
        (held,) = (await books(b).take({one.id: "default"}, await enlist(b))).deliveries
        await settle(b, held, Interrupted("stopping"))
        await books(b).sent([one.id])
        assert ids(await unsent(b)) == [one.id]

    @story()
    async def test_what_a_pause_held_back_meanwhile_is_to_be_sent_again(self, b: Backend) -> None:
        one = await publish(b)
        assert ids(await unsent(b)) == [one.id]
        await b.control.pause("queue", "default", "")
        assert await taken(b, await enlist(b), [one]) == []
        await books(b).sent([one.id])
        await b.control.resume("queue", "default")
        assert ids(await unsent(b)) == [one.id]

    @story()
    async def test_what_was_recalled_or_moved_meanwhile_is_to_be_sent_again(
        self, b: Backend
    ) -> None:
        one = await publish(b)
        async with b.another() as late:
            for move in (False, True):
                assert ids(await unsent(b)) == ids(await unsent(late)) == [one.id]
                await books(b).sent([one.id])
                await (b.broker.move(*QUEUES) if move else books(b).recall(lanes(*QUEUES)))
                await books(late).sent([one.id])
                assert ids(await unsent(b)) == [one.id]

    @story()
    async def test_what_a_transport_lost_is_recalled(self, b: Backend) -> None:
        one, two = await noted(b), await noted(b)
        await taken(b, await enlist(b), [two])
        assert await books(b).recall(lanes("other")) == 0
        assert await books(b).recall([("default", "cpu")]) == 0
        assert await books(b).recall(lanes("default", "other")) == 1
        assert ids(await unsent(b)) == [one.id]


class Taking:
    """A message gives its job to the first who comes with it, and to nobody else."""

    @story()
    async def test_a_job_is_taken_under_a_lease(self, b: Backend) -> None:
        owner, one = await enlist(b), await noted(b)
        (delivery,) = (await books(b).take({one.id: "default"}, owner)).deliveries
        assert (delivery.id, delivery.envelope.body) == (one.id, one.body)
        assert (delivery.lease.owner, delivery.lease.fence) == (owner, 1)
        assert await settle(b, delivery, Succeeded(RESULT)) == []
        assert (await b.records.find(one.id)).state is State.SUCCEEDED

    @story()
    async def test_a_repeated_message_gives_nothing(self, b: Backend) -> None:
        owner, one = await enlist(b), await noted(b)
        (delivery,) = (await books(b).take({one.id: "default"}, owner)).deliveries
        assert await taken(b, owner, [one]) == []
        await settle(b, delivery, Succeeded(RESULT))
        answer = await books(b).take({one.id: "default"}, owner)
        assert (answer.deliveries, answer.unknown) == ([], [])

    @story()
    async def test_two_who_come_with_the_same_messages_share_the_jobs(self, b: Backend) -> None:
        made = [await noted(b) for _ in range(20)]
        async with b.another() as other:
            mine, theirs = await enlist(b), await enlist(other)
            found = await asyncio.gather(
                taken(b, mine, made), taken(other, theirs, [*reversed(made)])
            )
        assert sorted(found[0] + found[1]) == sorted(ids(made))

    @story()
    async def test_a_job_that_is_still_unsent_can_be_taken(self, b: Backend) -> None:
        one = await publish(b)
        assert await taken(b, await enlist(b), [one]) == [one.id]

    @story()
    async def test_the_order_is_that_of_the_messages(self, b: Backend) -> None:
        made = [await noted(b) for _ in range(4)]
        turned = [*reversed(made)]
        assert await taken(b, await enlist(b), turned) == ids(turned)

    @story()
    async def test_an_unnoted_job_is_noted_and_taken_in_one_step(self, b: Backend) -> None:
        owner, made = await enlist(b), [envelope(b) for _ in range(2)]
        asked = {one.id: "default" for one in made}
        answer = await books(b).take(asked, owner, made)
        assert (ids(answer.deliveries), answer.unknown) == (ids(made), [])
        again = await books(b).take(asked, owner, made)
        assert (again.deliveries, again.unknown) == ([], [])
        assert await books(b).note(made) == [Published(one.id, existing=True) for one in made]

    @story()
    async def test_an_unnoted_job_that_has_ended_does_not_begin_anew(self, b: Backend) -> None:
        owner, one = await enlist(b), await noted(b)
        (held,) = (await books(b).take({one.id: "default"}, owner)).deliveries
        await settle(b, held, Succeeded(RESULT))
        answer = await books(b).take({one.id: "default"}, owner, [one])
        assert (answer.deliveries, answer.unknown) == ([], [])
        assert (await b.records.find(one.id)).state is State.SUCCEEDED

    @story()
    async def test_a_note_that_comes_late_does_not_bring_an_ended_job_back(
        self, b: Backend
    ) -> None:
        owner = await enlist(b)

        async def run(one: Envelope) -> None:
            (held,) = (await books(b).take({one.id: "default"}, owner, [one])).deliveries
            await settle(b, held, Succeeded(RESULT))

        async with b.another() as other:
            for turn in range(150):
                one = envelope(b)
                running = asyncio.create_task(run(one))
                await asyncio.sleep(turn % 30 / 10_000)  # so that it meets every moment of it
                await books(other).note([one])
                await running
        assert await b.broker.depths() == []

    @story()
    async def test_an_unknown_job_is_told(self, b: Backend) -> None:
        stranger, one = envelope(b), await noted(b)
        owner = await enlist(b)
        answer = await books(b).take({stranger.id: "default", one.id: "default"}, owner)
        assert (ids(answer.deliveries), answer.unknown) == ([one.id], [stranger.id])
        await books(b).note([stranger])
        assert await taken(b, owner, [stranger]) == [stranger.id]

    @story()
    async def test_a_message_that_overtakes_its_note_is_not_lost(self, b: Backend) -> None:
        owner, made = await enlist(b), [envelope(b) for _ in range(100)]
        async with b.another() as other:
            for one in made:
                noting = asyncio.create_task(books(other).note([one]))
                answer = await books(b).take({one.id: "default"}, owner)
                await noting
                if answer.unknown:
                    await books(b).note([one])
                    answer = await books(b).take({one.id: "default"}, owner)
                assert ids(answer.deliveries) == [one.id]

    @story()
    async def test_a_job_that_was_moved_is_not_taken_from_its_old_queue(self, b: Backend) -> None:
        owner, one = await enlist(b), await noted(b)
        await b.broker.move("default", "other")
        assert await taken(b, owner, [one], "default") == []
        assert await taken(b, owner, [one], "other") == [one.id]

    @story()
    async def test_a_paused_job_is_not_taken_and_sent_again_when_resumed(self, b: Backend) -> None:
        owner = await enlist(b)
        for scope, name in (("all", ""), ("queue", "default"), ("task", "tests.add")):
            one = await noted(b)
            await b.control.pause(scope, name, "")  # type: ignore[arg-type]
            assert await taken(b, owner, [one]) == []
            await b.control.resume(scope, name)  # type: ignore[arg-type]
            assert ids(await unsent(b)) == [one.id]
            assert await taken(b, owner, [one]) == [one.id]

    @story()
    async def test_who_is_not_enlisted_takes_nothing(self, b: Backend) -> None:
        one = await noted(b)
        with pytest.raises(LeaseLost):
            await taken(b, f"nobody-{fresh_id()}", [one])
        assert await taken(b, await enlist(b), [one]) == [one.id]

    @story()
    async def test_a_namespace_takes_its_own_only(self, b: Backend) -> None:
        one = await noted(b)
        async with b.another("elsewhere") as other:
            answer = await books(other).take({one.id: "default"}, await enlist(other))
            assert answer.deliveries == []

    @story()
    async def test_one_id_is_noted_sent_and_taken_in_each_namespace(self, b: Backend) -> None:
        async with b.another(f"{b.namespace}2") as other:
            one, several = envelope(b), [envelope(b), envelope(b, priority=1)]
            for side in (b, other):
                for batch in ([one], several):
                    here = [replace(each, namespace=side.namespace) for each in batch]
                    answer = await books(side).note(here)
                    assert [published.existing for published in answer] == [False] * len(batch)
            await books(b).recall(lanes("default"))
            assert {*ids(await unsent(b))} == {*ids([one, *several])}
            assert await unsent(other) == []
            await books(other).recall(lanes("default"))
            assert len(await unsent(other)) == 3
            await books(b).sent(ids([one, *several]))
            assert len(await unsent(other)) == 3, "they were sent in one namespace only"
            await b.control.pause("task", "tests.add", "")
            assert await taken(b, await enlist(b), [one]) == []
            await b.control.resume("task", "tests.add")
            owner, theirs = await enlist(b), await enlist(other)
            assert await taken(b, owner, [one, *several]) == ids([one, *several])
            assert await taken(other, theirs, [one, *several]) == ids([one, *several])

    @story()
    async def test_what_has_ended_here_is_noted_elsewhere(self, b: Backend) -> None:
        async with b.another(f"{b.namespace}2") as other:
            ended = [await running(b) for _ in range(3)]
            for held in ended:
                await settle(b, held, Succeeded(RESULT))
            for batch in (ended[:1], ended[1:]):
                copies = [envelope(other, id=one.id) for one in batch]
                answers = await books(other).note(copies)
                assert [one.existing for one in answers] == [False] * len(batch)
                assert await taken(other, await enlist(other), copies) == ids(copies)
            given = await books(b).take({one.id: "default" for one in ended}, await enlist(b))
            assert (given.deliveries, [*given.unknown]) == ([], [])


class LedgerSuite(Noting, Sending, Taking):
    """Everything the ledger's port promises beyond the broker's."""

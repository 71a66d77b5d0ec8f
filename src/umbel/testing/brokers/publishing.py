"""Publishing: durable when it returns, all or none, and the same id only once."""

from __future__ import annotations

import asyncio

import msgspec

from umbel.backends import Published
from umbel.messages import MESSAGEPACK, Body, MessageType, State, Succeeded, fresh_id
from umbel.testing.acts import (
    RESULT,
    enlist,
    envelope,
    finished,
    ids,
    publish,
    publish_many,
    settle,
    take,
    take_one,
)
from umbel.testing.backend import Backend, story

_BYTES = bytes(range(256))
_TEXT = "grüß 🌱 \"quoted\" 'single' \\back % $1 :name ? {brace}\n"


class Publishing:
    """What holds when ``publish`` returns."""

    @story("records")
    async def test_a_published_job_is_known_at_once(self, b: Backend) -> None:
        sent = await publish(b)
        assert (await b.records.find(sent.id)).state is State.QUEUED

    @story()
    async def test_another_process_fetches_what_was_published(self, b: Backend) -> None:
        sent = await publish(b)
        async with b.another() as other:
            got = await take_one(other, await enlist(other))
        assert got.id == sent.id

    @story()
    async def test_a_job_outlives_the_publisher(self, b: Backend) -> None:
        async with b.another() as publisher:
            sent = await publish(publisher)
        assert (await take_one(b, await enlist(b))).id == sent.id

    @story()
    async def test_what_is_fetched_is_what_was_published(self, b: Backend) -> None:
        sent = await publish(
            b,
            kind="cpu",
            priority=7 if b.broker.capabilities.priority else 0,
            body=Body(MESSAGEPACK, _BYTES),
            subject=f"tests.{_TEXT.strip()}",
            created=1_700_000_000.25,
            expires=4_000_000_000.5,
            attempt=2,
            max_deaths=9,
            unique="only" if b.broker.capabilities.unique else None,
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            headers={"timeout": "3", "note": _TEXT},
        )
        got = await take_one(b, await enlist(b))
        assert msgspec.to_builtins(got.envelope) == msgspec.to_builtins(sent)

    @story()
    async def test_a_message_keeps_its_type(self, b: Backend) -> None:
        await publish(b, type=MessageType.EVENT)
        assert (await take_one(b, await enlist(b))).envelope.type is MessageType.EVENT

    @story()
    async def test_a_new_job_is_on_its_first_attempt_and_has_no_deaths(self, b: Backend) -> None:
        await publish(b)
        got = await take_one(b, await enlist(b))
        assert (got.attempt, got.deaths, got.sections) == (1, 0, {})

    @story()
    async def test_publishing_answers_in_the_order_of_the_batch(self, b: Backend) -> None:
        batch = [envelope(b) for _ in range(50)]
        answer = await b.broker.publish(batch)
        assert answer == [Published(sent.id) for sent in batch]

    @story()
    async def test_a_batch_of_a_thousand_is_published_whole(self, b: Backend) -> None:
        await publish_many(b, 1000)
        assert sum(depth.jobs for depth in await b.broker.depths()) == 1000

    @story()
    async def test_an_empty_batch_publishes_nothing(self, b: Backend) -> None:
        assert await b.broker.publish([]) == []

    @story()
    async def test_an_id_that_lives_is_not_published_again(self, b: Backend) -> None:
        sent = await publish(b)
        changed = msgspec.structs.replace(sent, subject="tests.other")
        assert await b.broker.publish([changed]) == [Published(sent.id, existing=True)]
        assert (await take_one(b, await enlist(b))).envelope.subject == "tests.add"

    @story()
    async def test_an_id_that_runs_is_not_published_again(self, b: Backend) -> None:
        sent, owner = await publish(b), await enlist(b)
        await take_one(b, owner)
        assert await b.broker.publish([sent]) == [Published(sent.id, existing=True)]
        assert await take(b, owner) == []

    @story("records")
    async def test_an_id_that_finished_is_not_published_again(self, b: Backend) -> None:
        job = await finished(b)
        again = envelope(b, id=job)
        assert await b.broker.publish([again]) == [Published(job, existing=True)]
        assert await take(b, await enlist(b)) == []

    @story()
    async def test_of_a_batch_only_what_finished_before_is_left_out(self, b: Backend) -> None:
        done, *new = [envelope(b) for _ in range(3)]
        await finished(b, id=done.id)
        answer = await b.broker.publish([new[0], done, new[1]])
        assert [one.existing for one in answer] == [False, True, False]
        assert ids(await take(b, await enlist(b))) == ids(new)

    @story()
    async def test_the_same_id_twice_in_a_batch_is_published_once(self, b: Backend) -> None:
        sent = envelope(b)
        answer = await b.broker.publish([sent, sent])
        assert [one.existing for one in answer] == [False, True]
        assert len(await take(b, await enlist(b))) == 1

    @story()
    async def test_two_processes_publish_the_same_ids_at_once_and_each_job_exists_once(
        self, b: Backend
    ) -> None:
        async with b.another() as other:
            batch = [envelope(b) for _ in range(40)]
            turned = list(reversed(batch))
            first, second = await asyncio.gather(
                b.broker.publish(batch), other.broker.publish(turned)
            )
        fresh = [one.id for one in (*first, *second) if not one.existing]
        assert sorted(fresh) == sorted(ids(batch))
        assert len(await take(b, await enlist(b))) == 40

    @story()
    async def test_a_repeated_publish_after_success_does_not_run_the_job_twice(
        self, b: Backend
    ) -> None:
        sent, owner = await publish(b, id=fresh_id()), await enlist(b)
        await settle(b, await take_one(b, owner), Succeeded(RESULT))
        await b.broker.publish([sent])
        assert await take(b, owner) == []

    @story()
    async def test_a_broker_that_answers_passes_its_check(self, b: Backend) -> None:
        await b.broker.check()

    @story()
    async def test_closing_twice_is_fine(self, b: Backend) -> None:
        async with b.another() as other:
            await publish(other)
            for part in (other.broker, other.records, other.registry, other.control):
                await part.close()
                await part.close()

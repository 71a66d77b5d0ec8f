"""Publishing: durable when it returns, all or none, and the same id only once."""

from __future__ import annotations

import asyncio

import msgspec

from umbel.backends import Published
from umbel.messages import MESSAGEPACK, Body, MessageType, State, Succeeded, fresh_id
from umbel.testing.actions import (
    RESULT,
    claim,
    claim_one,
    envelope,
    ids,
    publish,
    publish_and_settle,
    publish_many,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test

_BYTES = bytes(range(256))
_TEXT = "grüß 🌱 \"quoted\" 'single' \\back % $1 :name ? {brace}\n"


class Publishing:
    """What holds when ``publish`` returns."""

    @backend_test("records")
    async def test_a_published_job_is_known_at_once(self, b: Adapters) -> None:
        sent = await publish(b)
        assert (await b.records.find(sent.id)).state is State.QUEUED

    @backend_test()
    async def test_another_process_fetches_published_jobs(self, b: Adapters) -> None:
        sent = await publish(b)
        async with b.another() as other:
            got = await claim_one(other, await register(other))
        assert got.id == sent.id

    @backend_test()
    async def test_a_job_survives_its_publisher(self, b: Adapters) -> None:
        async with b.another() as publisher:
            sent = await publish(publisher)
        assert (await claim_one(b, await register(b))).id == sent.id

    @backend_test()
    async def test_a_fetched_job_equals_the_published_one(self, b: Adapters) -> None:
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
        got = await claim_one(b, await register(b))
        assert msgspec.to_builtins(got.envelope) == msgspec.to_builtins(sent)

    @backend_test()
    async def test_a_message_keeps_its_type(self, b: Adapters) -> None:
        await publish(b, type=MessageType.EVENT)
        assert (await claim_one(b, await register(b))).envelope.type is MessageType.EVENT

    @backend_test()
    async def test_a_new_job_is_on_its_first_attempt_and_has_no_deaths(self, b: Adapters) -> None:
        await publish(b)
        got = await claim_one(b, await register(b))
        assert (got.attempt, got.deaths, got.sections) == (1, 0, {})

    @backend_test()
    async def test_publishing_answers_in_the_order_of_the_batch(self, b: Adapters) -> None:
        batch = [envelope(b) for _ in range(50)]
        answer = await b.broker.publish(batch)
        assert answer == [Published(sent.id) for sent in batch]

    @backend_test()
    async def test_a_batch_of_a_thousand_is_published_whole(self, b: Adapters) -> None:
        await publish_many(b, 1000)
        assert sum(depth.jobs for depth in await b.broker.depths()) == 1000

    @backend_test()
    async def test_an_empty_batch_publishes_nothing(self, b: Adapters) -> None:
        assert await b.broker.publish([]) == []

    @backend_test()
    async def test_the_id_of_a_live_job_is_not_published_again(self, b: Adapters) -> None:
        sent = await publish(b)
        changed = msgspec.structs.replace(sent, subject="tests.other")
        assert await b.broker.publish([changed]) == [Published(sent.id, existing=True)]
        assert (await claim_one(b, await register(b))).envelope.subject == "tests.add"

    @backend_test()
    async def test_an_id_that_runs_is_not_published_again(self, b: Adapters) -> None:
        sent, owner = await publish(b), await register(b)
        await claim_one(b, owner)
        assert await b.broker.publish([sent]) == [Published(sent.id, existing=True)]
        assert await claim(b, owner) == []

    @backend_test("records")
    async def test_an_id_that_finished_is_not_published_again(self, b: Adapters) -> None:
        job = await publish_and_settle(b)
        again = envelope(b, id=job)
        assert await b.broker.publish([again]) == [Published(job, existing=True)]
        assert await claim(b, await register(b)) == []

    @backend_test()
    async def test_only_finished_ids_of_a_batch_are_left_out(self, b: Adapters) -> None:
        done, *new = [envelope(b) for _ in range(3)]
        await publish_and_settle(b, id=done.id)
        answer = await b.broker.publish([new[0], done, new[1]])
        assert [one.existing for one in answer] == [False, True, False]
        assert ids(await claim(b, await register(b))) == ids(new)

    @backend_test()
    async def test_the_same_id_twice_in_a_batch_is_published_once(self, b: Adapters) -> None:
        sent = envelope(b)
        answer = await b.broker.publish([sent, sent])
        assert [one.existing for one in answer] == [False, True]
        assert len(await claim(b, await register(b))) == 1

    @backend_test()
    async def test_two_processes_publish_the_same_ids_at_once_and_each_job_exists_once(
        self, b: Adapters
    ) -> None:
        async with b.another() as other:
            batch = [envelope(b) for _ in range(40)]
            turned = list(reversed(batch))
            first, second = await asyncio.gather(
                b.broker.publish(batch), other.broker.publish(turned)
            )
        fresh = [one.id for one in (*first, *second) if not one.existing]
        assert sorted(fresh) == sorted(ids(batch))
        assert len(await claim(b, await register(b))) == 40

    @backend_test()
    async def test_a_repeated_publish_after_success_does_not_run_the_job_twice(
        self, b: Adapters
    ) -> None:
        sent, owner = await publish(b, id=fresh_id()), await register(b)
        await settle(b, await claim_one(b, owner), Succeeded(RESULT))
        await b.broker.publish([sent])
        assert await claim(b, owner) == []

    @backend_test()
    async def test_a_broker_that_answers_passes_its_check(self, b: Adapters) -> None:
        await b.broker.check()

    @backend_test()
    async def test_closing_twice_is_fine(self, b: Adapters) -> None:
        async with b.another() as other:
            await publish(other)
            for part in (other.broker, other.records, other.registry, other.control):
                await part.close()
                await part.close()

"""Expiring: jobs that do not run end when their time is over, served by a worker or not."""

from __future__ import annotations

import asyncio

from umbel.messages import Interrupted, Rule, State, Succeeded
from umbel.testing.actions import (
    FAR,
    LONG_WAIT,
    RESULT,
    SOON,
    claim,
    envelope,
    ids,
    publish,
    publish_and_claim,
    publish_many,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test


class Expiring:
    """``expire``: ends jobs whose expiry has passed, by the store's clock."""

    @backend_test("records")
    async def test_a_queued_job_whose_time_is_over_expires(self, b: Adapters) -> None:
        sent = await publish(b, expires=b.clock.now() - 60)
        assert await b.broker.expire(100) == [sent.id]
        found = await b.records.find(sent.id)
        assert (found.state, found.reason) == (State.EXPIRED, "expired before it could start")
        assert found.finished is not None
        assert await claim(b, await register(b)) == []
        assert await b.broker.depths() == []

    @backend_test()
    async def test_expiring_again_finds_nothing(self, b: Adapters) -> None:
        await publish(b, expires=b.clock.now() - 60)
        assert len(await b.broker.expire(100)) == 1
        assert await b.broker.expire(100) == []

    @backend_test()
    async def test_jobs_whose_time_is_not_over_do_not_expire(self, b: Adapters) -> None:
        sent = [await publish(b), await publish(b, expires=b.clock.now() + FAR)]
        sent.append(await publish(b, expires_in=FAR))
        assert await b.broker.expire(100) == []
        assert ids(await claim(b, await register(b))) == ids(sent)

    @backend_test("records", "delay")
    async def test_a_scheduled_job_expires(self, b: Adapters) -> None:
        now = b.clock.now()
        sent = await publish(b, not_before=now + FAR, expires=now - 60)
        assert await b.broker.expire(100) == [sent.id]
        assert (await b.records.find(sent.id)).state is State.EXPIRED

    @backend_test()
    async def test_jobs_that_are_paused_and_that_no_worker_serves_expire(self, b: Adapters) -> None:
        past = b.clock.now() - 60
        paused = await publish(b, queue="mail", subject="tests.paused", expires=past)
        await b.pauses.pause("queue", "mail", "")
        await b.pauses.pause("task", "tests.paused", "")
        unserved = await publish(b, queue="unserved", expires=past)
        assert sorted(await b.broker.expire(100)) == sorted([paused.id, unserved.id])

    @backend_test("records")
    async def test_a_job_that_waits_at_a_gate_expires(self, b: Adapters) -> None:
        await b.gates.declare([Rule(name="limit:shut", capacity=0)])
        sent = await publish(b, gates=("limit:shut",), expires=b.clock.now() - 60)
        assert await claim(b, await register(b)) == []
        assert await b.broker.expire(100) == [sent.id]
        assert (await b.records.find(sent.id)).state is State.EXPIRED
        assert not any(gate.waiting for gate in await b.gates.gates())

    @backend_test("records")
    async def test_a_running_job_does_not_expire(self, b: Adapters) -> None:
        held = await publish_and_claim(b, expires=b.clock.now() - 60)
        assert await b.broker.expire(100) == []
        assert await settle(b, held, Succeeded(RESULT)) == []
        assert (await b.records.find(held.id)).state is State.SUCCEEDED

    @backend_test()
    async def test_a_job_that_went_back_to_its_queue_expires(self, b: Adapters) -> None:
        held = await publish_and_claim(b, expires=b.clock.now() - 60)
        await settle(b, held, Interrupted("stopping"))
        assert await b.broker.expire(100) == [held.id]

    @backend_test()
    async def test_a_call_expires_no_more_than_its_limit(self, b: Adapters) -> None:
        sent = await publish_many(b, 7, expires=b.clock.now() - 60)
        found: list[str] = []
        while some := await b.broker.expire(3):
            assert len(some) <= 3
            found += some
        assert sorted(found) == sorted(ids(sent))

    @backend_test()
    async def test_seconds_until_expiry_are_over_by_the_stores_clock(self, b: Adapters) -> None:
        sent = await publish(b, expires_in=SOON)
        later = await publish(b, expires_in=FAR)
        found: list[str] = []
        while not found:
            await asyncio.sleep(0.02)
            found = await b.broker.expire(100)
        assert found == [sent.id]
        assert ids(await claim(b, await register(b))) == [later.id]

    @backend_test()
    async def test_processes_that_expire_at_once_end_each_job_once(self, b: Adapters) -> None:
        sent = await publish_many(b, 20, expires=b.clock.now() - 60)
        async with b.another() as other:
            both = await asyncio.gather(*(side.broker.expire(100) for side in (b, other) * 2))
        found = [job for some in both for job in some] + await b.broker.expire(100)
        assert sorted(found) == sorted(ids(sent))

    @backend_test("unique")
    async def test_an_expired_job_frees_its_unique_key(self, b: Adapters) -> None:
        await publish(b, unique="only", expires=b.clock.now() - 60)
        await b.broker.expire(100)
        sent = await publish(b, unique="only")
        assert ids(await claim(b, await register(b))) == [sent.id]

    @backend_test("records")
    async def test_waiting_for_a_job_that_expires_ends(self, b: Adapters) -> None:
        sent = await publish(b, expires=b.clock.now() - 60)
        async with b.another() as other:
            waiting = asyncio.create_task(other.records.wait_finished(sent.id, LONG_WAIT))
            await asyncio.sleep(0.05)
            await b.broker.expire(100)
            assert (await waiting).state is State.EXPIRED

    @backend_test()
    async def test_jobs_of_other_namespaces_do_not_expire(self, b: Adapters) -> None:
        sent = envelope(b, expires=b.clock.now() - 60)
        await b.broker.publish([sent])
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.broker.expire(100) == []
        assert await b.broker.expire(100) == [sent.id]

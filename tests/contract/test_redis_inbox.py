"""Each message that another program pushes with RPUSH becomes one job, and wakes a worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

pytest.importorskip("redis.asyncio")

import redis.asyncio as redis
from local_servers import NEVER, REDIS_URL
from redis_server import OWNER, RedisServer, broker_at
from reply_places import Place, event, over_redis, run

from umbel.backends import (
    Demand,
    JobFilter,
)
from umbel.backends.redis.address import RedisAddress
from umbel.backends.redis.broker import RedisBroker
from umbel.backends.redis.database import Database
from umbel.clock import SystemClock
from umbel.errors import Unavailable
from umbel.messages import State, Succeeded, fresh_id
from umbel.testing.actions import RESULT, claim, claim_one, depths, publish, register, settle


def test_every_attribute_counts() -> None:
    async def scenario(p: Place) -> None:
        job = fresh_id()
        await p.put(
            event(
                id=job,
                queue="mail",
                kind="cpu",
                priority=7,
                attempt=2,
                maxdeaths=9,
                tenant="acme",
                namespace="another",
                traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            )
        )
        found = await claim_one(p.backend, await register(p.backend), queues=["mail"])
        message = found.envelope
        assert (found.id, message.queue, message.kind, message.priority) == (job, "mail", "cpu", 7)
        assert (message.attempt, message.max_deaths, message.headers) == (2, 9, {"tenant": "acme"})
        assert message.traceparent is not None
        assert message.namespace == p.backend.namespace  # whose inbox it is counts
        assert json.loads(message.body.data) == {"args": [1, 2]}

    run(over_redis(), scenario)


def test_what_is_not_due_waits() -> None:
    async def scenario(p: Place) -> None:
        await p.put(event(notbefore="2200-01-01T00:00:00Z"))
        assert await claim(p.backend, await register(p.backend)) == []
        assert await depths(p.backend) == {("default", "scheduled"): 1}

    run(over_redis(), scenario)


def test_an_event_for_a_queue_that_others_serve_is_theirs() -> None:
    async def scenario(p: Place) -> None:
        await p.put(event(queue="mail"))
        owner = await register(p.backend)
        assert await claim(p.backend, owner) == []
        assert await depths(p.backend) == {("mail", "queued"): 1}
        await claim_one(p.backend, owner, queues=["mail"])

    run(over_redis(), scenario)


def test_a_busy_queue_keeps_no_event_waiting() -> None:
    async def scenario(p: Place) -> None:
        owner = await register(p.backend)
        for _ in range(3):
            await publish(p.backend)
        await p.put(event())
        await claim_one(p.backend, owner, demand=Demand.of(io=1, cpu=1))
        assert await depths(p.backend) == {("default", "queued"): 3, ("default", "running"): 1}

    run(over_redis(), scenario)


def test_a_thousand_events_become_a_thousand_jobs_if_several_brokers_adopt_them_at_once() -> None:
    async def scenario(p: Place) -> None:
        sent = [fresh_id() for _ in range(1000)]
        for job in sent:
            await p.put(event(id=job))
        b = p.backend
        owner = await register(b)
        others = [_broker(b.namespace) for _ in range(3)]
        try:
            found = await asyncio.gather(
                *(
                    each.fetch(["default"], Demand.of(io=100, cpu=100), owner, 0.0)
                    for each in others
                )
            )
            got = [one.id for some in found for one in some]
            while new := await claim(b, owner):
                got += [one.id for one in new]
        finally:
            for each in others:
                await each.close()
        assert sorted(got) == sorted(sent)
        assert got[:100] != []

    run(over_redis(), scenario)


def test_the_same_event_twice_is_one_job() -> None:
    async def scenario(p: Place) -> None:
        job = fresh_id()
        await p.put(event(id=job))
        await p.put(event(id=job))
        owner = await register(p.backend)
        found = await claim_one(p.backend, owner)
        await settle(p.backend, found, Succeeded(RESULT))
        await p.put(event(id=job))
        assert await claim(p.backend, owner) == []

    run(over_redis(), scenario)


def test_a_waiting_fetch_is_woken_by_a_push() -> None:
    async def scenario(p: Place) -> None:
        owner = await register(p.backend)
        broker = _broker(p.backend.namespace)
        try:
            for _ in range(3):
                job = fresh_id()
                waiting = asyncio.create_task(
                    broker.fetch(["default"], Demand.of(io=5, cpu=5), owner, NEVER)
                )
                await _until_asleep(p.backend.namespace)
                await p.put(event(id=job))
                (found,) = await waiting
                assert found.id == job
                await settle(p.backend, found, Succeeded(RESULT))
        finally:
            await broker.close()

    run(over_redis(), scenario)


def test_a_waiting_fetch_is_woken_after_its_connection_for_that_was_cut() -> None:
    async def scenario(p: Place) -> None:
        owner = await register(p.backend)
        broker = _broker(p.backend.namespace)
        client = redis.Redis.from_url(REDIS_URL)
        try:
            waiting = asyncio.create_task(
                broker.fetch(["default"], Demand.of(io=5, cpu=5), owner, NEVER)
            )
            await _until_asleep(p.backend.namespace)
            for one in await client.client_list():
                if (one["name"], one["cmd"]) == (p.backend.namespace, "blmove"):
                    await client.client_kill_filter(_id=one["id"])
            job = fresh_id()
            await p.put(event(id=job))
            (found,) = await waiting
            assert found.id == job
        finally:
            await client.aclose()
            await broker.close()

    run(over_redis(), scenario)


def test_an_event_beyond_all_size_is_buried_by_its_beginning() -> None:
    async def scenario(p: Place) -> None:
        await p.put(event(data={"args": ["x" * 17_000_000]}))
        job = fresh_id()
        await p.put(event(id=job))
        assert (await claim_one(p.backend, await register(p.backend))).id == job
        (record,) = await p.backend.records.search(JobFilter(states=(State.BURIED,)))
        assert record.reason.startswith("data: 17,000,")
        assert record.reason.endswith("the limit is 16,777,216")
        assert len(record.body.data) == 4096

    run(over_redis(), scenario)


def test_an_inbox_that_is_no_list_blocks_no_worker() -> None:
    async def scenario(p: Place) -> None:
        client = redis.Redis.from_url(REDIS_URL)
        await client.set(f"umbel:{{{p.backend.namespace}}}:inbox", "a mistake")
        await client.aclose()
        sent = await publish(p.backend)
        assert (await claim_one(p.backend, await register(p.backend))).id == sent.id

    run(over_redis(), scenario)


@pytest.mark.parametrize("name", ["sequence", "lane:io:new", "inbox", "job:1"])
def test_an_answer_touches_no_key_of_ours(name: str) -> None:
    async def scenario(p: Place) -> None:
        b = p.backend
        key = f"umbel:{{{b.namespace}}}:{name}"
        owner = await register(b)
        async with p.reply_client() as reply_client:
            for address in (key, reply_client.address):
                await publish(b, headers={"replyto": address})
                job = await claim_one(b, owner)
                await settle(b, job, Succeeded(RESULT))
            await reply_client.receive()  # answers go out in order: the other one is over, too
        client = redis.Redis.from_url(REDIS_URL)
        assert await client.type(key) in (b"none", b"string")
        await client.aclose()

    run(over_redis(), scenario)


def test_an_answer_may_go_to_the_slot_of_the_namespace() -> None:
    async def scenario(p: Place) -> None:
        b = p.backend
        key = f"umbel:{{{b.namespace}}}:reply:mine"
        await publish(b, headers={"replyto": key})
        await settle(b, await claim_one(b, await register(b)), Succeeded(RESULT))
        client = redis.Redis.from_url(REDIS_URL)
        _, data = await client.blpop([key], timeout=10)
        assert json.loads(data)["data"] == [42]
        await client.aclose()

    run(over_redis(), scenario)


def _broker(namespace: str) -> RedisBroker:
    """Return the broker of another process. In practice it does not poll."""
    database = Database(RedisAddress(f"{REDIS_URL}?client_name={namespace}"))
    return RedisBroker(database, namespace=namespace, clock=SystemClock(), safety_poll=NEVER)


async def _until_asleep(namespace: str) -> None:
    """Wait until a client waits at the inbox of this namespace, and for notifications."""
    client, wanted = redis.Redis.from_url(REDIS_URL), {"blmove", "subscribe"}
    while (
        wanted
        > {one["cmd"] for one in await client.client_list() if one["name"] == namespace} & wanted
    ):
        await asyncio.sleep(0.02)
    await client.aclose()


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
        (("SET", "umbel:{umbel}:sequence", "a mistake"), ("DEL", "umbel:{umbel}:sequence")),
    ],
    ids=["full", "broken"],
)
def test_events_wait_without_a_busy_loop_while_none_can_be_adopted(
    start_redis: Callable[..., RedisServer],
    fault: tuple[str, ...],
    remedy: tuple[str, ...],
) -> None:
    server = start_redis("--maxmemory-policy", "noeviction")

    async def scenario() -> None:
        async with asyncio.timeout(40), broker_at(server.url, safety_poll=0.2) as broker:
            job = fresh_id()
            server.do("RPUSH", "umbel:{umbel}:inbox", event(id=job, queue="q"))
            server.do(*fault)
            server.do("CONFIG", "RESETSTAT")
            assert await broker.fetch(["q"], Demand.of(io=1, cpu=1), OWNER, 1.0) == []
            calls = server.client().info("commandstats")["cmdstat_evalsha"]["calls"]
            assert calls < 30  # claim, peek and adopt, some five times
            assert server.do("LLEN", "umbel:{umbel}:inbox") == 1
            server.do(*remedy)
            (found,) = await broker.fetch(["q"], Demand.of(io=1, cpu=1), OWNER, 20.0)
            assert found.id == job

    asyncio.run(scenario())


def test_a_waiting_fetch_survives_a_restart_of_the_server(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis("--appendonly", "yes", "--appendfsync", "always")

    async def scenario() -> None:
        async with asyncio.timeout(40), broker_at(server.url, safety_poll=0.2) as broker:
            waiting = asyncio.create_task(broker.fetch(["q"], Demand.of(io=1, cpu=1), OWNER, NEVER))
            server.stop()
            server.start()
            job = fresh_id()
            server.do("RPUSH", "umbel:{umbel}:inbox", event(id=job, queue="q"))
            try:
                (found,) = await waiting
            except Unavailable:  # it looked while there was no server
                (found,) = await broker.fetch(["q"], Demand.of(io=1, cpu=1), OWNER, 20.0)
            assert found.id == job

    asyncio.run(scenario())

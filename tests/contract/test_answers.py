"""Whoever asks hears how its job ended: over a transport with books beside it, and over Redis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from test_split import nats, rabbitmq, split, sqlite, vhost  # noqa: F401

from umbel.backends import JobFilter, Lane
from umbel.errors import UnknownJob
from umbel.messages import (
    MESSAGEPACK,
    Body,
    Cancelled,
    Expired,
    Failed,
    MessageType,
    Outcome,
    Rejected,
    Retry,
    Snoozed,
    State,
    Succeeded,
    fresh_id,
)
from umbel.messages.wire import MEDIA_TYPE, read_message
from umbel.testing import Backend, FakeClock
from umbel.testing.acts import FAILURE, RESULT, enlist, kill, publish, settle, take, take_one
from umbel.testing.transports import Asker, Heard

DEADLINE = 40.0
UNKNOWN = Lane("default", "")
OVERDUE = "expired before it could start"


@dataclass
class Place:
    """A backend, and what plain clients of its broker do."""

    backend: Backend
    asker: Callable[[], AbstractAsyncContextManager[Asker]]
    put: Callable[[bytes], Awaitable[None]]
    """Send an event as another program would."""


Places = Callable[[], AbstractAsyncContextManager[Place]]


def over_nats(carry: Any, books: Any) -> Places:
    import test_nats
    from nats import connect

    from umbel.backends.nats.stream_names import stream_of

    @asynccontextmanager
    async def place() -> AsyncIterator[Place]:
        client = await connect(test_nats.URL)
        async with split(books(), carry) as backend:
            await take(backend, await enlist(backend))  # which makes the lanes

            async def put(data: bytes) -> None:
                subject = stream_of(backend.namespace, UNKNOWN).subject
                await client.jetstream().publish(subject, data)

            yield Place(backend, lambda: test_nats.asker(client), put)
        await client.close()

    return place


def over_rabbitmq(carry: Any, books: Any, virtual_host: str) -> Places:
    import test_rabbitmq

    @asynccontextmanager
    async def place() -> AsyncIterator[Place]:
        async with split(books(), carry) as backend:
            await take(backend, await enlist(backend))

            async def put(data: bytes) -> None:
                where = virtual_host, backend.namespace, UNKNOWN
                await test_rabbitmq.put(*where, {}, MEDIA_TYPE, data)

            yield Place(backend, lambda: test_rabbitmq.asker(virtual_host), put)

    return place


def over_redis() -> Places:
    import redis.asyncio as redis
    import test_redis

    from umbel.backends.redis.address import Home
    from umbel.backends.redis.broker import RedisBroker
    from umbel.backends.redis.control import RedisControl
    from umbel.backends.redis.database import Database
    from umbel.backends.redis.deployments import RedisDeployments
    from umbel.backends.redis.gates import RedisGates
    from umbel.backends.redis.records import RedisRecords
    from umbel.backends.redis.registry import RedisRegistry
    from umbel.backends.redis.routes import RedisRoutes
    from umbel.backends.redis.steps import RedisSteps

    @asynccontextmanager
    async def asker() -> AsyncIterator[Asker]:
        client, address = redis.Redis.from_url(test_redis.URL), f"test-reply:{fresh_id()}"

        async def hear() -> Heard:
            _, data = await client.blpop([address])
            assert 0 < await client.ttl(address) <= 3600 or not await client.exists(address)
            return Heard({}, MEDIA_TYPE, data, json.loads(data).get("correlationid"))

        yield Asker(address=address, hear=hear)
        await client.delete(address)
        await client.aclose()

    @asynccontextmanager
    async def place() -> AsyncIterator[Place]:
        namespace, clock = f"t{fresh_id()}", FakeClock()
        how: Any = {"namespace": namespace, "clock": clock}
        client, database = redis.Redis.from_url(test_redis.URL), Database(Home(test_redis.URL))
        records = RedisRecords(database, **how)
        broker = RedisBroker(database, **how, find=records.find)

        async def put(data: bytes) -> None:
            await client.rpush(f"umbel:{{{namespace}}}:inbox", data)

        yield Place(
            Backend(
                broker=broker,
                records=records,
                registry=RedisRegistry(database, **how),
                control=RedisControl(database, **how),
                gates=RedisGates(database, **how),
                steps=RedisSteps(database, **how),
                deployments=RedisDeployments(database, **how),
                routes=RedisRoutes(database, **how),
                clock=clock,
                namespace=namespace,
                another=lambda _=None: place(),
            ),
            asker,
            put,
        )
        await broker.close()
        async for key in client.scan_iter(f"umbel:{{{namespace}}}:*"):
            await client.delete(key)
        await client.aclose()

    return place


@pytest.fixture(params=["nats", "rabbitmq", "redis"])
def place(request: pytest.FixtureRequest) -> Places:
    asked = request.getfixturevalue
    if request.param == "nats":
        return over_nats(asked("nats"), asked("sqlite"))
    if request.param == "rabbitmq":
        return over_rabbitmq(asked("rabbitmq"), asked("sqlite"), asked("vhost"))
    return over_redis()


def tell(place: Places, told: Callable[[Place], Awaitable[None]]) -> None:
    """A test written as a coroutine."""

    async def main() -> None:
        async with asyncio.timeout(DEADLINE), place() as found:
            await told(found)

    asyncio.run(main())


async def is_silent(asker: Asker) -> bool:
    try:
        async with asyncio.timeout(0.4):
            await asker.hear()
    except TimeoutError:
        return True
    return False


def event(**changes: Any) -> bytes:
    """What another program sends at least, and who asks."""
    made = {
        "specversion": "1.0",
        "id": fresh_id(),
        "type": "umbel.command",
        "source": "/elsewhere",
        "subject": "tests.add",
        "data": {"args": [1, 2]},
        **changes,
    }
    return json.dumps({name: value for name, value in made.items() if value is not None}).encode()


ENDS: list[tuple[Outcome, State, str, Any]] = [
    (Succeeded(RESULT), State.SUCCEEDED, "", [42]),
    (Succeeded(None), State.SUCCEEDED, "", None),
    (Failed(FAILURE), State.BURIED, "no such colour", {"message": "no such colour"}),
    (Rejected("data: bad"), State.BURIED, "data: bad", {"message": "data: bad"}),
    (Cancelled("not wanted"), State.CANCELLED, "not wanted", {"message": "not wanted"}),
    (Expired(), State.EXPIRED, OVERDUE, {"message": OVERDUE}),
]


def test_an_asker_hears_every_way_a_job_can_end(place: Places) -> None:
    async def told(p: Place) -> None:
        owner = await enlist(p.backend)
        async with p.asker() as asker:
            for outcome, state, reason, data in ENDS:
                headers = {"replyto": asker.address, "correlationid": type(outcome).__name__}
                sent = await publish(p.backend, headers=headers)
                job = await take_one(p.backend, owner, wait=10)
                assert not await settle(p.backend, job, outcome)
                heard = await asker.hear()
                found = read_message(heard.attributes, heard.content_type, heard.data)
                assert (found.id, found.type) == (sent.id, MessageType.DOCUMENT)
                assert (found.subject, found.namespace) == (sent.subject, p.backend.namespace)
                assert found.headers["state"] == state
                assert found.headers.get("reason", "") == reason
                assert heard.correlation == type(outcome).__name__
                body = json.loads(found.body.data)
                assert body == data if not isinstance(data, dict) else body.items() >= data.items()
            assert await is_silent(asker)

    tell(place, told)


def test_a_result_of_another_content_type_arrives_as_it_is(place: Places) -> None:
    async def told(p: Place) -> None:
        result = Body(MESSAGEPACK, b"\x93\x01\x02\xc0")
        async with p.asker() as asker:
            await publish(p.backend, headers={"replyto": asker.address})
            job = await take_one(p.backend, await enlist(p.backend), wait=10)
            await settle(p.backend, job, Succeeded(result))
            heard = await asker.hear()
            found = read_message(heard.attributes, heard.content_type, heard.data)
            assert found.body == result

    tell(place, told)


def test_nothing_is_said_of_a_job_that_goes_on(place: Places) -> None:
    async def told(p: Place) -> None:
        owner = await enlist(p.backend)
        async with p.asker() as asker:
            await publish(p.backend, headers={"replyto": asker.address})
            for outcome in (Retry(FAILURE, 0.0), Snoozed(0.0)):
                job = await take_one(p.backend, owner, wait=10)
                assert not await settle(p.backend, job, outcome)
            assert await is_silent(asker)
            job = await take_one(p.backend, owner, wait=10)
            await settle(p.backend, job, Succeeded(RESULT))
            assert (await asker.hear()).correlation == job.id
            assert await is_silent(asker)

    tell(place, told)


def test_an_outcome_that_does_not_count_is_not_told(place: Places) -> None:
    async def told(p: Place) -> None:
        b = p.backend
        async with p.asker() as asker:
            await publish(b, headers={"replyto": asker.address})
            dead = await enlist(b, "dead")
            late = await take_one(b, dead, wait=10)
            await kill(b, dead)
            await b.broker.recover()
            assert await settle(b, late, Failed(FAILURE)) == [late.lease]
            assert await is_silent(asker)
            job = await take_one(b, await enlist(b, "living"), wait=10)
            await settle(b, job, Succeeded(RESULT))
            heard = await asker.hear()
            found = read_message(heard.attributes, heard.content_type, heard.data)
            assert found.headers["state"] == "succeeded"

    tell(place, told)


def test_who_asks_again_is_answered_from_the_record(place: Places) -> None:
    async def told(p: Place) -> None:
        b, job = p.backend, fresh_id()
        owner = await enlist(b)
        async with p.asker() as first, p.asker() as second:
            await p.put(event(id=job, replyto=first.address))
            delivery = await take_one(b, owner, wait=10)
            assert delivery.id == job
            await p.put(event(id=job, replyto=second.address))
            assert await take(b, owner) == []  # it runs: nothing to tell yet
            assert await is_silent(second)
            await settle(b, delivery, Succeeded(RESULT))
            assert (await first.hear()).correlation == job
            await p.put(event(id=job, replyto=second.address, correlationid="again"))
            assert await take(b, owner) == []
            heard = await second.hear()
            found = read_message(heard.attributes, heard.content_type, heard.data)
            assert (found.id, found.body.data, heard.correlation) == (job, b"[42]", "again")
            assert await is_silent(first)

    tell(place, told)


BAD: list[tuple[str, dict[str, Any]]] = [
    ("id: is missing", {"id": None}),
    ("id: must be a UUID", {"id": "7"}),
    ("type: must be one of", {"type": "shop.ordered"}),
    ("specversion: must be", {"specversion": "0.3"}),
    ("source: is missing", {"source": None}),
    ("subject: is missing", {"subject": None}),
    ("subject: must be a non-empty string of at most 255", {"subject": "x" * 256}),
    ("data: is missing", {"data": None}),
    ("priority: must be an integer", {"priority": "high"}),
    ("notbefore: must be an RFC 3339 time", {"notbefore": "tomorrow"}),
    ("correlationid: must be a non-empty string of at most 255", {"correlationid": "x" * 256}),
    ("body: more than 65,536 characters", {"note": "x" * 70_000}),
]


def test_a_message_that_cannot_be_read_is_buried_with_the_field_and_its_sender_hears(
    place: Places,
) -> None:
    async def told(p: Place) -> None:
        b = p.backend
        owner = await enlist(b)
        async with p.asker() as asker:
            for reason, changes in BAD:
                asking = {"replyto": asker.address, "correlationid": reason}
                await p.put(event(**{**asking, **changes}))
                assert await take(b, owner) == []
                heard = await asker.hear()
                found = read_message(heard.attributes, heard.content_type, heard.data)
                assert found.headers["state"] == "buried"
                assert found.headers["reason"].startswith(reason)
                assert found.subject == "(unreadable)"
                record = await b.records.find(found.id)
                assert (record.state, record.task) == (State.BURIED, "(unreadable)")
                assert record.reason.startswith(reason)
                assert [one.ended for one in record.attempts] == ["rejected"]

    tell(place, told)


def test_bytes_that_are_no_json_are_buried_and_harm_nobody(place: Places) -> None:
    async def told(p: Place) -> None:
        b = p.backend
        owner = await enlist(b)
        for data in (b"\xff\x00\xfe", b"{", b"[]", b'"text"'):
            await p.put(data)
            assert await take(b, owner) == []
        job = fresh_id()
        await p.put(event(id=job))
        assert (await take_one(b, owner, wait=10)).id == job
        buried = await b.records.search(JobFilter(states=(State.BURIED,)))
        assert {one.body.data for one in buried} == {b"\xff\x00\xfe", b"{", b"[]", b'"text"'}
        assert all(r.reason.startswith(("body:", "specversion:")) for r in buried)

    tell(place, told)


@pytest.mark.parametrize("on_conflict", [None, "raise"])
def test_a_key_that_is_taken_is_told(place: Places, on_conflict: str | None) -> None:
    async def told(p: Place) -> None:
        b = p.backend
        holder, late, after = fresh_id(), fresh_id(), fresh_id()
        owner = await enlist(b)
        async with p.asker() as asker:
            asks = {"uniquekey": "order-7", "onconflict": on_conflict, "replyto": asker.address}
            await p.put(event(id=holder, uniquekey="order-7"))
            await p.put(event(id=late, **asks))
            job = await take_one(b, owner)
            assert job.id == holder
            record = await b.records.find(late)
            assert (record.state, record.reason) == (
                State.BURIED,
                "uniquekey: a live job holds it",
            )
            assert (await asker.hear()).correlation == late
            await settle(b, job, Succeeded(RESULT))
            await p.put(event(id=after, **asks))
            assert (await take_one(b, owner)).id == after

    tell(place, told)


def test_a_key_may_be_taken_where_the_sender_says_so(place: Places) -> None:
    async def told(p: Place) -> None:
        b = p.backend
        first, same, other = fresh_id(), fresh_id(), fresh_id()
        owner = await enlist(b)
        await p.put(event(id=first, uniquekey="order-7"))
        await p.put(event(id=same, uniquekey="order-7", onconflict="return"))
        await p.put(event(id=other, uniquekey="order-7", onconflict="replace"))
        assert (await take_one(b, owner)).id == other
        assert (await b.records.find(first)).state is State.CANCELLED
        with pytest.raises(UnknownJob):
            await b.records.find(same)

    tell(place, told)

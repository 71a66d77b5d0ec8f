"""A sender that asks for it gets the result of its job: over pairs, and over Redis."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from reply_places import (
    Place,
    Places,
    event,
    over_nats,
    over_rabbitmq,
    over_redis,
    run,
)

from umbel.backends import JobFilter
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
from umbel.messages.wire import read_message
from umbel.testing.actions import FAILURE, RESULT, claim, claim_one, kill, publish, register, settle
from umbel.testing.transports import ReplyClient

OVERDUE = "expired before it could start"


@pytest.fixture(params=["nats", "rabbitmq", "redis"])
def place(request: pytest.FixtureRequest) -> Places:
    fixture = request.getfixturevalue
    if request.param == "nats":
        return over_nats(fixture("nats"), fixture("sqlite"))
    if request.param == "rabbitmq":
        return over_rabbitmq(fixture("rabbitmq"), fixture("sqlite"), fixture("vhost"))
    return over_redis()


async def is_silent(reply_client: ReplyClient) -> bool:
    try:
        async with asyncio.timeout(0.4):
            await reply_client.receive()
    except TimeoutError:
        return True
    return False


ENDS: list[tuple[Outcome, State, str, Any]] = [
    (Succeeded(RESULT), State.SUCCEEDED, "", [42]),
    (Succeeded(None), State.SUCCEEDED, "", None),
    (Failed(FAILURE), State.BURIED, "no such colour", {"message": "no such colour"}),
    (Rejected("data: bad"), State.BURIED, "data: bad", {"message": "data: bad"}),
    (Cancelled("not wanted"), State.CANCELLED, "not wanted", {"message": "not wanted"}),
    (Expired(), State.EXPIRED, OVERDUE, {"message": OVERDUE}),
]


def test_a_client_is_answered_for_every_outcome_of_a_job(place: Places) -> None:
    async def scenario(p: Place) -> None:
        owner = await register(p.backend)
        async with p.reply_client() as reply_client:
            for outcome, state, reason, data in ENDS:
                headers = {"replyto": reply_client.address, "correlationid": type(outcome).__name__}
                sent = await publish(p.backend, headers=headers)
                job = await claim_one(p.backend, owner, wait=10)
                assert not await settle(p.backend, job, outcome)
                reply = await reply_client.receive()
                found = read_message(reply.attributes, reply.content_type, reply.data)
                assert (found.id, found.type) == (sent.id, MessageType.DOCUMENT)
                assert (found.subject, found.namespace) == (sent.subject, p.backend.namespace)
                assert found.headers["state"] == state
                assert found.headers.get("reason", "") == reason
                assert reply.correlation == type(outcome).__name__
                body = json.loads(found.body.data)
                assert body == data if not isinstance(data, dict) else body.items() >= data.items()
            assert await is_silent(reply_client)

    run(place, scenario)


def test_a_result_of_another_content_type_arrives_as_it_is(place: Places) -> None:
    async def scenario(p: Place) -> None:
        result = Body(MESSAGEPACK, b"\x93\x01\x02\xc0")
        async with p.reply_client() as reply_client:
            await publish(p.backend, headers={"replyto": reply_client.address})
            job = await claim_one(p.backend, await register(p.backend), wait=10)
            await settle(p.backend, job, Succeeded(result))
            reply = await reply_client.receive()
            found = read_message(reply.attributes, reply.content_type, reply.data)
            assert found.body == result

    run(place, scenario)


def test_a_job_that_continues_is_not_answered(place: Places) -> None:
    async def scenario(p: Place) -> None:
        owner = await register(p.backend)
        async with p.reply_client() as reply_client:
            await publish(p.backend, headers={"replyto": reply_client.address})
            for outcome in (Retry(FAILURE, 0.0), Snoozed(0.0)):
                job = await claim_one(p.backend, owner, wait=10)
                assert not await settle(p.backend, job, outcome)
            assert await is_silent(reply_client)
            job = await claim_one(p.backend, owner, wait=10)
            await settle(p.backend, job, Succeeded(RESULT))
            assert (await reply_client.receive()).correlation == job.id
            assert await is_silent(reply_client)

    run(place, scenario)


def test_a_rejected_outcome_is_not_answered(place: Places) -> None:
    async def scenario(p: Place) -> None:
        b = p.backend
        async with p.reply_client() as reply_client:
            await publish(b, headers={"replyto": reply_client.address})
            dead = await register(b, "dead")
            late = await claim_one(b, dead, wait=10)
            await kill(b, dead)
            await b.broker.recover()
            assert await settle(b, late, Failed(FAILURE)) == [late.lease]
            assert await is_silent(reply_client)
            job = await claim_one(b, await register(b, "living"), wait=10)
            await settle(b, job, Succeeded(RESULT))
            reply = await reply_client.receive()
            found = read_message(reply.attributes, reply.content_type, reply.data)
            assert found.headers["state"] == "succeeded"

    run(place, scenario)


def test_who_asks_again_is_answered_from_the_record(place: Places) -> None:
    async def scenario(p: Place) -> None:
        b, job = p.backend, fresh_id()
        owner = await register(b)
        async with p.reply_client() as first, p.reply_client() as second:
            await p.put(event(id=job, replyto=first.address))
            delivery = await claim_one(b, owner, wait=10)
            assert delivery.id == job
            await p.put(event(id=job, replyto=second.address))
            assert await claim(b, owner) == []  # it runs: nothing to tell yet
            assert await is_silent(second)
            await settle(b, delivery, Succeeded(RESULT))
            assert (await first.receive()).correlation == job
            await p.put(event(id=job, replyto=second.address, correlationid="again"))
            assert await claim(b, owner) == []
            reply = await second.receive()
            found = read_message(reply.attributes, reply.content_type, reply.data)
            assert (found.id, found.body.data, reply.correlation) == (job, b"[42]", "again")
            assert await is_silent(first)

    run(place, scenario)


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
    ("body: has more than 65,536 characters", {"note": "x" * 70_000}),
]


def test_a_message_that_cannot_be_read_is_buried_with_the_field_and_its_sender_is_answered(
    place: Places,
) -> None:
    async def scenario(p: Place) -> None:
        b = p.backend
        owner = await register(b)
        async with p.reply_client() as reply_client:
            for reason, changes in BAD:
                asking = {"replyto": reply_client.address, "correlationid": reason}
                await p.put(event(**{**asking, **changes}))
                assert await claim(b, owner) == []
                reply = await reply_client.receive()
                found = read_message(reply.attributes, reply.content_type, reply.data)
                assert found.headers["state"] == "buried"
                assert found.headers["reason"].startswith(reason)
                assert found.subject == "(unreadable)"
                record = await b.records.find(found.id)
                assert (record.state, record.task) == (State.BURIED, "(unreadable)")
                assert record.reason.startswith(reason)
                assert [one.ended for one in record.attempts] == ["rejected"]

    run(place, scenario)


def test_bytes_that_are_no_json_are_buried_and_affect_no_other_message(place: Places) -> None:
    async def scenario(p: Place) -> None:
        b = p.backend
        owner = await register(b)
        for data in (b"\xff\x00\xfe", b"{", b"[]", b'"text"'):
            await p.put(data)
            assert await claim(b, owner) == []
        job = fresh_id()
        await p.put(event(id=job))
        assert (await claim_one(b, owner, wait=10)).id == job
        buried = await b.records.search(JobFilter(states=(State.BURIED,)))
        assert {one.body.data for one in buried} == {b"\xff\x00\xfe", b"{", b"[]", b'"text"'}
        assert all(r.reason.startswith(("body:", "specversion:")) for r in buried)

    run(place, scenario)


@pytest.mark.parametrize("on_conflict", [None, "raise"])
def test_a_key_that_is_taken_is_reported(place: Places, on_conflict: str | None) -> None:
    async def scenario(p: Place) -> None:
        b = p.backend
        holder, late, after = fresh_id(), fresh_id(), fresh_id()
        owner = await register(b)
        async with p.reply_client() as reply_client:
            asks = {
                "uniquekey": "order-7",
                "onconflict": on_conflict,
                "replyto": reply_client.address,
            }
            await p.put(event(id=holder, uniquekey="order-7"))
            await p.put(event(id=late, **asks))
            job = await claim_one(b, owner)
            assert job.id == holder
            record = await b.records.find(late)
            assert (record.state, record.reason) == (
                State.BURIED,
                "uniquekey: a live job holds it",
            )
            assert (await reply_client.receive()).correlation == late
            await settle(b, job, Succeeded(RESULT))
            await p.put(event(id=after, **asks))
            assert (await claim_one(b, owner)).id == after

    run(place, scenario)


def test_a_key_may_be_taken_where_the_sender_says_so(place: Places) -> None:
    async def scenario(p: Place) -> None:
        b = p.backend
        first, same, other = fresh_id(), fresh_id(), fresh_id()
        owner = await register(b)
        await p.put(event(id=first, uniquekey="order-7"))
        await p.put(event(id=same, uniquekey="order-7", onconflict="return"))
        await p.put(event(id=other, uniquekey="order-7", onconflict="replace"))
        assert (await claim_one(b, owner)).id == other
        assert (await b.records.find(first)).state is State.CANCELLED
        with pytest.raises(UnknownJob):
            await b.records.find(same)

    run(place, scenario)

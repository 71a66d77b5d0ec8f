"""Requests in the ways of RabbitMQ: the properties of a message, and direct reply-to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("pika")

import pika
from rabbitmq_transports import connect, rabbitmq_corner, with_channel

from umbel.backends import Arrival
from umbel.backends.rabbitmq.queue_names import queue_name
from umbel.messages import fresh_id
from umbel.messages.documents import ReplyRequest, find_reply_request
from umbel.messages.wire import MEDIA_TYPE, write
from umbel.testing.transports import Server
from umbel.testing.transports.replies import receive_reply, reply
from umbel.testing.transports.server import IO, envelope, ids, read, receive, send


def tell(vhost: str, told: Callable[[Server], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(40), rabbitmq_corner(vhost) as server:
            await told(server)

    asyncio.run(main())


def binary(job: str, **more: str) -> dict[str, str]:
    """Return the headers of an event in binary mode."""
    attributes = {
        "specversion": "1.0",
        "id": job,
        "type": "umbel.command",
        "source": "/elsewhere",
        "subject": "tests.add",
        **more,
    }
    return {f"cloudEvents:{name}": value for name, value in attributes.items()}


def asked_in(arrival: Arrival) -> ReplyRequest | None:
    found = read(arrival)
    return find_reply_request(found.id, found.headers)


@pytest.mark.parametrize(
    ("properties", "attributes", "asked"),
    [
        ({"reply_to": "here"}, {}, ("here", None)),
        ({"reply_to": "here", "correlation_id": "7"}, {}, ("here", "7")),
        ({"reply_to": "here"}, {"replyto": "there"}, ("there", None)),
        ({"correlation_id": "7"}, {"replyto": "there", "correlationid": "8"}, ("there", "8")),
        ({"correlation_id": "7"}, {}, None),
    ],
)
@pytest.mark.parametrize("structured", [False, True])
def test_the_properties_of_a_message_say_who_asks(
    vhost: str,
    properties: dict[str, str],
    attributes: dict[str, str],
    asked: tuple[str, str | None] | None,
    structured: bool,
) -> None:
    async def told(s: Server) -> None:
        job = fresh_id()
        sent: dict[str, Any] = {"headers": binary(job, **attributes), "body": b"{}"}
        if structured:
            event = write(envelope(s, id=job, headers=attributes))
            sent = {"headers": None, "body": event, "content_type": MEDIA_TYPE}
        body = sent.pop("body")
        message = pika.BasicProperties(**sent, **properties)
        async with s.open() as one:
            await one.receive({IO: 1}, 0.0)
            queue = queue_name(s.namespace, IO)
            put: Any = lambda channel: channel.basic_publish("", queue, body, message)  # noqa: E731
            await asyncio.to_thread(with_channel, vhost, put)
            (arrival,) = await receive(one)
            wanted = ReplyRequest(asked[0], asked[1] or job) if asked else None
            assert asked_in(arrival) == wanted
            await one.accept([arrival])

    tell(vhost, told)


def test_a_direct_reply_to_is_answered(vhost: str) -> None:
    async def told(s: Server) -> None:
        heard: list[tuple[Any, bytes]] = []
        async with s.open() as one:
            await one.receive({IO: 1}, 0.0)
            with closing(connect(vhost)) as connection:
                channel = connection.channel()
                channel.basic_consume(
                    "amq.rabbitmq.reply-to",
                    lambda _, __, properties, body: heard.append((properties, body)),
                    auto_ack=True,
                )
                question = pika.BasicProperties(
                    headers=binary(fresh_id()),
                    reply_to="amq.rabbitmq.reply-to",
                    correlation_id="question 7",
                )
                channel.basic_publish("", queue_name(s.namespace, IO), b"{}", question)
                (arrival,) = await receive(one)
                await one.accept([arrival])
                asked = asked_in(arrival)
                assert asked is not None
                assert asked.address.startswith("amq.rabbitmq.reply-to.")
                await one.reply([reply(s, asked)])
                while not heard:
                    await asyncio.to_thread(connection.process_data_events, 0.1)
            # The asker has hung up; what is said to it goes nowhere.
            await one.reply([reply(s, asked)])
        ((properties, body),) = heard
        assert properties.correlation_id == "question 7"
        assert properties.headers["cloudEvents_type"] == "umbel.document"
        assert properties.headers["cloudEvents_state"] == "succeeded"
        assert (properties.content_type, body) == ("application/json", b'{"total":42}')

    tell(vhost, told)


@pytest.mark.parametrize(
    "address", ["amq.rabbitmq.reply-to", "amq.rabbitmq.reply-to.g1h2AA", "amq.gen-gone", "umbel.no"]
)
def test_a_reply_to_an_unknown_address_is_dropped(vhost: str, address: str) -> None:
    async def told(s: Server) -> None:
        async with s.open() as one, s.reply_client() as reply_client:
            sent = await send(one, s, 1)
            await one.reply([reply(s, ReplyRequest(address, "q"))])
            sent += await send(one, s, 1)
            await one.reply([reply(s, ReplyRequest(reply_client.address, "q"))])
            assert (await receive_reply(reply_client)).correlation == "q"
            found: list[str] = []
            while len(found) < 2:
                new = await receive(one)
                await one.accept(new)
                found += ids(new)
            assert found == sent

    tell(vhost, told)

"""Behavior specific to RabbitMQ: flow control, other publishers, and texts of refusals."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from typing import Any, cast

import pytest

pytest.importorskip("pika")

import pika
from local_servers import HOST, PORTS
from rabbitmq_transports import rabbitmq_corner, with_channel

from integration.running import Proxy as SilentProxy
from umbel.backends import Lane, Transport
from umbel.backends.rabbitmq.address import RabbitAddress
from umbel.backends.rabbitmq.consumer import LaneConsumer
from umbel.backends.rabbitmq.queue_names import queue_name
from umbel.backends.rabbitmq.transport import RabbitTransport
from umbel.errors import Unavailable
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.testing.transports import Server
from umbel.testing.transports.server import (
    CPU,
    IO,
    SOON,
    envelope,
    ids,
    read,
    receive,
    receive_all,
    send,
)

Told = Callable[[Server], Coroutine[Any, Any, None]]


@pytest.fixture
def tell(vhost: str) -> Callable[[Told], None]:
    """Run a test in a namespace of the server."""

    async def run(told: Told) -> None:
        async with asyncio.timeout(45), rabbitmq_corner(vhost) as server:
            await told(server)

    return lambda told: asyncio.run(run(told))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay acknowledgements until there are enough of them."""
    monkeypatch.setattr("umbel.backends.rabbitmq.consumer._ACKNOWLEDGE_DELAY", 3600.0)


def consumer_of(transport: Transport) -> LaneConsumer:
    return cast(RabbitTransport, transport)._receiver._consumers[IO]


def test_a_larger_room_brings_more_and_nothing_twice(tell: Callable[[Told], None]) -> None:
    async def transport_test(s: Server) -> None:
        async with s.open() as one:
            sent = await send(one, s, 200)
            found: list[str] = []
            for room in (1, 5, 40, 3, 100, 200):
                new = await receive(one, room=room)
                assert len(new) <= room
                await one.accept(new)
                found += ids(new)
            while len(found) < 200:
                new = await receive(one, room=200)
                await one.accept(new)
                found += ids(new)
            assert sorted(found) == sorted(sent)

    tell(transport_test)


def test_what_was_handed_out_before_the_room_grew_can_still_be_accepted(
    tell: Callable[[Told], None],
) -> None:
    async def transport_test(s: Server) -> None:
        async with s.open() as one:
            (first, second) = await send(one, s, 2)
            held = await receive(one, room=1)
            grown = await receive(one, room=10)
            assert (ids(held), ids(grown)) == ([first], [second])
            await one.accept(held)
            await one.accept(grown)
        async with s.open() as again:
            assert await again.receive({IO: 10}, 0.0) == []

    tell(transport_test)


def test_a_room_that_shrank_hides_nothing(tell: Callable[[Told], None]) -> None:
    """Capacity for ten was requested while no message came; another lane has used it since."""

    async def transport_test(s: Server) -> None:
        async with s.open() as one, s.open() as other:
            assert await one.receive({IO: 10, CPU: 10}, 0.0) == []
            sent = await send(other, s, 10)
            mine = await receive(one, room=2)
            assert len(mine) <= 2
            theirs = await receive_all(other, 10 - len(mine))
            assert sorted(ids(mine) + ids(theirs)) == sorted(sent)

    tell(transport_test)


def test_an_unused_lane_returns_its_messages(
    tell: Callable[[Told], None],
) -> None:
    async def transport_test(s: Server) -> None:
        async with s.open() as one, s.open() as other:
            assert await one.receive({IO: 10, CPU: 10}, 0.0) == []
            sent = await send(other, s, 3, kind="cpu")
            asking = asyncio.create_task(one.receive({IO: 10}, 30))
            assert sorted(ids(await receive_all(other, 3, CPU))) == sorted(sent)
            one.stop_waiting()
            assert await asking == []

    tell(transport_test)


def test_what_was_accepted_is_acknowledged_when_there_is_room_again(
    vhost: str, tell: Callable[[Told], None]
) -> None:
    async def transport_test(s: Server) -> None:
        async with s.open() as one:
            await send(one, s, 8)
            await receive_all(one, 8)
            assert await one.receive({IO: 8}, 0.2) == []
        name = queue_name(s.namespace, IO)
        left = await asyncio.to_thread(
            with_channel, vhost, lambda channel: channel.queue_declare(name, passive=True)
        )
        assert left.method.message_count == 0

    tell(transport_test)


@pytest.mark.parametrize(("soon", "many"), [(60.0, 11), (0.02, 1)], ids=["many", "a moment later"])
def test_acknowledgements_are_collected_until_there_are_many_or_for_a_moment(
    soon: float, many: int, tell: Callable[[Told], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, bool]] = []

    async def transport_test(s: Server) -> None:
        async with s.open() as one:
            assert await one.receive({IO: 40}, 0.0) == []
            channel = cast(Any, consumer_of(one)._channel)
            acknowledge = channel.acknowledge

            def spy(tag: int, and_lower: bool = False) -> None:
                told.append((tag, and_lower))
                acknowledge(tag, and_lower=and_lower)

            channel.acknowledge = spy
            for _ in range(many):
                assert told == []
                await send(one, s, 1)
                await one.accept(await receive(one, room=40))
            one.stop_waiting()
            waiting = asyncio.create_task(one.receive({IO: 40}, 30))
            while not told:
                await asyncio.sleep(0.005)
            assert told == [(many, True)]
            one.stop_waiting()
            assert await waiting == []

    monkeypatch.setattr("umbel.backends.rabbitmq.consumer._ACKNOWLEDGE_DELAY", soon)
    tell(transport_test)


def test_acknowledgements_do_not_take_away_a_small_room(
    tell: Callable[[Told], None], patient: None
) -> None:
    async def transport_test(s: Server) -> None:
        async with s.open() as one:
            assert await one.receive({IO: 40}, 0.0) == []
            sent = await send(one, s, 43)
            held = ids(await receive_all(one, 40))
            assert held + ids(await receive_all(one, 3)) == sent

    tell(transport_test)


def test_what_is_handed_out_and_not_accepted_takes_no_room_from_the_rest(
    tell: Callable[[Told], None], patient: None
) -> None:
    async def transport_test(s: Server) -> None:
        async with s.open() as one:
            assert await one.receive({IO: 40}, 0.0) == []
            await send(one, s, 3)
            await receive_all(one, 3)
            await send(one, s, 37)
            held: list[str] = []
            while len(held) < 37:
                held += ids(await receive(one, room=40 - len(held)))
            sent = await send(one, s, 3)
            assert ids(await receive_all(one, 3)) == sent

    tell(transport_test)


def test_nothing_is_asked_for_later_that_there_was_no_room_for_by_then(
    tell: Callable[[Told], None], patient: None
) -> None:
    async def transport_test(s: Server) -> None:
        async with s.open() as one:
            assert await one.receive({IO: 40}, 0.0) == []
            consumer = consumer_of(one)
            await send(one, s, 3)
            await receive_all(one, 3)
            consumer.set_capacity(40)  # what was accepted is acknowledged soon
            await send(one, s, 37)
            assert await consumer.count() == 0
            found = consumer.take(40)
            await one.accept(found)
            consumer._acknowledge_surplus()  # now, when there is room for three
            await send(one, s, 10)
            assert (len(found), await consumer.count()) == (37, 7)

    tell(transport_test)


def test_sending_to_many_lanes_at_once(tell: Callable[[Told], None]) -> None:
    async def transport_test(s: Server) -> None:
        lanes = [Lane(f"q{number % 7}", kind) for number in range(70) for kind in ("io", "cpu")]
        made = [envelope(s, queue=lane.queue, kind=lane.kind) for lane in lanes]
        async with s.open() as one:
            await asyncio.gather(one.send(made[:70]), one.send(made[70:]))
            found: list[str] = []
            while len(found) < len(made):
                new = await one.receive(dict.fromkeys(lanes, 50), SOON)
                await one.accept(new)
                found += ids(new)
            assert sorted(found) == sorted(each.id for each in made)
            assert sorted(s.lost) == sorted(f"q{n}" for n in range(7) for _ in range(2))

    tell(transport_test)


FOREIGN = """
import json, sys, uuid, pika
port, vhost, queue = sys.argv[1:]
credentials = pika.PlainCredentials("guest", "guest")
connection = pika.BlockingConnection(
    pika.ConnectionParameters("127.0.0.1", int(port), vhost, credentials)
)
event = {
    "specversion": "1.0", "id": str(uuid.uuid4()), "type": "umbel.command",
    "source": "/a/script", "subject": "tests.add", "data": {"args": [1, 2]},
}
connection.channel().basic_publish(
    "", queue, json.dumps(event), pika.BasicProperties("application/cloudevents+json")
)
connection.close()
"""


def test_another_program_publishes_with_the_queues_name_alone(
    vhost: str, tell: Callable[[Told], None]
) -> None:
    async def transport_test(s: Server) -> None:
        async with s.open() as one:
            await one.receive({Lane("default", ""): 1}, 0.0)
            command = [
                sys.executable,
                "-c",
                FOREIGN,
                str(PORTS["rabbitmq"]),
                vhost,
                f"{s.namespace}.default.any",
            ]
            await asyncio.to_thread(subprocess.run, command, check=True)
            (arrival,) = await receive(one, Lane("default", ""))
            found = read(arrival)
            assert (found.subject, found.body.data) == ("tests.add", b'{"args":[1,2]}')
            await one.accept([arrival])

    tell(transport_test)


class Hostile(pika.BasicProperties):
    """Headers with a date in the year 55840: milliseconds where seconds belong."""

    def encode(self) -> list[bytes]:
        entry = b"\x04when" + b"T" + struct.pack(">Q", 1_700_000_000_000)
        return [struct.pack(">H", 1 << 13), struct.pack(">I", len(entry)), entry]


def test_headers_that_cannot_be_read_cost_nothing_but_themselves(
    vhost: str, tell: Callable[[Told], None]
) -> None:
    async def transport_test(s: Server) -> None:
        async with s.open() as one:
            await one.receive({IO: 10}, 0.0)
            name = queue_name(s.namespace, IO)
            await asyncio.to_thread(
                with_channel, vhost, lambda c: c.basic_publish("", name, b"body", Hostile())
            )
            (arrival,) = await receive(one)
            assert (*arrival.read(), arrival.data) == ({}, "", b"body")
            await one.accept([arrival])
            (job,) = await send(one, s, 1)
            assert ids(await receive_all(one, 1)) == [job]

    tell(transport_test)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"amqp://guest:wrong@{HOST}:{PORTS['rabbitmq']}/", "refuses this user and password"),
        (f"amqp://guest:guest@{HOST}:{PORTS['rabbitmq']}/nowhere", "vhost nowhere not found"),
        (f"amqps://guest:guest@{HOST}:{PORTS['rabbitmq']}/", "TLS failed"),
        (f"amqp://guest:guest@{HOST}:1/", "check that the server runs"),
        ("amqp://guest:guest@nowhere.invalid/", "check that the server runs"),
    ],
)
def test_a_refusal_says_what_to_do(url: str, says: str) -> None:
    async def transport_test() -> None:
        transport = RabbitTransport(
            RabbitAddress(url), namespace="n", on_lane_missing=lambda _: None
        )
        for attempt in (transport.check(), transport.receive({IO: 1}, 1.0)):
            with pytest.raises(Unavailable, match=says):
                await attempt
        await transport.close()

    asyncio.run(transport_test())


def test_a_server_that_accepts_and_never_answers_is_unavailable_in_time() -> None:
    async def transport_test() -> None:
        server = await asyncio.start_server(lambda _, writer: None, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        address = RabbitAddress(f"amqp://{HOST}:{port}/?connect_timeout=0.3")
        transport = RabbitTransport(address, namespace="n", on_lane_missing=lambda _: None)
        async with asyncio.timeout(5):
            with pytest.raises(Unavailable, match="did not answer in time"):
                await transport.receive({IO: 1}, 1.0)
        await transport.close()
        server.close()

    asyncio.run(transport_test())


def test_a_connection_that_went_silent_fails_all_its_callers_and_is_replaced(vhost: str) -> None:
    async def scenario(port: int) -> None:
        transport = RabbitTransport(
            RabbitAddress(f"amqp://guest:guest@{HOST}:{port}/{vhost}?connect_timeout=1"),
            namespace=f"t{fresh_id()[-12:]}",
            on_lane_missing=lambda _: None,
            confirm_timeout=0.5,
        )
        sent = Envelope(id=fresh_id(), subject="t", body=Body(JSON, b"{}"), kind="io")
        await transport.send([sent])
        proxy.silence()
        sending = [transport.send([sent]) for _ in range(3)]
        errors = await asyncio.gather(*sending, return_exceptions=True)
        assert [type(error) for error in errors] == [Unavailable] * 3
        proxy.mend()
        async with asyncio.timeout(30):
            while True:
                with suppress(Unavailable):
                    await transport.send([sent])
                    break
        await transport.close()

    with closing(SilentProxy(HOST, PORTS["rabbitmq"])) as proxy:
        asyncio.run(scenario(proxy.port))

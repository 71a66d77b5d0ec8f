"""The transport suite over plain AMQP 1.0, without anything specific to RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("proton")

import amqp_stranger
from amqp_plain_broker import PlainBroker, plain_broker

from chaos.proxy import Proxy
from umbel.backends import Lane, Transport
from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.amqp.connections import connect
from umbel.backends.amqp.queue_names import queue_name
from umbel.backends.amqp.reconnecting import wait_until_open
from umbel.backends.amqp.transport import AmqpTransport
from umbel.errors import MessageTooLarge, Unavailable
from umbel.messages import JSON, Body, fresh_id
from umbel.testing.transports import OpenServer, Server, TransportSuite, record_missing_queue
from umbel.testing.transports.faults import receive_surely, send_surely
from umbel.testing.transports.server import (
    IO,
    ReplyClient,
    envelope,
    receive_all,
    send,
    transport_test,
)


def reply_client(broker: PlainBroker) -> AbstractAsyncContextManager[ReplyClient]:
    """A foreign program that waits for answers at its own queue."""
    name = f"answers-{fresh_id()}"
    return amqp_stranger.reply_client(broker.url, name, lambda: broker.delete(name))


@asynccontextmanager
async def served(broker: PlainBroker) -> AsyncIterator[Server]:
    namespace, lost, proxy = f"t{fresh_id()[-12:]}", list[str](), Proxy(broker.port, 1)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Transport]:
        address = AmqpAddress(f"amqp1://127.0.0.1:{proxy.port}")
        transport = AmqpTransport(
            address, namespace=namespace, on_lane_missing=record_missing_queue(lost)
        )
        try:
            yield transport
        finally:
            await transport.close()

    async def cut() -> None:
        await asyncio.to_thread(proxy.cut)

    async def drop(lane: Lane) -> None:
        await asyncio.to_thread(broker.delete, queue_name(namespace, lane))

    async def other(lane: Lane, attributes: Mapping[str, str], kind: str, data: bytes) -> None:
        name = queue_name(namespace, lane)
        await asyncio.to_thread(amqp_stranger.put, broker.url, name, attributes, kind, data)

    try:
        yield Server(
            namespace=namespace,
            open=opened,
            cut=cut,
            drop=drop,
            put=other,
            reply_client=lambda: reply_client(broker),
            lost=lost,
        )
    finally:
        await asyncio.to_thread(proxy.close)


class TestPlainAmqp(TransportSuite):
    """The suite on a broker that creates queues itself, so that a missing queue is not detected."""

    @pytest.fixture
    def server(self) -> OpenServer:
        @asynccontextmanager
        async def one() -> AsyncIterator[Server]:
            with plain_broker() as broker:
                async with served(broker) as server:
                    yield server

        return one

    @transport_test
    async def test_a_deleted_lane_is_created_again_and_reported(self, s: Server) -> None:
        async with s.open() as one, s.open() as sender:
            await send(sender, s, 1)
            await receive_all(one, 1)
            await send(sender, s, 2)
            assert s.lost == []
            await s.drop(IO)
            sent = await send_surely(sender, s, 2)
            await receive_surely(one, sent)
            assert "default" in s.lost

    @transport_test
    async def test_a_created_lane_is_reported_once(self, s: Server) -> None:
        async with s.open() as one, s.open() as other:
            await send(one, s, 1, queue="new")
            await other.receive({Lane("new", "io"): 1}, 0.0)
            assert s.lost == []


class TestPlainAmqpOnUvloop(TestPlainAmqp):
    """The suite on uvloop."""

    @pytest.fixture(autouse=True)
    def _on_uvloop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        uvloop = pytest.importorskip("uvloop")
        monkeypatch.setattr(asyncio, "run", uvloop.run)


def run(scenario: Callable[[PlainBroker, Server], Awaitable[None]], **how: object) -> None:
    async def main() -> None:
        with plain_broker(**how) as broker:  # type: ignore[arg-type]
            async with asyncio.timeout(45), served(broker) as server:
                await scenario(broker, server)

    asyncio.run(main())


def test_a_missing_queue_is_named_and_used_once_it_exists() -> None:
    async def scenario(broker: PlainBroker, s: Server) -> None:
        async with s.open() as one:
            missing = rf"no queue {s.namespace}\.default\.io .*create it there"
            with pytest.raises(Unavailable, match=missing):
                await one.send([envelope(s)])
            with pytest.raises(Unavailable, match=missing):
                await one.receive({IO: 1}, 30)
            await one.purge("default")
            assert s.lost == ["default"]
            broker.make(queue_name(s.namespace, IO))
            sent = await send(one, s, 3)
            assert [each.id for each in await receive_all(one, 3)] == sent
            await s.drop(IO)
            with pytest.raises(Unavailable, match=missing):
                await one.receive({IO: 1}, 30)
            assert s.lost == ["default", "default"]

    run(scenario, makes_queues=False)


def test_the_brokers_own_limit_counts() -> None:
    async def scenario(broker: PlainBroker, s: Server) -> None:
        async with s.open() as one:
            await send(one, s, 1)
            assert one.max_body_bytes == 134_464
            with pytest.raises(MessageTooLarge, match="the broker takes 134,464"):
                await one.send([envelope(s, body=Body(JSON, b"1" * 150_000))])
            with pytest.raises(MessageTooLarge, match="the broker takes"):
                await one.send([envelope(s, headers={"long": "x" * 250_000})])
            assert len(await receive_all(one, 1)) == 1

    run(scenario, largest=200_000)


def test_a_receive_without_messages_leaves_no_credit() -> None:
    async def scenario(broker: PlainBroker, s: Server) -> None:
        async with s.open() as one:
            assert await one.receive({IO: 5}, 0.1) == []
            assert broker.credit(queue_name(s.namespace, IO)) == 0

    run(scenario)


def test_messages_of_a_cancelled_receive_go_to_another_receiver() -> None:
    async def scenario(broker: PlainBroker, s: Server) -> None:
        async with s.open() as one, s.open() as other:
            waiting = asyncio.create_task(one.receive({IO: 5}, 30))
            while not broker.credit(queue_name(s.namespace, IO)):
                await asyncio.sleep(0.01)
            (sent,) = await send(other, s, 1)
            while not receiver_of(one).waiting:
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            (found,) = await receive_all(other, 1)
            assert found.id == sent

    run(scenario)


def test_a_message_that_arrives_without_a_receive_call_is_released() -> None:
    async def scenario(broker: PlainBroker, s: Server) -> None:
        async with s.open() as one, s.open() as other:
            await one.receive({IO: 1}, 0.0)
            receiver_of(one).link.add_credit(1)  # as if what was taken back had been on its way
            while not broker.credit(queue_name(s.namespace, IO)):
                await asyncio.sleep(0.01)
            (sent,) = await send(other, s, 1)
            (found,) = await receive_all(other, 1)
            assert found.id == sent

    run(scenario)


def test_a_link_that_was_lost_with_its_connection_was_not_refused() -> None:
    async def scenario(broker: PlainBroker, s: Server) -> None:
        connection = await connect(AmqpAddress(f"amqp1://127.0.0.1:{broker.port}"))
        link = connection.open_sender("anywhere")
        connection.abort()
        with pytest.raises(Unavailable, match="connection was lost"):
            await wait_until_open(connection, link)

    run(scenario)


def receiver_of(transport: Transport) -> Any:
    assert isinstance(transport, AmqpTransport)
    return transport._receiver._serving[IO]

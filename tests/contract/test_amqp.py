"""The transport's suite over AMQP 1.0, each test in a namespace of its own, through a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import amqp_stranger
import pytest
from amqp_broker import AmqpNode, address_of, delete, reply_client

from chaos.proxy import Proxy
from umbel.backends import Lane, Transport
from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.amqp.transport import AmqpTransport
from umbel.messages import fresh_id
from umbel.testing.transports import OpenServer, Server, TransportSuite, record_missing_queue

pytestmark = pytest.mark.xdist_group("amqp-node")


@asynccontextmanager
async def amqp(node: AmqpNode) -> AsyncIterator[Server]:
    """A namespace of the broker for one test."""
    namespace, lost, proxy = f"t{fresh_id()[-12:]}", list[str](), Proxy(node.port, 1)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Transport]:
        address = AmqpAddress(f"amqp1://guest:guest@127.0.0.1:{proxy.port}")
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
        await asyncio.to_thread(delete, node, namespace, lane)

    async def send(lane: Lane, attributes: Mapping[str, str], kind: str, data: bytes) -> None:
        address = address_of(namespace, lane)
        await asyncio.to_thread(amqp_stranger.put, node.url, address, attributes, kind, data)

    try:
        yield Server(
            namespace=namespace,
            open=opened,
            cut=cut,
            drop=drop,
            put=send,
            reply_client=lambda: reply_client(node),
            lost=lost,
        )
    finally:
        await asyncio.to_thread(proxy.close)


class TestAmqp(TransportSuite):
    """The suite on a real server."""

    @pytest.fixture
    def server(self, amqp_node: AmqpNode) -> OpenServer:
        return lambda: amqp(amqp_node)


class TestAmqpOnUvloop(TestAmqp):
    """The suite on uvloop."""

    @pytest.fixture(autouse=True)
    def _on_uvloop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        uvloop = pytest.importorskip("uvloop")
        monkeypatch.setattr(asyncio, "run", uvloop.run)

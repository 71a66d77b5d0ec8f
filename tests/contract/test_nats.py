"""The transport's suite over NATS, each test in a namespace of its own, through a proxy."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import quote, unquote

import pytest

from chaos.proxy import Proxy

nats = pytest.importorskip("nats")

from umbel.backends import Lane, Transport  # noqa: E402
from umbel.backends.nats.address import Home  # noqa: E402
from umbel.backends.nats.stream_names import stream_of  # noqa: E402
from umbel.backends.nats.transport import NatsTransport  # noqa: E402
from umbel.messages import fresh_id  # noqa: E402
from umbel.testing.transports import (  # noqa: E402
    Asker,
    Heard,
    Server,
    Servers,
    TransportSuite,
    by_queue,
)

HOST, PORT = "127.0.0.1", int(os.environ.get("UMBEL_TEST_NATS_PORT", "4222"))
URL = f"nats://{HOST}:{PORT}"
ACK_WAIT = 2.0
"""Seconds until what nobody acknowledged comes again: short, for tests that wait for it."""


async def _look() -> None:
    client = await nats.connect(URL, connect_timeout=2, allow_reconnect=False)
    try:
        await client.jetstream().account_info()
    finally:
        await client.close()


def _refusal() -> str:
    try:
        asyncio.run(_look())
    except (OSError, nats.errors.Error) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""


if refused := _refusal():
    pytest.skip(
        f"not run: the suite over NATS; {URL} does not answer ({refused})",
        allow_module_level=True,
    )


@asynccontextmanager
async def cleaned(namespace: str) -> AsyncIterator[nats.NATS]:
    """A client of nats-py's own; afterwards the streams of the namespace are gone."""
    client = await nats.connect(URL)
    try:
        yield client
    finally:
        manager = client.jetstream()
        for found in await manager.streams_info():
            if found.config.name.startswith(f"{namespace}+"):
                await manager.delete_stream(found.config.name)
        await client.close()


@asynccontextmanager
async def opened(namespace: str, lost: list[str], port: int = PORT) -> AsyncIterator[Transport]:
    """A transport, closed afterwards."""
    home = Home(f"nats://{HOST}:{port}")
    transport = NatsTransport(home, namespace=namespace, lost=by_queue(lost), ack_wait=ACK_WAIT)
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def corner(proxy: Proxy) -> AsyncIterator[Server]:
    """A corner of the server for one test."""
    namespace, lost = f"t{fresh_id()[-12:]}", list[str]()
    async with cleaned(namespace) as client:

        async def cut() -> None:
            await asyncio.to_thread(proxy.cut)

        async def drop(lane: Lane) -> None:
            await client.jetstream().delete_stream(stream_of(namespace, lane).name)

        async def put(
            lane: Lane, attributes: Mapping[str, str], content_type: str, data: bytes
        ) -> None:
            headers = {f"ce-{name}": quote(value) for name, value in attributes.items()}
            if content_type:
                headers["Content-Type"] = content_type
            subject = stream_of(namespace, lane).subject
            await client.jetstream().publish(subject, data, headers=headers or None)

        yield Server(
            namespace=namespace,
            open=lambda: opened(namespace, lost, proxy.port),
            cut=cut,
            drop=drop,
            put=put,
            asker=lambda: asker(client),
            lost=lost,
        )


@asynccontextmanager
async def asker(client: nats.NATS) -> AsyncIterator[Asker]:
    """Somebody with nats-py who listens on an inbox."""
    address = client.new_inbox()
    inbox = await client.subscribe(address)

    async def hear() -> Heard:
        message = await inbox.next_msg(timeout=60)
        headers = {name: unquote(value) for name, value in (message.headers or {}).items()}
        attributes = {n.removeprefix("ce-"): v for n, v in headers.items() if n.startswith("ce-")}
        content_type = attributes.pop("datacontenttype", "")
        return Heard(attributes, content_type, message.data, attributes.get("correlationid"))

    yield Asker(address=address, hear=hear)
    await inbox.unsubscribe()


class TestNats(TransportSuite):
    """One server with JetStream."""

    @pytest.fixture
    def server(self) -> Iterator[Servers]:
        proxy = Proxy(PORT, seed=0)
        yield lambda: corner(proxy)
        proxy.close()

"""Transports on the local NATS server for the suites and tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import quote, unquote

import nats
from local_servers import HOST, NATS_URL, PORTS

from chaos.proxy import Proxy
from umbel.backends import Lane, Transport
from umbel.backends.nats.address import NatsAddress
from umbel.backends.nats.stream_names import stream_of
from umbel.backends.nats.transport import NatsTransport
from umbel.messages import fresh_id
from umbel.testing.transports import (
    ReceivedMessage,
    ReplyClient,
    Server,
    record_missing_queue,
)

ACK_WAIT = 2.0
"""Seconds until unacknowledged messages are delivered again: short, because tests wait for it."""


async def _connect_once() -> None:
    client = await nats.connect(NATS_URL, connect_timeout=2, allow_reconnect=False)
    try:
        await client.jetstream().account_info()
    finally:
        await client.close()


def refusal() -> str:
    """Return why the server cannot be used; an empty string if it can."""
    try:
        asyncio.run(_connect_once())
    except (OSError, nats.errors.Error) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""


@asynccontextmanager
async def connect_and_clean(namespace: str) -> AsyncIterator[nats.NATS]:
    """Connect with nats-py; afterwards delete the streams of the namespace."""
    client = await nats.connect(NATS_URL)
    try:
        yield client
    finally:
        manager = client.jetstream()
        for found in await manager.streams_info():
            if found.config.name.startswith(f"{namespace}+"):
                await manager.delete_stream(found.config.name)
        await client.close()


@asynccontextmanager
async def open_transport(
    namespace: str, lost: list[str], port: int = PORTS["nats"]
) -> AsyncIterator[Transport]:
    """Open a transport."""
    address = NatsAddress(f"nats://{HOST}:{port}")
    transport = NatsTransport(
        address, namespace=namespace, on_lane_missing=record_missing_queue(lost), ack_wait=ACK_WAIT
    )
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def nats_corner(proxy: Proxy) -> AsyncIterator[Server]:
    """Open a namespace of the server for one test."""
    namespace, lost = f"t{fresh_id()[-12:]}", list[str]()
    async with connect_and_clean(namespace) as client:

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
            open=lambda: open_transport(namespace, lost, proxy.port),
            cut=cut,
            drop=drop,
            put=put,
            reply_client=lambda: reply_client(client),
            lost=lost,
        )


@asynccontextmanager
async def reply_client(client: nats.NATS) -> AsyncIterator[ReplyClient]:
    """A client of nats-py that subscribes to an inbox."""
    address = client.new_inbox()
    inbox = await client.subscribe(address)

    async def receive() -> ReceivedMessage:
        message = await inbox.next_msg(timeout=60)
        headers = {name: unquote(value) for name, value in (message.headers or {}).items()}
        attributes = {n.removeprefix("ce-"): v for n, v in headers.items() if n.startswith("ce-")}
        content_type = attributes.pop("datacontenttype", "")
        return ReceivedMessage(
            attributes, content_type, message.data, attributes.get("correlationid")
        )

    yield ReplyClient(address=address, receive=receive)
    await inbox.unsubscribe()

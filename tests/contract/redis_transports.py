"""Transports on Redis for the suites and tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import redis
from local_servers import HOST, REDIS_URL

from chaos.proxy import Proxy
from umbel.backends import Lane
from umbel.backends.redis.address import RedisAddress
from umbel.backends.redis.transport import RedisTransport
from umbel.errors import Unavailable
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.messages.wire import MEDIA_TYPE, read
from umbel.testing.transports import Server, record_missing_queue
from umbel.testing.transports.server import ReceivedMessage, ReplyClient

RECEIVER_TTL = 1.0
"""Seconds until a silent receiver counts as dead: short, for tests that wait for it."""


def stream(namespace: str, lane: Lane) -> str:
    return f"umbel:{{{namespace}}}:stream:{lane.kind}:{lane.queue}"


@asynccontextmanager
async def open_transport(
    url: str, namespace: str, lost: list[str] | None = None, receiver_ttl: float = RECEIVER_TTL
) -> AsyncIterator[RedisTransport]:
    """Open a transport."""
    on_lane_missing = record_missing_queue([] if lost is None else lost)
    transport = RedisTransport(
        RedisAddress(url),
        namespace=namespace,
        on_lane_missing=on_lane_missing,
        receiver_ttl=receiver_ttl,
    )
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def redis_corner(namespace: str, proxy: Proxy) -> AsyncIterator[Server]:
    """Open a namespace of the server for one test."""
    lost: list[str] = []
    url = f"redis://{HOST}:{proxy.port}"
    with redis.Redis.from_url(REDIS_URL) as client:

        async def cut() -> None:
            await asyncio.to_thread(proxy.cut)

        async def drop(lane: Lane) -> None:
            client.delete(stream(namespace, lane))

        async def put(
            lane: Lane, attributes: Mapping[str, str], content_type: str, data: bytes
        ) -> None:
            fields: dict[str, Any] = {**attributes, "data": data}
            if content_type:
                fields["datacontenttype"] = content_type
            client.xadd(stream(namespace, lane), fields)

        yield Server(
            namespace=namespace,
            open=lambda: open_transport(url, namespace, lost),
            cut=cut,
            drop=drop,
            put=put,
            reply_client=lambda: reply_client(client, f"{namespace}:answers:{fresh_id()}"),
            lost=lost,
        )


@asynccontextmanager
async def reply_client(client: Any, address: str) -> AsyncIterator[ReplyClient]:
    """A client of redis-py that reads replies from a list."""

    async def receive() -> ReceivedMessage:
        while (document := client.lpop(address)) is None:
            await asyncio.sleep(0.02)
        correlation = read(document).headers.get("correlationid")
        return ReceivedMessage({}, MEDIA_TYPE, document, correlation)

    yield ReplyClient(address=address, receive=receive)
    client.delete(address)


def envelope(**fields: Any) -> Envelope:
    body = Body(JSON, b'{"args": [], "kwargs": {}}')
    return Envelope(**{"id": fresh_id(), "subject": "t", "kind": "io", "body": body, **fields})


def ids(arrivals: list[Any]) -> list[str]:
    return [one.id for one in arrivals]


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(main())


async def retry_until_available(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Repeat a call until the server answers."""
    while True:
        try:
            return await work()
        except Unavailable:
            await asyncio.sleep(0.05)

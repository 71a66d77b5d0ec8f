"""Brokers that other programs send to and get replies from: over NATS, RabbitMQ and Redis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pair_adapters import open_pair

from umbel.backends import Lane
from umbel.messages import (
    fresh_id,
)
from umbel.messages.wire import MEDIA_TYPE
from umbel.testing import Adapters, FakeClock
from umbel.testing.actions import claim, register
from umbel.testing.transports import ReceivedMessage, ReplyClient

DEADLINE = 40.0
UNKNOWN = Lane("default", "")


@dataclass
class Place:
    """A backend, and what other programs do with its broker."""

    backend: Adapters
    reply_client: Callable[[], AbstractAsyncContextManager[ReplyClient]]
    put: Callable[[bytes], Awaitable[None]]
    """Send an event as another program would."""


Places = Callable[[], AbstractAsyncContextManager[Place]]


def over_nats(transport: Any, store: Any) -> Places:
    from local_servers import NATS_URL
    from nats import connect
    from nats_transports import reply_client

    from umbel.backends.nats.stream_names import stream_of

    @asynccontextmanager
    async def place() -> AsyncIterator[Place]:
        client = await connect(NATS_URL)
        async with open_pair(store(), transport) as backend:
            await claim(backend, await register(backend))  # which makes the lanes

            async def put(data: bytes) -> None:
                subject = stream_of(backend.namespace, UNKNOWN).subject
                await client.jetstream().publish(subject, data)

            yield Place(backend, lambda: reply_client(client), put)
        await client.close()

    return place


def over_rabbitmq(transport: Any, store: Any, virtual_host: str) -> Places:
    import rabbitmq_transports

    @asynccontextmanager
    async def place() -> AsyncIterator[Place]:
        async with open_pair(store(), transport) as backend:
            await claim(backend, await register(backend))

            async def put(data: bytes) -> None:
                where = virtual_host, backend.namespace, UNKNOWN
                await rabbitmq_transports.put(*where, {}, MEDIA_TYPE, data)

            yield Place(backend, lambda: rabbitmq_transports.reply_client(virtual_host), put)

    return place


def over_redis() -> Places:
    import redis.asyncio as redis
    from local_servers import REDIS_URL

    from umbel.backends.redis.address import RedisAddress
    from umbel.backends.redis.broker import RedisBroker
    from umbel.backends.redis.control import RedisControl
    from umbel.backends.redis.coordination import RedisCoordination
    from umbel.backends.redis.database import Database
    from umbel.backends.redis.gates import RedisGates
    from umbel.backends.redis.joins import RedisJoins
    from umbel.backends.redis.records import RedisRecords
    from umbel.backends.redis.registry import RedisRegistry
    from umbel.backends.redis.routes import RedisRoutes
    from umbel.backends.redis.steps import RedisSteps

    @asynccontextmanager
    async def reply_client() -> AsyncIterator[ReplyClient]:
        client, address = redis.Redis.from_url(REDIS_URL), f"test-reply:{fresh_id()}"

        async def receive() -> ReceivedMessage:
            _, data = await client.blpop([address])
            assert 0 < await client.ttl(address) <= 3600 or not await client.exists(address)
            return ReceivedMessage({}, MEDIA_TYPE, data, json.loads(data).get("correlationid"))

        yield ReplyClient(address=address, receive=receive)
        await client.delete(address)
        await client.aclose()

    @asynccontextmanager
    async def place() -> AsyncIterator[Place]:
        namespace, clock = f"t{fresh_id()}", FakeClock()
        how: Any = {"namespace": namespace, "clock": clock}
        client, database = (
            redis.Redis.from_url(REDIS_URL),
            Database(RedisAddress(REDIS_URL)),
        )
        records = RedisRecords(database, **how)
        broker = RedisBroker(database, **how, find=records.find)

        async def put(data: bytes) -> None:
            await client.rpush(f"umbel:{{{namespace}}}:inbox", data)

        yield Place(
            Adapters(
                broker=broker,
                records=records,
                registry=RedisRegistry(database, **how),
                control=RedisControl(database, **how),
                gates=RedisGates(database, **how),
                steps=RedisSteps(database, **how),
                joins=RedisJoins(database, **how),
                coordination=RedisCoordination(database, **how),
                routes=RedisRoutes(database, **how),
                clock=clock,
                namespace=namespace,
                another=lambda _=None: place(),
            ),
            reply_client,
            put,
        )
        await broker.close()
        async for key in client.scan_iter(f"umbel:{{{namespace}}}:*"):
            await client.delete(key)
        await client.aclose()

    return place


def run(place: Places, scenario: Callable[[Place], Awaitable[None]]) -> None:
    """Run a test."""

    async def main() -> None:
        async with asyncio.timeout(DEADLINE), place() as found:
            await scenario(found)

    asyncio.run(main())


def event(**changes: Any) -> bytes:
    """Return the smallest event that another program can send, with changes."""
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

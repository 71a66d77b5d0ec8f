"""Publishing to NATS and a job store: the state of both when publish returns."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from local_servers import NATS_URL
from nats_server import NatsServer
from pair_adapters import open_pair

from umbel.backends import Demand, Published, TimedBroker
from umbel.messages import Envelope
from umbel.testing import Adapters
from umbel.testing.actions import envelope, register

STORES = pytest.mark.parametrize("store_name", ["sqlite", "postgres", "redis_store"])


async def publish(b: Adapters, *envelopes: Envelope, timeout: float = 10.0) -> list[Published]:
    """Publish as a sync caller does: on the event loop, within the caller's timeout."""
    return await cast(TimedBroker, b.broker).publish_with_timeout(envelopes, timeout)


async def fetched(b: Adapters, owner: str, many: int) -> set[str]:
    found: set[str] = set()
    async with asyncio.timeout(30):
        while len(found) < many:
            found |= {
                one.id
                for one in await b.broker.fetch(["default"], Demand.of(io=50, cpu=50), owner, 5)
            }
    return found


@STORES
def test_a_published_job_is_sent_and_in_the_job_store_when_publish_returns(
    store_name: str, nats: Any, request: pytest.FixtureRequest
) -> None:
    open_store = request.getfixturevalue(store_name)

    async def scenario() -> None:
        async with open_pair(open_store(), nats) as b:
            one = envelope(b)
            assert [found.id for found in await publish(b, one)] == [one.id]
            assert await b.job_store.find_unsent(["default"], 10, 0.0) == []
            assert (await b.records.find(one.id)).id == one.id
            assert await fetched(b, await register(b), 1) == {one.id}

    asyncio.run(scenario())


@STORES
def test_the_jobs_of_a_deleted_queue_are_sent_again(
    store_name: str, nats: Any, request: pytest.FixtureRequest
) -> None:
    open_store = request.getfixturevalue(store_name)

    async def scenario() -> None:
        async with open_pair(open_store(), nats) as b:
            first, second = envelope(b), envelope(b)
            await publish(b, first)
            await delete_lanes(b)
            await publish(b, second)
            assert await fetched(b, await register(b), 2) == {first.id, second.id}

    asyncio.run(scenario())


async def delete_lanes(b: Adapters) -> None:
    """Delete lanes as an operator does, with the tools of the server."""
    import nats as library

    client = await library.connect(NATS_URL)
    for found in await client.jetstream().streams_info():
        if found.config.name.startswith(f"{b.namespace}+"):
            await client.jetstream().delete_stream(found.config.name)
    await client.close()


def transport_to(nats_server: NatsServer) -> Any:
    """Return what ``open_pair`` needs, for a server that the test has started."""
    from umbel.backends.nats.address import NatsAddress
    from umbel.backends.nats.transport import NatsTransport

    address = NatsAddress(f"nats://{nats_server.address}")
    return lambda namespace: (
        lambda lost: NatsTransport(address, namespace=namespace, on_lane_missing=lost)
    )


@STORES
def test_a_job_published_while_the_transport_is_down_is_in_the_job_store(
    store_name: str, nats_server: NatsServer, request: pytest.FixtureRequest
) -> None:
    open_store = request.getfixturevalue(store_name)

    async def scenario() -> None:
        await asyncio.to_thread(nats_server.start)
        async with open_pair(open_store(), transport_to(nats_server)) as b:
            jobs = [envelope(b) for _ in range(3)]
            await publish(b, jobs[0])
            await asyncio.to_thread(nats_server.kill)
            await publish(b, jobs[1])
            waiting = await b.job_store.find_unsent(["default"], 10, 0.0)
            assert [one.id for one in waiting] == [jobs[1].id]
            await asyncio.to_thread(nats_server.start)
            await publish(b, jobs[2])
            assert await fetched(b, await register(b), 3) == {one.id for one in jobs}

    asyncio.run(scenario())


@STORES
def test_a_job_that_the_transport_does_not_confirm_is_sent_by_the_relay(
    store_name: str, nats_server: NatsServer, request: pytest.FixtureRequest
) -> None:
    open_store = request.getfixturevalue(store_name)

    async def scenario() -> None:
        await asyncio.to_thread(nats_server.start)
        async with open_pair(open_store(), transport_to(nats_server)) as b:
            first, second = envelope(b), envelope(b)
            await publish(b, first)
            nats_server.freeze()
            assert [found.id for found in await publish(b, second, timeout=2.0)] == [second.id]
            assert [one.id for one in await b.job_store.find_unsent(["default"], 10, 0.0)] == [
                second.id
            ]
            nats_server.thaw()
            owner = await register(b)
            assert await fetched(b, owner, 2) == {first.id, second.id}
            assert await b.broker.fetch(["default"], Demand.of(io=50, cpu=50), owner, 0.5) == []

    asyncio.run(scenario())

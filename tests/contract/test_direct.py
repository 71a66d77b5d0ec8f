"""Publishing in the caller's own thread to a transport and a job store, without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from local_servers import NATS_URL
from nats_server import NatsServer
from pair_adapters import open_pair

from umbel.backends import Demand, JobFilter, Published
from umbel.backends.pairs import PairBroker
from umbel.errors import Unavailable
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.testing import Adapters, OpenAdapters
from umbel.testing.actions import envelope, register
from umbel.testing.brokers import BrokerSuite

STORES = pytest.mark.parametrize("store_name", ["sqlite", "redis_store"])


class Directly(PairBroker):
    """Publishes as a program without an event loop does."""

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        if within is not None or not self.capabilities.blocking:
            return await super().publish(envelopes, within)
        return await asyncio.to_thread(self.publish_blocking, envelopes, 10.0)


class TestNatsAndSqliteDirectly(BrokerSuite):
    @pytest.fixture
    def backend(self, nats: Any, sqlite: Any) -> OpenAdapters:
        return lambda: open_pair(sqlite(), nats, Directly)


class TestNatsAndPostgresDirectly(BrokerSuite):
    @pytest.fixture
    def backend(self, nats: Any, postgres: Any) -> OpenAdapters:
        return lambda: open_pair(postgres(), nats, Directly)


class TestNatsAndRedisDirectly(BrokerSuite):
    @pytest.fixture
    def backend(self, nats: Any, redis_store: Any) -> OpenAdapters:
        return lambda: open_pair(redis_store(), nats, Directly)


def publish_blocking(b: Adapters, *envelopes: Envelope, timeout: float = 10.0) -> Any:
    """Publish in another thread, which has no event loop."""
    assert b.broker.capabilities.blocking
    return asyncio.to_thread(b.broker.publish_blocking, envelopes, timeout)


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
            assert [found.id for found in await publish_blocking(b, one)] == [one.id]
            assert await b.job_store.find_unsent(["default"], 10, 0.0) == []
            assert (await b.records.find(one.id)).id == one.id
            assert await fetched(b, await register(b), 1) == {one.id}

    asyncio.run(scenario())


@STORES
def test_many_threads_publish_at_once(
    store_name: str, nats: Any, request: pytest.FixtureRequest
) -> None:
    open_store = request.getfixturevalue(store_name)

    async def scenario() -> None:
        async with open_pair(open_store(), nats) as b:
            lots = [[envelope(b) for _ in range(20)] for _ in range(8)]
            await asyncio.gather(*(publish_blocking(b, *lot) for lot in lots))
            wanted = {one.id for lot in lots for one in lot}
            assert await fetched(b, await register(b), len(wanted)) == wanted

    asyncio.run(scenario())


@STORES
def test_the_jobs_of_a_deleted_queue_are_sent_again(
    store_name: str, nats: Any, request: pytest.FixtureRequest
) -> None:
    open_store = request.getfixturevalue(store_name)

    async def scenario() -> None:
        async with open_pair(open_store(), nats) as b:
            first, second = envelope(b), envelope(b)
            await publish_blocking(b, first)
            await delete_lanes(b)
            await publish_blocking(b, second)
            assert await fetched(b, await register(b), 2) == {first.id, second.id}

    asyncio.run(scenario())


async def delete_lanes(b: Adapters) -> None:
    """As an operator does it, with the server's own tools."""
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
            await publish_blocking(b, jobs[0])
            await asyncio.to_thread(nats_server.kill)
            await publish_blocking(b, jobs[1])
            waiting = await b.job_store.find_unsent(["default"], 10, 0.0)
            assert [one.id for one in waiting] == [jobs[1].id]
            await asyncio.to_thread(nats_server.start)
            await publish_blocking(b, jobs[2])
            assert await fetched(b, await register(b), 3) == {one.id for one in jobs}

    asyncio.run(scenario())


@STORES
def test_a_job_that_neither_server_confirms_is_in_the_job_store_when_publish_returns(
    store_name: str,
    nats_server: NatsServer,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from umbel.backends.redis.job_store import RedisJobStore
    from umbel.backends.sqlite.job_store import SqliteJobStore

    open_store = request.getfixturevalue(store_name)

    def away(*_: Any) -> Any:
        raise Unavailable("the job store does not answer")

    async def scenario() -> None:
        await asyncio.to_thread(nats_server.start)
        async with open_pair(open_store(), transport_to(nats_server)) as b:
            first, second = envelope(b), envelope(b)
            await publish_blocking(b, first)
            nats_server.freeze()
            monkeypatch.setattr(SqliteJobStore, "record_sent_blocking", away)
            monkeypatch.setattr(RedisJobStore, "record_sent_blocking", away)
            await publish_blocking(b, second)
            nats_server.kill()
            assert [one.id for one in await b.job_store.find_unsent(["default"], 10, 0.0)] == [
                second.id
            ]

    monkeypatch.setattr("umbel.backends.nats.blocking_sender.CONFIRM_TIMEOUT_SECONDS", 0.5)
    asyncio.run(scenario())


@pytest.mark.parametrize("store_name", ["sqlite", "postgres", "redis_store"])
def test_a_job_that_is_recorded_but_not_confirmed_is_sent_by_the_relay(
    store_name: str,
    nats_server: NatsServer,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        await asyncio.to_thread(nats_server.start)
        async with open_pair(open_store(), transport_to(nats_server)) as b:
            first, second = envelope(b), envelope(b)
            await publish_blocking(b, first)
            nats_server.freeze()
            publishing = asyncio.create_task(publish_blocking(b, second))
            async with asyncio.timeout(30):
                while second.id not in {one.id for one in await b.records.search(JobFilter())}:
                    await asyncio.sleep(0.01)
            assert not publishing.done()
            assert [found.id for found in await publishing] == [second.id]
            assert [one.id for one in await b.job_store.find_unsent(["default"], 10, 0.0)] == [
                second.id
            ]
            nats_server.thaw()
            owner = await register(b)
            assert await fetched(b, owner, 2) == {first.id, second.id}
            assert await b.broker.fetch(["default"], Demand.of(io=50, cpu=50), owner, 0.5) == []

    open_store = request.getfixturevalue(store_name)
    monkeypatch.setattr("umbel.backends.nats.blocking_sender.CONFIRM_TIMEOUT_SECONDS", 2.0)
    asyncio.run(scenario())


def test_a_transport_learns_the_servers_size_limit_without_an_event_loop(
    nats_server: NatsServer,
) -> None:
    from umbel.backends.nats.address import NatsAddress
    from umbel.backends.nats.transport import NatsTransport

    nats_server.start("-c", nats_server.write_file("nats.conf", "max_payload: 200000"))
    one = NatsTransport(
        NatsAddress(f"nats://{nats_server.address}"),
        namespace="tests",
        on_lane_missing=lambda _: None,
    )
    assert one.max_body_bytes == 1_000_000
    sent = Envelope(id=fresh_id(), subject="t", body=Body(JSON, b"{}"), kind="io")
    one.send_blocking([sent], 10.0, lambda lane, left: None, lambda: None)
    assert 100_000 <= one.max_body_bytes < 200_000
    asyncio.run(one.close())

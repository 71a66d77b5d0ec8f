"""Publishing in a caller's own thread, over what carries and what keeps the books: no loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from test_nats_server import Machine
from test_nats_server import machine as machine  # a fixture, as are those below
from test_split import nats as nats
from test_split import postgres as postgres
from test_split import rabbitmq as rabbitmq
from test_split import redis_books as redis_books
from test_split import redis_prefix as redis_prefix
from test_split import split
from test_split import sqlite as sqlite
from test_split import vhost as vhost

from umbel.brokers import Demand, DirectBroker, Published, SplitBroker
from umbel.brokers.direct import DirectPair, Meanwhile
from umbel.errors import Unavailable
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.stores import JobFilter
from umbel.testing import Backend, Backends
from umbel.testing.acts import enlist, envelope
from umbel.testing.brokers import BrokerSuite

BOTH = pytest.mark.parametrize("carrier", ["nats", "rabbitmq"])
BOOKS = pytest.mark.parametrize("books", ["sqlite", "redis_books", "eager_books"])
"""Those that are waited for when they note, those that need not be, and those that begin."""


class Directly(SplitBroker):
    """Publishes as a program without an event loop does."""

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        if within is not None or not self.capabilities.direct:
            return await super().publish(envelopes, within)
        return await asyncio.to_thread(self.publish_now, envelopes, 10.0)


class TestNatsAndSqliteDirectly(BrokerSuite):
    @pytest.fixture
    def backend(self, nats: Any, sqlite: Any) -> Backends:
        return lambda: split(sqlite(), nats, Directly)


class TestRabbitmqAndPostgresDirectly(BrokerSuite):
    @pytest.fixture
    def backend(self, rabbitmq: Any, postgres: Any) -> Backends:
        return lambda: split(postgres(), rabbitmq, Directly)


class TestNatsAndRedisDirectly(BrokerSuite):
    @pytest.fixture
    def backend(self, nats: Any, redis_books: Any) -> Backends:
        return lambda: split(redis_books(), nats, Directly)


@pytest.fixture
def eager_books(redis_books: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Books that have had somebody for every message so far, as it seems."""
    always = property(lambda pair: True, lambda pair, value: None)
    monkeypatch.setattr(DirectPair, "_is_awaited", always, raising=False)
    return redis_books


def publish_now(b: Backend, *envelopes: Envelope, timeout: float = 10.0) -> Any:
    """Publish in another thread, which has no event loop."""
    broker = cast(DirectBroker, b.broker)
    assert broker.capabilities.direct
    return asyncio.to_thread(broker.publish_now, envelopes, timeout)


async def fetched(b: Backend, owner: str, many: int) -> set[str]:
    found: set[str] = set()
    async with asyncio.timeout(30):
        while len(found) < many:
            found |= {one.id for one in await b.broker.fetch(["default"], Demand(50, 50), owner, 5)}
    return found


@BOTH
@BOOKS
def test_it_is_sent_when_it_returns_and_in_the_books(
    books: str, carrier: str, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue(books)

    async def scenario() -> None:
        async with split(store(), request.getfixturevalue(carrier)) as b:
            one = envelope(b)
            assert [found.id for found in await publish_now(b, one)] == [one.id]
            broker = cast(SplitBroker, b.broker)
            assert await broker._ledger.unsent(["default"], 10, 0.0) == []
            assert (await b.records.find(one.id)).id == one.id
            assert await fetched(b, await enlist(b), 1) == {one.id}

    asyncio.run(scenario())


@BOTH
@BOOKS
def test_many_threads_publish_at_once(
    books: str, carrier: str, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue(books)

    async def scenario() -> None:
        async with split(store(), request.getfixturevalue(carrier)) as b:
            lots = [[envelope(b) for _ in range(20)] for _ in range(8)]
            await asyncio.gather(*(publish_now(b, *lot) for lot in lots))
            wanted = {one.id for lot in lots for one in lot}
            assert await fetched(b, await enlist(b), len(wanted)) == wanted

    asyncio.run(scenario())


@BOTH
@BOOKS
def test_what_was_in_a_queue_that_somebody_deleted_is_sent_again(
    books: str, carrier: str, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue(books)

    async def scenario() -> None:
        async with split(store(), request.getfixturevalue(carrier)) as b:
            first, second = envelope(b), envelope(b)
            await publish_now(b, first)
            await delete_lanes(carrier, b, request)
            await publish_now(b, second)
            assert await fetched(b, await enlist(b), 2) == {first.id, second.id}

    asyncio.run(scenario())


async def delete_lanes(carrier: str, b: Backend, request: pytest.FixtureRequest) -> None:
    """As an operator does it, with the server's own tools."""
    from test_split import HOST, PORTS

    from umbel.messages import KINDS

    if carrier == "nats":
        import nats as library

        client = await library.connect(f"nats://{HOST}:{PORTS['nats']}")
        for found in await client.jetstream().streams_info():
            if found.config.name.startswith(f"{b.namespace}+"):
                await client.jetstream().delete_stream(found.config.name)
        await client.close()
        return
    import pika

    from umbel.brokers import Lane
    from umbel.brokers.rabbitmq.names import queue_name

    where = pika.ConnectionParameters(HOST, virtual_host=request.getfixturevalue("vhost"))
    with pika.BlockingConnection(where) as connection:
        for kind in KINDS:
            connection.channel().queue_delete(queue_name(b.namespace, Lane("default", kind)))


def carried_by(machine: Machine) -> Any:
    """What ``split`` asks for, with a server of the test's own."""
    from umbel.brokers.nats import NatsTransport
    from umbel.drivers.nats import Home

    home = Home(f"nats://{machine.place}")
    return lambda namespace: lambda lost: NatsTransport(home, namespace=namespace, lost=lost)


@BOOKS
def test_a_server_that_comes_back_is_found_again_and_meanwhile_the_books_have_it(
    books: str, machine: Machine, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue(books)

    async def scenario() -> None:
        await asyncio.to_thread(machine.start)
        async with split(store(), carried_by(machine)) as b:
            jobs = [envelope(b) for _ in range(3)]
            await publish_now(b, jobs[0])
            await asyncio.to_thread(machine.kill)
            await publish_now(b, jobs[1])
            waiting = await cast(SplitBroker, b.broker)._ledger.unsent(["default"], 10, 0.0)
            assert [one.id for one in waiting] == [jobs[1].id]
            await asyncio.to_thread(machine.start)
            await publish_now(b, jobs[2])
            assert await fetched(b, await enlist(b), 3) == {one.id for one in jobs}

    asyncio.run(scenario())


@BOOKS
def test_what_neither_answers_for_is_with_one_of_them_when_it_returns(
    books: str, machine: Machine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from umbel.brokers.redis import RedisLedger
    from umbel.brokers.sqlite import SqliteLedger

    store = request.getfixturevalue(books)

    def away(*_: Any) -> Any:
        raise Unavailable("the books do not answer")

    async def scenario() -> None:
        await asyncio.to_thread(machine.start)
        async with split(store(), carried_by(machine)) as b:
            first, second = envelope(b), envelope(b)
            await publish_now(b, first)
            machine.freeze()
            monkeypatch.setattr(SqliteLedger, "note_now", away)
            monkeypatch.setattr(RedisLedger, "noting", away)
            await publish_now(b, second)
            machine.kill()
            ledger = cast(SplitBroker, b.broker)._ledger
            assert [one.id for one in await ledger.unsent(["default"], 10, 0.0)] == [second.id]

    monkeypatch.setattr("umbel.brokers.nats.direct.CONFIRMED", 0.5)
    asyncio.run(scenario())


@pytest.mark.parametrize("books", ["sqlite", "postgres", "redis_books", "eager_books"])
def test_what_was_noted_and_is_not_confirmed_is_sent_by_somebody_else(
    books: str, machine: Machine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        await asyncio.to_thread(machine.start)
        async with split(store(), carried_by(machine)) as b:
            ledger = cast(SplitBroker, b.broker)._ledger
            first, second = envelope(b), envelope(b)
            await publish_now(b, first)
            machine.freeze()
            publishing = asyncio.create_task(publish_now(b, second))
            async with asyncio.timeout(30):
                while second.id not in {one.id for one in await b.records.search(JobFilter())}:
                    await asyncio.sleep(0.01)
            assert not publishing.done()
            assert [found.id for found in await publishing] == [second.id]
            assert [one.id for one in await ledger.unsent(["default"], 10, 0.0)] == [second.id]
            machine.thaw()
            owner = await enlist(b)
            assert await fetched(b, owner, 2) == {first.id, second.id}
            assert await b.broker.fetch(["default"], Demand(50, 50), owner, 0.5) == []

    store = request.getfixturevalue(books)
    monkeypatch.setattr("umbel.brokers.nats.direct.CONFIRMED", 2.0)
    asyncio.run(scenario())


def test_the_books_begin_when_they_had_somebody_for_the_message_before(
    nats: Any, redis_books: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from umbel.brokers.redis import RedisLedger
    from umbel.drivers.nats import Line

    order: list[str] = []
    standing = asyncio.Event()
    begin_standing = RedisLedger._begin_standing

    async def told_of(*given: Any) -> Any:
        found = await begin_standing(*given)
        standing.set()
        return found

    def spy(place: type, method: str, said: str) -> None:
        kept = getattr(place, method)

        def told(*given: Any) -> Any:
            order.append(said)
            return kept(*given)

        monkeypatch.setattr(place, method, told)

    async def published(b: Backend, owner: str, *, awaited: bool) -> list[str]:
        """Who began, and who came then."""
        ledger = cast(RedisLedger, cast(SplitBroker, b.broker)._ledger)
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        one, waiter = envelope(b), ledger.stand_by(["default"], owner, 60.0, never)
        order.clear()
        if awaited:
            standing.clear()
            waiting = asyncio.create_task(waiter)
            await standing.wait()
            (told,) = await publish_now(b, one)
            found = await waiting
        else:
            waiter.close()
            (told,) = await publish_now(b, one)
            found = (await ledger.take({one.id: "default"}, owner)).deliveries
        assert told.handed is awaited
        assert [got.id for got in found] == [one.id]
        return [*order]

    async def scenario() -> None:
        async with split(redis_books(), nats) as b, asyncio.timeout(60):
            owner = await enlist(b)
            await published(b, owner, awaited=False)  # the first of a lane comes before its note
            spy(RedisLedger, "noting", "books")
            spy(Line, "post", "server")
            assert await published(b, owner, awaited=False) == ["server", "books"]
            assert await published(b, owner, awaited=True) == ["server", "books"]
            assert await published(b, owner, awaited=True) == ["books", "server"]
            assert await published(b, owner, awaited=False) == ["books", "server"]
            assert await published(b, owner, awaited=False) == ["server", "books"]

    monkeypatch.setattr(RedisLedger, "_begin_standing", told_of)
    asyncio.run(scenario())


def test_the_servers_own_limit_is_learned_without_a_loop(machine: Machine) -> None:
    from umbel.brokers.nats import NatsTransport
    from umbel.drivers.nats import Home

    machine.start("-c", machine.written("nats.conf", "max_payload: 200000"))
    one = NatsTransport(Home(f"nats://{machine.place}"), namespace="tests", lost=lambda _: None)
    assert one.limit == 1_000_000
    sent = Envelope(id=fresh_id(), subject="t", body=Body(JSON, b"{}"), kind="io")
    one.send_now([sent], 10.0, lambda lane, left: None, Meanwhile())
    assert 100_000 <= one.limit < 200_000
    asyncio.run(one.close())

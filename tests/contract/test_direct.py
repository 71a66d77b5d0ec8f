"""Publishing in a caller's own thread, over what carries and what keeps the books: no loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
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

from umbel.backends import BlockingBroker, Demand, JobFilter, Lane, Published
from umbel.backends.blocking import BlockingJobStore, Meanwhile
from umbel.backends.pairs import PairBroker
from umbel.backends.pairs.blocking_publish import BlockingPair
from umbel.errors import Unavailable
from umbel.messages import JSON, Body, Delivery, Envelope, Retry, fresh_id
from umbel.testing import Backend, Backends
from umbel.testing.acts import FAILURE, PLENTY, enlist, envelope, settle, take
from umbel.testing.brokers import BrokerSuite

BOTH = pytest.mark.parametrize("carrier", ["nats", "rabbitmq"])
BOOKS = pytest.mark.parametrize("books", ["sqlite", "redis_books", "eager_books"])
"""Those that are waited for when they note, those that need not be, and those that begin."""


class Directly(PairBroker):
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
    monkeypatch.setattr(BlockingPair, "_is_awaited", always, raising=False)
    return redis_books


def publish_now(b: Backend, *envelopes: Envelope, timeout: float = 10.0) -> Any:
    """Publish in another thread, which has no event loop."""
    broker = cast(BlockingBroker, b.broker)
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
            broker = cast(PairBroker, b.broker)
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

    from umbel.backends import Lane
    from umbel.backends.rabbitmq.queue_names import queue_name

    where = pika.ConnectionParameters(HOST, virtual_host=request.getfixturevalue("vhost"))
    with pika.BlockingConnection(where) as connection:
        for kind in KINDS:
            connection.channel().queue_delete(queue_name(b.namespace, Lane("default", kind)))


def carried_by(machine: Machine) -> Any:
    """What ``split`` asks for, with a server of the test's own."""
    from umbel.backends.nats.address import Home
    from umbel.backends.nats.transport import NatsTransport

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
            waiting = await cast(PairBroker, b.broker)._ledger.unsent(["default"], 10, 0.0)
            assert [one.id for one in waiting] == [jobs[1].id]
            await asyncio.to_thread(machine.start)
            await publish_now(b, jobs[2])
            assert await fetched(b, await enlist(b), 3) == {one.id for one in jobs}

    asyncio.run(scenario())


@BOOKS
def test_what_neither_answers_for_is_with_one_of_them_when_it_returns(
    books: str, machine: Machine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from umbel.backends.redis.job_store import RedisJobStore
    from umbel.backends.sqlite.job_store import SqliteJobStore

    store = request.getfixturevalue(books)

    def away(*_: Any) -> Any:
        raise Unavailable("the books do not answer")

    async def scenario() -> None:
        await asyncio.to_thread(machine.start)
        async with split(store(), carried_by(machine)) as b:
            first, second = envelope(b), envelope(b)
            await publish_now(b, first)
            machine.freeze()
            monkeypatch.setattr(SqliteJobStore, "note_now", away)
            monkeypatch.setattr(RedisJobStore, "noting", away)
            await publish_now(b, second)
            machine.kill()
            ledger = cast(PairBroker, b.broker)._ledger
            assert [one.id for one in await ledger.unsent(["default"], 10, 0.0)] == [second.id]

    monkeypatch.setattr("umbel.backends.nats.blocking_sender.CONFIRMED", 0.5)
    asyncio.run(scenario())


@pytest.mark.parametrize("books", ["sqlite", "postgres", "redis_books", "eager_books"])
def test_what_was_noted_and_is_not_confirmed_is_sent_by_somebody_else(
    books: str, machine: Machine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        await asyncio.to_thread(machine.start)
        async with split(store(), carried_by(machine)) as b:
            ledger = cast(PairBroker, b.broker)._ledger
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
    monkeypatch.setattr("umbel.backends.nats.blocking_sender.CONFIRMED", 2.0)
    asyncio.run(scenario())


def test_the_books_begin_when_they_had_somebody_for_the_message_before(
    nats: Any, redis_books: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from umbel.backends.nats.raw_connection import Line
    from umbel.backends.redis.job_store import RedisJobStore

    order: list[str] = []
    standing = asyncio.Event()
    begin_standing = RedisJobStore._begin_standing

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
        ledger = cast(RedisJobStore, cast(PairBroker, b.broker)._ledger)
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
            spy(RedisJobStore, "noting", "books")
            spy(Line, "post", "server")
            assert await published(b, owner, awaited=False) == ["server", "books"]
            assert await published(b, owner, awaited=True) == ["server", "books"]
            assert await published(b, owner, awaited=True) == ["books", "server"]
            assert await published(b, owner, awaited=False) == ["books", "server"]
            assert await published(b, owner, awaited=False) == ["server", "books"]

    monkeypatch.setattr(RedisJobStore, "_begin_standing", told_of)
    asyncio.run(scenario())


class Standing:
    """A broker whose books are Redis, and somebody who fetches and stands by there."""

    def __init__(self, b: Backend, owner: str) -> None:
        self.b, self.owner = b, owner
        self.broker = cast(PairBroker, b.broker)
        self.began: asyncio.Queue[Any] = asyncio.Queue()
        """How often it has begun to stand by."""
        self.received: asyncio.Queue[Any] = asyncio.Queue()
        spy(self.broker._ledger, "_begin_standing", self.began)
        spy(self.broker._transport, "receive", self.received)

    async def fetching(self, demand: Demand = PLENTY) -> asyncio.Task[list[Delivery]]:
        """A fetch that stands by."""
        found = asyncio.create_task(take(self.b, self.owner, demand, wait=60.0))
        await self.began.get()
        return found

    async def handed(self, waiting: asyncio.Task[list[Delivery]]) -> Delivery:
        """What a fetch has, for which there is no message yet."""
        one = envelope(self.b)
        books = cast(BlockingJobStore, self.broker._ledger)
        (told,) = await asyncio.to_thread(books.note_now, [one], 10.0)
        assert told.handed
        (found,) = await waiting
        assert found.id == one.id
        return found


@asynccontextmanager
async def standing(books: Any, carry: Any) -> AsyncIterator[Standing]:
    """A pair of these, for a minute at the most."""
    async with split(books, carry) as b, asyncio.timeout(60):
        yield Standing(b, await enlist(b))


def spy(place: Any, method: str, told: asyncio.Queue[Any]) -> None:
    """Be told what came of it, each time."""
    kept = getattr(place, method)

    async def done(*given: Any) -> Any:
        found = await kept(*given)
        told.put_nowait(found)
        return found

    setattr(place, method, done)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that come late are not seen to by themselves."""
    monkeypatch.setattr("umbel.backends.pairs.receiver._SOON", 3600.0)


@BOTH
def test_who_stands_by_goes_on_when_the_message_of_what_it_was_handed_comes(
    carrier: str, redis_books: Any, request: pytest.FixtureRequest, patient: None
) -> None:
    async def scenario() -> None:
        async with standing(redis_books(), request.getfixturevalue(carrier)) as one:
            first = await one.handed(await one.fetching())
            waiting = await one.fetching()
            await one.broker._transport.send([first.envelope])
            while not await one.received.get():
                pass
            await one.handed(waiting)
            assert one.began.empty()

    asyncio.run(scenario())


@BOTH
def test_messages_that_come_late_are_seen_to_when_there_are_many_or_no_room_for_more(
    carrier: str, redis_books: Any, request: pytest.FixtureRequest, patient: None
) -> None:
    async def scenario(room: Demand, many: int) -> None:
        async with standing(redis_books(), request.getfixturevalue(carrier)) as one:
            seen: asyncio.Queue[Any] = asyncio.Queue()
            spy(one.broker._ledger, "take", seen)
            jobs = [await one.handed(await one.fetching(room)) for _ in range(many)]
            waiting = await one.fetching(room)
            for job in jobs:
                assert seen.empty()
                await one.broker._transport.send([job.envelope])
            assert (await seen.get()).deliveries == []
            await one.began.get()
            await one.handed(waiting)

    asyncio.run(scenario(Demand(100, 100), many=20))
    asyncio.run(scenario(Demand(3, 3), many=3))


@BOTH
def test_the_message_of_what_was_handed_over_and_is_to_run_again_brings_it(
    carrier: str, redis_books: Any, request: pytest.FixtureRequest
) -> None:
    async def scenario() -> None:
        async with standing(redis_books(), request.getfixturevalue(carrier)) as one:
            first = await one.handed(await one.fetching())
            waiting = await one.fetching()
            assert await settle(one.b, first, Retry(FAILURE, 0.0)) == []
            (again,) = await waiting
            assert (again.id, again.lease.fence) == (first.id, first.lease.fence + 1)

    asyncio.run(scenario())


def test_the_moment_that_a_message_is_held_for_begins_with_that_message(
    nats: Any, redis_books: Any, patient: None
) -> None:
    async def scenario() -> None:
        async with standing(redis_books(), nats) as one:
            transport, hall = one.broker._transport, one.broker._reception.hall
            first = await one.handed(await one.fetching())
            for _ in range(2):
                await one.broker._reception.clear()  # the fetch before receives still
                await transport.send([first.envelope])
                hall.hold(await transport.receive({Lane("default", first.envelope.kind): 1}, 30.0))
                assert hall._patience is not None
                waiting = await one.fetching()
                assert hall._patience is None
                await one.handed(waiting)

    asyncio.run(scenario())


@BOTH
def test_who_is_handed_one_job_after_another_receives_all_the_while(
    carrier: str, redis_books: Any, request: pytest.FixtureRequest
) -> None:
    async def scenario() -> None:
        async with standing(redis_books(), request.getfixturevalue(carrier)) as one:
            for _ in range(5):
                await one.handed(await one.fetching())
            assert one.received.empty(), "a receive has ended"
            await one.handed(await one.fetching(Demand(7, 7)))
            assert one.received.qsize() == 1

    asyncio.run(scenario())


@BOTH
def test_who_has_no_room_left_receives_no_more(
    carrier: str, redis_books: Any, request: pytest.FixtureRequest
) -> None:
    async def scenario() -> None:
        async with standing(redis_books(), request.getfixturevalue(carrier)) as one:
            await one.handed(await one.fetching(Demand(1, 1)))
            assert await one.received.get() == []

    asyncio.run(scenario())


@BOTH
def test_what_comes_while_nobody_fetches_is_for_the_next_who_does(
    carrier: str, redis_books: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with standing(redis_books(), request.getfixturevalue(carrier)) as one:
            await one.handed(await one.fetching())
            sent = envelope(one.b)
            await one.b.broker.publish([sent])
            assert len(await one.received.get()) == 1
            (found,) = await take(one.b, one.owner, PLENTY, wait=60.0)
            assert found.id == sent.id

    monkeypatch.setattr("umbel.backends.pairs.prefetch_buffer.MOMENT", 3600.0)
    asyncio.run(scenario())


@BOTH
def test_a_fetch_ends_in_its_own_time_also_if_the_one_before_had_more(
    carrier: str, redis_books: Any, request: pytest.FixtureRequest
) -> None:
    async def scenario() -> None:
        async with standing(redis_books(), request.getfixturevalue(carrier)) as one:
            first = asyncio.create_task(take(one.b, one.owner, PLENTY, wait=3600.0))
            await one.began.get()
            await one.handed(first)
            assert await take(one.b, one.owner, PLENTY, wait=0.2) == []

    asyncio.run(scenario())


@BOTH
def test_a_fetch_has_all_of_its_time_also_if_the_one_before_had_less(
    carrier: str, redis_books: Any, request: pytest.FixtureRequest
) -> None:
    async def scenario() -> None:
        async with standing(redis_books(), request.getfixturevalue(carrier)) as one:
            first = asyncio.create_task(take(one.b, one.owner, PLENTY, wait=1.0))
            await one.began.get()
            await one.handed(first)
            waiting = await one.fetching()
            assert await one.received.get() == [], "the receive that was under way has its own end"
            await one.began.get()
            await one.handed(waiting)

    asyncio.run(scenario())


@BOTH
def test_a_message_that_comes_together_with_a_job_from_the_books_is_held_for_a_moment_only(
    carrier: str, redis_books: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from umbel.backends.redis.job_store import RedisJobStore

    stand_down = RedisJobStore._stand_down

    async def scenario() -> None:
        async with standing(redis_books(), request.getfixturevalue(carrier)) as one:
            sent, handed = envelope(one.b), envelope(one.b)

            async def too_late(ledger: RedisJobStore, *given: Any) -> list[Delivery]:
                (told,) = await asyncio.to_thread(ledger.note_now, [handed], 10.0)
                assert told.handed
                return await stand_down(ledger, *given)

            waiting = await one.fetching(Demand(1, 1))
            monkeypatch.setattr(RedisJobStore, "_stand_down", too_late)
            await one.broker._transport.send([sent])
            (found,) = await waiting
            assert found.id == handed.id
            (held,) = one.broker._reception.hall._held
            assert held.id == sent.id
            monkeypatch.undo()

    asyncio.run(scenario())


def test_the_servers_own_limit_is_learned_without_a_loop(machine: Machine) -> None:
    from umbel.backends.nats.address import Home
    from umbel.backends.nats.transport import NatsTransport

    machine.start("-c", machine.written("nats.conf", "max_payload: 200000"))
    one = NatsTransport(Home(f"nats://{machine.place}"), namespace="tests", lost=lambda _: None)
    assert one.limit == 1_000_000
    sent = Envelope(id=fresh_id(), subject="t", body=Body(JSON, b"{}"), kind="io")
    one.send_now([sent], 10.0, lambda lane, left: None, Meanwhile())
    assert 100_000 <= one.limit < 200_000
    asyncio.run(one.close())

"""Every broker's suite over pairs: one server carries the messages, another keeps the books."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast
from urllib.parse import quote

import pytest

from umbel.backends import Demand, JobStore, Lane, Lost, OpenTransport
from umbel.backends.pairs import PairBroker
from umbel.errors import BadMessage, MessageTooLarge
from umbel.messages import Body, Envelope, State, Succeeded, fresh_id, inbox
from umbel.testing import Backend, Backends, wrong_clocks
from umbel.testing.acts import RESULT, enlist, envelope, settle
from umbel.testing.brokers import BrokerSuite, GateTopics, RouteSuite
from umbel.testing.stores import StoreSuite

HOST = "127.0.0.1"
PORTS = {"rabbitmq": 5672, "nats": 4222, "postgres": 5432, "redis": 6379}


def needs(*servers: str) -> None:
    """Skip where a server does not answer."""
    for server in servers:
        try:
            socket.create_connection((HOST, PORTS[server]), 2).close()
        except OSError as error:
            pytest.skip(f"not run: pairs with {server}; it does not answer ({error})")


@asynccontextmanager
async def split(
    books: Any, carry: Any, kind: type[PairBroker] = PairBroker
) -> AsyncIterator[Backend]:
    """A backend whose broker is made of two."""
    async with books as kept:
        carrying: OpenTransport = carry(kept.namespace)
        broker = kind(
            carrying,
            cast(JobStore, kept.broker),
            namespace=kept.namespace,
            clock=kept.clock,
            find=kept.records.find,
        )

        def another(namespace: str | None = None) -> Any:
            return split(kept.another(namespace), carry, kind)

        try:
            yield replace(kept, broker=broker, another=another)
        finally:
            await broker.close()


@pytest.fixture(scope="module")
def vhost() -> Iterator[str]:
    """A virtual host of this module's own."""
    needs("rabbitmq")
    if shutil.which("rabbitmqctl") is None:
        pytest.skip("not run: pairs with RabbitMQ; no rabbitmqctl to make a virtual host with")
    vhost = f"umbel-split-{os.getpid()}-{fresh_id()[-6:]}"

    def rabbitmqctl(*command: str) -> None:
        quiet = subprocess.DEVNULL
        subprocess.run(["rabbitmqctl", "-q", *command], check=True, stdout=quiet, cwd="/")

    rabbitmqctl("add_vhost", vhost)
    rabbitmqctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    yield vhost
    rabbitmqctl("delete_vhost", vhost)


@pytest.fixture
def rabbitmq(vhost: str) -> Iterator[Any]:
    import pika

    from umbel.backends.rabbitmq.address import Home
    from umbel.backends.rabbitmq.transport import RabbitTransport

    url = f"amqp://guest:guest@{HOST}:{PORTS['rabbitmq']}/{quote(vhost, safe='')}"
    home, opened = Home(url), list[RabbitTransport]()

    def carry(namespace: str) -> OpenTransport:
        def open_one(lost: Lost) -> RabbitTransport:
            opened.append(RabbitTransport(home, namespace=namespace, lost=lost))
            return opened[-1]

        return open_one

    yield carry
    # At once: each replicated queue takes five of the server's file handles, and when there are
    # none left it answers nobody any more.
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for name in {name for one in opened for name in one._receiver._queues._names.values()}:
            channel.queue_delete(name)


@pytest.fixture
def nats() -> Iterator[Any]:
    needs("nats")
    import nats as library

    from umbel.backends.nats.address import Home
    from umbel.backends.nats.transport import NatsTransport

    home, namespaces = Home(f"nats://{HOST}:{PORTS['nats']}"), set()

    def carry(namespace: str) -> OpenTransport:
        namespaces.add(namespace)
        return lambda lost: NatsTransport(home, namespace=namespace, lost=lost)

    async def clean() -> None:
        client = await library.connect(f"nats://{HOST}:{PORTS['nats']}")
        manager = client.jetstream()
        for found in await manager.streams_info():
            if found.config.name.partition("+")[0] in namespaces:
                await manager.delete_stream(found.config.name)
        await client.close()

    yield carry
    asyncio.run(clean())


@pytest.fixture(scope="module")
def redis_prefix() -> Iterator[str]:
    """What the namespaces on Redis begin with; their keys are gone afterwards."""
    needs("redis")
    import redis as library

    prefix = f"split-{os.getpid()}-{fresh_id()[-6:]}-"
    yield prefix
    with library.Redis(HOST, PORTS["redis"]) as client:
        for key in client.scan_iter(match=f"umbel:{{{prefix}*", count=1000):
            client.delete(key)


@pytest.fixture
def redis(redis_prefix: str) -> Any:
    """Redis as what carries."""
    from umbel.backends.redis.address import Home
    from umbel.backends.redis.transport import RedisTransport

    home = Home(f"redis://{HOST}:{PORTS['redis']}")

    def carry(namespace: str) -> OpenTransport:
        own = redis_prefix + namespace
        return lambda lost: RedisTransport(home, namespace=own, lost=lost)

    return carry


@pytest.fixture
def redis_books(redis_prefix: str) -> Any:
    """Redis as what keeps the books."""
    from test_redis import opened

    return lambda: opened(redis_prefix, fresh_id(), wrong_clocks("pairs over Redis"))


@pytest.fixture
def sqlite(tmp_path: Any) -> Any:
    from test_sqlite import FakeClock, Home, opened

    clock = FakeClock()
    name = f"t{fresh_id()}"
    return lambda: opened(lambda: Home(str(tmp_path / "books.db")), clock, name)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Any]:
    needs("postgres")
    import psycopg
    from test_postgres import URL, Home, migrate, opened

    schema = f"umbel_split_{os.getpid()}_{fresh_id()[-6:]}"
    asyncio.run(migrate(Home(f"{URL}?schema={schema}")))
    yield lambda: opened(
        f"{URL}?schema={schema}", f"t{fresh_id()}", wrong_clocks("pairs over PostgreSQL")
    )
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute(f'drop schema "{schema}" cascade')


class TestNatsAndSqlite(BrokerSuite, GateTopics, RouteSuite):
    crowd = 40

    @pytest.fixture
    def backend(self, nats: Any, sqlite: Any) -> Backends:
        return lambda: split(sqlite(), nats)


class TestNatsAndPostgres(BrokerSuite):
    @pytest.fixture
    def backend(self, nats: Any, postgres: Any) -> Backends:
        return lambda: split(postgres(), nats)


class TestRabbitmqAndSqlite(BrokerSuite):
    @pytest.fixture
    def backend(self, rabbitmq: Any, sqlite: Any) -> Backends:
        return lambda: split(sqlite(), rabbitmq)


class TestRabbitmqAndPostgres(BrokerSuite, GateTopics, RouteSuite, StoreSuite):
    crowd = 40

    @pytest.fixture
    def backend(self, rabbitmq: Any, postgres: Any) -> Backends:
        return lambda: split(postgres(), rabbitmq)


class TestRedisAndSqlite(BrokerSuite):
    @pytest.fixture
    def backend(self, redis: Any, sqlite: Any) -> Backends:
        return lambda: split(sqlite(), redis)


class TestRedisAndPostgres(BrokerSuite):
    @pytest.fixture
    def backend(self, redis: Any, postgres: Any) -> Backends:
        return lambda: split(postgres(), redis)


class TestNatsAndRedis(BrokerSuite, GateTopics, RouteSuite):
    crowd = 40

    @pytest.fixture
    def backend(self, nats: Any, redis_books: Any) -> Backends:
        return lambda: split(redis_books(), nats)


class TestRabbitmqAndRedis(BrokerSuite):
    @pytest.fixture
    def backend(self, rabbitmq: Any, redis_books: Any) -> Backends:
        return lambda: split(redis_books(), rabbitmq)


def test_a_job_too_large_for_its_transport_is_refused_whatever_way_it_would_go(
    nats: Any, sqlite: Any
) -> None:
    async def scenario() -> None:
        async with split(sqlite(), nats) as b:
            large = Body("application/json", b"1" * 2_000_000)
            for how in ({}, {"unique": "x"}, {"not_before": b.clock.now() + 60}):
                with pytest.raises(MessageTooLarge):
                    await b.broker.publish([envelope(b, body=large, **how)])
            assert await b.broker.depths() == []

    asyncio.run(scenario())


UNSENDABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "infinite expires": ("expires", {"expires": float("inf")}),
    "expires in the year 20000": ("expires", {"expires": 5.7e11}),
    "infinite not_before": ("not_before", {"not_before": float("-inf")}),
    "created in the year 20000": ("created", {"created": 5.7e11}),
}
"""What stops a job from being sent: the field that the reason has to name, and its value."""
PAIRS = [("nats", "postgres"), ("redis", "sqlite"), ("rabbitmq", "redis_books")]


async def assert_buried_and_passed_by(b: Backend, bad: Sequence[Envelope], reason: str) -> None:
    """Of some jobs that are in the job store, the bad ones are buried and ten others are given."""
    store = cast(PairBroker, b.broker)._ledger
    await store.publish(bad)  # as a program that writes rows itself
    good = [envelope(b, unique=fresh_id()) for _ in range(10)]
    await b.broker.publish(good)
    owner, found = await enlist(b), set[str]()
    async with asyncio.timeout(40):
        while len(found) < len(good):
            found |= {one.id for one in await b.broker.fetch(["default"], Demand(20, 20), owner, 5)}
        assert found == {one.id for one in good}
        for one in bad:
            while not (record := await b.records.find(one.id)).state.finished:
                await b.broker.fetch(["default"], Demand(20, 20), owner, 0.1)
            assert record.state is State.BURIED
            assert reason in record.reason


@pytest.mark.parametrize("what", [*UNSENDABLE])
@pytest.mark.parametrize(("carrier", "store"), PAIRS)
def test_a_job_whose_time_cannot_be_sent_is_buried_and_the_others_go_on(
    carrier: str, store: str, what: str, request: pytest.FixtureRequest
) -> None:
    field, changes = UNSENDABLE[what]

    store_of, carry = request.getfixturevalue(store), request.getfixturevalue(carrier)

    async def scenario() -> None:
        async with split(store_of(), carry) as b:
            await assert_buried_and_passed_by(b, [envelope(b, **changes)], field)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("carrier", "store", "size"),
    [
        ("nats", "postgres", 2_000_000),
        ("nats", "redis_books", 2_000_000),
        ("rabbitmq", "sqlite", 17_000_000),
    ],
)
def test_a_job_whose_headers_are_too_large_for_the_transport_is_buried_and_the_others_go_on(
    carrier: str, store: str, size: int, request: pytest.FixtureRequest
) -> None:
    store_of, carry = request.getfixturevalue(store), request.getfixturevalue(carrier)

    async def scenario() -> None:
        async with split(store_of(), carry) as b:
            bad = envelope(b, headers={"note": "x" * size})
            await assert_buried_and_passed_by(b, [bad], "headers")

    asyncio.run(scenario())


def test_a_batch_of_jobs_that_cannot_be_carried_is_buried_and_the_others_go_on(
    nats: Any, sqlite: Any
) -> None:
    async def scenario() -> None:
        async with split(sqlite(), nats) as b:
            large = Body("application/json", b"1" * 1_100_000)
            await assert_buried_and_passed_by(b, [envelope(b, body=large)], "bytes")
            # More than the relay looks at together: they hold no other job back either.
            many = [envelope(b, expires=float("inf")) for _ in range(600)]
            await assert_buried_and_passed_by(b, many, "expires")

    asyncio.run(scenario())


def test_a_job_that_cannot_be_sent_is_refused_whatever_way_it_would_go(
    nats: Any, sqlite: Any
) -> None:
    async def scenario() -> None:
        async with split(sqlite(), nats) as b:
            for way in ({}, {"unique": "x"}, {"not_before": b.clock.now() + 60}):
                with pytest.raises(BadMessage, match="expires"):
                    await b.broker.publish([envelope(b, expires=5.7e11, **way)])
                large = envelope(b, headers={"note": "x" * 2_000_000}, **way)
                with pytest.raises(MessageTooLarge, match="headers"):
                    await b.broker.publish([large])
            assert await b.broker.depths() == []

    asyncio.run(scenario())


@pytest.mark.parametrize("carrier", ["nats", "rabbitmq", "redis"])
def test_what_somebody_purged_on_the_server_is_sent_again(
    carrier: str, sqlite: Any, request: pytest.FixtureRequest
) -> None:
    async def scenario() -> None:
        async with split(sqlite(), request.getfixturevalue(carrier)) as b:
            one, owner = envelope(b), await enlist(b)
            # Once, so that the queues are there: those that are made are recalled anyway.
            await b.broker.fetch(["default"], Demand(5, 5), owner, 0.5)
            await b.broker.publish([one])
            await cast(PairBroker, b.broker)._transport.purge("default")
            async with asyncio.timeout(30):
                while not (found := await b.broker.fetch(["default"], Demand(5, 5), owner, 0.5)):
                    pass
            assert [delivery.id for delivery in found] == [one.id]

    asyncio.run(scenario())


@pytest.mark.parametrize("carrier", ["nats", "rabbitmq"])
def test_who_waits_is_given_each_job_once_by_the_books_or_by_its_message(
    carrier: str, redis_books: Any, request: pytest.FixtureRequest
) -> None:
    async def scenario() -> None:
        async with split(redis_books(), request.getfixturevalue(carrier)) as b:
            owner, got, sent = await enlist(b), list[str](), list[str]()

            async def work() -> None:
                while len(got) < 60:
                    for one in await b.broker.fetch(["default"], Demand(5, 5), owner, 5):
                        got.append(one.id)
                        await settle(b, one, Succeeded(RESULT))

            working = asyncio.create_task(work())
            for number in range(60):
                one = envelope(b)
                await asyncio.to_thread(cast(PairBroker, b.broker).publish_now, [one], 10.0)
                sent.append(one.id)
                await asyncio.sleep(0.004 * (number % 3))  # sometimes it stands by, sometimes not
            async with asyncio.timeout(60):
                await working
            assert sorted(got) == sorted(sent)
            assert await b.broker.fetch(["default"], Demand(5, 5), owner, 0.5) == []
            assert await b.broker.depths() == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("changes", "reason"), [({"unique": "key"}, "unique"), ({"subject": "x" * 300}, "subject")]
)
def test_a_message_that_is_to_be_buried_is_not_given_to_somebody_else_who_waits(
    changes: dict[str, Any], reason: str, nats: Any, redis_books: Any
) -> None:
    async def scenario() -> None:
        async with split(redis_books(), nats) as b, b.another() as other:
            await b.broker.publish([envelope(b, unique="key", not_before=b.clock.now() + 3600)])
            fetches = [
                asyncio.create_task(side.broker.fetch(["default"], Demand(5, 5), owner, 2.0))
                for side, owner in ((b, await enlist(b)), (other, await enlist(other)))
            ]
            await asyncio.sleep(0.5)
            sent = envelope(b, **changes)
            await cast(PairBroker, b.broker)._transport.send([sent])  # as another program does
            assert [one for fetch in fetches for one in await fetch] == []
            found = await b.records.find(sent.id)
            assert found.state is State.BURIED
            assert reason in found.reason

    asyncio.run(scenario())


def test_an_event_in_the_body_runs_under_the_id_that_its_headers_give(
    nats: Any, sqlite: Any
) -> None:
    import nats as library

    from umbel.backends.nats.stream_names import stream_of
    from umbel.messages.wire import MEDIA_TYPE, write

    async def scenario() -> None:
        async with split(sqlite(), nats) as b:
            owner, event, job = await enlist(b), envelope(b, kind="io"), fresh_id()
            assert await b.broker.fetch(["default"], Demand(5, 5), owner, 0.0) == []
            client = await library.connect(f"nats://{HOST}:{PORTS['nats']}")
            await client.jetstream().publish(
                stream_of(b.namespace, Lane("default", "io")).subject,
                write(event),
                headers={"ce-id": job, "Content-Type": MEDIA_TYPE},
            )
            await client.close()
            (found,) = await b.broker.fetch(["default"], Demand(5, 5), owner, 30.0)
            assert (found.id, found.envelope.subject) == (job, event.subject)

    asyncio.run(scenario())


def test_two_threads_do_not_wait_for_each_other_when_one_has_to_make_a_queue(
    nats: Any, redis_books: Any
) -> None:
    async def scenario() -> None:
        async with split(redis_books(), nats) as b:
            publish = cast(PairBroker, b.broker).publish_now
            publish([envelope(b)], 10.0)
            done = threading.Event()

            def many() -> int:
                count = 0
                while not done.is_set():
                    publish([envelope(b)], 3.0)
                    count += 1
                return count

            def first_ones() -> None:
                try:
                    for number in range(3):
                        publish([envelope(b, queue=f"new-{number}")], 3.0)
                finally:
                    done.set()

            counts = await asyncio.gather(
                *(asyncio.to_thread(one) for one in (many, many, first_ones))
            )
            ledger = cast(PairBroker, b.broker)._ledger
            queues = [f"new-{number}" for number in range(3)]
            assert await ledger.unsent(queues, 10, 0.0) == [], "it could not be sent in time"
            assert all(counts[:2])

    asyncio.run(scenario())


def test_a_fetch_from_both_sides_waits_until_the_one_before_is_wound_up(
    nats: Any, redis_books: Any
) -> None:
    from umbel.backends.pairs import MultiTransport, PartialPairBroker

    def partly(namespace: str) -> OpenTransport:
        return lambda lost: MultiTransport({"plain": None}, nats(namespace)(lost))

    async def scenario() -> None:
        async with split(redis_books(), partly, PartialPairBroker) as b:
            broker = cast(PartialPairBroker, b.broker)
            books, room = cast(Any, broker._ledger), Demand(5, 5)
            first = asyncio.create_task(broker.fetch(["default"], room, await enlist(b), 3600))
            await asyncio.sleep(0.5)
            both = broker.fetch(["default", "plain"], room, await enlist(b), 3600)
            following = asyncio.create_task(both)  # it waits for its turn
            await asyncio.sleep(0)
            books.note_now([envelope(b)], 10.0)
            assert len(await first) == 1
            async with asyncio.timeout(20):
                while broker._reception._under_way is not None:
                    await asyncio.sleep(0.01)
            broker.nudge()
            assert await following == []

    asyncio.run(scenario())


@pytest.mark.parametrize("room", [Demand(5, 5), Demand(4, 4)], ids=["the same", "another"])
def test_a_nudge_is_heard_also_while_the_receive_of_an_earlier_fetch_is_under_way(
    room: Demand, nats: Any, redis_books: Any
) -> None:
    async def scenario() -> None:
        async with split(redis_books(), nats) as b:
            owner, broker = await enlist(b), cast(PairBroker, b.broker)
            await asyncio.to_thread(broker.publish_now, [envelope(b)], 10.0)  # makes the stream
            assert len(await broker.fetch(["default"], Demand(5, 5), owner, 20)) == 1
            books, outlasted = cast(Any, broker._ledger), 0
            for steps in range(1, 20):
                first = asyncio.create_task(broker.fetch(["default"], Demand(5, 5), owner, 20))
                await asyncio.sleep(0.03)
                # No message follows: it would end the fetch, and the nudge would not be missed.
                await asyncio.to_thread(books.note_now, [envelope(b)], 10.0)
                assert len(await first) == 1
                kept = broker._reception._under_way
                outlasted += kept is not None and not kept.task.done()
                following = asyncio.create_task(broker.fetch(["default"], room, owner, 3600))
                for _ in range(steps):
                    await asyncio.sleep(0)
                broker.nudge()
                async with asyncio.timeout(20):
                    assert await following == []
            assert outlasted, "the books were never faster"

    asyncio.run(scenario())


def test_a_nudge_is_heard_also_before_a_fetch_from_both_sides_has_begun(
    nats: Any, sqlite: Any
) -> None:
    from umbel.backends.pairs import MultiTransport, PartialPairBroker

    def partly(namespace: str) -> OpenTransport:
        return lambda lost: MultiTransport({"plain": None}, nats(namespace)(lost))

    async def scenario() -> None:
        async with split(sqlite(), partly, PartialPairBroker) as b:
            broker, owner = cast(PartialPairBroker, b.broker), await enlist(b)
            for rounds in range(1, 12):
                both = broker.fetch(["default", "plain"], Demand(5, 5), owner, 3600)
                fetch = asyncio.create_task(both)
                for _ in range(rounds):
                    await asyncio.sleep(0)
                broker.nudge()
                async with asyncio.timeout(20):
                    assert await fetch == []

    asyncio.run(scenario())


def test_a_worker_that_is_sent_nothing_has_no_queue_elsewhere(
    vhost: str, rabbitmq: Any, sqlite: Any
) -> None:
    import pika

    from umbel.backends.rabbitmq.queue_names import queue_name

    url = f"amqp://guest:guest@{HOST}:{PORTS['rabbitmq']}/{quote(vhost, safe='')}"

    def is_there(namespace: str) -> bool:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            try:
                name = queue_name(namespace, Lane(inbox(0), "io"))
                connection.channel().queue_declare(name, passive=True)
            except pika.exceptions.ChannelClosedByBroker:
                return False
            return True

    async def scenario() -> None:
        async with split(sqlite(), rabbitmq) as b:
            owner, queues = await enlist(b), (inbox(0), "default")
            assert await b.broker.fetch(queues, Demand(5, 5), owner, 0.2) == []
            assert not is_there(b.namespace)
            sent = envelope(b, queue=inbox(0))
            waiting = asyncio.create_task(b.broker.fetch(queues, Demand(5, 5), owner, 60))
            await asyncio.sleep(0.2)
            await b.broker.publish([sent])
            found = await waiting or await b.broker.fetch(queues, Demand(5, 5), owner, 60)
            assert [one.id for one in found] == [sent.id]
            assert is_there(b.namespace)

    asyncio.run(scenario())

"""The broker suite over pairs: one server is the transport, another is the job store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote

import pytest
from local_servers import HOST, NATS_URL, PORTS
from pair_adapters import PairAdapters, open_pair

from umbel.backends import Demand, Lane, OpenTransport
from umbel.backends.pairs import PairBroker
from umbel.errors import BadMessage, MessageTooLarge
from umbel.messages import Body, Envelope, State, Succeeded, fresh_id, inbox
from umbel.testing import OpenAdapters
from umbel.testing.actions import RESULT, envelope, register, settle
from umbel.testing.brokers import BrokerSuite, GateTopics, RouteSuite
from umbel.testing.stores import CoordinationSuite, JoinSuite, StoreSuite
from umbel.testing.stores.coordination import PublishingCommits
from umbel.testing.stores.coordination_machine import CoordinationMachineSuite
from umbel.testing.stores.join_machine import JoinMachineSuite
from umbel.testing.stores.joins import EndsOfParts
from umbel.testing.stores.publications import BlockedJobs
from umbel.testing.stores.reopening import Growing


class ReleasedJobs(PublishingCommits, EndsOfParts, BlockedJobs, Growing):
    """The topics of coordination and joins in which jobs reach the transport."""


class TestNatsAndSqlite(BrokerSuite, GateTopics, RouteSuite):
    job_count = 40

    @pytest.fixture
    def backend(self, nats: Any, sqlite: Any) -> OpenAdapters:
        return lambda: open_pair(sqlite(), nats)


class TestNatsAndPostgres(BrokerSuite):
    @pytest.fixture
    def backend(self, nats: Any, postgres: Any) -> OpenAdapters:
        return lambda: open_pair(postgres(), nats)


class TestRabbitmqAndSqlite(BrokerSuite):
    @pytest.fixture
    def backend(self, rabbitmq: Any, sqlite: Any) -> OpenAdapters:
        return lambda: open_pair(sqlite(), rabbitmq)


class TestRabbitmqAndPostgres(BrokerSuite, GateTopics, RouteSuite, StoreSuite, ReleasedJobs):
    job_count = 40

    @pytest.fixture
    def backend(self, rabbitmq: Any, postgres: Any) -> OpenAdapters:
        return lambda: open_pair(postgres(), rabbitmq)


class TestGraphsOnRabbitmqAndPostgres(CoordinationSuite, JoinSuite, CoordinationMachineSuite):
    """Without the state machine of joins: its thousands of queues block RabbitMQ 3.10."""

    backend = TestRabbitmqAndPostgres.backend


class TestRedisAndSqlite(BrokerSuite):
    @pytest.fixture
    def backend(self, redis: Any, sqlite: Any) -> OpenAdapters:
        return lambda: open_pair(sqlite(), redis)


class TestRedisAndPostgres(BrokerSuite):
    @pytest.fixture
    def backend(self, redis: Any, postgres: Any) -> OpenAdapters:
        return lambda: open_pair(postgres(), redis)


class TestNatsAndRedis(BrokerSuite, GateTopics, RouteSuite, ReleasedJobs):
    job_count = 40

    @pytest.fixture
    def backend(self, nats: Any, redis_store: Any) -> OpenAdapters:
        return lambda: open_pair(redis_store(), nats)


class TestGraphsOnNatsAndRedis(
    CoordinationSuite, JoinSuite, CoordinationMachineSuite, JoinMachineSuite
):
    backend = TestNatsAndRedis.backend


class TestRabbitmqAndRedis(BrokerSuite):
    @pytest.fixture
    def backend(self, rabbitmq: Any, redis_store: Any) -> OpenAdapters:
        return lambda: open_pair(redis_store(), rabbitmq)


def test_a_job_too_large_for_its_transport_is_refused_whatever_way_it_would_go(
    nats: Any, sqlite: Any
) -> None:
    async def scenario() -> None:
        async with open_pair(sqlite(), nats) as b:
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
"""Values that cannot be sent, by the field that the reason must name."""
PAIRS = [("nats", "postgres"), ("redis", "sqlite"), ("rabbitmq", "redis_store")]


async def assert_buried_and_passed_by(
    b: PairAdapters, bad: Sequence[Envelope], reason: str
) -> None:
    """Check that the bad jobs in the job store are buried, and that ten others are delivered."""
    await b.job_store.publish(bad)  # as a program that writes rows itself
    good = [envelope(b, unique=fresh_id()) for _ in range(10)]
    await b.broker.publish(good)
    owner, found = await register(b), set[str]()
    async with asyncio.timeout(40):
        while len(found) < len(good):
            found |= {
                one.id
                for one in await b.broker.fetch(["default"], Demand.of(io=20, cpu=20), owner, 5)
            }
        assert found == {one.id for one in good}
        for one in bad:
            while not (record := await b.records.find(one.id)).state.finished:
                await b.broker.fetch(["default"], Demand.of(io=20, cpu=20), owner, 0.1)
            assert record.state is State.BURIED
            assert reason in record.reason


@pytest.mark.parametrize("what", [*UNSENDABLE])
@pytest.mark.parametrize(("transport_name", "store"), PAIRS)
def test_a_job_whose_time_cannot_be_sent_is_buried_and_the_others_go_on(
    transport_name: str, store: str, what: str, request: pytest.FixtureRequest
) -> None:
    field, changes = UNSENDABLE[what]

    open_store, transport = request.getfixturevalue(store), request.getfixturevalue(transport_name)

    async def scenario() -> None:
        async with open_pair(open_store(), transport) as b:
            await assert_buried_and_passed_by(b, [envelope(b, **changes)], field)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("transport_name", "store", "size"),
    [
        ("nats", "postgres", 2_000_000),
        ("nats", "redis_store", 2_000_000),
        ("rabbitmq", "sqlite", 17_000_000),
    ],
)
def test_a_job_whose_headers_are_too_large_for_the_transport_is_buried_and_the_others_go_on(
    transport_name: str, store: str, size: int, request: pytest.FixtureRequest
) -> None:
    open_store, transport = request.getfixturevalue(store), request.getfixturevalue(transport_name)

    async def scenario() -> None:
        async with open_pair(open_store(), transport) as b:
            bad = envelope(b, headers={"note": "x" * size})
            await assert_buried_and_passed_by(b, [bad], "headers")

    asyncio.run(scenario())


def test_a_batch_of_jobs_that_cannot_be_carried_is_buried_and_the_others_go_on(
    nats: Any, sqlite: Any
) -> None:
    async def scenario() -> None:
        async with open_pair(sqlite(), nats) as b:
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
        async with open_pair(sqlite(), nats) as b:
            for way in ({}, {"unique": "x"}, {"not_before": b.clock.now() + 60}):
                with pytest.raises(BadMessage, match="expires"):
                    await b.broker.publish([envelope(b, expires=5.7e11, **way)])
                large = envelope(b, headers={"note": "x" * 2_000_000}, **way)
                with pytest.raises(MessageTooLarge, match="headers"):
                    await b.broker.publish([large])
            assert await b.broker.depths() == []

    asyncio.run(scenario())


@pytest.mark.parametrize("transport_name", ["nats", "rabbitmq", "redis"])
def test_messages_purged_on_the_server_are_sent_again(
    transport_name: str, sqlite: Any, request: pytest.FixtureRequest
) -> None:
    async def scenario() -> None:
        async with open_pair(sqlite(), request.getfixturevalue(transport_name)) as b:
            one, owner = envelope(b), await register(b)
            # Once, so that the queues are there: those that are made are recalled anyway.
            await b.broker.fetch(["default"], Demand.of(io=5, cpu=5), owner, 0.5)
            await b.broker.publish([one])
            await b.transport.purge("default")
            async with asyncio.timeout(30):
                while not (
                    found := await b.broker.fetch(["default"], Demand.of(io=5, cpu=5), owner, 0.5)
                ):
                    pass
            assert [delivery.id for delivery in found] == [one.id]

    asyncio.run(scenario())


@pytest.mark.parametrize("transport_name", ["nats", "rabbitmq"])
def test_a_worker_that_waits_is_given_each_job_once(
    transport_name: str, redis_store: Any, request: pytest.FixtureRequest
) -> None:
    async def scenario() -> None:
        async with open_pair(redis_store(), request.getfixturevalue(transport_name)) as b:
            owner, got, sent = await register(b), list[str](), list[str]()

            async def work() -> None:
                while len(got) < 60:
                    for one in await b.broker.fetch(["default"], Demand.of(io=5, cpu=5), owner, 5):
                        got.append(one.id)
                        await settle(b, one, Succeeded(RESULT))

            working = asyncio.create_task(work())
            for number in range(60):
                one = envelope(b)
                await b.broker.publish([one])
                sent.append(one.id)
                await asyncio.sleep(0.004 * (number % 3))  # sometimes a fetch waits, sometimes not
            async with asyncio.timeout(60):
                await working
            assert sorted(got) == sorted(sent)
            assert await b.broker.fetch(["default"], Demand.of(io=5, cpu=5), owner, 0.5) == []
            assert await b.broker.depths() == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("changes", "reason"), [({"unique": "key"}, "unique"), ({"subject": "x" * 300}, "subject")]
)
def test_a_message_that_is_to_be_buried_is_not_delivered_to_another_waiting_fetch(
    changes: dict[str, Any], reason: str, nats: Any, redis_store: Any
) -> None:
    async def scenario() -> None:
        async with open_pair(redis_store(), nats) as b, b.another() as other:
            await b.broker.publish([envelope(b, unique="key", not_before=b.clock.now() + 3600)])
            fetches = [
                asyncio.create_task(
                    side.broker.fetch(["default"], Demand.of(io=5, cpu=5), owner, 2.0)
                )
                for side, owner in ((b, await register(b)), (other, await register(other)))
            ]
            await asyncio.sleep(0.5)
            sent = envelope(b, **changes)
            await b.transport.send([sent])  # as another program does
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
        async with open_pair(sqlite(), nats) as b:
            owner, event, job = await register(b), envelope(b, kind="io"), fresh_id()
            assert await b.broker.fetch(["default"], Demand.of(io=5, cpu=5), owner, 0.0) == []
            client = await library.connect(NATS_URL)
            await client.jetstream().publish(
                stream_of(b.namespace, Lane("default", "io")).subject,
                write(event),
                headers={"ce-id": job, "Content-Type": MEDIA_TYPE},
            )
            await client.close()
            (found,) = await b.broker.fetch(["default"], Demand.of(io=5, cpu=5), owner, 30.0)
            assert (found.id, found.envelope.subject) == (job, event.subject)

    asyncio.run(scenario())


def test_two_publishers_do_not_wait_for_each_other_when_one_has_to_make_a_queue(
    nats: Any, redis_store: Any
) -> None:
    async def scenario() -> None:
        async with open_pair(redis_store(), nats) as b:
            publish = cast(PairBroker, b.broker).publish_with_timeout
            await publish([envelope(b)], 10.0)
            done = asyncio.Event()

            async def many() -> int:
                count = 0
                while not done.is_set():
                    await publish([envelope(b)], 3.0)
                    count += 1
                return count

            async def first_ones() -> None:
                try:
                    for number in range(3):
                        await publish([envelope(b, queue=f"new-{number}")], 3.0)
                finally:
                    done.set()

            counts = await asyncio.gather(many(), many(), first_ones())
            queues = [f"new-{number}" for number in range(3)]
            assert await b.job_store.find_unsent(queues, 10, 0.0) == [], (
                "it could not be sent in time"
            )
            assert all(counts[:2])

    asyncio.run(scenario())


def test_a_fetch_that_has_just_begun_can_be_stopped(nats: Any, sqlite: Any) -> None:
    async def scenario() -> None:
        async with open_pair(sqlite(), nats) as b:
            owner, broker = await register(b), cast(PairBroker, b.broker)
            await broker.publish([envelope(b)])  # makes the stream
            assert len(await broker.fetch(["default"], Demand.of(io=5, cpu=5), owner, 20)) == 1
            for steps in range(1, 20):
                fetch = asyncio.create_task(
                    broker.fetch(["default"], Demand.of(io=5, cpu=5), owner, 3600)
                )
                for _ in range(steps):
                    await asyncio.sleep(0)
                broker.stop_waiting()
                async with asyncio.timeout(20):
                    assert await fetch == []

    asyncio.run(scenario())


def test_a_fetch_from_both_sides_that_has_just_begun_can_be_stopped(nats: Any, sqlite: Any) -> None:
    from umbel.backends.pairs import MultiTransport, PartialPairBroker

    def partly(namespace: str) -> OpenTransport:
        return lambda lost: MultiTransport({"plain": None}, nats(namespace)(lost))

    async def scenario() -> None:
        async with open_pair(sqlite(), partly, PartialPairBroker) as b:
            broker, owner = cast(PartialPairBroker, b.broker), await register(b)
            for rounds in range(1, 12):
                both = broker.fetch(["default", "plain"], Demand.of(io=5, cpu=5), owner, 3600)
                fetch = asyncio.create_task(both)
                for _ in range(rounds):
                    await asyncio.sleep(0)
                broker.stop_waiting()
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
        async with open_pair(sqlite(), rabbitmq) as b:
            owner, queues = await register(b), (inbox(0), "default")
            assert await b.broker.fetch(queues, Demand.of(io=5, cpu=5), owner, 0.2) == []
            assert not is_there(b.namespace)
            sent = envelope(b, queue=inbox(0))
            waiting = asyncio.create_task(b.broker.fetch(queues, Demand.of(io=5, cpu=5), owner, 60))
            await asyncio.sleep(0.2)
            await b.broker.publish([sent])
            found = await waiting or await b.broker.fetch(queues, Demand.of(io=5, cpu=5), owner, 60)
            assert [one.id for one in found] == [sent.id]
            assert is_there(b.namespace)

    asyncio.run(scenario())

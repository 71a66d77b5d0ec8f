"""Several brokers: each queue has its own, and one that is down does not affect the others."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from local_servers import HOST, PORTS, POSTGRES_URL
from nats_server import NatsServer
from nats_transports import nats_corner
from pair_adapters import open_pair
from redis_server import RedisServer, needs_server
from redis_transports import envelope, ids, redis_corner, run

from chaos.proxy import Proxy
from umbel import Umbel
from umbel.backends import Demand, Lane, OnLaneMissing, OpenTransport, Transport
from umbel.backends.pairs import MultiTransport, PartialPairBroker
from umbel.backends.redis.address import RedisAddress
from umbel.backends.redis.transport import RedisTransport
from umbel.backends.transport import Reply
from umbel.errors import ConfigurationError, ResultTimeout, Unavailable
from umbel.messages import fresh_id
from umbel.messages.documents import ReplyRequest
from umbel.testing import OpenAdapters, actions
from umbel.testing.brokers import BrokerSuite
from umbel.testing.transports import OpenServer, Server, TransportSuite

IO, MAIL = Lane("default", "io"), Lane("mail", "io")
NOWHERE = "redis://127.0.0.1:1"


# --- the suites ------------------------------------------------------------------------------


@asynccontextmanager
async def pair(most: Any, one: Any) -> AsyncIterator[Server]:
    """Combine two servers. The second one carries the queue ``mail``."""
    async with most as rest, one as mail:

        def of(lane: Lane) -> Server:
            return mail if lane.queue == "mail" else rest

        @asynccontextmanager
        async def opened() -> AsyncIterator[Transport]:
            async with rest.open() as first, mail.open() as second:
                mapped = MultiTransport({"mail": second}, first)
                try:
                    yield mapped
                finally:
                    await mapped.close()

        async def cut() -> None:
            await rest.cut()
            await mail.cut()

        async def drop(lane: Lane) -> None:
            await of(lane).drop(lane)

        async def put(lane: Lane, attributes: Mapping[str, str], kind: str, data: bytes) -> None:
            await of(lane).put(lane, attributes, kind, data)

        yield replace(rest, open=opened, cut=cut, drop=drop, put=put)


class TestRedisWithNats(TransportSuite):
    """NATS carries the queue ``mail``."""

    @pytest.fixture
    def server(self, redis_prefix: str) -> Iterator[OpenServer]:
        most, one = Proxy(PORTS["redis"], seed=0), Proxy(PORTS["nats"], seed=0)
        yield lambda: pair(
            redis_corner(f"{redis_prefix}{fresh_id()[-12:]}", most), nats_corner(one)
        )
        most.close()
        one.close()


class TestNatsWithRedis(TransportSuite):
    """Redis carries the queue ``mail``."""

    @pytest.fixture
    def server(self, redis_prefix: str) -> Iterator[OpenServer]:
        most, one = Proxy(PORTS["nats"], seed=0), Proxy(PORTS["redis"], seed=0)
        yield lambda: pair(
            nats_corner(most), redis_corner(f"{redis_prefix}{fresh_id()[-12:]}", one)
        )
        most.close()
        one.close()


def mapped(named: Mapping[str, Any], rest: Any) -> Callable[[str], OpenTransport]:
    """Return what opens the transports of the named queues and of the rest; None: the store."""

    def transport_of(namespace: str) -> OpenTransport:
        def opened(lost: OnLaneMissing) -> Transport:
            made: dict[Any, Transport | None] = {None: None}
            for one in (*named.values(), rest):
                if one not in made:
                    made[one] = one(namespace)(lost)
            return MultiTransport({queue: made[one] for queue, one in named.items()}, made[rest])

        return opened

    return transport_of


class TestThreeBrokersAndPostgres(BrokerSuite):
    @pytest.fixture
    def backend(self, redis: Any, nats: Any, rabbitmq: Any, postgres: Any) -> OpenAdapters:
        transport_of = mapped({"mail": nats, "other": rabbitmq}, redis)
        return lambda: open_pair(postgres(), transport_of)


class TestPostgresItselfAndRedisForSome(BrokerSuite):
    """Most queues stay in the job store."""

    @pytest.fixture
    def backend(self, redis: Any, postgres: Any) -> OpenAdapters:
        transport_of = mapped({"mail": redis, "other": redis}, None)
        return lambda: open_pair(postgres(), transport_of, PartialPairBroker)


class TestNatsAndSqliteItselfForSome(BrokerSuite):
    """Some queues stay in the job store."""

    @pytest.fixture
    def backend(self, nats: Any, sqlite: Any) -> OpenAdapters:
        transport_of = mapped({"mail": None, "other": None}, nats)
        return lambda: open_pair(sqlite(), transport_of, PartialPairBroker)


# --- one that is down ------------------------------------------------------------------------


def transport(url: str, namespace: str = "n") -> RedisTransport:
    return RedisTransport(
        RedisAddress(url), namespace=namespace, on_lane_missing=str, receiver_ttl=2.0
    )


async def receive_surely(one: Transport, room: Mapping[Lane, int], wanted: set[str]) -> None:
    found: set[str] = set()
    while not found >= wanted:
        with suppress(Unavailable):
            new = await one.receive(room, 1.0)
            await one.accept(new)
            found |= {*ids(new)}


@needs_server
def test_a_broker_that_is_down_does_not_block_the_others(
    start_redis: Callable[..., RedisServer],
) -> None:
    up, down = start_redis(), start_redis()

    async def scenario() -> None:
        one = MultiTransport({"mail": transport(down.url)}, transport(up.url))
        for at in range(3):
            down.stop()
            with pytest.raises(Unavailable):
                await one.send([envelope(queue="mail")])
            with pytest.raises(Unavailable):  # part of it may be there, as ever
                await one.send([envelope(), envelope(queue="mail")])
            with pytest.raises(Unavailable):
                await one.check()
            sent = envelope()
            await one.send([sent])
            await receive_surely(one, {IO: 5, MAIL: 5}, {sent.id})
            assert await one.receive({IO: 5, MAIL: 5}, 0.3) == []
            with pytest.raises(Unavailable, match=str(down.port)):
                await one.receive({MAIL: 5}, 10)
            waiting = asyncio.create_task(one.receive({IO: 5, MAIL: 5}, 30))
            await asyncio.sleep(0.1)
            down.start()
            if at == 0:  # found again by who waits already
                mail = envelope(queue="mail")
                async with asyncio.timeout(20):
                    while True:
                        with suppress(Unavailable):
                            await one.send([mail])
                            break
                    found = await waiting
                assert mail.id in ids(found)
                await one.accept(found)
            else:
                one.stop_waiting()
                await waiting
        up.stop()
        down.stop()
        with pytest.raises(Unavailable):
            await one.receive({IO: 5, MAIL: 5}, 10)
        await one.close()

    run(scenario)


@needs_server
def test_one_that_is_frozen_delays_the_others_by_a_moment_and_loses_nothing(
    start_redis: Callable[..., RedisServer],
) -> None:
    up, frozen = start_redis(), start_redis()

    async def scenario() -> None:
        one = MultiTransport({"mail": transport(frozen.url)}, transport(up.url))
        both = {IO: 5, MAIL: 5}
        await one.send([envelope(), envelope(queue="mail")])
        await one.accept(await one.receive(both, 10))
        mail = [envelope(queue="mail") for _ in range(3)]
        await one.send(mail)
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            for _ in range(5):
                sent = envelope()
                await one.send([sent])
                async with asyncio.timeout(5):
                    found = await one.receive(both, 10)
                assert ids(found) == [sent.id]
                await one.accept(found)
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        await receive_surely(one, both, {each.id for each in mail})
        await one.close()

    run(scenario)


@needs_server
def test_messages_that_arrive_for_a_cancelled_receive_are_returned(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()

    async def scenario() -> None:
        one = MultiTransport({"mail": transport(server.url)}, transport(server.url))
        other = transport(server.url)
        for _ in range(10):
            waiting = asyncio.create_task(one.receive({IO: 5, MAIL: 5}, 30))
            await asyncio.sleep(0.02)
            sent = envelope(queue="mail")
            await other.send([sent])
            waiting.cancel()
            found: list[str] = []
            with suppress(asyncio.CancelledError):
                found = ids(await waiting)
            while not found:
                new = await other.receive({MAIL: 5}, 10)
                await other.accept(new)
                found = ids(new)
            assert found == [sent.id]
        await one.close()
        await other.close()

    run(scenario)


@needs_server
def test_a_late_answer_is_cut_to_the_room_there_is_now(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()

    async def scenario() -> None:
        one, other = (MultiTransport({}, transport(server.url)) for _ in range(2))
        await one.receive({IO: 4}, 0.0)
        sent = [envelope() for _ in range(4)]
        await other.send(sent)
        server.process.send_signal(signal.SIGSTOP)
        try:
            assert await one.receive({IO: 4}, 0.3) == []
        finally:
            server.process.send_signal(signal.SIGCONT)
        mine = await one.receive({IO: 1}, 10)
        assert len(mine) == 1
        theirs: list[str] = []
        while len(theirs) < 3:
            theirs += ids(await other.receive({IO: 3 - len(theirs)}, 10))
        assert sorted(ids(mine) + theirs) == sorted(each.id for each in sent)
        await one.close()
        await other.close()

    run(scenario)


@needs_server
def test_an_answer_goes_by_the_broker_that_its_question_came_by(
    start_redis: Callable[..., RedisServer],
) -> None:
    first, second = start_redis(), start_redis()

    async def scenario() -> None:
        one = MultiTransport({"mail": transport(second.url)}, transport(first.url))
        document = envelope(headers={"state": "succeeded"})
        await one.reply(
            [
                Reply(ReplyRequest("a", "1"), document, "mail"),
                Reply(ReplyRequest("b", "2"), document),
            ]
        )
        await one.close()
        assert (first.do("KEYS", "*"), second.do("KEYS", "*")) == ([b"b"], [b"a"])

    run(scenario)


@needs_server
def test_jobs_for_a_broker_that_is_down_do_not_delay_other_jobs_in_the_store(
    start_redis: Callable[..., RedisServer], redis: Any, sqlite: Any
) -> None:
    down = start_redis()
    down.stop()

    def gone(namespace: str) -> OpenTransport:
        return lambda lost: RedisTransport(
            RedisAddress(down.url), namespace=namespace, on_lane_missing=lost
        )

    async def scenario() -> None:
        async with open_pair(sqlite(), mapped({"mail": gone}, redis)) as b:
            owner, job_store = await actions.register(b), b.job_store
            both = [actions.envelope(b, queue=q, kind="cpu", unique=q) for q in ("mail", "default")]
            await b.broker.publish(both)
            while await job_store.find_unsent(["default"], 10, 0.0):
                # It has no room for them; whoever fetches relays all the same.
                assert await b.broker.fetch(["mail", "default"], Demand.of(io=1), owner, 0.2) == []
            assert [one.id for one in await job_store.find_unsent(["mail"], 10, 0.0)] == [
                both[0].id
            ]

    run(scenario)


def test_a_demand_covers_jobs_of_the_store_and_of_the_transports(redis: Any, postgres: Any) -> None:
    async def scenario() -> None:
        transport_of = mapped({"mail": redis}, None)
        async with open_pair(postgres(), transport_of, PartialPairBroker) as b:
            owner, done = await actions.register(b), set[str]()
            sent = [actions.envelope(b, queue=("default", "mail")[at % 2]) for at in range(40)]
            await b.broker.publish([one for one in sent if one.queue == "mail"])
            await b.broker.publish([one for one in sent if one.queue == "default"])
            while len(done) < 40:
                found = await b.broker.fetch(["default", "mail"], Demand.of(io=3, cpu=3), owner, 10)
                assert len(found) <= 3
                done |= {one.id for one in found}
            assert done == {one.id for one in sent}

    run(scenario)


# --- applications ----------------------------------------------------------------------------


def test_settings_that_cannot_be_served_are_refused_by_name(tmp_path: Path) -> None:
    file, other = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    with pytest.raises(ConfigurationError, match=r"brokers\['mail'\]=.*both broker and store"):
        Umbel(file, brokers={"mail": other})
    with pytest.raises(ConfigurationError, match=r"broker=.*both broker and store"):
        Umbel(broker=file, store=other)
    with pytest.raises(ConfigurationError, match=r"brokers\['mail'\]="):
        Umbel(file, brokers={"mail": "http://host"})
    with pytest.raises(ConfigurationError, match="brokers: give the URL of a broker"):
        Umbel(file, brokers={"mail": ""})
    with pytest.raises(ConfigurationError, match=r"store=.*nats:// cannot be the store"):
        Umbel(broker=file, store="nats://host")


def test_passwords_of_brokers_are_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = "mail=amqp://me:secret@host,bulk=nats://me:secret@a:4222,b:4222"
    monkeypatch.setenv("UMBEL_BROKERS", pairs)
    app = Umbel("sqlite:///:memory:")
    assert app.settings.brokers == {
        "mail": "amqp://me:secret@host",
        "bulk": "nats://me:secret@a:4222,b:4222",
    }
    assert "secret" not in repr(app.settings.public())
    monkeypatch.setenv("UMBEL_BROKERS", "amqp://me:secret@host")
    with pytest.raises(ConfigurationError, match=r"UMBEL_BROKERS=.*QUEUE=URL") as refused:
        Umbel("sqlite:///:memory:")
    assert "secret" not in str(refused.value)


TASKS = """
from umbel import Umbel

app = Umbel(deadline=20)


@app.task
async def here(n: int) -> int:
    return n


@app.task(queue="mail")
def mail(n: int) -> int:
    return n


@app.task(queue="bulk")
async def bulk(n: int) -> int:
    return n
"""


class Shop:
    """An application with one queue on each broker, and a worker process that serves them all."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
        (folder / "shop.py").write_text(TASKS, encoding="utf-8")
        for name, value in settings.items():
            monkeypatch.setenv(f"UMBEL_{name.upper()}", value)
        spec = importlib.util.spec_from_file_location("shop", folder / "shop.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.app: Umbel = module.app
        self.here, self.mail, self.bulk = module.here, module.mail, module.bulk
        self._folder = folder
        self._worker: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        asyncio.run(self.app.backend.migrate())
        command = [sys.executable, "-m", "umbel", "-A", "shop:app", "worker", "--lease", "3"]
        path = os.pathsep.join([str(self._folder), *sys.path])
        with (self._folder / "worker.log").open("wb") as log:
            self._worker = subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": path}, stdout=log, stderr=log
            )

    def stop(self) -> None:
        self.app.close()
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()


@pytest.fixture
def schema() -> Iterator[str]:
    import psycopg

    name = f"umbel_mapped_{os.getpid()}_{fresh_id()[-6:]}"
    yield f"{POSTGRES_URL}?schema={name}"
    with psycopg.connect(POSTGRES_URL, autocommit=True) as connection:
        connection.execute(f'drop schema if exists "{name}" cascade')


def results(handles: list[Any]) -> list[int]:
    return [handle.get(timeout=60) for handle in handles]


@needs_server
def test_a_worker_serves_three_brokers_and_goes_on_while_one_is_down(
    start_redis: Callable[..., RedisServer],
    nats_server: NatsServer,
    vhost: str,
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = start_redis("--appendonly", "yes", "--appendfsync", "always")
    nats_server.start()
    rabbit = f"amqp://guest:guest@{HOST}:{PORTS['rabbitmq']}/{quote(vhost, safe='')}"
    shop = Shop(
        tmp_path,
        monkeypatch,
        broker=server.url,
        brokers=f"mail={rabbit},bulk=nats://{nats_server.address}",
        store=schema,
        namespace=f"t{fresh_id()[-12:]}",
    )
    try:
        shop.start()
        tasks = (shop.here, shop.mail, shop.bulk)
        assert results([task.delay(n) for n, task in enumerate(tasks * 10)]) == [*range(30)]
        with server.client() as client:
            assert client.exists(f"umbel:{{{shop.app.settings.namespace}}}:stream:io:default")

        nats_server.kill()
        stranded = [shop.bulk.delay(n) for n in range(5)]
        others = [task.delay(n) for n, task in enumerate((shop.here, shop.mail) * 10)]
        assert results(others) == [*range(20)]
        mixed = shop.app.publish_many([shop.here.s(1), shop.bulk.s(2), shop.mail.s(3)])
        assert results([mixed[0], mixed[2]]) == [1, 3]
        relayed = [task.options(unique=task.name).delay(4) for task in (shop.here, shop.mail)]
        assert results(relayed) == [4, 4]
        with pytest.raises(ResultTimeout):
            stranded[0].get(timeout=0.5)
        nats_server.start()
        assert results([*stranded, mixed[1]]) == [0, 1, 2, 3, 4, 2]

        server.stop()
        stranded = [shop.here.delay(n) for n in range(5)]
        others = [task.delay(n) for n, task in enumerate((shop.bulk, shop.mail) * 10)]
        assert results(others) == [*range(20)]
        server.start()
        assert results(stranded) == [*range(5)]
    finally:
        shop.stop()


@needs_server
def test_a_database_keeps_its_queues_and_lends_one_to_a_broker(
    start_redis: Callable[..., RedisServer],
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = start_redis("--appendonly", "yes", "--appendfsync", "always")
    shop = Shop(
        tmp_path,
        monkeypatch,
        broker=schema,
        brokers=f"mail={server.url}",
        namespace=f"t{fresh_id()[-12:]}",
    )
    try:
        shop.start()
        tasks = (shop.here, shop.mail, shop.bulk)
        assert results([task.delay(n) for n, task in enumerate(tasks * 10)]) == [*range(30)]
        keys = f"umbel:{{{shop.app.settings.namespace}}}:stream:"
        with server.client() as client:
            lanes = {key.decode().removeprefix(keys) for key in client.scan_iter(f"{keys}*")}
        assert lanes == {":mail", "io:mail", "cpu:mail"}
        server.stop()
        stranded = [shop.mail.delay(n) for n in range(5)]
        others = [task.delay(n) for n, task in enumerate((shop.here, shop.bulk) * 10)]
        assert results(others) == [*range(20)]
        server.start()
        assert results(stranded) == [*range(5)]
    finally:
        shop.stop()


@needs_server
@pytest.mark.parametrize("books", ["postgres", "sqlite"])
def test_redis_carries_beside_another_store_and_may_lose_all_it_has(
    start_redis: Callable[..., RedisServer],
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    books: str,
) -> None:
    server = start_redis("--appendonly", "no")
    store = schema if books == "postgres" else f"sqlite:///{tmp_path}/books.db"
    shop = Shop(tmp_path, monkeypatch, broker=server.url, store=store)
    try:
        asyncio.run(shop.app.backend.migrate())
        waiting = [shop.here.delay(n) for n in range(20)]
        server.stop()
        server.start()
        shop.start()
        assert results([*waiting, shop.mail.delay(20)]) == [*range(21)]
    finally:
        shop.stop()

"""Several brokers at once: each queue goes by its own, and one that is down stops no other."""

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
import test_nats
import test_redis_transport
from test_nats_server import Machine as NatsMachine
from test_nats_server import machine as machine  # a fixture, as are those below
from test_redis import prefix as prefix
from test_redis_server import Server as RedisMachine
from test_redis_server import needs_server
from test_redis_server import start as start
from test_redis_transport import envelope, ids, told
from test_split import HOST, PORTS, split
from test_split import nats as nats
from test_split import postgres as postgres
from test_split import rabbitmq as rabbitmq
from test_split import redis as redis
from test_split import redis_prefix as redis_prefix
from test_split import sqlite as sqlite
from test_split import vhost as vhost

from chaos.proxy import Proxy
from umbel import Umbel
from umbel.backends import Demand, Lane, Lost, OpenTransport, Transport
from umbel.backends.pairs import MultiTransport, PartialPairBroker
from umbel.backends.redis.address import Home
from umbel.backends.redis.transport import RedisTransport
from umbel.backends.transport import Reply
from umbel.errors import ConfigurationError, ResultTimeout, Unavailable
from umbel.messages import fresh_id
from umbel.messages.documents import Asked
from umbel.testing import Backends, acts
from umbel.testing.brokers import BrokerSuite
from umbel.testing.transports import Server, Servers, TransportSuite

IO, MAIL = Lane("default", "io"), Lane("mail", "io")
NOWHERE = "redis://127.0.0.1:1"


# --- the suites ------------------------------------------------------------------------------


@asynccontextmanager
async def pair(most: Any, one: Any) -> AsyncIterator[Server]:
    """Two servers: of the second there is one queue."""
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
    """The queue ``mail`` goes by NATS."""

    @pytest.fixture
    def server(self, prefix: str) -> Iterator[Servers]:
        most, one = Proxy(PORTS["redis"], seed=0), Proxy(PORTS["nats"], seed=0)
        yield lambda: pair(
            test_redis_transport.corner(f"{prefix}{fresh_id()[-12:]}", most), test_nats.corner(one)
        )
        most.close()
        one.close()


class TestNatsWithRedis(TransportSuite):
    """The queue ``mail`` goes by Redis."""

    @pytest.fixture
    def server(self, prefix: str) -> Iterator[Servers]:
        most, one = Proxy(PORTS["nats"], seed=0), Proxy(PORTS["redis"], seed=0)
        yield lambda: pair(
            test_nats.corner(most), test_redis_transport.corner(f"{prefix}{fresh_id()[-12:]}", one)
        )
        most.close()
        one.close()


def mapped(named: Mapping[str, Any], rest: Any) -> Callable[[str], OpenTransport]:
    """Queues by what carries them; None: nothing does."""

    def carry(namespace: str) -> OpenTransport:
        def opened(lost: Lost) -> Transport:
            made: dict[Any, Transport | None] = {None: None}
            for one in (*named.values(), rest):
                if one not in made:
                    made[one] = one(namespace)(lost)
            return MultiTransport({queue: made[one] for queue, one in named.items()}, made[rest])

        return opened

    return carry


class TestThreeBrokersAndPostgres(BrokerSuite):
    @pytest.fixture
    def backend(self, redis: Any, nats: Any, rabbitmq: Any, postgres: Any) -> Backends:
        carry = mapped({"mail": nats, "other": rabbitmq}, redis)
        return lambda: split(postgres(), carry)


class TestPostgresItselfAndRedisForSome(BrokerSuite):
    """Most queues stay in the books."""

    @pytest.fixture
    def backend(self, redis: Any, postgres: Any) -> Backends:
        carry = mapped({"mail": redis, "other": redis}, None)
        return lambda: split(postgres(), carry, PartialPairBroker)


class TestNatsAndSqliteItselfForSome(BrokerSuite):
    """Some queues stay in the books."""

    @pytest.fixture
    def backend(self, nats: Any, sqlite: Any) -> Backends:
        carry = mapped({"mail": None, "other": None}, nats)
        return lambda: split(sqlite(), carry, PartialPairBroker)


# --- one that is down ------------------------------------------------------------------------


def transport(url: str, namespace: str = "n") -> RedisTransport:
    return RedisTransport(Home(url), namespace=namespace, lost=str, life=2.0)


async def receive_surely(one: Transport, room: Mapping[Lane, int], wanted: set[str]) -> None:
    found: set[str] = set()
    while not found >= wanted:
        with suppress(Unavailable):
            new = await one.receive(room, 1.0)
            await one.accept(new)
            found |= {*ids(new)}


@needs_server
def test_one_that_is_down_keeps_nobody_from_the_others(start: Callable[..., RedisMachine]) -> None:
    up, down = start(), start()

    async def tale() -> None:
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
                one.nudge()
                await waiting
        up.stop()
        down.stop()
        with pytest.raises(Unavailable):
            await one.receive({IO: 5, MAIL: 5}, 10)
        await one.close()

    told(tale)


@needs_server
def test_one_that_is_frozen_delays_the_others_by_a_moment_and_loses_nothing(
    start: Callable[..., RedisMachine],
) -> None:
    up, frozen = start(), start()

    async def tale() -> None:
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

    told(tale)


@needs_server
def test_what_came_when_nobody_asked_any_more_goes_back(start: Callable[..., RedisMachine]) -> None:
    server = start()

    async def tale() -> None:
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

    told(tale)


@needs_server
def test_a_late_answer_is_cut_to_the_room_there_is_now(start: Callable[..., RedisMachine]) -> None:
    server = start()

    async def tale() -> None:
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

    told(tale)


@needs_server
def test_an_answer_goes_by_the_broker_that_its_question_came_by(
    start: Callable[..., RedisMachine],
) -> None:
    first, second = start(), start()

    async def tale() -> None:
        one = MultiTransport({"mail": transport(second.url)}, transport(first.url))
        document = envelope(headers={"state": "succeeded"})
        await one.reply(
            [Reply(Asked("a", "1"), document, "mail"), Reply(Asked("b", "2"), document)]
        )
        await one.close()
        assert (first.do("KEYS", "*"), second.do("KEYS", "*")) == ([b"b"], [b"a"])

    told(tale)


@needs_server
def test_what_waits_for_a_broker_that_is_down_keeps_nothing_else_in_the_books(
    start: Callable[..., RedisMachine], redis: Any, sqlite: Any
) -> None:
    down = start()
    down.stop()

    def gone(namespace: str) -> OpenTransport:
        return lambda lost: RedisTransport(Home(down.url), namespace=namespace, lost=lost)

    async def tale() -> None:
        async with split(sqlite(), mapped({"mail": gone}, redis)) as b:
            owner, ledger = await acts.enlist(b), b.broker._ledger  # type: ignore[attr-defined]
            both = [acts.envelope(b, queue=q, kind="cpu", unique=q) for q in ("mail", "default")]
            await b.broker.publish(both)
            while await ledger.unsent(["default"], 10, 0.0):
                # It has no room for them; whoever fetches relays all the same.
                assert await b.broker.fetch(["mail", "default"], Demand(1, 0), owner, 0.2) == []
            assert [one.id for one in await ledger.unsent(["mail"], 10, 0.0)] == [both[0].id]

    told(tale)


def test_a_demand_covers_what_is_kept_and_what_is_carried(redis: Any, postgres: Any) -> None:
    async def tale() -> None:
        carry = mapped({"mail": redis}, None)
        async with split(postgres(), carry, PartialPairBroker) as b:
            owner, done = await acts.enlist(b), set[str]()
            sent = [acts.envelope(b, queue=("default", "mail")[at % 2]) for at in range(40)]
            await b.broker.publish([one for one in sent if one.queue == "mail"])
            await b.broker.publish([one for one in sent if one.queue == "default"])
            while len(done) < 40:
                found = await b.broker.fetch(["default", "mail"], Demand(3, 3), owner, 10)
                assert len(found) <= 3
                done |= {one.id for one in found}
            assert done == {one.id for one in sent}

    told(tale)


# --- applications ----------------------------------------------------------------------------


def test_settings_that_cannot_be_served_are_refused_by_name(tmp_path: Path) -> None:
    file, other = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    with pytest.raises(ConfigurationError, match=r"brokers\['mail'\]=.*broker and store in one"):
        Umbel(file, brokers={"mail": other})
    with pytest.raises(ConfigurationError, match=r"broker=.*broker and store in one"):
        Umbel(broker=file, store=other)
    with pytest.raises(ConfigurationError, match=r"brokers\['mail'\]="):
        Umbel(file, brokers={"mail": "http://host"})
    with pytest.raises(ConfigurationError, match="brokers: give the URL of a broker"):
        Umbel(file, brokers={"mail": ""})
    with pytest.raises(ConfigurationError, match=r"store=.*keeps no records"):
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
    from test_postgres import URL

    name = f"umbel_mapped_{os.getpid()}_{fresh_id()[-6:]}"
    yield f"{URL}?schema={name}"
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute(f'drop schema if exists "{name}" cascade')


def results(handles: list[Any]) -> list[int]:
    return [handle.get(timeout=60) for handle in handles]


@needs_server
def test_a_worker_serves_three_brokers_and_goes_on_while_one_is_down(
    start: Callable[..., RedisMachine],
    machine: NatsMachine,
    vhost: str,
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = start("--appendonly", "yes", "--appendfsync", "always")
    machine.start()
    rabbit = f"amqp://guest:guest@{HOST}:{PORTS['rabbitmq']}/{quote(vhost, safe='')}"
    shop = Shop(
        tmp_path,
        monkeypatch,
        broker=server.url,
        brokers=f"mail={rabbit},bulk=nats://{machine.place}",
        store=schema,
        namespace=f"t{fresh_id()[-12:]}",
    )
    try:
        shop.start()
        tasks = (shop.here, shop.mail, shop.bulk)
        assert results([task.delay(n) for n, task in enumerate(tasks * 10)]) == [*range(30)]
        with server.client() as client:
            assert client.exists(f"umbel:{{{shop.app.settings.namespace}}}:stream:io:default")

        machine.kill()
        stranded = [shop.bulk.delay(n) for n in range(5)]
        others = [task.delay(n) for n, task in enumerate((shop.here, shop.mail) * 10)]
        assert results(others) == [*range(20)]
        mixed = shop.app.publish_many([shop.here.s(1), shop.bulk.s(2), shop.mail.s(3)])
        assert results([mixed[0], mixed[2]]) == [1, 3]
        relayed = [task.options(unique=task.name).delay(4) for task in (shop.here, shop.mail)]
        assert results(relayed) == [4, 4]
        with pytest.raises(ResultTimeout):
            stranded[0].get(timeout=0.5)
        machine.start()
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
    start: Callable[..., RedisMachine],
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = start("--appendonly", "yes", "--appendfsync", "always")
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
    start: Callable[..., RedisMachine],
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    books: str,
) -> None:
    server = start("--appendonly", "no")
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

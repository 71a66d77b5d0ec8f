"""The transport's suite over Redis, through a proxy; and what only servers of its own can show."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from test_redis import URL
from test_redis import prefix as prefix  # a fixture
from test_redis_server import Server as Machine
from test_redis_server import needs_server
from test_redis_server import start as start  # a fixture

from chaos.proxy import Proxy
from umbel.backends import Lane, Transport
from umbel.backends.redis.address import Home
from umbel.backends.redis.connections import ask
from umbel.backends.redis.database import Database
from umbel.backends.redis.transport import RedisTransport
from umbel.backends.transport import Reply
from umbel.errors import ConfigurationError, MessageTooLarge, Unavailable
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.messages.documents import Asked
from umbel.messages.wire import MEDIA_TYPE, read
from umbel.testing.transports import Server, Servers, TransportSuite, by_queue
from umbel.testing.transports.server import Asker, Heard

redis = pytest.importorskip("redis")

HOST, PORT = "127.0.0.1", int(URL.rpartition(":")[2].partition("/")[0])
LIFE = 1.0
"""Seconds that a sign of life holds: short, for tests that wait for its end."""
IO, CPU = Lane("default", "io"), Lane("default", "cpu")


def stream(namespace: str, lane: Lane) -> str:
    return f"umbel:{{{namespace}}}:stream:{lane.kind}:{lane.queue}"


@asynccontextmanager
async def opened(
    url: str, namespace: str, lost: list[str] | None = None, life: float = LIFE
) -> AsyncIterator[RedisTransport]:
    """A transport, closed afterwards."""
    told = [] if lost is None else lost
    transport = RedisTransport(Home(url), namespace=namespace, lost=by_queue(told), life=life)
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def corner(namespace: str, proxy: Proxy) -> AsyncIterator[Server]:
    """A corner of the server for one test."""
    lost: list[str] = []
    url = f"redis://{HOST}:{proxy.port}"
    with redis.Redis.from_url(URL) as client:

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
            open=lambda: opened(url, namespace, lost),
            cut=cut,
            drop=drop,
            put=put,
            asker=lambda: asker(client, f"{namespace}:answers:{fresh_id()}"),
            lost=lost,
        )


@asynccontextmanager
async def asker(client: Any, address: str) -> AsyncIterator[Asker]:
    """Somebody with redis-py who looks into a list."""

    async def hear() -> Heard:
        while (document := client.lpop(address)) is None:
            await asyncio.sleep(0.02)
        correlation = read(document).headers.get("correlationid")
        return Heard({}, MEDIA_TYPE, document, correlation)

    yield Asker(address=address, hear=hear)
    client.delete(address)


class TestRedis(TransportSuite):
    """One server."""

    @pytest.fixture
    def server(self, prefix: str) -> Iterator[Servers]:
        proxy = Proxy(PORT, seed=0)
        yield lambda: corner(f"{prefix}{fresh_id()[-12:]}", proxy)
        proxy.close()


class TestRedisOnUvloop(TestRedis):
    """The same on the other event loop."""

    @pytest.fixture(autouse=True)
    def _on_uvloop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        uvloop = pytest.importorskip("uvloop")
        monkeypatch.setattr(asyncio, "run", uvloop.run)


def envelope(**fields: Any) -> Envelope:
    body = Body(JSON, b'{"args": [], "kwargs": {}}')
    return Envelope(**{"id": fresh_id(), "subject": "t", "kind": "io", "body": body, **fields})


def ids(arrivals: list[Any]) -> list[str]:
    return [one.id for one in arrivals]


def told(tale: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def tell() -> None:
        async with asyncio.timeout(60):
            await tale()

    asyncio.run(tell())


async def surely(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Again for as long as the server is out of reach."""
    while True:
        try:
            return await work()
        except Unavailable:
            await asyncio.sleep(0.05)


# --- who lives and who does not --------------------------------------------------------------

HOLDER = """
import asyncio, sys
from umbel.backends import Lane
from umbel.backends.redis.transport import RedisTransport
from umbel.backends.redis.address import Home

async def main():
    url, namespace, life = sys.argv[1:]
    transport = RedisTransport(Home(url), namespace=namespace, lost=print, life=float(life))
    found = await transport.receive({Lane("default", "io"): 10}, 20)
    print("holds", *(one.id for one in found), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def holder(url: str, namespace: str, life: float) -> subprocess.Popen[str]:
    """A process that receives what there is, and does nothing with it."""
    command = [sys.executable, "-c", HOLDER, url, namespace, str(life)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def holds(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("holds"):
            return line.split()[1:]
    return []


def test_what_a_killed_process_had_received_goes_to_others(prefix: str) -> None:
    async def tale() -> None:
        namespace = f"{prefix}{fresh_id()[-12:]}"
        async with opened(URL, namespace) as one:
            sent = [envelope() for _ in range(3)]
            await one.send(sent)
            process = await asyncio.to_thread(holder, URL, namespace, LIFE)
            try:
                assert await asyncio.to_thread(holds, process) == [each.id for each in sent]
                assert await one.receive({IO: 10}, 0.0) == []
            finally:
                process.kill()
                process.wait()
            found: list[str] = []
            while len(found) < 3:
                new = await one.receive({IO: 10}, 20)
                await one.accept(new)
                found += ids(new)
            assert found == [each.id for each in sent]
        with redis.Redis.from_url(URL) as client:
            consumers = client.xinfo_consumers(stream(namespace, IO), "umbel")
            assert {one["name"] for one in consumers} <= {b"-"}, "the dead are forgotten"
            assert client.xlen(stream(namespace, IO)) == 0

    told(tale)


def test_nobody_takes_what_a_living_receiver_has_for_long(prefix: str) -> None:
    async def tale() -> None:
        namespace = f"{prefix}{fresh_id()[-12:]}"
        async with opened(URL, namespace) as one, opened(URL, namespace) as other:
            sent = envelope()
            await one.send([sent])
            held = await one.receive({IO: 10}, 10)
            # Several times the life of a sign, in which the other looks for the dead.
            assert await other.receive({IO: 10}, 4 * LIFE) == []
            await one.release(held)
            found = await other.receive({IO: 10}, 10)
            assert ids(held) == ids(found) == [sent.id]
            await other.accept(found)

    told(tale)


def test_what_was_accepted_is_gone_from_the_server_soon_without_another_receive(
    prefix: str,
) -> None:
    async def tale() -> None:
        namespace = f"{prefix}{fresh_id()[-12:]}"
        async with opened(URL, namespace) as one:
            await one.send([envelope()])
            await one.accept(await one.receive({IO: 10}, 10))
            with redis.Redis.from_url(URL) as client:
                while client.xlen(stream(namespace, IO)):
                    await asyncio.sleep(0.05)
                assert client.xpending(stream(namespace, IO), "umbel")["pending"] == 0

    told(tale)


def test_what_a_lost_connection_had_brought_comes_again_long_before_its_name_expires(
    prefix: str,
) -> None:
    async def tale() -> None:
        namespace, proxy = f"{prefix}{fresh_id()[-12:]}", Proxy(PORT, seed=0)
        async with opened(f"redis://{HOST}:{proxy.port}", namespace, life=3600.0) as one:
            sent = [envelope() for _ in range(3)]
            await one.send(sent)
            assert len(await one.receive({IO: 10}, 10)) == 3
            await asyncio.to_thread(proxy.cut)
            found = await surely(lambda: one.receive({IO: 10}, 10))
            assert ids(found) == [each.id for each in sent]
            await one.accept(found)
        await asyncio.to_thread(proxy.close)

    told(tale)


@pytest.mark.parametrize("runner", ["asyncio", "uvloop"])
def test_an_idle_connection_that_was_cut_is_replaced_without_a_word(runner: str) -> None:
    proxy = Proxy(PORT, seed=0)

    async def tale() -> None:
        database = Database(Home(f"redis://{HOST}:{proxy.port}"))
        for _ in range(3):
            assert await database.ask("PING") == b"PONG"
            assert await asyncio.to_thread(proxy.cut) == 1
            await asyncio.sleep(0.05)
        await database.close()

    pytest.importorskip(runner).run(tale())
    proxy.close()


@pytest.mark.parametrize("runner", ["asyncio", "uvloop"])
def test_a_line_that_closes_while_something_is_said_is_an_error_like_any_other(
    runner: str,
) -> None:
    async def tale() -> None:
        database = Database(Home(URL))

        async def work(connection: Any) -> Any:
            connection._writer.transport.abort()
            await asyncio.sleep(0.05)
            return await ask(connection, "PING")

        with pytest.raises(Unavailable):
            await database.use(work)
        assert await database.ask("PING") == b"PONG"
        await database.close()

    pytest.importorskip(runner).run(tale())


def test_a_life_that_is_no_time_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="life=0"):
        RedisTransport(Home(URL), namespace="n", lost=str, life=0)


# --- servers of its own ----------------------------------------------------------------------


@needs_server
def test_a_batch_is_one_call_each_way_and_accepting_none_of_its_own(
    start: Callable[..., Machine],
) -> None:
    server = start()

    def calls() -> int:
        with server.client() as client:
            found = client.info("commandstats")
        return sum(found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))

    async def tale() -> None:
        async with opened(server.url, "n", life=60.0) as one:
            for _ in range(2):
                await one.send([envelope() for _ in range(500)])
                await one.accept(await one.receive({IO: 500, CPU: 500}, 10))
            before = calls()
            await one.send([envelope(kind=("io", "cpu")[at % 2]) for at in range(1000)])
            found = await one.receive({IO: 500, CPU: 500}, 10)
            await one.accept(found)
            assert (len(found), calls() - before) == (1000, 2)
            server.do("SCRIPT", "FLUSH")
            await one.send([envelope()])
            server.do("SCRIPT", "FLUSH")
            assert len(await one.receive({IO: 5}, 10)) == 1

    told(tale)


@needs_server
def test_a_flushed_server_is_told_and_serves_on(start: Callable[..., Machine]) -> None:
    server, lost = start(), list[str]()

    async def tale() -> None:
        async with opened(server.url, "n", lost) as one, opened(server.url, "n") as sender:
            await sender.send([envelope() for _ in range(3)])
            held = await one.receive({IO: 1}, 10)
            lost.clear()
            server.do("FLUSHALL")
            assert await one.receive({IO: 10, CPU: 10}, 0.0) == []
            assert set(lost) == {"default"}
            await one.accept(held)
            await one.release(held)
            sent = envelope()
            await sender.send([sent])
            assert ids(await one.receive({IO: 10}, 10)) == [sent.id]

    told(tale)


@needs_server
def test_a_server_that_forgot_the_last_second_is_told_though_its_streams_are_there(
    start: Callable[..., Machine],
) -> None:
    server, lost = start("--appendonly", "no"), list[str]()

    async def tale() -> None:
        async with opened(server.url, "n", lost) as one:
            kept, forgotten, later = envelope(), envelope(), envelope()
            await one.send([kept])
            assert await one.receive({CPU: 1}, 0.0) == []
            server.do("SAVE")
            await one.send([forgotten])
            lost.clear()
            server.stop()
            server.start()
            await surely(lambda: one.send([later]))
            assert lost == []
            found = await surely(lambda: one.receive({IO: 10}, 10))
            assert ids(found) == [kept.id, later.id]
            await one.accept(found)
            assert lost == ["default"]
            await one.receive({IO: 10}, 2 * LIFE)
            assert lost == ["default"], "once is enough"

    told(tale)


@needs_server
def test_a_server_that_is_killed_and_started_again_loses_nothing_confirmed(
    start: Callable[..., Machine],
) -> None:
    server = start("--appendonly", "yes", "--appendfsync", "always")
    confirmed, received, over = set[str](), set[str](), asyncio.Event()

    async def sending(one: Transport) -> None:
        while not over.is_set():
            batch = [envelope() for _ in range(20)]
            with suppress(Unavailable):
                await one.send(batch)
                confirmed.update(each.id for each in batch)
            await asyncio.sleep(0.01)

    async def receiving(one: Transport) -> None:
        while not (over.is_set() and received >= confirmed):
            found = await surely(lambda: one.receive({IO: 50}, 0.5))
            await one.accept(found)
            received.update(ids(found))

    async def tale() -> None:
        async with (
            opened(server.url, "n") as one,
            opened(server.url, "n") as sender,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(receiving(one))
            sends = group.create_task(sending(sender))
            for _ in range(3):
                before = len(confirmed)
                while len(confirmed) < before + 200:
                    await asyncio.sleep(0.02)
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)
            over.set()
            await sends

    told(tale)


@needs_server
def test_a_full_server_takes_nothing_new_but_gives_what_it_has(
    start: Callable[..., Machine],
) -> None:
    server = start("--maxmemory-policy", "noeviction")

    async def tale() -> None:
        async with opened(server.url, "n") as one:
            sent = envelope()
            await one.send([sent])
            server.do("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(Unavailable, match="raise maxmemory"):
                await one.send([envelope()])
            found = await one.receive({IO: 10}, 10)
            assert ids(found) == [sent.id]
            await one.release(found)
            found = await one.receive({IO: 10}, 10)
            await one.accept(found)
            assert await one.receive({IO: 10}, 0.0) == []
            server.do("CONFIG", "SET", "maxmemory", "0")
            await one.send([envelope()])

    told(tale)


@needs_server
def test_it_works_on_a_cluster(start: Callable[..., Machine]) -> None:
    server = start("--cluster-enabled", "yes")
    server.do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)

    async def tale() -> None:
        async with opened(server.url, "n") as one, opened(server.url, "n") as other:
            waiting = asyncio.create_task(surely(lambda: other.receive({IO: 5, CPU: 5}, 30)))
            sent = envelope()
            await surely(lambda: one.send([sent]))
            found = await waiting
            assert ids(found) == [sent.id]
            await other.release(found)
            await one.purge("default")
            assert await one.receive({IO: 5}, 0.0) == []
            with server.client() as client:
                keys = client.keys("*")
                slots = {client.execute_command("CLUSTER", "KEYSLOT", key) for key in keys}
            assert len(keys) > 3
            assert len(slots) == 1, "on one node of a cluster, whichever it is"

    told(tale)


@needs_server
def test_a_restricted_user_is_served_and_one_without_the_keys_told_what_to_grant(
    start: Callable[..., Machine],
) -> None:
    server = start()
    rights = ("+@read", "+@write", "+@scripting", "+@pubsub", "+@connection")
    server.do("ACL", "SETUSER", "anna", "on", ">x", "~umbel:*", "&umbel:*", *rights)
    server.do("ACL", "SETUSER", "bert", "on", ">x", "~other:*", "+@all")
    place = f"127.0.0.1:{server.port}"

    async def tale() -> None:
        async with opened(f"redis://anna:x@{place}", "n") as one:
            await one.send([envelope()])
            found = await one.receive({IO: 5}, 10)
            assert len(found) == 1
            await one.accept(found)
        async with opened(f"redis://bert:x@{place}", "n") as other:
            with pytest.raises(ConfigurationError, match="umbel:"):
                await other.send([envelope()])

    told(tale)


def test_a_stream_of_another_kind_is_named(prefix: str) -> None:
    async def tale() -> None:
        namespace = f"{prefix}{fresh_id()[-12:]}"
        with redis.Redis.from_url(URL) as client:
            client.set(stream(namespace, IO), "mine")
        async with opened(URL, namespace) as one:
            for call in (one.send([envelope()]), one.receive({IO: 1}, 10)):
                with pytest.raises(Unavailable, match="delete that key"):
                    await call

    told(tale)


def test_a_batch_of_large_messages_goes_in_several_steps(prefix: str) -> None:
    async def tale() -> None:
        async with opened(URL, f"{prefix}{fresh_id()[-12:]}") as one:
            sent = [envelope(body=Body(JSON, b"1" * 3_000_000)) for _ in range(7)]
            await one.send(sent)
            found: list[str] = []
            while len(found) < 7:
                new = await one.receive({IO: 7}, 10)
                await one.accept(new)
                found += ids(new)
            assert found == [each.id for each in sent]
            with pytest.raises(MessageTooLarge, match="over Redis"):
                await one.send([envelope(body=Body(JSON, b"1" * (one.limit + 1)))])

    told(tale)


# --- strangers and replies -------------------------------------------------------------------


def test_a_whole_event_in_one_field_is_understood(prefix: str) -> None:
    async def tale() -> None:
        namespace = f"{prefix}{fresh_id()[-12:]}"
        async with opened(URL, namespace) as one:
            job = fresh_id()
            event = (
                '{"specversion": "1.0", "type": "umbel.command", "source": "/x", "subject": "t",'
                f' "id": "{job}", "data": {{"args": [1]}}}}'
            )
            with redis.Redis.from_url(URL) as client:
                client.xadd(stream(namespace, IO), {"data": event})
            (arrival,) = await one.receive({IO: 5}, 10)
            assert read(arrival.data).id == job
            assert arrival.read().content_type == "application/cloudevents+json"
            await one.accept([arrival])

    told(tale)


def test_a_reply_is_added_to_the_list_that_was_named_and_kept_for_an_hour(prefix: str) -> None:
    async def tale() -> None:
        namespace = f"{prefix}{fresh_id()[-12:]}"
        address, own = f"umbel:answers:{namespace}", stream(namespace, IO)
        foreign = "umbel:{" + namespace + "-other}:unique"
        with redis.Redis.from_url(URL) as client:
            client.set(f"{address}:text", "not a list")
            async with opened(URL, namespace) as one:
                await one.send([envelope()])
                documents = [envelope(headers={"state": "succeeded"}) for _ in range(2)]
                places = [(address, document) for document in documents]
                places += [(where, documents[0]) for where in (f"{address}:text", own, foreign)]
                await one.reply([Reply(Asked(where, "1"), what) for where, what in places])
            found = [read(data) for data in client.lrange(address, 0, -1)]
            assert found == documents
            assert 3500 < client.ttl(address) <= 3600
            assert client.get(f"{address}:text") == b"not a list"
            assert client.xlen(own) == 1
            assert not client.exists(foreign)
            client.delete(address, f"{address}:text")

    told(tale)

"""The transport's suite over Redis, through a proxy, and tests with servers of their own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from local_servers import HOST, REDIS_URL
from redis_server import RedisServer, needs_server
from redis_transports import (
    RECEIVER_TTL,
    envelope,
    ids,
    open_transport,
    redis_corner,
    retry_until_available,
    run,
    stream,
)

from chaos.proxy import Proxy
from umbel.backends import Lane, Transport
from umbel.backends.redis.address import RedisAddress
from umbel.backends.redis.connections import execute
from umbel.backends.redis.database import Database
from umbel.backends.redis.transport import RedisTransport
from umbel.backends.transport import Reply
from umbel.errors import ConfigurationError, MessageTooLarge, Unavailable
from umbel.messages import JSON, Body, fresh_id
from umbel.messages.documents import ReplyRequest
from umbel.messages.wire import read
from umbel.testing.transports import OpenServer, TransportSuite

pytest.importorskip("redis")

import redis

PORT = int(REDIS_URL.rpartition(":")[2].partition("/")[0])
IO, CPU = Lane("default", "io"), Lane("default", "cpu")


class TestRedis(TransportSuite):
    """One server."""

    @pytest.fixture
    def server(self, redis_prefix: str) -> Iterator[OpenServer]:
        proxy = Proxy(PORT, seed=0)
        yield lambda: redis_corner(f"{redis_prefix}{fresh_id()[-12:]}", proxy)
        proxy.close()


class TestRedisOnUvloop(TestRedis):
    """The suite on uvloop."""

    @pytest.fixture(autouse=True)
    def _on_uvloop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        uvloop = pytest.importorskip("uvloop")
        monkeypatch.setattr(asyncio, "run", uvloop.run)


# --- who lives and who does not --------------------------------------------------------------

HOLDER = """
import asyncio, sys
from umbel.backends import Lane
from umbel.backends.redis.transport import RedisTransport
from umbel.backends.redis.address import RedisAddress

async def main():
    url, namespace, life = sys.argv[1:]
    address, ttl = RedisAddress(url), float(life)
    transport = RedisTransport(
        address, namespace=namespace, on_lane_missing=print, receiver_ttl=ttl
    )
    found = await transport.receive({Lane("default", "io"): 10}, 20)
    print("holds", *(one.id for one in found), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def holder(url: str, namespace: str, life: float) -> subprocess.Popen[str]:
    """Start a process that receives all messages, and does not accept them."""
    command = [sys.executable, "-c", HOLDER, url, namespace, str(life)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def holds(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("holds"):
            return line.split()[1:]
    return []


def test_what_a_killed_process_had_received_goes_to_others(redis_prefix: str) -> None:
    async def transport_test() -> None:
        namespace = f"{redis_prefix}{fresh_id()[-12:]}"
        async with open_transport(REDIS_URL, namespace) as one:
            sent = [envelope() for _ in range(3)]
            await one.send(sent)
            process = await asyncio.to_thread(holder, REDIS_URL, namespace, RECEIVER_TTL)
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
        with redis.Redis.from_url(REDIS_URL) as client:
            consumers = client.xinfo_consumers(stream(namespace, IO), "umbel")
            assert {one["name"] for one in consumers} <= {b"-"}, "the dead are forgotten"
            assert client.xlen(stream(namespace, IO)) == 0

    run(transport_test)


def test_no_receiver_takes_messages_that_a_live_receiver_holds_for_long(redis_prefix: str) -> None:
    async def transport_test() -> None:
        namespace = f"{redis_prefix}{fresh_id()[-12:]}"
        async with (
            open_transport(REDIS_URL, namespace) as one,
            open_transport(REDIS_URL, namespace) as other,
        ):
            sent = envelope()
            await one.send([sent])
            held = await one.receive({IO: 10}, 10)
            # Several times the life of a sign, in which the other looks for the dead.
            assert await other.receive({IO: 10}, 4 * RECEIVER_TTL) == []
            await one.release(held)
            found = await other.receive({IO: 10}, 10)
            assert ids(held) == ids(found) == [sent.id]
            await other.accept(found)

    run(transport_test)


def test_what_was_accepted_is_gone_from_the_server_soon_without_another_receive(
    redis_prefix: str,
) -> None:
    async def transport_test() -> None:
        namespace = f"{redis_prefix}{fresh_id()[-12:]}"
        async with open_transport(REDIS_URL, namespace) as one:
            await one.send([envelope()])
            await one.accept(await one.receive({IO: 10}, 10))
            with redis.Redis.from_url(REDIS_URL) as client:
                while client.xlen(stream(namespace, IO)):
                    await asyncio.sleep(0.05)
                assert client.xpending(stream(namespace, IO), "umbel")["pending"] == 0

    run(transport_test)


def test_what_a_lost_connection_had_brought_comes_again_long_before_its_name_expires(
    redis_prefix: str,
) -> None:
    async def transport_test() -> None:
        namespace, proxy = f"{redis_prefix}{fresh_id()[-12:]}", Proxy(PORT, seed=0)
        async with open_transport(
            f"redis://{HOST}:{proxy.port}", namespace, receiver_ttl=3600.0
        ) as one:
            sent = [envelope() for _ in range(3)]
            await one.send(sent)
            assert len(await one.receive({IO: 10}, 10)) == 3
            await asyncio.to_thread(proxy.cut)
            found = await retry_until_available(lambda: one.receive({IO: 10}, 10))
            assert ids(found) == [each.id for each in sent]
            await one.accept(found)
        await asyncio.to_thread(proxy.close)

    run(transport_test)


@pytest.mark.parametrize("runner", ["asyncio", "uvloop"])
def test_an_idle_connection_that_was_cut_is_replaced_without_a_word(runner: str) -> None:
    proxy = Proxy(PORT, seed=0)

    async def transport_test() -> None:
        database = Database(RedisAddress(f"redis://{HOST}:{proxy.port}"))
        for _ in range(3):
            assert await database.execute("PING") == b"PONG"
            assert await asyncio.to_thread(proxy.cut) == 1
            await asyncio.sleep(0.05)
        await database.close()

    pytest.importorskip(runner).run(transport_test())
    proxy.close()


@pytest.mark.parametrize("runner", ["asyncio", "uvloop"])
def test_a_connection_that_closes_during_a_command_is_an_error_like_any_other(
    runner: str,
) -> None:
    async def transport_test() -> None:
        database = Database(RedisAddress(REDIS_URL))

        async def work(connection: Any) -> Any:
            connection._writer.transport.abort()
            await asyncio.sleep(0.05)
            return await execute(connection, "PING")

        with pytest.raises(Unavailable):
            await database.with_connection(work)
        assert await database.execute("PING") == b"PONG"
        await database.close()

    pytest.importorskip(runner).run(transport_test())


def test_a_time_to_live_that_is_no_duration_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="receiver_ttl=0"):
        RedisTransport(RedisAddress(REDIS_URL), namespace="n", on_lane_missing=str, receiver_ttl=0)


# --- servers of its own ----------------------------------------------------------------------


@needs_server
def test_a_batch_is_one_call_each_way_and_accepting_none_of_its_own(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()

    def calls() -> int:
        with server.client() as client:
            found = client.info("commandstats")
        return sum(found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))

    async def transport_test() -> None:
        async with open_transport(server.url, "n", receiver_ttl=60.0) as one:
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

    run(transport_test)


@needs_server
def test_a_flushed_server_is_reported_and_used_further(
    start_redis: Callable[..., RedisServer],
) -> None:
    server, lost = start_redis(), list[str]()

    async def transport_test() -> None:
        async with (
            open_transport(server.url, "n", lost) as one,
            open_transport(server.url, "n") as sender,
        ):
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

    run(transport_test)


@needs_server
def test_a_server_that_lost_the_last_second_is_reported_although_its_streams_exist(
    start_redis: Callable[..., RedisServer],
) -> None:
    server, lost = start_redis("--appendonly", "no"), list[str]()

    async def transport_test() -> None:
        async with open_transport(server.url, "n", lost) as one:
            kept, forgotten, later = envelope(), envelope(), envelope()
            await one.send([kept])
            assert await one.receive({CPU: 1}, 0.0) == []
            server.do("SAVE")
            await one.send([forgotten])
            lost.clear()
            server.stop()
            server.start()
            await retry_until_available(lambda: one.send([later]))
            assert lost == []
            found = await retry_until_available(lambda: one.receive({IO: 10}, 10))
            assert ids(found) == [kept.id, later.id]
            await one.accept(found)
            assert lost == ["default"]
            await one.receive({IO: 10}, 2 * RECEIVER_TTL)
            assert lost == ["default"], "once is enough"

    run(transport_test)


@needs_server
def test_a_server_that_is_killed_and_started_again_loses_nothing_confirmed(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis("--appendonly", "yes", "--appendfsync", "always")
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
            found = await retry_until_available(lambda: one.receive({IO: 50}, 0.5))
            await one.accept(found)
            received.update(ids(found))

    async def transport_test() -> None:
        async with (
            open_transport(server.url, "n") as one,
            open_transport(server.url, "n") as sender,
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

    run(transport_test)


@needs_server
def test_a_full_server_takes_nothing_new_but_gives_what_it_has(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis("--maxmemory-policy", "noeviction")

    async def transport_test() -> None:
        async with open_transport(server.url, "n") as one:
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

    run(transport_test)


@needs_server
def test_it_works_on_a_cluster(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis("--cluster-enabled", "yes")
    server.do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)

    async def transport_test() -> None:
        async with open_transport(server.url, "n") as one, open_transport(server.url, "n") as other:
            waiting = asyncio.create_task(
                retry_until_available(lambda: other.receive({IO: 5, CPU: 5}, 30))
            )
            sent = envelope()
            await retry_until_available(lambda: one.send([sent]))
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

    run(transport_test)


@needs_server
def test_a_restricted_user_is_served_and_one_without_the_keys_learns_what_to_grant(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    rights = ("+@read", "+@write", "+@scripting", "+@pubsub", "+@connection")
    server.do("ACL", "SETUSER", "anna", "on", ">x", "~umbel:*", "&umbel:*", *rights)
    server.do("ACL", "SETUSER", "bert", "on", ">x", "~other:*", "+@all")
    place = f"127.0.0.1:{server.port}"

    async def transport_test() -> None:
        async with open_transport(f"redis://anna:x@{place}", "n") as one:
            await one.send([envelope()])
            found = await one.receive({IO: 5}, 10)
            assert len(found) == 1
            await one.accept(found)
        async with open_transport(f"redis://bert:x@{place}", "n") as other:
            with pytest.raises(ConfigurationError, match="umbel:"):
                await other.send([envelope()])

    run(transport_test)


def test_a_stream_of_another_kind_is_named(redis_prefix: str) -> None:
    async def transport_test() -> None:
        namespace = f"{redis_prefix}{fresh_id()[-12:]}"
        with redis.Redis.from_url(REDIS_URL) as client:
            client.set(stream(namespace, IO), "mine")
        async with open_transport(REDIS_URL, namespace) as one:
            for call in (one.send([envelope()]), one.receive({IO: 1}, 10)):
                with pytest.raises(Unavailable, match="delete that key"):
                    await call

    run(transport_test)


def test_a_batch_of_large_messages_goes_in_several_steps(redis_prefix: str) -> None:
    async def transport_test() -> None:
        async with open_transport(REDIS_URL, f"{redis_prefix}{fresh_id()[-12:]}") as one:
            sent = [envelope(body=Body(JSON, b"1" * 3_000_000)) for _ in range(7)]
            await one.send(sent)
            found: list[str] = []
            while len(found) < 7:
                new = await one.receive({IO: 7}, 10)
                await one.accept(new)
                found += ids(new)
            assert found == [each.id for each in sent]
            with pytest.raises(MessageTooLarge, match="over Redis"):
                await one.send([envelope(body=Body(JSON, b"1" * (one.max_body_bytes + 1)))])

    run(transport_test)


# --- strangers and replies -------------------------------------------------------------------


def test_a_whole_event_in_one_field_is_understood(redis_prefix: str) -> None:
    async def transport_test() -> None:
        namespace = f"{redis_prefix}{fresh_id()[-12:]}"
        async with open_transport(REDIS_URL, namespace) as one:
            job = fresh_id()
            event = (
                '{"specversion": "1.0", "type": "umbel.command", "source": "/x", "subject": "t",'
                f' "id": "{job}", "data": {{"args": [1]}}}}'
            )
            with redis.Redis.from_url(REDIS_URL) as client:
                client.xadd(stream(namespace, IO), {"data": event})
            (arrival,) = await one.receive({IO: 5}, 10)
            assert read(arrival.data).id == job
            assert arrival.read().content_type == "application/cloudevents+json"
            await one.accept([arrival])

    run(transport_test)


def test_a_reply_is_added_to_the_named_list_and_expires_after_an_hour(
    redis_prefix: str,
) -> None:
    async def transport_test() -> None:
        namespace = f"{redis_prefix}{fresh_id()[-12:]}"
        address, own = f"umbel:answers:{namespace}", stream(namespace, IO)
        foreign = "umbel:{" + namespace + "-other}:unique"
        with redis.Redis.from_url(REDIS_URL) as client:
            client.set(f"{address}:text", "not a list")
            async with open_transport(REDIS_URL, namespace) as one:
                await one.send([envelope()])
                documents = [envelope(headers={"state": "succeeded"}) for _ in range(2)]
                places = [(address, document) for document in documents]
                places += [(where, documents[0]) for where in (f"{address}:text", own, foreign)]
                await one.reply([Reply(ReplyRequest(where, "1"), what) for where, what in places])
            found = [read(data) for data in client.lrange(address, 0, -1)]
            assert found == documents
            assert 3500 < client.ttl(address) <= 3600
            assert client.get(f"{address}:text") == b"not a list"
            assert client.xlen(own) == 1
            assert not client.exists(foreign)
            client.delete(address, f"{address}:text")

    run(transport_test)

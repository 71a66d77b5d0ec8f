"""A server that is full, frozen, restarted, a replica, a cluster, or refuses commands.

Each test that needs such a server starts one of its own, on a free port, in a folder of its own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis")

from redis import exceptions as theirs
from redis_server import (
    OWNER,
    PLENTY,
    RedisServer,
    TestedBroker,
    broker_at,
    entry,
    envelope,
    free_port,
    is_subscribed,
    needs_server,
    settlement,
    until,
    waiting_fetch,
)

from umbel.backends import (
    Demand,
)
from umbel.backends.redis.address import RedisAddress
from umbel.backends.redis.broker import RedisBroker
from umbel.backends.redis.database import Database
from umbel.backends.redis.errors import translate_error
from umbel.backends.redis.gates import RedisGates
from umbel.backends.redis.listener import Listener
from umbel.backends.redis.records import RedisRecords
from umbel.backends.redis.registry import RedisRegistry
from umbel.clock import SystemClock
from umbel.errors import ConfigurationError, DuplicateJob, Unavailable
from umbel.messages import (
    Envelope,
    Rule,
)

# --- addresses -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://host:7000/3", "Redis at host:7000"),
        ("valkey://host", "Redis at host:6379"),
        ("rediss://user:secret@host?ssl_ca_certs=ca.pem", "Redis at host:6379 with TLS"),
        ("valkeys://host?ssl_check_hostname=false", "Redis at host:6379 with TLS"),
        ("unix:///run/redis.sock?db=2&password=secret", "Redis at /run/redis.sock"),
    ],
)
def test_an_address_is_named_without_its_password(url: str, address: str) -> None:
    assert RedisAddress(url).label == address


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("http://host", "redis://"),
        ("redis://host/first", "db"),
        ("redis://host:port", "port"),
        ("redis://host?ssl_ca_certs=x", "rediss"),
        ("redis://host?colour=red", "colour"),
        ("redis://host?poll=0", "poll"),
        ("redis://host?connect_timeout=soon", "connect_timeout"),
        ("rediss://host?ssl_check_hostname=1", "ssl_check_hostname"),
        ("unix://", "path"),
    ],
)
def test_a_wrong_url_is_refused_by_the_part_that_is_wrong(url: str, names: str) -> None:
    with pytest.raises(ConfigurationError, match=names):
        RedisAddress(url)


@needs_server
def test_a_socket_and_a_database_of_its_own_are_used(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()

    async def scenario() -> None:
        async with broker_at(f"unix://{server.socket}?db=3") as broker:
            sent = envelope()
            broker.publish_blocking([sent], 5.0)
            assert [one.id for one in await broker.fetch(["q"], PLENTY, OWNER, 0)] == [sent.id]
        with server.client(db=3) as client:
            assert client.exists(f"umbel:{{umbel}}:job:{sent.id}")

    asyncio.run(scenario())


# --- one call a step -------------------------------------------------------------------------


@needs_server
def test_a_batch_is_one_call_and_a_server_that_forgot_the_scripts_gets_them_again(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()

    def calls() -> int:
        with server.client() as client:
            found = client.info("commandstats")
        return sum(found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))

    async def scenario() -> None:
        async with broker_at(server.url) as broker:
            for _ in range(2):
                await broker.publish([envelope() for _ in range(1000)])
                held = await broker.fetch(["q"], PLENTY, OWNER, 0)
                await broker.settle([settlement(one) for one in held])
            before = calls()
            await broker.publish([envelope() for _ in range(1000)])
            held = await broker.fetch(["q"], PLENTY, OWNER, 0)
            assert await broker.settle([settlement(one) for one in held]) == []
            assert (len(held), calls() - before) == (100, 3)
            server.do("SCRIPT", "FLUSH")
            await broker.publish([envelope()])
            broker.publish_blocking([envelope()], 5.0)
            server.do("SCRIPT", "FLUSH")
            broker.publish_blocking([envelope()], 5.0)
            assert sum(depth.jobs for depth in await broker.depths()) == 2703

    asyncio.run(scenario())


@needs_server
def test_it_works_on_a_cluster(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis("--cluster-enabled", "yes")
    server.do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)

    async def scenario() -> None:
        async with asyncio.timeout(10):
            while b"cluster_state:ok" not in _bytes(server.do("CLUSTER INFO")):
                await asyncio.sleep(0.05)
        async with broker_at(server.url) as broker:
            fetch = await waiting_fetch(broker)
            await broker.publish([envelope(unique="a"), envelope(not_before=time.time() + 999)])
            held = await fetch
            assert await broker.settle([settlement(one) for one in held]) == []
            await broker.purge("q")

    asyncio.run(scenario())


def _bytes(answer: Any) -> bytes:
    """Return the value as bytes: versions of the client differ."""
    if isinstance(answer, dict):
        return "\n".join(f"{name}:{value}" for name, value in answer.items()).encode()
    return answer if isinstance(answer, bytes) else str(answer).encode()


# --- faults ----------------------------------------------------------------------------------


@needs_server
def test_a_full_server_takes_nothing_new_but_lets_workers_live_and_finish(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis("--maxmemory-policy", "noeviction")

    async def scenario() -> None:
        async with broker_at(server.url) as broker:
            database = broker.database
            registry = RedisRegistry(database, namespace="umbel", clock=SystemClock())
            records = RedisRecords(database, namespace="umbel", clock=SystemClock())
            await broker.publish([envelope() for _ in range(50)])
            held = await broker.fetch(["q"], Demand.of(io=10, cpu=10), OWNER, 0)
            server.do("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(Unavailable, match="raise maxmemory"):
                await broker.publish([envelope()])
            with pytest.raises(Unavailable, match="raise maxmemory"):
                broker.publish_blocking([envelope()], 5.0)
            assert await registry.heartbeat(OWNER, running=1, epoch=0, stopping=False)
            assert await broker.settle([settlement(one) for one in held]) == []
            more = await broker.fetch(["q"], PLENTY, OWNER, 0)
            assert len(held) + len(more) == 50
            assert await broker.settle([settlement(one) for one in more]) == []
            assert await records.prune(older_than=0, keep=0, limit=1000) == 50
            server.do("CONFIG", "SET", "maxmemory", "0")
            await broker.publish([envelope()])
            assert sum(depth.jobs for depth in await broker.depths()) == 1

    asyncio.run(scenario())


@needs_server
def test_on_a_full_server_jobs_pass_their_gates_and_finish(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis("--maxmemory-policy", "noeviction")

    async def scenario() -> None:
        async with broker_at(server.url) as broker:
            gates = RedisGates(broker.database, namespace="umbel", clock=SystemClock())
            await gates.declare([Rule(name="limit:t", capacity=0)])
            await broker.publish([envelope(gates=("limit:t",)) for _ in range(20)])
            server.do("CONFIG", "SET", "maxmemory", "1")
            await gates.declare([Rule(name="limit:t", capacity=5)])
            for _ in range(4):
                held = await broker.fetch(["q"], PLENTY, OWNER, 0)
                assert len(held) == 5
                assert await broker.settle([settlement(one) for one in held]) == []
            (gate,) = await gates.gates()
            assert (gate.held, gate.waiting) == (0, 0)

    asyncio.run(scenario())


@needs_server
def test_a_flushed_server_starts_again_when_a_worker_declares_its_limits_anew(
    start_redis: Callable[..., RedisServer],
) -> None:
    server, rule = start_redis(), Rule(name="limit:t", capacity=1)

    async def scenario() -> None:
        async with broker_at(server.url) as broker:
            how: Any = {"namespace": "umbel", "clock": SystemClock()}
            gates = RedisGates(broker.database, **how)
            await gates.declare([rule])
            await broker.publish([envelope(gates=("limit:t",)) for _ in range(2)])
            (held,) = await broker.fetch(["q"], PLENTY, OWNER, 0)
            server.do("FLUSHALL")
            server.do("SCRIPT", "FLUSH")
            assert await broker.settle([settlement(held)]) == [held.lease]
            await RedisRegistry(broker.database, **how).register(entry())
            sent = [envelope(gates=("limit:t",)) for _ in range(2)]
            await broker.publish(sent)
            waiting = await waiting_fetch(broker)
            await gates.declare([rule])
            assert [one.id for one in await waiting] == [sent[0].id]
            (gate,) = await gates.gates()
            assert (gate.held, gate.waiting) == (1, 1)

    asyncio.run(scenario())


@needs_server
def test_a_password_that_is_wrong_or_missing_is_named(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis("--requirepass", "secret")
    base = f"127.0.0.1:{server.port}"

    async def refusal(url: str) -> str:
        with pytest.raises(Unavailable) as caught:
            async with broker_at(url):
                pass
        return str(caught.value)

    assert "put it into the URL" in asyncio.run(refusal(f"redis://{base}"))
    assert "correct user and password" in asyncio.run(refusal(f"redis://:wrong@{base}"))

    async def scenario() -> None:
        async with broker_at(f"redis://:secret@{base}") as broker:
            broker.publish_blocking([envelope()], 5.0)

    asyncio.run(scenario())


@needs_server
def test_a_user_without_the_rights_learns_which_to_grant(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    server.do("ACL", "SETUSER", "anna", "on", ">x", "~other:*", "+@all")

    async def scenario() -> None:
        with pytest.raises(ConfigurationError, match="umbel:"):
            async with broker_at(f"redis://anna:x@127.0.0.1:{server.port}") as broker:
                await broker.publish([envelope()])

    asyncio.run(scenario())


@needs_server
def test_a_replica_says_that_it_is_one(start_redis: Callable[..., RedisServer]) -> None:
    primary = start_redis()
    replica = start_redis("--replicaof", "127.0.0.1", str(primary.port))

    async def scenario() -> None:
        async with asyncio.timeout(15):
            while b"master_link_status:up" not in _info(replica):
                await asyncio.sleep(0.05)
        with pytest.raises(Unavailable, match="give the primary's address"):
            async with broker_at(replica.url):
                pass
        assert "1 connected replica may lag" in await RedisAddress(primary.url).durability()

    asyncio.run(scenario())


def _info(server: RedisServer) -> bytes:
    with server.client() as client:
        found = client.info("replication")
    return _bytes(found)


@needs_server
def test_tls_where_there_is_none_is_named(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()

    async def scenario() -> None:
        with pytest.raises(Unavailable, match="speaks TLS"):
            async with broker_at(f"rediss://127.0.0.1:{server.port}"):
                pass

    asyncio.run(scenario())


@needs_server
def test_tls_is_spoken_and_what_lacks_for_it_is_named(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("not run: there is no openssl here to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    port = free_port()
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    try:
        start_redis("--tls-port", str(port), "--tls-auth-clients", "no", *files)
    except AssertionError:
        pytest.skip("not run: this redis-server does not speak TLS")

    async def scenario() -> None:
        async with broker_at(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}") as broker:
            fetch = await waiting_fetch(broker)
            broker.publish_blocking([envelope()], 5.0)
            assert len(await fetch) == 1
        with pytest.raises(Unavailable, match="give ssl_ca_certs"):
            async with broker_at(f"rediss://127.0.0.1:{port}"):
                pass
        with pytest.raises(Unavailable, match="the URL begins with rediss://"):
            async with broker_at(f"redis://127.0.0.1:{port}"):
                pass

    asyncio.run(scenario())


def test_a_server_that_is_not_there_is_named_with_what_to_check() -> None:
    async def scenario() -> None:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1: .*check that the server runs"):
            async with broker_at("redis://127.0.0.1:1"):
                pass

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (theirs.MovedError("3999 10.0.0.7:6381"), "is on 10.0.0.7:6381"),
        (theirs.BusyLoadingError("LOADING Redis is loading"), "ends by itself"),
        (theirs.ReadOnlyError("READONLY You can't write"), "primary's address"),
        (theirs.ResponseError("MISCONF Redis is configured to save"), "free space"),
        (theirs.ResponseError("WRONGTYPE Operation against"), "delete that key"),
        (theirs.ConnectionError("max number of clients reached"), "maxclients"),
        (theirs.ConnectionError("certificate verify failed: CERTIFICATE_VERIFY"), "ssl_ca_certs"),
        (theirs.ClusterDownError("CLUSTERDOWN the cluster is down"), "lacks a node"),
        (theirs.TimeoutError("Timeout reading"), "did not answer in time"),
    ],
)
def test_each_refusal_has_its_remedy(error: Exception, says: str) -> None:
    found = translate_error(error, "Redis at here")
    assert isinstance(found, Unavailable)
    assert says in str(found)
    assert "Redis at here" in str(found)


# --- hints -----------------------------------------------------------------------------------


@needs_server
def test_a_lost_listener_reconnects_and_every_fetch_checks_once(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()

    async def scenario() -> None:
        async with broker_at(server.url) as broker, asyncio.timeout(20):
            for _ in range(2):
                fetch = await waiting_fetch(broker)
                server.do("CLIENT", "KILL", "TYPE", "pubsub")
                await until(lambda: not is_subscribed(broker))
                # Nobody hears of this one: the listener is gone.
                await broker.publish([envelope()])
                assert len(await fetch) == 1
            await until(lambda: is_subscribed(broker))
            fetch = await waiting_fetch(broker)
            await broker.publish([envelope()])
            assert len(await fetch) == 1

    asyncio.run(scenario())


@needs_server
def test_a_connection_that_only_looks_alive_is_noticed(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()

    async def scenario() -> None:
        address = RedisAddress(server.url)
        listener = Listener(address.connect, lambda: None, probe_every=0.1, probe_answer=0.3)
        listener.join("somebody", "root")
        try:
            await until(lambda: listener.is_subscribed("root"))
            await asyncio.sleep(0.5)
            assert listener.is_subscribed("root"), "silence alone is no sign of death"
            server.process.send_signal(signal.SIGSTOP)
            await until(lambda: not listener.is_subscribed("root"))
            server.process.send_signal(signal.SIGCONT)
            with listener.notifier.listen(["anything"]) as wake_up:
                async with asyncio.timeout(10):
                    assert await wake_up.wait(10), "after a gap everybody is to look"
                await until(lambda: listener.is_subscribed("root"))
        finally:
            await listener.leave("somebody")

    asyncio.run(scenario())


@needs_server
def test_one_listener_serves_several_namespaces(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()

    async def scenario() -> None:
        address = RedisAddress(server.url)
        one, two = Database(address), Database(address)
        first, second = one.listener("umbel:{a}"), two.listener("umbel:{b}")
        assert first is second
        try:
            await until(
                lambda: first.is_subscribed("umbel:{a}") and first.is_subscribed("umbel:{b}")
            )
            third = one.listener("umbel:{c}")
            await until(lambda: all(third.is_subscribed(f"umbel:{{{name}}}") for name in "abc"))
            assert len(server.do("PUBSUB", "CHANNELS", "*:wake_ups")) == 3
            with first.notifier.listen(["r:umbel:{c}:q"]) as wake_up:
                wake_up.clear()
                server.do("PUBLISH", "umbel:{c}:wake_ups", "r:umbel:{c}:q")
                assert await wake_up.wait(10)
        finally:
            await one.close()
            assert second.is_subscribed("umbel:{b}")
            await two.close()
        await until(lambda: server.do("PUBSUB", "CHANNELS") == [])

    asyncio.run(scenario())


@needs_server
def test_who_came_too_late_lets_others_go_first_and_is_there_when_they_are_not(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()

    async def scenario() -> None:
        async with (
            broker_at(server.url) as one,
            broker_at(server.url, owner="other") as other,
            asyncio.timeout(10),
        ):
            # With room for one kind alone they are called, and not handed anything.
            some = Demand.of(io=10)
            fetches = [await waiting_fetch(one, demand=some)]
            fetches.append(await waiting_fetch(other, "other", some))
            for _ in range(2):  # the second is for who found nothing, and waits alone
                await one.publish([envelope(kind="io")])
                done, left = await asyncio.wait(fetches, return_when=asyncio.FIRST_COMPLETED)
                assert [len(fetch.result()) for fetch in done] == [1]
                await asyncio.sleep(0.05)
                fetches = [*left]

    asyncio.run(scenario())


@needs_server
def test_without_any_hint_a_slow_look_remains(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    server.do("ACL", "SETUSER", "mute", "on", "nopass", "~*", "resetchannels", "+@all")

    async def scenario() -> None:
        async with broker_at(server.url, safety_poll=0.1) as broker, asyncio.timeout(10):
            fetch = await waiting_fetch(broker)
            async with broker_at(f"redis://mute:x@127.0.0.1:{server.port}") as mute:
                await mute.publish([envelope()])
            assert len(await fetch) == 1

    asyncio.run(scenario())


@needs_server
def test_a_user_restricted_to_the_wake_up_channel_is_woken(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    server.do("ACL", "SETUSER", "anna", "on", "nopass", "~*", "&umbel:*:wake_ups", "+@all")

    async def scenario() -> None:
        url = f"redis://anna:x@127.0.0.1:{server.port}"
        async with broker_at(url) as broker, asyncio.timeout(10):
            fetch = await waiting_fetch(broker)
            await broker.publish([envelope()])
            assert len(await fetch) == 1

    asyncio.run(scenario())


@needs_server
def test_a_restarted_server_is_found_again(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis("--appendonly", "yes", "--appendfsync", "always")

    async def scenario() -> None:
        async with broker_at(server.url) as broker, asyncio.timeout(30):
            fetch = await waiting_fetch(broker)
            server.stop()
            with pytest.raises(Unavailable):
                await broker.publish([envelope()])
            with pytest.raises(Unavailable):
                broker.publish_blocking([envelope()], 1.0)
            server.start()
            sent = envelope()
            while True:
                with suppress(Unavailable):
                    await broker.publish([sent])
                    break
                await asyncio.sleep(0.05)
            assert [one.id for one in await fetch] == [sent.id]

    asyncio.run(scenario())


# --- deadlines, threads, forks, loops --------------------------------------------------------


@needs_server
def test_a_frozen_server_delays_no_caller_beyond_the_deadline(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()

    async def scenario() -> None:
        async with broker_at(server.url, timeout=0.5) as broker:
            broker.publish_blocking([envelope()], 5.0)
            server.process.send_signal(signal.SIGSTOP)
            try:
                for work in (
                    lambda: asyncio.to_thread(broker.publish_blocking, [envelope()], 0.3),
                    lambda: broker.publish([envelope()]),
                ):
                    began = time.monotonic()
                    with pytest.raises(Unavailable, match="did not answer in time"):
                        await work()
                    assert time.monotonic() - began < 3
            finally:
                server.process.send_signal(signal.SIGCONT)
            sent = envelope()
            broker.publish_blocking([sent], 5.0)
            got = await broker.fetch(["q"], PLENTY, OWNER, 0)
            assert sent.id in [one.id for one in got]

    asyncio.run(scenario())


@needs_server
def test_many_threads_publish_at_once(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()

    async def scenario() -> None:
        async with broker_at(server.url) as broker:
            batches = [[envelope() for _ in range(5)] for _ in range(40)]

            def publish_some(mine: list[list[Envelope]]) -> None:
                for batch in mine:
                    assert [p.id for p in broker.publish_blocking(batch, 10.0)] == [
                        e.id for e in batch
                    ]

            threads = [
                threading.Thread(target=publish_some, args=(batches[at::8],)) for at in range(8)
            ]
            for thread in threads:
                thread.start()
            await asyncio.to_thread(lambda: [thread.join() for thread in threads])
            assert sum(depth.jobs for depth in await broker.depths()) == 200
            with pytest.raises(DuplicateJob):
                broker.publish_blocking([envelope(unique="k"), envelope(unique="k")], 5.0)
            assert broker.publish_blocking(batches[0], 5.0)[0].existing
            assert broker.publish_blocking([], 5.0) == []

    asyncio.run(scenario())


def wait_until_one_command_waits(client: Any) -> None:
    """Wait until the server holds back a command of Umbel."""
    until = time.monotonic() + 30
    while not any("b" in one["flags"] for one in client.client_list() if one["name"] == "umbel"):
        assert time.monotonic() < until, client.client_list()
        time.sleep(0.01)


@needs_server
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_opens_a_connection_of_its_own(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    database = Database(RedisAddress(server.url))
    broker = RedisBroker(database, namespace="umbel", clock=SystemClock())
    broker.publish_blocking([envelope()], 5.0)
    asyncio.run(broker.publish([envelope()]))
    with server.client() as client:
        before = {one["id"] for one in client.client_list() if one["name"] == "umbel"}
        client.client_pause(60_000, all=False)  # all writes wait
        thread = threading.Thread(target=broker.publish_blocking, args=([envelope()], 60.0))
        thread.start()  # it uses the parent's connection during the fork
        wait_until_one_command_waits(client)
        child = os.fork()
        if child == 0:
            try:
                broker.publish_blocking([envelope()], 5.0)
                asyncio.run(_publish_and_close(broker))
                os._exit(0)
            finally:
                os._exit(1)
        client.client_unpause()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        broker.publish_blocking([envelope()], 5.0)
        after = {one["id"] for one in client.client_list() if one["name"] == "umbel"}
        assert after == before, "the parent's connection was closed or replaced"
        assert client.get("umbel:{umbel}:sequence") == b"6"
    asyncio.run(broker.close())


async def _publish_and_close(broker: RedisBroker) -> None:
    await broker.publish([envelope()])
    await broker.close()


@needs_server
def test_one_broker_serves_one_event_loop_after_another(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    database = Database(RedisAddress(server.url))
    broker = TestedBroker(database, namespace="umbel", clock=SystemClock())
    registry = RedisRegistry(database, namespace="umbel", clock=SystemClock())

    async def scenario() -> None:
        await registry.register(entry())
        fetch = await waiting_fetch(broker)
        await broker.publish([envelope()])
        assert len(await fetch) == 1

    for _ in range(3):  # none of the loops closes anything
        asyncio.run(scenario())
    asyncio.run(broker.close())


# --- durability ------------------------------------------------------------------------------


@needs_server
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "Everything is lost when the server dies"),
        (("--save", "900 1 60 1000"), "since the last snapshot"),
        (("--appendonly", "yes"), "Up to a second"),
        (("--appendonly", "yes", "--appendfsync", "always"), "Nothing that was confirmed is lost"),
        (("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), "drops keys"),
    ],
)
def test_messages_that_a_killed_server_loses_are_reported(
    start_redis: Callable[..., RedisServer], options: tuple[str, ...], says: str
) -> None:
    server = start_redis(*options)
    assert says in asyncio.run(RedisAddress(server.url).durability())


@needs_server
def test_a_server_that_hides_its_settings_is_asked_what_it_does_tell(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis("--appendonly", "yes")
    server.do("ACL", "SETUSER", "anna", "on", ">x", "~*", "+@all", "-config")
    server.do("ACL", "SETUSER", "bert", "on", ">x", "~*", "+@all", "-config", "-info")
    told = asyncio.run(RedisAddress(f"redis://anna:x@127.0.0.1:{server.port}").durability())
    hidden = asyncio.run(RedisAddress(f"redis://bert:x@127.0.0.1:{server.port}").durability())
    assert "appendfsync cannot be read" in told
    assert "does not say" in hidden

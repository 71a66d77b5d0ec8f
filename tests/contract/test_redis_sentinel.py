"""Redis behind Sentinel: a primary, a replica and three Sentinels of the test's own."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis")

import redis
from redis_server import (
    BINARY,
    OWNER,
    PLENTY,
    RedisServer,
    TestedBroker,
    entry,
    envelope,
    free_port,
    is_subscribed,
    needs_server,
    settlement,
    until,
)

from umbel import Umbel
from umbel.backends import Lane
from umbel.backends.redis.address import RedisAddress
from umbel.backends.redis.database import Database
from umbel.backends.redis.registry import RedisRegistry
from umbel.backends.redis.transport import RedisTransport
from umbel.clock import SystemClock
from umbel.errors import ConfigurationError, Unavailable
from umbel.testing.transports import record_missing_queue

HOST, NAME = "127.0.0.1", "shop"
CONFIGURATION = """
port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor {name} 127.0.0.1 {primary} 2
sentinel down-after-milliseconds {name} 500
sentinel failover-timeout {name} 3000
"""

pytestmark = needs_server


class Watched:
    """A primary with a replica, and three Sentinels that watch them."""

    def __init__(self, folder: Path, start_redis: Callable[..., RedisServer]) -> None:
        self.primary = start_redis("--appendonly", "yes")
        self.replica = start_redis("--replicaof", HOST, str(self.primary.port))
        self._folder = folder
        self.ports = [free_port() for _ in range(3)]
        self._sentinels = [self._sentinel(port) for port in self.ports]
        self._await(self._in_order, "the Sentinels to know each other and the replica")

    def url(self, scheme: str = "redis+sentinel", path: str = NAME) -> str:
        places = ",".join(f"{HOST}:{port}" for port in self.ports)
        return f"{scheme}://{places}/{path}"

    def named(self) -> int:
        """Return the port of the server that the Sentinels consider the primary."""
        for port in self.ports:
            with suppress(redis.RedisError), redis.Redis(HOST, port) as client:
                return int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])
        return 0

    def await_failover(self) -> None:
        self._await(lambda: self.named() == self.replica.port, "the failover")

    def replicated(self) -> None:
        """Wait until the replica has all that the primary has confirmed."""
        self._await(lambda: self.primary.do("WAIT", 1, 1000) == 1, "the replica")

    def stop_sentinel(self, at: int) -> None:
        self._sentinels[at].kill()
        self._sentinels[at].wait()

    def stop(self) -> None:
        for at in range(3):
            self.stop_sentinel(at)

    def _sentinel(self, port: int) -> subprocess.Popen[bytes]:
        folder = self._folder / f"sentinel-{port}"
        folder.mkdir()
        text = CONFIGURATION.format(port=port, folder=folder, name=NAME, primary=self.primary.port)
        (folder / "sentinel.conf").write_text(text)
        command = [str(BINARY), str(folder / "sentinel.conf"), "--sentinel"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def _in_order(self) -> bool:
        for port in self.ports:
            try:
                with redis.Redis(HOST, port) as client:
                    told = client.execute_command("SENTINEL", "MASTER", NAME)
            except redis.RedisError:
                return False
            found = (
                told if isinstance(told, dict) else dict(zip(told[::2], told[1::2], strict=True))
            )
            plain = {_text(name): _text(value) for name, value in found.items()}
            if (plain["num-slaves"], plain["num-other-sentinels"]) != ("1", "2"):
                return False
        return True

    def _await(self, holds: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + 30
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for {what}")
            time.sleep(0.05)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.fixture
def watched(tmp_path: Path, start_redis: Callable[..., RedisServer]) -> Iterator[Watched]:
    found = Watched(tmp_path, start_redis)
    yield found
    found.stop()


@asynccontextmanager
async def broker_at(url: str) -> AsyncIterator[TestedBroker]:
    """Open a broker and register a worker."""
    database, clock = Database(RedisAddress(url)), SystemClock()
    broker = TestedBroker(database, namespace="umbel", clock=clock)
    await RedisRegistry(database, namespace="umbel", clock=clock).register(entry())
    try:
        yield broker
    finally:
        await broker.close()


async def surely(work: Callable[[], Any]) -> Any:
    """Repeat a call while the server is unreachable."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await work()
            except Unavailable:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("scheme", ["redis+sentinel", "valkey+sentinel"])
def test_work_goes_on_after_the_primary_was_killed(watched: Watched, scheme: str) -> None:
    async def scenario() -> None:
        async with broker_at(watched.url(scheme, f"{NAME}/3")) as broker:
            before = envelope()
            await broker.publish([before])
            broker.publish_blocking([envelope()], 5.0)
            assert len(await broker.fetch(["q"], PLENTY, OWNER, 5)) == 2
            with watched.primary.client(db=3) as client:
                assert client.exists(f"umbel:{{umbel}}:job:{before.id}")
            waiting = envelope()
            await broker.publish([waiting])
            await asyncio.to_thread(watched.replicated)
            watched.primary.stop()
            with pytest.raises(Unavailable):
                await broker.publish([envelope()])
            with pytest.raises(Unavailable):
                broker.publish_blocking([envelope()], 1.0)
            after, directly = envelope(), envelope()
            await surely(lambda: broker.publish([after]))
            assert watched.named() == watched.replica.port
            broker.publish_blocking([directly], 5.0)
            held = await surely(lambda: broker.fetch(["q"], PLENTY, OWNER, 5))
            assert {one.id for one in held} == {waiting.id, after.id, directly.id}
            assert await broker.settle([settlement(one) for one in held]) == []
            # Hints come from the new primary, too.
            await until(lambda: is_subscribed(broker))
            fetch = asyncio.create_task(broker.fetch(["q"], PLENTY, OWNER, 30))
            await asyncio.sleep(0.1)
            await broker.publish([envelope()])
            assert len(await fetch) == 1

    asyncio.run(scenario())


def test_a_primary_that_was_only_frozen_is_left_when_it_is_one_no_more(watched: Watched) -> None:
    async def scenario() -> None:
        async with broker_at(watched.url()) as broker:
            await broker.publish([envelope()])
            broker.publish_blocking([envelope()], 5.0)
            await asyncio.to_thread(watched.replicated)
            watched.primary.process.send_signal(signal.SIGSTOP)
            await asyncio.to_thread(watched.await_failover)
            watched.primary.process.send_signal(signal.SIGCONT)
            with watched.primary.client() as old:
                await until(lambda: old.info("replication")["role"] == "slave")
            async with asyncio.timeout(20):
                while True:
                    with suppress(Unavailable):
                        broker.publish_blocking([envelope()], 2.0)
                        break
                await surely(lambda: broker.publish([envelope()]))
            with watched.replica.client() as new:
                assert new.info("replication")["role"] == "master"
                assert new.get("umbel:{umbel}:sequence") == b"4"

    asyncio.run(scenario())


def test_a_connection_to_what_became_a_replica_is_not_used_again(
    start_redis: Callable[..., RedisServer],
) -> None:
    one, other = start_redis(), start_redis()

    async def scenario() -> None:
        async with broker_at(one.url) as broker:
            broker.publish_blocking([envelope()], 5.0)
            before = {each["id"] for each in _ours(one)}
            one.do("REPLICAOF", HOST, str(other.port))
            for _ in range(2):
                with pytest.raises(Unavailable, match="replica"):
                    await broker.publish([envelope()])
                with pytest.raises(Unavailable, match="replica"):
                    broker.publish_blocking([envelope()], 5.0)
            assert not before & {each["id"] for each in _ours(one)}
            one.do("REPLICAOF", "NO", "ONE")
            await RedisRegistry(broker.database, namespace="umbel", clock=SystemClock()).register(
                entry()
            )
            await broker.publish([envelope()])

    asyncio.run(scenario())


def _ours(server: RedisServer) -> list[Any]:
    with server.client() as client:
        return [one for one in client.client_list() if one["name"] == "umbel"]


def test_messages_that_the_failover_lost_are_reported(watched: Watched) -> None:
    lost: list[str] = []

    async def scenario() -> None:
        io = Lane("default", "io")
        address, on_lane_missing = RedisAddress(watched.url()), record_missing_queue(lost)
        one = RedisTransport(
            address, namespace="n", on_lane_missing=on_lane_missing, receiver_ttl=1.0
        )
        kept = envelope(queue="default", kind="io")
        await one.send([kept])
        await one.receive({Lane("default", "cpu"): 1}, 0.0)
        await asyncio.to_thread(watched.replicated)
        watched.replica.process.send_signal(signal.SIGSTOP)  # it lags behind: nothing gets there
        watched.primary.do("CLIENT", "KILL", "TYPE", "replica")
        await one.send([envelope(queue="default", kind="io")])
        lost.clear()
        watched.primary.stop()
        watched.replica.process.send_signal(signal.SIGCONT)
        found = await surely(lambda: one.receive({io: 10}, 20))
        assert [each.id for each in found] == [kept.id]
        assert lost == ["default"]
        await one.accept(found)
        await one.close()

    asyncio.run(scenario())


def test_a_server_that_is_no_primary_is_not_believed_to_be_one(watched: Watched) -> None:
    async def scenario() -> None:
        # The Sentinels take seconds to notice, and name it as before until then.
        watched.primary.do("REPLICAOF", HOST, str(watched.replica.port))
        assert watched.named() == watched.primary.port
        address = RedisAddress(watched.url())
        with pytest.raises(Unavailable, match=r"a failover is under way.*ends by itself"):
            await address.durability()
        with pytest.raises(redis.RedisError, match="a failover is under way"):
            address.connect_blocking()

    asyncio.run(scenario())


def test_sentinels_that_are_gone_are_passed_over(watched: Watched) -> None:
    async def scenario() -> None:
        watched.stop_sentinel(0)
        address = RedisAddress(watched.url())
        assert "1 connected replica" in await address.durability()
        watched.stop_sentinel(1)
        async with broker_at(watched.url()) as broker:
            broker.publish_blocking([envelope()], 5.0)
        watched.stop_sentinel(2)
        with pytest.raises(Unavailable, match=r"no Sentinel.*check that the Sentinels run"):
            await address.durability()
        with pytest.raises(Unavailable, match="no Sentinel"):
            async with broker_at(watched.url()):
                pass

    asyncio.run(scenario())


def test_a_name_that_no_sentinel_watches_is_reported(watched: Watched) -> None:
    async def scenario() -> None:
        with pytest.raises(Unavailable, match=r"watches no 'other'.*the name in the URL"):
            await RedisAddress(watched.url(path="other")).durability()

    asyncio.run(scenario())


def test_passwords_of_servers_and_sentinels_are_apart(watched: Watched) -> None:
    for server in (watched.primary, watched.replica):
        server.do("ACL", "SETUSER", "anna", "on", ">data", "~*", "&*", "+@all")
    for port in watched.ports:
        with redis.Redis(HOST, port) as client:
            client.execute_command("ACL", "SETUSER", "anna", "on", ">watch", "+@all")
            client.execute_command("ACL", "SETUSER", "default", "off")

    async def scenario() -> None:
        places = ",".join(f"{HOST}:{port}" for port in watched.ports)
        url = f"redis+sentinel://anna:data@{places}/{NAME}"
        who = "sentinel_username=anna&sentinel_password"
        assert "replica" in await RedisAddress(f"{url}?{who}=watch").durability()
        with pytest.raises(Unavailable, match=r"correct user and password|no Sentinel"):
            await RedisAddress(f"{url}?{who}=wrong").durability()
        shown = Umbel(f"{url}?{who}=watch").settings.public()["broker"]
        assert "data" not in shown
        assert "=watch" not in shown

    asyncio.run(scenario())


TLS = """
port 0
tls-port {port}
bind 127.0.0.1
dir {folder}
tls-replication yes
tls-auth-clients no
tls-cert-file {folder}/certificate.pem
tls-key-file {folder}/key.pem
tls-ca-cert-file {folder}/certificate.pem
sentinel monitor shop 127.0.0.1 {primary} 1
"""


def test_tls_is_spoken_with_sentinels_and_servers(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("not run: there is no openssl here to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    primary, port = free_port(), free_port()
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    try:
        start_redis("--tls-port", str(primary), "--tls-auth-clients", "no", *files)
    except AssertionError:
        pytest.skip("not run: this redis-server does not speak TLS")
    config = tmp_path / "sentinel.conf"
    config.write_text(TLS.format(port=port, folder=tmp_path, primary=primary))
    command = [str(BINARY), str(config), "--sentinel"]
    sentinel = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    url = f"rediss+sentinel://{HOST}:{port}/{NAME}"

    async def scenario() -> None:
        async def publish() -> None:
            async with broker_at(f"{url}?ssl_ca_certs={certificate}") as broker:
                await broker.publish([envelope()])
                broker.publish_blocking([envelope()], 5.0)

        await surely(publish)
        with pytest.raises(Unavailable, match=r"no Sentinel|ssl_ca_certs"):
            async with broker_at(url):
                pass

    try:
        asyncio.run(scenario())
    finally:
        sentinel.kill()
        sentinel.wait()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis+sentinel://host:26379", "the name that the Sentinels know"),
        ("redis+sentinel://host:port/shop", "port must be a number"),
        ("redis+sentinel://host/shop/first", "db="),
        ("redis://host?sentinel_password=x", "sentinel_password"),
    ],
)
def test_a_wrong_url_is_refused_by_the_part_that_is_wrong(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        RedisAddress(url)


def test_an_address_names_the_sentinels_without_a_password() -> None:
    address = RedisAddress("rediss+sentinel://me:secret@one:1,two/shop/2?sentinel_password=hidden")
    assert address.label == "Redis 'shop' by the Sentinels at one:1, two:26379 with TLS"

"""What would disturb others on a shared server: alarms, restarts, timeouts. On its own node."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pika")

from umbel.backends import Lane, Transport
from umbel.backends.blocking import Meanwhile
from umbel.backends.rabbitmq import receiver
from umbel.backends.rabbitmq.address import Home
from umbel.backends.rabbitmq.queue_names import queue_name
from umbel.backends.rabbitmq.transport import RabbitTransport
from umbel.errors import Unavailable
from umbel.messages import JSON, Body, Envelope, fresh_id

BINARIES = Path("/usr/lib/rabbitmq/bin")
IO = Lane("default", "io")
UP = 30.0
"""Seconds that a node has to start; it takes five as a rule."""
CONFIGURATION = """
listeners.tcp.local = 127.0.0.1:{port}
listeners.ssl.local = 127.0.0.1:{tls_port}
ssl_options.certfile = {folder}/certificate.pem
ssl_options.keyfile = {folder}/key.pem
distribution.listener.interface = 127.0.0.1
"""
CERTIFICATE = """
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -batch
-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1
"""

TOOLS = shutil.which("setpriv") and shutil.which("openssl")
if os.geteuid() != 0 or not (BINARIES / "rabbitmq-server").exists() or not TOOLS:
    pytest.skip(
        "not run: RabbitMQ's alarms, restarts and TLS; it takes root, openssl and Debian's"
        " RabbitMQ to start a node",
        allow_module_level=True,
    )

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rabbitmq-node")]


class Node:
    """A server in a scratch folder, and what an operator does to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"umbel-test-{os.getpid()}@localhost"
        self.port, self.tls_port, self._distribution = free_port(), free_port(), free_port()
        self.certificate = folder / "certificate.pem"

    @property
    def home(self) -> Home:
        return Home(f"amqp://guest:guest@127.0.0.1:{self.port}/?connect_timeout=2")

    def start(self) -> subprocess.Popen[bytes]:
        key = self._folder / "key.pem"
        files = ["-out", str(self.certificate), "-keyout", str(key)]
        subprocess.run([*shlex.split(CERTIFICATE), *files], check=True, stderr=subprocess.DEVNULL)
        text = CONFIGURATION.format(port=self.port, tls_port=self.tls_port, folder=self._folder)
        (self._folder / "rabbitmq.conf").write_text(text)
        (self._folder / "plugins").touch()
        for path in (self._folder, key):
            shutil.chown(path, "rabbitmq", "rabbitmq")
        process = subprocess.Popen(
            self._as_rabbitmq("rabbitmq-server"),
            env=self._environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + UP
        while not answers(self.port):
            if time.monotonic() > until or process.poll() is not None:
                stop(process)
                pytest.skip("not run: RabbitMQ's alarms and restarts; no node would start")
            time.sleep(0.1)
        return process

    def control(self, *command: str) -> None:
        subprocess.run(
            [*self._as_rabbitmq("rabbitmqctl"), "-q", *command],
            env=self._environment(),
            check=True,
            stdout=subprocess.DEVNULL,
        )

    async def acontrol(self, *command: str) -> None:
        await asyncio.to_thread(self.control, *command)

    def _as_rabbitmq(self, program: str) -> list[str]:
        who = ["--reuid=rabbitmq", "--regid=rabbitmq", "--clear-groups"]
        return ["setpriv", *who, str(BINARIES / program)]

    def _environment(self) -> dict[str, str]:
        folder = str(self._folder)
        return {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_DIST_PORT": str(self._distribution),
        }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    # Not pytest's own folder: the server's user must be able to enter it.
    folder = Path("/var/tmp") / f"umbel-test-rabbitmq-{os.getpid()}"
    folder.mkdir(mode=0o755)
    node = Node(folder)
    process = node.start()
    try:
        yield node
    finally:
        stop(process)
        shutil.rmtree(folder)


def transport_at(home: Home) -> RabbitTransport:
    return RabbitTransport(home, namespace=f"t{fresh_id()[-12:]}", lost=lambda _: None)


def envelope() -> Envelope:
    return Envelope(id=fresh_id(), subject="t", body=Body(JSON, b"{}"), kind="io")


async def send_surely(transport: Transport, sent: Envelope) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                return await transport.send([sent])
            except Unavailable:
                await asyncio.sleep(0.05)


async def receive_surely(transport: Transport, wanted: str) -> None:
    found: list[str] = []
    async with asyncio.timeout(30):
        while wanted not in found:
            try:
                new = await transport.receive({IO: 10}, 5)
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                await transport.accept(new)
                found += [one.id for one in new]


def test_an_alarm_stops_sending_with_its_reason_and_not_receiving(node: Node) -> None:
    async def tale() -> None:
        one = transport_at(node.home)
        first, second, third = envelope(), envelope(), envelope()
        await one.send([first, second])
        await receive_surely(one, second.id)
        await one.send([first])
        await node.acontrol("set_vm_memory_high_watermark", "0.000001")
        try:
            for _ in range(2):
                async with asyncio.timeout(2):
                    with pytest.raises(
                        Unavailable, match=r"takes no messages.*free memory or disk"
                    ):
                        await one.send([third])
            with pytest.raises(Unavailable, match="takes no messages"):
                await one.check()
            await receive_surely(one, first.id)
        finally:
            await node.acontrol("set_vm_memory_high_watermark", "0.4")
        await send_surely(one, third)
        await receive_surely(one, third.id)
        await one.check()
        await one.close()

    asyncio.run(tale())


def test_a_server_that_restarts_loses_nothing_and_is_found_again(node: Node) -> None:
    async def tale() -> None:
        one = transport_at(node.home)
        first, second = envelope(), envelope()
        await one.send([first])
        (held,) = await one.receive({IO: 10}, 10)
        await node.acontrol("stop_app")
        with pytest.raises(Unavailable):
            await one.send([second])
        with pytest.raises(Unavailable):
            await one.receive({IO: 10}, 1.0)
        await one.accept([held])
        await node.acontrol("start_app")
        await send_surely(one, second)
        await receive_surely(one, first.id)
        await one.close()

    asyncio.run(tale())


def test_a_queue_that_exists_by_name_alone_is_made_anew(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "_PATIENCE", 0.5)
    told: list[Lane] = []

    async def tale() -> None:
        space = f"t{fresh_id()[-12:]}"
        one = RabbitTransport(node.home, namespace=space, lost=told.append)
        first, second = envelope(), envelope()
        await one.send([first])
        await receive_surely(one, first.id)
        await one.close()
        told.clear()
        process = f'list_to_atom("%2F_{queue_name(space, IO)}")'
        await node.acontrol("eval", f"ra:stop_server(quorum_queues, {{{process}, node()}}).")
        other = RabbitTransport(node.home, namespace=space, lost=told.append)
        async with asyncio.timeout(60):
            while not told:
                with suppress(Unavailable):
                    await other.receive({IO: 10}, 0.1)
        assert told == [IO]
        await send_surely(other, second)
        await receive_surely(other, second.id)
        await other.close()

    asyncio.run(tale())


def test_a_delivery_that_is_unacknowledged_for_too_long_is_only_a_loss(node: Node) -> None:
    async def tale() -> None:
        await node.acontrol("eval", "application:set_env(rabbit, consumer_timeout, 1000).")
        await node.acontrol("eval", "application:set_env(rabbit, channel_tick_interval, 200).")
        one = transport_at(node.home)
        first, second = envelope(), envelope()
        await one.send([first])
        found = await one.receive({IO: 1}, 10)
        await one.accept(found)  # kept back as ballast, until the server has had enough
        intake = one._receiver._serving[IO]
        async with asyncio.timeout(30):
            while intake.is_open:
                await asyncio.sleep(0.02)
        await one.accept(found)
        await one.send([second])
        await receive_surely(one, second.id)
        await one.close()

    asyncio.run(tale())


@pytest.mark.parametrize("permissions", [("", ".*", ".*"), (".*", ".*", ""), ("", "", "")])
def test_a_right_that_is_missing_is_named(node: Node, permissions: tuple[str, str, str]) -> None:
    async def tale() -> None:
        user = f"u{fresh_id()[-6:]}"
        await node.acontrol("add_user", user, "secret")
        await node.acontrol("set_permissions", user, *permissions)
        one = transport_at(Home(f"amqp://{user}:secret@127.0.0.1:{node.port}/"))
        with pytest.raises(Unavailable, match=r"refused.*rabbitmqctl set_permissions"):
            await one.receive({IO: 1}, 30)
        await one.close()

    asyncio.run(tale())


@pytest.mark.parametrize("runner", ["asyncio", "uvloop"])
def test_tls_carries_messages_to_a_server_that_is_trusted(node: Node, runner: str) -> None:
    async def tale() -> None:
        url = f"amqps://guest:guest@127.0.0.1:{node.tls_port}/"
        one = transport_at(Home(f"{url}?cafile={node.certificate}"))
        sent = [envelope() for _ in range(500)]
        await one.send(sent)
        await receive_surely(one, sent[-1].id)
        await one.close()
        stranger = transport_at(Home(url))
        with pytest.raises(Unavailable, match=r"TLS failed.*cafile"):
            await stranger.check()
        careless = transport_at(Home(f"{url}?verify=false"))
        await careless.check()
        await careless.close()

    pytest.importorskip(runner).run(tale())


def test_callers_threads_hear_of_an_alarm_and_send_over_tls(node: Node) -> None:
    def send(transport: RabbitTransport) -> None:
        transport.send_now([envelope()], 10.0, lambda lane, left: None, Meanwhile())

    secure = transport_at(
        Home(f"amqps://guest:guest@127.0.0.1:{node.tls_port}/?cafile={node.certificate}")
    )
    one = transport_at(node.home)
    send(secure)
    send(one)
    node.control("set_vm_memory_high_watermark", "0.000001")
    try:
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"takes no messages.*free memory or disk"):
                send(one)
    finally:
        node.control("set_vm_memory_high_watermark", "0.4")
    until = time.monotonic() + 30
    while True:
        try:
            send(one)
            break
        except Unavailable:
            assert time.monotonic() < until
            time.sleep(0.05)
    for transport in (one, secure):
        asyncio.run(transport.close())

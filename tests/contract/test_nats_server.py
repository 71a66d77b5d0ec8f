"""Servers of the tests' own: restarted, locked, small, full, encrypted."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nats")

from umbel.backends import Lane
from umbel.backends.nats.address import Home
from umbel.backends.nats.transport import NatsTransport
from umbel.errors import MessageTooLarge, Unavailable
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.testing.transports import by_queue

PROGRAM = shutil.which("nats-server")
if PROGRAM is None:
    pytest.skip(
        "not run: NATS servers of our own; there is no nats-server", allow_module_level=True
    )

HOST = "127.0.0.1"
IO = Lane("default", "io")


class Machine:
    """A server process with a port and a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as found:
            found.bind((HOST, 0))
            self.port = int(found.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self, *options: str, jetstream: bool = True) -> None:
        store = ["-js", "-sd", str(self.folder / "store")] if jetstream else []
        self._process = subprocess.Popen(
            [str(PROGRAM), "-a", HOST, "-p", str(self.port), *store, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 10
        while time.monotonic() < until:
            try:
                socket.create_connection((HOST, self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise AssertionError("nats-server did not start")

    def kill(self) -> None:
        """Stop it at once, in the middle of whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def freeze(self) -> None:
        """From now on it answers nobody, and its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)  # all its threads are

    def thaw(self) -> None:
        """It goes on as if nothing had happened."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def written(self, name: str, text: str) -> str:
        """A file of this text, by its path."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.kill()


def transport(url: str, lost: Callable[[str], None] = str) -> NatsTransport:
    return NatsTransport(Home(url), namespace="tests", lost=lost, ack_wait=1.0)


def envelopes(count: int, data: bytes = b'{"args":[1],"kwargs":{}}') -> list[Envelope]:
    body = Body(JSON, data)
    return [
        Envelope(id=fresh_id(), subject="tests.add", body=body, namespace="tests", kind="io")
        for _ in range(count)
    ]


def told(tale: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def tell() -> None:
        async with asyncio.timeout(60):
            await tale()

    asyncio.run(tell())


class Traffic:
    """One that sends and one that receives, for as long as it takes."""

    def __init__(self, url: str) -> None:
        self.sender, self.receiver = transport(url), transport(url)
        self.confirmed: set[str] = set()
        self.received: set[str] = set()
        self.over = False
        self.all_sent = False

    async def send(self) -> None:
        while not self.over:
            batch = envelopes(20)
            try:
                await self.sender.send(batch)
                self.confirmed |= {one.id for one in batch}
            except Unavailable:
                await asyncio.sleep(0.05)
        self.all_sent = True

    async def receive(self) -> None:
        while not (self.all_sent and self.received >= self.confirmed):
            try:
                found = await self.receiver.receive({IO: 50}, 1.0)
            except Unavailable:
                await asyncio.sleep(0.05)
                continue
            await self.receiver.accept(found)
            self.received |= {one.id for one in found}


def test_a_server_that_is_killed_and_started_again_loses_nothing_confirmed(
    machine: Machine,
) -> None:
    async def tale() -> None:
        await asyncio.to_thread(machine.start)
        traffic = Traffic(f"nats://{machine.place}")
        async with asyncio.TaskGroup() as group:
            group.create_task(traffic.send())
            group.create_task(traffic.receive())
            for _ in range(3):
                await asyncio.sleep(0.5)
                before = len(traffic.confirmed)
                await asyncio.to_thread(machine.kill)
                await asyncio.sleep(0.2)
                await asyncio.to_thread(machine.start)
                while len(traffic.confirmed) == before:
                    await asyncio.sleep(0.02)
            traffic.over = True
        assert len(traffic.confirmed) > 100
        assert traffic.received >= traffic.confirmed
        await traffic.sender.close()
        await traffic.receiver.close()

    told(tale)


def test_a_server_that_lost_its_store_gets_its_lanes_anew(machine: Machine) -> None:
    async def tale() -> None:
        await asyncio.to_thread(machine.start)
        lost: list[str] = []
        one = transport(f"nats://{machine.place}", by_queue(lost))
        await one.send(envelopes(2))
        await asyncio.to_thread(machine.kill)
        shutil.rmtree(machine.folder / "store")
        await asyncio.to_thread(machine.start)
        await asyncio.sleep(0.1)
        (sent,) = batch = envelopes(1)
        await one.send(batch)
        (found,) = await one.receive({IO: 10}, 5.0)
        assert found.id == sent.id
        assert lost == ["default", "default"]
        await one.close()

    told(tale)


def test_no_server_is_an_error_at_once(machine: Machine) -> None:
    async def tale() -> None:
        one = transport(f"nats://{machine.place}")
        for call in (one.send(envelopes(1)), one.receive({IO: 1}, 10.0), one.check()):
            async with asyncio.timeout(5):
                with pytest.raises(
                    Unavailable, match=r"refused|Connect call.*check that the server"
                ):
                    await call
        await one.accept([])
        await one.close()

    told(tale)


def test_another_server_of_the_list_is_found(machine: Machine, tmp_path: Path) -> None:
    async def tale() -> None:
        await asyncio.to_thread(machine.start)
        away = Machine(tmp_path)
        one = transport(f"nats://{away.place},{machine.place}")
        await one.check()
        await one.close()

    told(tale)


def test_without_jetstream_it_says_how_to_start_it(machine: Machine) -> None:
    async def tale() -> None:
        await asyncio.to_thread(machine.start, jetstream=False)
        one = transport(f"nats://{machine.place}")
        for call in (one.send(envelopes(1)), one.receive({IO: 1}, 10.0), one.check()):
            with pytest.raises(Unavailable, match="nats-server -js"):
                await call
        await one.close()

    told(tale)


@pytest.mark.parametrize("who", ["", "me:wrong@", "token@"])
def test_a_wrong_password_is_said(machine: Machine, who: str) -> None:
    async def tale() -> None:
        await asyncio.to_thread(machine.start, "--user", "me", "--pass", "p@ss:w/rd")
        one = transport(f"nats://{who}{machine.place}")
        with pytest.raises(Unavailable, match=r"(?i)authorization.*check the user and password"):
            await one.check()
        await one.close()
        right = transport(f"nats://me:p%40ss%3Aw%2Frd@{machine.place}")
        await right.check()
        await right.close()

    told(tale)


def test_what_the_user_is_not_allowed_is_said(machine: Machine) -> None:
    config = """
    authorization { users: [ {
        user: me, password: me
        permissions: { publish: ["_INBOX.>", "$JS.API.>"], subscribe: ["_INBOX.>"] }
    } ] }
    """

    async def tale() -> None:
        await asyncio.to_thread(machine.start, "-c", machine.written("nats.conf", config))
        one = transport(f"nats://me:me@{machine.place}")
        start = time.monotonic()
        with pytest.raises(Unavailable, match="allow the user"):
            await one.send(envelopes(1))
        assert time.monotonic() - start < 5
        await one.close()

    told(tale)


def test_the_servers_own_limit_counts(machine: Machine) -> None:
    async def tale() -> None:
        config = machine.written("nats.conf", "max_payload: 200000")
        await asyncio.to_thread(machine.start, "-c", config)
        one = transport(f"nats://{machine.place}")
        assert one.limit == 1_000_000
        await one.check()
        assert 100_000 <= one.limit < 200_000
        await one.send(envelopes(1, b"1" * one.limit))
        with pytest.raises(MessageTooLarge, match=rf"{one.limit + 1:,} bytes.*{one.limit:,}"):
            await one.send(envelopes(1, b"1" * (one.limit + 1)))
        await one.close()

    told(tale)


def test_a_full_disk_is_said_and_waited_for(machine: Machine) -> None:
    async def tale() -> None:
        config = machine.written("nats.conf", "jetstream { max_file_store: 2MB }")
        await asyncio.to_thread(machine.start, "-c", config)
        one = transport(f"nats://{machine.place}")
        with pytest.raises(Unavailable, match="free some space"):
            await one.send(envelopes(50, b"1" * 100_000))
        found = await one.receive({IO: 100}, 5.0)
        assert len(found) > 5
        await one.accept(found)
        async with asyncio.timeout(10):
            while True:
                try:
                    await one.send(envelopes(1))
                    break
                except Unavailable:
                    await asyncio.sleep(0.05)
        await one.close()

    told(tale)


def test_tls_is_insisted_on_and_its_certificate_checked(machine: Machine) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("not run: TLS; there is no openssl to make a certificate")
    cert, key = machine.folder / "cert.pem", machine.folder / "key.pem"
    made = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    made += f" -addext subjectAltName=IP:{HOST} -keyout {key} -out {cert}"
    subprocess.run([openssl, *made.split()], check=True, capture_output=True)

    async def tale() -> None:
        await asyncio.to_thread(machine.start)
        plain = transport(f"tls://me:secret@{machine.place}")
        with pytest.raises(Unavailable, match="write nats:// instead of tls://"):
            await plain.check()
        await plain.close()
        machine.kill()
        options = ["--tls", "--tlscert", str(cert), "--tlskey", str(key)]
        await asyncio.to_thread(machine.start, *options)
        stranger = transport(f"tls://{machine.place}")
        with pytest.raises(Unavailable, match="ca= for the server's"):
            await stranger.check()
        await stranger.close()
        for scheme in ("tls", "nats"):
            one = transport(f"{scheme}://{machine.place}?ca={cert}")
            await one.send(envelopes(3))
            found = await one.receive({IO: 3}, 5.0)
            assert len(found) == 3
            await one.accept(found)
            await one.close()

    told(tale)

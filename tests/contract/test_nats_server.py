"""NATS servers that the tests start: restarted, locked, small, full and encrypted ones."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nats")

from local_servers import HOST
from nats_server import BINARY, NatsServer

from umbel.backends import Lane
from umbel.backends.nats.address import NatsAddress
from umbel.backends.nats.transport import NatsTransport
from umbel.errors import MessageTooLarge, Unavailable
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.testing.transports import record_missing_queue

if BINARY is None:
    pytest.skip(
        "not run: NATS servers of our own; there is no nats-server", allow_module_level=True
    )

IO = Lane("default", "io")


def transport(url: str, lost: Callable[[str], None] = str) -> NatsTransport:
    return NatsTransport(NatsAddress(url), namespace="tests", on_lane_missing=lost, ack_wait=1.0)


def envelopes(count: int, data: bytes = b'{"args":[1],"kwargs":{}}') -> list[Envelope]:
    body = Body(JSON, data)
    return [
        Envelope(id=fresh_id(), subject="tests.add", body=body, namespace="tests", kind="io")
        for _ in range(count)
    ]


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(main())


class Traffic:
    """A sender and a receiver that run until they are stopped."""

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
    nats_server: NatsServer,
) -> None:
    async def scenario() -> None:
        await asyncio.to_thread(nats_server.start)
        traffic = Traffic(f"nats://{nats_server.address}")
        async with asyncio.TaskGroup() as group:
            group.create_task(traffic.send())
            group.create_task(traffic.receive())
            for _ in range(3):
                await asyncio.sleep(0.5)
                before = len(traffic.confirmed)
                await asyncio.to_thread(nats_server.kill)
                await asyncio.sleep(0.2)
                await asyncio.to_thread(nats_server.start)
                while len(traffic.confirmed) == before:
                    await asyncio.sleep(0.02)
            traffic.over = True
        assert len(traffic.confirmed) > 100
        assert traffic.received >= traffic.confirmed
        await traffic.sender.close()
        await traffic.receiver.close()

    run(scenario)


def test_a_server_that_lost_its_store_gets_its_lanes_anew(nats_server: NatsServer) -> None:
    async def scenario() -> None:
        await asyncio.to_thread(nats_server.start)
        lost: list[str] = []
        one = transport(f"nats://{nats_server.address}", record_missing_queue(lost))
        await one.send(envelopes(2))
        await asyncio.to_thread(nats_server.kill)
        shutil.rmtree(nats_server.folder / "store")
        await asyncio.to_thread(nats_server.start)
        await asyncio.sleep(0.1)
        (sent,) = batch = envelopes(1)
        await one.send(batch)
        (found,) = await one.receive({IO: 10}, 5.0)
        assert found.id == sent.id
        assert lost == ["default", "default"]
        await one.close()

    run(scenario)


def test_no_server_is_an_error_at_once(nats_server: NatsServer) -> None:
    async def scenario() -> None:
        one = transport(f"nats://{nats_server.address}")
        for call in (one.send(envelopes(1)), one.receive({IO: 1}, 10.0), one.check()):
            async with asyncio.timeout(5):
                with pytest.raises(
                    Unavailable, match=r"refused|Connect call.*check that the server"
                ):
                    await call
        await one.accept([])
        await one.close()

    run(scenario)


def test_another_server_of_the_list_is_found(nats_server: NatsServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        await asyncio.to_thread(nats_server.start)
        away = NatsServer(tmp_path)
        one = transport(f"nats://{away.address},{nats_server.address}")
        await one.check()
        await one.close()

    run(scenario)


def test_without_jetstream_it_says_how_to_start_it(nats_server: NatsServer) -> None:
    async def scenario() -> None:
        await asyncio.to_thread(nats_server.start, jetstream=False)
        one = transport(f"nats://{nats_server.address}")
        for call in (one.send(envelopes(1)), one.receive({IO: 1}, 10.0), one.check()):
            with pytest.raises(Unavailable, match="nats-server -js"):
                await call
        await one.close()

    run(scenario)


@pytest.mark.parametrize("who", ["", "me:wrong@", "token@"])
def test_a_wrong_password_is_reported(nats_server: NatsServer, who: str) -> None:
    async def scenario() -> None:
        await asyncio.to_thread(nats_server.start, "--user", "me", "--pass", "p@ss:w/rd")
        one = transport(f"nats://{who}{nats_server.address}")
        with pytest.raises(Unavailable, match=r"(?i)authorization.*check the user and password"):
            await one.check()
        await one.close()
        right = transport(f"nats://me:p%40ss%3Aw%2Frd@{nats_server.address}")
        await right.check()
        await right.close()

    run(scenario)


def test_a_missing_permission_of_the_user_is_reported(nats_server: NatsServer) -> None:
    config = """
    authorization { users: [ {
        user: me, password: me
        permissions: { publish: ["_INBOX.>", "$JS.API.>"], subscribe: ["_INBOX.>"] }
    } ] }
    """

    async def scenario() -> None:
        await asyncio.to_thread(
            nats_server.start, "-c", nats_server.write_file("nats.conf", config)
        )
        one = transport(f"nats://me:me@{nats_server.address}")
        start = time.monotonic()
        with pytest.raises(Unavailable, match="allow the user"):
            await one.send(envelopes(1))
        assert time.monotonic() - start < 5
        await one.close()

    run(scenario)


def test_the_servers_own_limit_counts(nats_server: NatsServer) -> None:
    async def scenario() -> None:
        config = nats_server.write_file("nats.conf", "max_payload: 200000")
        await asyncio.to_thread(nats_server.start, "-c", config)
        one = transport(f"nats://{nats_server.address}")
        assert one.max_body_bytes == 1_000_000
        await one.check()
        assert 100_000 <= one.max_body_bytes < 200_000
        await one.send(envelopes(1, b"1" * one.max_body_bytes))
        with pytest.raises(
            MessageTooLarge, match=rf"{one.max_body_bytes + 1:,} bytes.*{one.max_body_bytes:,}"
        ):
            await one.send(envelopes(1, b"1" * (one.max_body_bytes + 1)))
        await one.close()

    run(scenario)


def test_a_full_disk_is_reported_and_waited_for(nats_server: NatsServer) -> None:
    async def scenario() -> None:
        config = nats_server.write_file("nats.conf", "jetstream { max_file_store: 2MB }")
        await asyncio.to_thread(nats_server.start, "-c", config)
        one = transport(f"nats://{nats_server.address}")
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

    run(scenario)


def test_tls_is_insisted_on_and_its_certificate_checked(nats_server: NatsServer) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("not run: TLS; there is no openssl to make a certificate")
    cert, key = nats_server.folder / "cert.pem", nats_server.folder / "key.pem"
    made = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    made += f" -addext subjectAltName=IP:{HOST} -keyout {key} -out {cert}"
    subprocess.run([openssl, *made.split()], check=True, capture_output=True)

    async def scenario() -> None:
        await asyncio.to_thread(nats_server.start)
        plain = transport(f"tls://me:secret@{nats_server.address}")
        with pytest.raises(Unavailable, match="write nats:// instead of tls://"):
            await plain.check()
        await plain.close()
        nats_server.kill()
        options = ["--tls", "--tlscert", str(cert), "--tlskey", str(key)]
        await asyncio.to_thread(nats_server.start, *options)
        stranger = transport(f"tls://{nats_server.address}")
        with pytest.raises(Unavailable, match="ca= for the server's"):
            await stranger.check()
        await stranger.close()
        for scheme in ("tls", "nats"):
            one = transport(f"{scheme}://{nats_server.address}?ca={cert}")
            await one.send(envelopes(3))
            found = await one.receive({IO: 3}, 5.0)
            assert len(found) == 3
            await one.accept(found)
            await one.close()

    run(scenario)


@pytest.mark.parametrize("who", ["me:secret@", "secret@"])
def test_a_password_is_not_sent_unencrypted_if_tls_is_required(who: str) -> None:
    """The server may be another one that only pretends to have no TLS."""
    received: list[bytes] = []

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload": 1048576, "headers": true, "auth_required": true}\r\n')
        while line := await reader.readline():
            received.append(line)
            writer.write(b"PONG\r\n")
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_server(pretend, HOST, 0) as server:
            port = server.sockets[0].getsockname()[1]
            one = transport(f"tls://{who}{HOST}:{port}")
            with pytest.raises(Unavailable, match="write nats:// instead of tls://"):
                await one.check()
            await one.close()
        assert b"secret" not in b"".join(received)

    run(scenario)

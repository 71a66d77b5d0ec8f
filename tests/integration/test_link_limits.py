"""What one peer can cost a process that serves links: memory, calls, connections.

The server is a process of its own. The peers are sockets that follow the protocol as far as a test
wants them to.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("proton", reason="not run: links; Qpid Proton is not installed")

from servers import free_port

from integration.conftest import HANG, Place
from integration.link_peers import Certificates, command_attributes, task_named, with_tasks
from umbel import Umbel
from umbel.backends import Records
from umbel.backends.amqp.engine import Engine, ReceivingLink, SendingLink
from umbel.backends.amqp.message_codec import AmqpMessage, encode
from umbel.links.ports import port_methods

SILENCE = 20.0
"""Seconds after which a silent peer is dropped, as the docs say."""


class RouterProcess:
    """A process of ``umbel router``."""

    def __init__(
        self, place: Place, folder: Path, scheme: str = "umbel+tcp", query: str = ""
    ) -> None:
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._log = folder / "router.log"
        environment = {
            **os.environ,
            "UMBEL_URL": place.url,
            "UMBEL_NAMESPACE": place.namespace,
            "UMBEL_BACKLOG": "none",
        }
        command = [sys.executable, "-m", "umbel", "router", "--listen", self.url + query]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--log-format", "json"], env=environment, stdout=log, stderr=log
            )
        self.until_said("serving links")

    def until_said(self, words: str) -> None:
        end = time.monotonic() + HANG
        while words not in self.said():
            assert self._process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(0.05)

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def megabytes(self) -> float:
        """Return the memory of the process in megabytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) / 1024

    def client(self) -> Umbel:
        return with_tasks(Umbel(self.url, deadline=15.0, backlog="none"))

    def limit_files(self, files: int) -> None:
        resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (files, files))

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def router(sqlite: Place, tmp_path: Path) -> Iterator[RouterProcess]:
    process = RouterProcess(sqlite, tmp_path)
    yield process
    process.stop()


class Peer:
    """A peer that reads and writes only when the test asks it to."""

    def __init__(self, router: RouterProcess) -> None:
        self.socket = socket.create_connection(("127.0.0.1", router.port), 10)
        self.engine = Engine(self, lambda: None, server=False)
        self.sent = bytearray()
        self.is_open = False
        self.close_reason = ""
        self.engine.start("127.0.0.1")
        self.exchange(lambda: self.is_open)

    def on_open(self) -> None:
        self.is_open = True

    def on_peer_sender(self, address: str, accept: Any) -> str:
        return "no"

    def on_peer_receiver(self, address: str, link: SendingLink) -> str:
        return "no"

    def on_closed(self, reason: str) -> None:
        self.close_reason = reason

    def inbox(self, credit: int) -> ReceivingLink:
        """Open a link for answers, which are ignored."""

        def received(link: ReceivingLink, token: Any, data: bytes) -> None:
            link.settle(token)

        link = self.engine.open_receiver(None, received, credit, 10_000_000)
        self.exchange(lambda: link.address)
        return link

    def write(self) -> None:
        """Write all pending output, without reading."""
        while data := self.engine.take_output():
            self.sent += data
            self.socket.sendall(data)

    def exchange(self, holds: Callable[[], object], seconds: float = HANG) -> bool:
        """Write and read until a condition holds or the server disconnects. False: timeout."""
        end = time.monotonic() + seconds
        self.socket.settimeout(0.05)
        while not holds() and not self.close_reason:
            if time.monotonic() > end:
                return False
            self.engine.tick(time.monotonic())
            self.write()
            try:
                data = self.socket.recv(1_000_000)
            except TimeoutError:
                continue
            except OSError as error:
                data = b""
                self.close_reason = str(error)
            if not data:
                self.close_reason = self.close_reason or "the server hung up"
            else:
                self.engine.feed(data)
        self.write() if not self.close_reason else None
        return bool(holds())

    def settled(self, link: SendingLink, posts: Sequence[AmqpMessage], seconds: float) -> int:
        """Return how many of these messages the server has accepted once it is idle."""
        taken = 0

        def told(reason: str) -> None:
            nonlocal taken
            taken += not reason

        for post in posts:
            link.send(encode(post), told)
        before = -1
        while before < taken < len(posts):
            before = taken
            self.exchange(lambda: taken == len(posts), seconds)
        return taken


def call(name: str, *args: Any, reply_to: str = "", key: str = "1") -> AmqpMessage:
    request = port_methods(Records)[name].encode_call(*args)
    return AmqpMessage(body=request.data, subject=name, correlation=key, reply_to=reply_to)


# --- calls ---------------------------------------------------------------------------------


def test_calls_that_wait_are_bounded_for_each_peer(router: RouterProcess) -> None:
    with closing(router.client()) as app:
        job = task_named(app, "add").delay(1, 2)
        before = router.megabytes()
        peer = Peer(router)
        inbox = peer.inbox(1_000)
        sender = peer.engine.open_sender("records")
        waits = [
            call("wait_finished", job.id, None, reply_to=inbox.address, key=str(number))
            for number in range(20_000)
        ]
        taken = peer.settled(sender, waits, 3)
        assert 1_000 <= taken <= 1_200
        assert router.megabytes() - before < 40
        peer.socket.close()
        assert task_named(app, "add").delay(3, 4).state == "queued"


def test_answers_that_are_awaited_for_commands_are_bounded_for_each_peer(
    router: RouterProcess, sqlite: Place
) -> None:
    peer = Peer(router)
    inbox = peer.inbox(1_000)
    sender = peer.engine.open_sender("commands")
    posts = [
        AmqpMessage(
            body=b'{"args": [1, 2]}', attributes=command_attributes(), reply_to=inbox.address
        )
        for _ in range(3_000)
    ]
    taken = peer.settled(sender, posts, 3)
    assert 1_000 <= taken <= 1_200
    assert len(sqlite.jobs()) == taken
    peer.socket.close()


def test_a_process_that_waits_for_many_results_can_still_ask_and_publish(
    router: RouterProcess, sqlite: Place
) -> None:
    async def main(app: Umbel) -> list[str]:
        handles = await app.apublish_many([task_named(app, "echo").s(str(n)) for n in range(1_300)])
        waiting = [asyncio.ensure_future(handle.aget()) for handle in handles]
        async with asyncio.timeout(HANG):
            for handle in handles[::100]:
                assert (await handle.arecord()).state == "queued"
        late = await task_named(app, "add").adelay(1, 2)
        assert await late.acancel()
        worker = with_tasks(sqlite.app()).worker()
        working = asyncio.create_task(worker.run())
        try:
            async with asyncio.timeout(HANG):
                return list(await asyncio.gather(*waiting))
        finally:
            worker.stop()
            await working

    with closing(router.client()) as app:
        assert asyncio.run(main(app)) == [str(n) for n in range(1_300)]


def test_a_wait_that_is_given_up_makes_room_for_another(router: RouterProcess) -> None:
    async def main(app: Umbel) -> None:
        job = await task_named(app, "add").adelay(1, 2)
        for _ in range(3):
            waiting = [asyncio.ensure_future(job.aget()) for _ in range(600)]
            await asyncio.wait(waiting, timeout=0.5)
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        assert (await job.arecord()).state == "queued"
        assert await job.acancel()
        assert (await job.arecord()).state == "cancelled"

    with closing(router.client()) as app:
        asyncio.run(main(app))


def test_a_peer_that_sends_more_calls_than_it_may_is_dropped(router: RouterProcess) -> None:
    with closing(router.client()) as app:
        job = task_named(app, "add").delay(1, 2)
        generous = Generous()
        inbox = generous.client.open_receiver(None, lambda *_: None, 10, 10_000)
        generous.exchange()
        sender = generous.client.open_sender("records")
        generous.exchange()
        greeting = len(generous.sent)
        for number in range(5_000):
            post = call("wait_finished", job.id, None, reply_to=inbox.address, key=str(number))
            sender.send(encode(post), lambda reason: None)
        generous.exchange()
        with socket.create_connection(("127.0.0.1", router.port), 10) as peer:
            peer.settimeout(HANG)
            try:
                peer.sendall(generous.sent[:greeting])
                answer = b""
                while b"records" not in answer:  # the link is open
                    answer += peer.recv(65_536)
                peer.sendall(generous.sent[greeting:])
                while peer.recv(65_536):
                    pass
            except ConnectionError:
                pass
        router.until_said("more messages than it had credit for")
        assert task_named(app, "add").delay(3, 4).state == "queued"


class Generous:
    """A server that grants any credit, and records what a client then sends."""

    def __init__(self) -> None:
        self.client = Engine(self, lambda: None, server=False)
        self.server = Engine(self, lambda: None, server=True)
        self.sent = b""
        self.server.start()
        self.client.start("127.0.0.1")
        self.exchange()

    def exchange(self) -> None:
        said = True
        while said:
            data = self.client.take_output()
            self.sent += data
            self.server.feed(data)
            answer = self.server.take_output()
            self.client.feed(answer)
            said = bool(data or answer)

    def on_open(self) -> None:
        pass

    def on_peer_sender(self, address: str, accept: Any) -> str:
        accept(lambda link, token, data: link.settle(token), 100_000, 10_000_000)
        return ""

    def on_peer_receiver(self, address: str, link: SendingLink) -> str:
        return ""

    def on_closed(self, reason: str) -> None:
        raise AssertionError(reason)


def test_a_peer_that_opens_and_closes_links_costs_no_memory(router: RouterProcess) -> None:
    peer = Peer(router)

    def open_and_close(many: int) -> None:
        for _ in range(many):
            link = peer.engine.open_sender("records")
            peer.exchange(lambda link=link: link.is_open)  # type: ignore[misc]
            link.close()

    open_and_close(500)
    before = router.megabytes()
    open_and_close(5_000)
    assert not peer.close_reason
    assert router.megabytes() - before < 8
    peer.socket.close()


def test_a_peer_that_opens_too_many_links_is_dropped(router: RouterProcess) -> None:
    peer = Peer(router)
    for _ in range(40):
        peer.engine.open_sender("nowhere")
    peer.exchange(lambda: False, 10)
    assert "more than 32 links" in peer.close_reason


# --- answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["find", "wait_finished"])
def test_answers_that_are_not_read_are_bounded_and_their_peer_is_dropped(
    router: RouterProcess, name: str
) -> None:
    with closing(router.client()) as app:
        job = task_named(app, "echo").delay("x" * 1_000_000)
        assert job.cancel()
        before = router.megabytes()
        peer = Peer(router)
        inbox = peer.inbox(5_000)
        sender = peer.engine.open_sender("records")
        args: tuple[Any, ...] = (job.id,) if name == "find" else (job.id, None)
        for number in range(750):
            sender.send(encode(call(name, *args, reply_to=inbox.address, key=str(number))))
        peer.exchange(lambda: sender.is_open)
        started = time.monotonic()
        highest = 0.0
        while "has not read its answers" not in router.said():
            highest = max(highest, router.megabytes() - before)
            assert time.monotonic() - started < SILENCE + 20, router.said()
            time.sleep(0.1)
        assert time.monotonic() - started > SILENCE / 2
        assert highest < 120
        assert task_named(app, "add").delay(3, 4).state == "queued"
        peer.socket.close()


@pytest.mark.parametrize("name", ["find", "wait_finished"])
def test_answers_for_which_there_is_no_credit_are_bounded(router: RouterProcess, name: str) -> None:
    with closing(router.client()) as app:
        job = task_named(app, "echo").delay("x" * 1_000_000)
        assert job.cancel()
        before = router.megabytes()
        peer = Peer(router)
        inbox = peer.inbox(0)
        sender = peer.engine.open_sender("records")
        args: tuple[Any, ...] = (job.id,) if name == "find" else (job.id, None)
        for number in range(750):
            sender.send(encode(call(name, *args, reply_to=inbox.address, key=str(number))))
        assert not peer.exchange(lambda: False, 5)
        assert router.megabytes() - before < 120
        inbox.add_credit(5_000)  # and all are answered once there is
        answers = inbox.credit
        assert peer.exchange(lambda: answers - inbox.credit >= 750, HANG)
        peer.socket.close()


# --- silence -------------------------------------------------------------------------------

OPEN = b"AMQP\x00\x01\x00\x00" + b"\0\0\0\x11\x02\0\0\0\0\x53\x10\xc0\x04\x01\xa1\x01a"


@pytest.mark.parametrize("tls", [False, True])
def test_a_silent_peer_is_dropped_in_time_however_far_it_got(
    sqlite: Place, tmp_path: Path, tls: bool
) -> None:
    said = [b"", b"\x16\x03\x01"] if tls else [b"", b"AM", b"AMQP\x03\x01\x00\x00", OPEN]
    query = Certificates(tmp_path / "papers").query("router") if tls else ""
    router = RouterProcess(sqlite, tmp_path, "umbel" if tls else "umbel+tcp", query)
    peers = [socket.create_connection(("127.0.0.1", router.port), 10) for _ in said]
    try:
        started = time.monotonic()
        for peer, words in zip(peers, said, strict=True):
            peer.sendall(words)
            peer.settimeout(SILENCE + 15)
        for peer in peers:
            try:
                while peer.recv(1_000):
                    pass
            except ConnectionError:
                pass
            assert SILENCE - 1 < time.monotonic() - started < SILENCE + 10
    finally:
        for peer in peers:
            peer.close()
        router.stop()


@pytest.mark.parametrize("words", [b"", b"AMQP\x03\x01\x00\x00"])
def test_silent_peers_do_not_lock_others_out(router: RouterProcess, words: bytes) -> None:
    router.limit_files(128)
    silent = []
    try:
        for _ in range(120):
            silent.append(socket.create_connection(("127.0.0.1", router.port), 10))
            silent[-1].sendall(words)
        with closing(router.client()) as app:
            assert task_named(app, "add").delay(1, 2).state == "queued"
    finally:
        for peer in silent:
            peer.close()


def test_peers_that_fall_silent_when_they_are_connected_do_not_lock_others_out(
    router: RouterProcess,
) -> None:
    router.limit_files(128)
    silent = []
    try:
        for _ in range(120):
            silent.append(socket.create_connection(("127.0.0.1", router.port), 10))
            silent[-1].sendall(OPEN)
        # After half of that time they have missed two of the words that every peer has to say.
        with closing(with_tasks(Umbel(router.url, deadline=18, backlog="none"))) as app:
            assert task_named(app, "add").delay(1, 2).state == "queued"
    finally:
        for peer in silent:
            peer.close()

"""Tests that need a broker of their own: restarts, halts, deleted queues, permissions, TLS."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from amqp_broker import AmqpNode, channel_to, running_node
from msgspec.structs import replace
from pika.exceptions import ChannelClosedByBroker
from rabbitmq_node import envelope, receive_until_found, send_until_accepted

from chaos.proxy import Proxy
from docs.write_outputs import ROOT, blocks
from umbel.backends import Lane
from umbel.backends.amqp import engine
from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.amqp.queue_names import queue_name
from umbel.backends.amqp.transport import AmqpTransport
from umbel.errors import MessageTooLarge, Unavailable
from umbel.messages import JSON, Body, fresh_id
from umbel.testing.transports import record_missing_queue

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("amqp-node")]

IO = Lane("default", "io")
BATCH = 20


@pytest.fixture(scope="module")
def node() -> Iterator[AmqpNode]:
    with running_node() as node:
        yield node


def transport_to(
    node: AmqpNode,
    *,
    port: int = 0,
    namespace: str = "",
    on_lane_missing: Any = None,
    **how: Any,
) -> AmqpTransport:
    address = AmqpAddress(f"amqp1://guest:guest@127.0.0.1:{port or node.port}?connect_timeout=2")
    return AmqpTransport(
        address,
        namespace=namespace or new_namespace(),
        on_lane_missing=on_lane_missing or (lambda _: None),
        **how,
    )


def new_namespace() -> str:
    return f"t{fresh_id()[-12:]}"


def run(transport_test: Callable[[], Awaitable[None]], runner: str = "asyncio") -> None:
    async def told() -> None:
        async with asyncio.timeout(90):
            await transport_test()

    pytest.importorskip(runner).run(told())


def test_a_broker_that_restarts_loses_nothing_and_is_found_again(node: AmqpNode) -> None:
    async def transport_test() -> None:
        one = transport_to(node)
        first, second = envelope(), envelope()
        await one.send([first])
        (held,) = await one.receive({IO: 10}, 10)
        await node.acontrol("stop_app")
        with pytest.raises(Unavailable):
            await one.send([second])
        with pytest.raises(Unavailable):
            await one.receive({IO: 10}, 1.0)
        with pytest.raises(Unavailable):
            await one.check()
        await one.accept([held])
        await node.acontrol("start_app")
        await send_until_accepted(one, second)
        found: set[str] = set()
        while not found >= {first.id, second.id}:
            new = await one.receive({IO: 10}, 5)
            await one.accept(new)
            found |= {each.id for each in new}
        await one.close()

    run(transport_test)


def test_a_broker_that_halts_is_an_error_in_time_and_goes_on_later(node: AmqpNode) -> None:
    async def transport_test() -> None:
        one = transport_to(node, send_timeout=1.0)
        first, second = envelope(), envelope()
        await one.send([first])
        await receive_until_found(one, first.id)
        waiting = asyncio.create_task(one.receive({IO: 1}, 60))
        await asyncio.sleep(0.2)
        node.signal(signal.SIGSTOP)
        try:
            for attempt in (one.send([second]), one.check(), one.purge("default")):
                async with asyncio.timeout(20):
                    with pytest.raises(Unavailable, match="not answer"):
                        await attempt
        finally:
            node.signal(signal.SIGCONT)
        await send_until_accepted(one, second)
        with suppress(Unavailable):
            await one.accept(await waiting)
        await one.close()
        other = transport_to(node)
        await other.check()
        await other.close()

    run(transport_test)


def test_a_broker_that_is_killed_loses_nothing_that_it_confirmed() -> None:
    async def transport_test(node: AmqpNode) -> None:
        one = transport_to(node)
        sent = [envelope() for _ in range(200)]
        await one.send(sent)
        waiting = asyncio.create_task(one.receive({Lane("other", "io"): 1}, 60))
        await asyncio.sleep(0.2)
        node.signal(signal.SIGKILL)
        with pytest.raises(Unavailable):
            await waiting
        with pytest.raises(Unavailable):
            await one.send([envelope()])
        await asyncio.to_thread(node.start)
        found: set[str] = set()
        while not found >= {each.id for each in sent}:
            with suppress(Unavailable):
                new = await one.receive({IO: 50}, 5)
                await one.accept(new)
                found |= {each.id for each in new}
        await one.close()

    with running_node("amqp-killed") as node:
        run(lambda: transport_test(node))


def test_a_waiting_receive_notices_a_dead_connection(
    node: AmqpNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "IDLE_TIMEOUT_SECONDS", 2.0)
    proxy = Proxy(node.port, 1)

    async def transport_test() -> None:
        namespace = new_namespace()
        one = transport_to(node, port=proxy.port, namespace=namespace)
        other = transport_to(node, namespace=namespace)
        await one.receive({IO: 1}, 0.0)
        waiting = asyncio.create_task(one.receive({IO: 1}, 600))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(proxy.set_state, "dead")
        with pytest.raises(Unavailable):
            await waiting
        await asyncio.to_thread(proxy.set_state, "fine")
        sent = envelope()
        await other.send([sent])
        await receive_until_found(one, sent.id)
        await one.close()
        await other.close()

    try:
        run(transport_test)
    finally:
        proxy.close()


def test_what_was_confirmed_was_in_the_queue_whenever_that_is_deleted(node: AmqpNode) -> None:
    """RabbitMQ says of a queue that it deletes how many messages were in it.

    While it deletes a queue, RabbitMQ 3 accepts messages and drops them without a notice. Messages
    that are sent from then until the loss is reported may or may not exist; the job store has them.
    Those confirmed before were in the queue; those confirmed afterwards are in the new queue.
    """

    async def keep_sending(one: AmqpTransport, lost: list[str], confirmed: list[str]) -> list[str]:
        while True:
            batch = [envelope() for _ in range(BATCH)]
            is_another = bool(lost)
            with suppress(Unavailable):
                await one.send(batch)
                confirmed += [each.id for each in batch]
                if is_another:
                    return [each.id for each in batch]

    def delete_all(namespaces: list[str]) -> list[int]:
        with channel_to(node) as channel:
            names = [queue_name(namespace, IO) for namespace in namespaces]
            return [channel.queue_delete(name).method.message_count for name in names]

    async def transport_test() -> None:
        lost: list[list[str]] = [[] for _ in range(12)]
        confirmed: list[list[str]] = [[] for _ in lost]
        namespaces = [new_namespace() for _ in lost]
        many = [
            transport_to(node, namespace=name, on_lane_missing=record_missing_queue(each))
            for name, each in zip(namespaces, lost, strict=True)
        ]
        for one in many:
            await one.send([envelope()])
        for each in lost:
            each.clear()
        sending = [
            asyncio.create_task(keep_sending(*each))
            for each in zip(many, lost, confirmed, strict=True)
        ]
        while not all(confirmed):
            await asyncio.sleep(0.1)
        before = [len(each) for each in confirmed]
        there = await asyncio.to_thread(delete_all, namespaces)
        for sent, found in zip(before, there, strict=True):
            assert 0 < sent < found  # one more was there from the start
        for one, last in zip(many, await asyncio.gather(*sending), strict=True):
            found_now = await one.receive({IO: 100_000}, 10.0)
            assert {*last} <= {each.id for each in found_now}
            await one.close()

    run(transport_test)


@pytest.mark.parametrize("wait", [0.0, 10.0])
def test_all_that_is_there_comes_at_once_if_there_is_room(node: AmqpNode, wait: float) -> None:
    async def transport_test() -> None:
        one = transport_to(node)
        body = Body(JSON, b"1" * 20_000)
        for _ in range(5):
            sent = [replace(envelope(), body=body) for _ in range(150)]
            await one.send(sent)
            found = await one.receive({IO: 1000}, wait)
            assert [each.id for each in found] == [each.id for each in sent]
            await one.accept(found)
        await one.close()

    run(transport_test)


def test_a_queue_of_another_type_is_used_as_it_is(node: AmqpNode) -> None:
    async def transport_test() -> None:
        lost: list[str] = []
        namespace = new_namespace()
        on_lane_missing = record_missing_queue(lost)
        one = transport_to(node, namespace=namespace, on_lane_missing=on_lane_missing)
        name = queue_name(namespace, IO)
        with channel_to(node) as channel:
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
        sent = [envelope() for _ in range(300)]
        await one.send(sent)
        found: list[str] = []
        while len(found) < len(sent):
            new = await one.receive({IO: 20}, 10)
            assert 0 < len(new) <= 20
            await one.accept(new)
            found += [each.id for each in new]
        assert found == [each.id for each in sent]
        assert await one.receive({IO: 20}, 0.0) == []
        assert lost == []
        await one.close()

    run(transport_test)


def test_the_queues_that_it_creates_are_durable_and_shared(node: AmqpNode) -> None:
    async def transport_test() -> None:
        namespace = new_namespace()
        one = transport_to(node, namespace=namespace)
        await one.send([envelope()])
        name = queue_name(namespace, IO)
        with channel_to(node) as channel:
            found = channel.queue_declare(name, durable=True)  # refused if it were another
            assert found.method.message_count == 1
        await one.close()

    run(transport_test)


def test_a_body_over_the_brokers_limit_is_refused_by_name(node: AmqpNode) -> None:
    async def transport_test() -> None:
        one = transport_to(node)
        large = replace(envelope(), body=Body(JSON, b"1" * 20_000_000))
        with pytest.raises(MessageTooLarge, match="Pass a reference"):
            await one.send([large])
        await one.close()

    run(transport_test)


def test_the_program_in_the_documentation_sends_a_request_and_receives_the_reply(
    node: AmqpNode, tmp_path: Path
) -> None:
    page = blocks(ROOT / "docs/how-to/amqp-1.0.md")
    at = next(n for n, block in enumerate(page) if "BlockingConnection" in block.text)
    program, expected = page[at].text, page[at + 1].text
    (tmp_path / "hello.py").write_text(HELLO)
    settings = {
        "UMBEL_BROKER": f"amqp1://guest:guest@127.0.0.1:{node.port}",
        "UMBEL_STORE": f"sqlite:///{tmp_path}/books.db",
        "BROKER": node.url,
    }
    environment = os.environ | settings
    command = [sys.executable, "-m", "umbel", "-A", "hello", "worker"]
    log = (tmp_path / "log").open("w")
    worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        asks = [sys.executable, "-c", program]
        # The queue is there when the worker is; before that, RabbitMQ would drop the message.
        wait_for_queue(node, "umbel.default.any")
        asked = subprocess.run(asks, env=environment, capture_output=True, text=True, timeout=60)
        assert (asked.stdout, asked.stderr) == (expected, "")
    finally:
        worker.terminate()
        worker.wait(30)
        log.close()


def wait_for_queue(node: AmqpNode, name: str) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with suppress(ChannelClosedByBroker), channel_to(node) as channel:
            channel.queue_declare(name, passive=True)
            return
        time.sleep(0.1)
    raise AssertionError(f"{name} was not created")


HELLO = """
from umbel import Umbel

app = Umbel()


@app.task
def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("amqp1://guest:wrong@127.0.0.1:{port}", "check host, port, user and password"),
        ("amqp1://guest:guest@127.0.0.1:{port}?vhost=nowhere", "unauthorized-access"),
        ("amqp1s://guest:guest@127.0.0.1:{port}?connect_timeout=2", "SSL"),
        ("amqp1://guest:guest@127.0.0.1:{tls_port}?connect_timeout=2", "check host, port"),
        ("amqp1://guest:guest@127.0.0.1:1", "cannot be reached"),
    ],
)
def test_a_wrong_address_is_an_error_that_says_so(node: AmqpNode, url: str, said: str) -> None:
    async def transport_test() -> None:
        address = AmqpAddress(url.format(port=node.port, tls_port=node.tls_port))
        one = AmqpTransport(address, namespace="x", on_lane_missing=lambda _: None)
        for attempt in (one.check(), one.send([envelope()]), one.receive({IO: 1}, 30)):
            async with asyncio.timeout(12):
                with pytest.raises(Unavailable, match=said):
                    await attempt
        await one.close()

    run(transport_test)


@pytest.mark.parametrize("permissions", [("", ".*", ".*"), (".*", ".*", ""), ("", "", "")])
def test_a_missing_permission_is_named(node: AmqpNode, permissions: tuple[str, str, str]) -> None:
    async def transport_test() -> None:
        user = f"u{fresh_id()[-6:]}"
        await node.acontrol("add_user", user, "secret")
        await node.acontrol("set_permissions", user, *permissions)
        address = AmqpAddress(f"amqp1://{user}:secret@127.0.0.1:{node.port}")
        one = AmqpTransport(address, namespace="x", on_lane_missing=lambda _: None)
        for attempt in (one.receive({IO: 1}, 30), one.receive({IO: 1}, 30)):
            with pytest.raises(Unavailable, match=r"access to queue .* refused"):
                await attempt
        await one.close()

    run(transport_test)


@pytest.mark.parametrize("runner", ["asyncio", "uvloop"])
def test_tls_carries_messages_to_a_broker_that_is_trusted(node: AmqpNode, runner: str) -> None:
    async def transport_test() -> None:
        url = f"amqp1s://guest:guest@127.0.0.1:{node.tls_port}"
        one = AmqpTransport(
            AmqpAddress(f"{url}?cafile={node.certificate}"), namespace="tls", on_lane_missing=print
        )
        sent = [envelope() for _ in range(500)]
        await one.send(sent)
        await receive_until_found(one, sent[-1].id)
        await one.close()
        stranger = AmqpTransport(AmqpAddress(url), namespace="tls", on_lane_missing=print)
        with pytest.raises(Unavailable, match="certificate"):
            await stranger.check()
        careless = AmqpTransport(
            AmqpAddress(f"{url}?verify=false"), namespace="tls", on_lane_missing=print
        )
        await careless.check()
        await careless.close()

    run(transport_test, runner)


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\x03\x01\x00\x00" * 50]
)
def test_a_server_of_another_protocol_is_an_error_in_time(said: bytes) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        if said:
            writer.write(os.urandom(4096))
        with suppress(OSError):
            await reader.read()
        writer.close()

    async def transport_test() -> None:
        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        address = AmqpAddress(f"amqp1://guest:guest@127.0.0.1:{port}?connect_timeout=1")
        one = AmqpTransport(address, namespace="x", on_lane_missing=lambda _: None)
        for _ in range(3):
            async with asyncio.timeout(5):
                with pytest.raises(Unavailable):
                    await one.check()
        await one.close()
        server.close()

    run(transport_test)

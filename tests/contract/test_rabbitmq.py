"""The transport's suite over RabbitMQ, each test in a namespace of its own, through a proxy."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

pika = pytest.importorskip("pika")

from umbel.backends import Lane, Transport  # noqa: E402
from umbel.backends.rabbitmq.address import Home  # noqa: E402
from umbel.backends.rabbitmq.queue_names import queue_name  # noqa: E402
from umbel.backends.rabbitmq.transport import RabbitTransport  # noqa: E402
from umbel.messages import fresh_id  # noqa: E402
from umbel.testing.transports import (  # noqa: E402
    Asker,
    Heard,
    Server,
    Servers,
    TransportSuite,
    by_queue,
)

HOST, PORT = "127.0.0.1", int(os.environ.get("UMBEL_TEST_RABBITMQ_PORT", "5672"))


def refusal() -> str:
    """Why no tests can run here; empty if they can."""
    if shutil.which("rabbitmqctl") is None:
        return "there is no rabbitmqctl to make a virtual host with"
    try:
        pika.BlockingConnection(
            pika.ConnectionParameters(HOST, PORT, socket_timeout=2, stack_timeout=4)
        ).close()
    except Exception as error:  # pika has no one class for a server that accepts and is silent
        return f"{HOST}:{PORT} does not answer ({error!r:.80})"
    return ""


if refused := refusal():
    pytest.skip(f"not run: the suite over RabbitMQ; {refused}", allow_module_level=True)


def rabbitmqctl(*command: str) -> None:
    subprocess.run(["rabbitmqctl", "-q", *command], check=True, stdout=subprocess.DEVNULL, cwd="/")


@pytest.fixture(scope="module")
def vhost() -> Iterator[str]:
    """A virtual host of this module's and this process's own."""
    name = f"umbel-test-{os.getpid()}-{fresh_id()[-6:]}"
    rabbitmqctl("add_vhost", name)
    try:
        rabbitmqctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        yield name
    finally:
        rabbitmqctl("delete_vhost", name)


class Proxy:
    """Between transports and the server, so that connections can be cut without a word."""

    def __init__(self) -> None:
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, HOST, 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            self.cut()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(HOST, PORT)
        self._writers |= {writer, up_writer}
        for pair in ((reader, up_writer), (up_reader, writer)):
            task = asyncio.create_task(self._pump(*pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def rabbit(vhost: str) -> AsyncIterator[Server]:
    """A corner of the server for one test."""
    namespace, lost, proxy = f"t{fresh_id()[-12:]}", list[str](), Proxy()
    async with proxy.running() as port:

        @asynccontextmanager
        async def opened() -> AsyncIterator[Transport]:
            home = Home(f"amqp://guest:guest@{HOST}:{port}/{vhost}")
            transport = RabbitTransport(home, namespace=namespace, lost=by_queue(lost))
            try:
                yield transport
            finally:
                await transport.close()

        async def cut() -> None:
            proxy.cut()

        yield Server(
            namespace=namespace,
            open=opened,
            cut=cut,
            drop=partial(drop, vhost, namespace),
            put=partial(put, vhost, namespace),
            asker=lambda: asker(vhost),
            lost=lost,
        )


async def drop(vhost: str, namespace: str, lane: Lane) -> None:
    """Delete a lane's queue, as an operator might."""
    await asyncio.to_thread(
        with_channel, vhost, lambda channel: channel.queue_delete(queue_name(namespace, lane))
    )


async def put(
    vhost: str, namespace: str, lane: Lane, attributes: Mapping[str, str], kind: str, data: bytes
) -> None:
    """What another program sends, knowing nothing but the queue's name."""
    headers = {f"cloudEvents:{name}": text for name, text in attributes.items()}
    properties = pika.BasicProperties(content_type=kind or None, headers=headers)
    await asyncio.to_thread(
        with_channel,
        vhost,
        lambda channel: channel.basic_publish("", queue_name(namespace, lane), data, properties),
    )


@asynccontextmanager
async def asker(vhost: str) -> AsyncIterator[Asker]:
    """Somebody with pika who has a queue of its own, gone with its connection."""
    connection = await asyncio.to_thread(plain, vhost)
    channel = connection.channel()
    address = channel.queue_declare("", exclusive=True).method.queue

    async def hear() -> Heard:
        while True:
            method, properties, body = await asyncio.to_thread(
                channel.basic_get, address, auto_ack=True
            )
            if method is not None:
                break
            await asyncio.sleep(0.02)
        prefix = "cloudEvents_"
        attributes = {
            name.removeprefix(prefix): value
            for name, value in properties.headers.items()
            if name.startswith(prefix)
        }
        return Heard(attributes, properties.content_type, body, properties.correlation_id)

    yield Asker(address=address, hear=hear)
    await asyncio.to_thread(connection.close)


def plain(vhost: str) -> Any:
    """A connection of pika's own."""
    return pika.BlockingConnection(
        pika.ConnectionParameters(HOST, PORT, vhost, pika.PlainCredentials("guest", "guest"))
    )


def with_channel(vhost: str, work: Any) -> Any:
    """Do something over a plain connection of its own."""
    connection = plain(vhost)
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        return work(channel)
    finally:
        connection.close()


class TestRabbit(TransportSuite):
    """Over the real server."""

    @pytest.fixture
    def server(self, vhost: str) -> Servers:
        return lambda: rabbit(vhost)


class TestRabbitOnUvloop(TestRabbit):
    """The same on the other event loop."""

    @pytest.fixture(autouse=True)
    def _on_uvloop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        uvloop = pytest.importorskip("uvloop")
        monkeypatch.setattr(asyncio, "run", uvloop.run)

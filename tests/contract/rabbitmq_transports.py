"""Transports on the local RabbitMQ server for the suites and tests."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pika
import pytest
from local_servers import HOST, PORTS

from umbel.backends import Lane, Transport
from umbel.backends.rabbitmq.address import RabbitAddress
from umbel.backends.rabbitmq.queue_names import queue_name
from umbel.backends.rabbitmq.transport import RabbitTransport
from umbel.messages import fresh_id
from umbel.testing.transports import (
    ReceivedMessage,
    ReplyClient,
    Server,
    record_missing_queue,
)


def refusal() -> str:
    """Return why the server cannot be used; an empty string if it can."""
    if shutil.which("rabbitmqctl") is None:
        return "there is no rabbitmqctl to make a virtual host with"
    try:
        pika.BlockingConnection(
            pika.ConnectionParameters(HOST, PORTS["rabbitmq"], socket_timeout=2, stack_timeout=4)
        ).close()
    except Exception as error:  # pika has no one class for a server that accepts and is silent
        return f"{HOST}:{PORTS['rabbitmq']} does not answer ({error!r:.80})"
    return ""


def rabbitmqctl(*command: str) -> None:
    subprocess.run(["rabbitmqctl", "-q", *command], check=True, stdout=subprocess.DEVNULL, cwd="/")


@contextmanager
def virtual_host(purpose: str) -> Iterator[str]:
    """Create a virtual host of this process's own, and delete it afterwards."""
    if reason := refusal():
        pytest.skip(f"not run: tests on RabbitMQ; {reason}")
    name = f"umbel-{purpose}-{os.getpid()}-{fresh_id()[-6:]}"
    rabbitmqctl("add_vhost", name)
    try:
        rabbitmqctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        yield name
    finally:
        rabbitmqctl("delete_vhost", name)


class Proxy:
    """Forwards to the server, and can abort all connections."""

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
        up_reader, up_writer = await asyncio.open_connection(HOST, PORTS["rabbitmq"])
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
async def rabbitmq_corner(vhost: str) -> AsyncIterator[Server]:
    """Open a namespace of the server for one test."""
    namespace, lost, proxy = f"t{fresh_id()[-12:]}", list[str](), Proxy()
    async with proxy.running() as port:

        @asynccontextmanager
        async def opened() -> AsyncIterator[Transport]:
            transport = RabbitTransport(
                RabbitAddress(f"amqp://guest:guest@{HOST}:{port}/{vhost}"),
                namespace=namespace,
                on_lane_missing=record_missing_queue(lost),
            )
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
            drop=partial(delete_queue, vhost, namespace),
            put=partial(put, vhost, namespace),
            reply_client=lambda: reply_client(vhost),
            lost=lost,
        )


async def delete_queue(vhost: str, namespace: str, lane: Lane) -> None:
    """Delete a lane's queue, as an operator might."""
    await asyncio.to_thread(
        with_channel, vhost, lambda channel: channel.queue_delete(queue_name(namespace, lane))
    )


async def put(
    vhost: str, namespace: str, lane: Lane, attributes: Mapping[str, str], kind: str, data: bytes
) -> None:
    """Publish as another program does, which knows only the name of the queue."""
    headers = {f"cloudEvents:{name}": text for name, text in attributes.items()}
    properties = pika.BasicProperties(content_type=kind or None, headers=headers)
    await asyncio.to_thread(
        with_channel,
        vhost,
        lambda channel: channel.basic_publish("", queue_name(namespace, lane), data, properties),
    )


@asynccontextmanager
async def reply_client(vhost: str) -> AsyncIterator[ReplyClient]:
    """A client of pika with an exclusive queue, deleted with its connection."""
    connection = await asyncio.to_thread(connect, vhost)
    channel = connection.channel()
    address = channel.queue_declare("", exclusive=True).method.queue

    async def receive() -> ReceivedMessage:
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
        return ReceivedMessage(attributes, properties.content_type, body, properties.correlation_id)

    yield ReplyClient(address=address, receive=receive)
    await asyncio.to_thread(connection.close)


def connect(vhost: str) -> Any:
    """Connect with pika."""
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            HOST, PORTS["rabbitmq"], vhost, pika.PlainCredentials("guest", "guest")
        )
    )


def with_channel(vhost: str, work: Any) -> Any:
    """Call ``work`` with a channel of a new connection."""
    connection = connect(vhost)
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        return work(channel)
    finally:
        connection.close()

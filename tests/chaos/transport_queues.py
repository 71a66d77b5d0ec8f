"""Deletes the queues of a broker that only transports messages, as an operator may do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Protocol

from chaos.server_processes import HOST
from umbel.backends.transport import Lane

NAMESPACE = "scenario"
LANES = [Lane(queue, kind) for queue in ("default", "other") for kind in ("io", "cpu", "")]


class TransportQueues(Protocol):
    """A broker's queues, accessed without Umbel."""

    def delete(self, lane: Lane) -> bool:
        """Delete a lane's queue with its messages. Return whether it existed."""


class RabbitQueues:
    """Over AMQP 0-9-1, with pika itself."""

    def __init__(
        self, port: int, name: Callable[[str, Lane], str], namespace: str = NAMESPACE
    ) -> None:
        self._port = port
        self._name = partial(name, namespace)

    def delete(self, lane: Lane) -> bool:
        import pika  # type: ignore[import-untyped]
        from pika.exceptions import AMQPError  # type: ignore[import-untyped]

        try:
            server = pika.ConnectionParameters(HOST, self._port)
            with closing(pika.BlockingConnection(server)) as connection:
                channel = connection.channel()
                channel.queue_declare(self._name(lane), passive=True)
                channel.queue_delete(self._name(lane))
        except AMQPError:  # usually: the queue does not exist
            return False
        return True


class NatsStreams:
    """Over JetStream, with nats-py itself."""

    def __init__(self, url: str, namespace: str = NAMESPACE) -> None:
        self._url = url
        self._namespace = namespace

    def delete(self, lane: Lane) -> bool:
        import nats
        from nats.errors import Error

        from umbel.backends.nats.stream_names import stream_of

        async def delete() -> bool:
            client = await nats.connect(self._url, allow_reconnect=False, connect_timeout=5)
            try:
                name = stream_of(self._namespace, lane).name
                return bool(await client.jsm().delete_stream(name))
            finally:
                await client.close()

        try:
            return asyncio.run(delete())
        except Error:  # usually: the stream does not exist
            return False

"""A RabbitMQ of the tests' own that speaks AMQP 1.0, and what others do to it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from rabbitmq_node import RabbitNode, skip_without_node, stop

pytest.importorskip("proton")
pytest.importorskip("pika")

import amqp_stranger
import pika

from umbel.backends import Lane
from umbel.backends.amqp.queue_names import queue_name
from umbel.messages import fresh_id
from umbel.testing.transports.server import ReplyClient

skip_without_node()


class AmqpNode(RabbitNode):
    """A node with the plugin, whose processes can be sent signals."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._name = f"{folder.name}@localhost"
        (folder / "plugins").write_text("[rabbitmq_amqp1_0].\n")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """As other programs write it."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    def start(self) -> subprocess.Popen[bytes]:
        self._process = super().start()
        return self._process

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of it."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """End it. Twice is fine."""
        if self._process is not None:
            stop(self._process)


@contextmanager
def running_node(purpose: str = "amqp") -> Iterator[AmqpNode]:
    """A node for as long as it is needed."""
    # Not pytest's own folder: the server's user must be able to enter it.
    folder = Path("/var/tmp") / f"umbel-test-{purpose}-{os.getpid()}"
    folder.mkdir(mode=0o755)
    node = AmqpNode(folder)
    try:
        node.start()
        yield node
    finally:
        node.stop()
        shutil.rmtree(folder)


@contextmanager
def channel_to(node: RabbitNode) -> Iterator[Any]:
    """An operator's way in, over the other protocol."""
    where = pika.ConnectionParameters("127.0.0.1", node.port)
    with pika.BlockingConnection(where) as connection:
        yield connection.channel()


def delete(node: RabbitNode, namespace: str, lane: Lane) -> None:
    """Delete a lane's queue, as an operator might."""
    with channel_to(node) as channel:
        channel.queue_delete(queue_name(namespace, lane))


def address_of(namespace: str, lane: Lane) -> str:
    """What another program writes to send there, knowing nothing but the queue's name."""
    return f"/amq/queue/{queue_name(namespace, lane)}"


def reply_client(node: AmqpNode) -> AbstractAsyncContextManager[ReplyClient]:
    """Another program that waits for answers at a queue of its own."""
    name = f"answers-{fresh_id()}"

    def leave() -> None:
        with channel_to(node) as channel:
            channel.queue_delete(name)

    return amqp_stranger.reply_client(node.url, f"/queue/{name}", leave)

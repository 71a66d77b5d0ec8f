"""A RabbitMQ node for the tests that speaks AMQP 1.0, and clients that are not Umbel."""

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
        """The URL as other programs write it."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    def start(self) -> subprocess.Popen[bytes]:
        self._process = super().start()
        return self._process

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the node."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """Stop the node. A second call has no effect."""
        if self._process is not None:
            stop(self._process)


@contextmanager
def running_node(purpose: str = "amqp") -> Iterator[AmqpNode]:
    """Run a node until the block ends."""
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
    """Open a channel of AMQP 0.9.1, for what operators do."""
    where = pika.ConnectionParameters("127.0.0.1", node.port)
    with pika.BlockingConnection(where) as connection:
        yield connection.channel()


def delete(node: RabbitNode, namespace: str, lane: Lane) -> None:
    """Delete a lane's queue, as an operator might."""
    with channel_to(node) as channel:
        channel.queue_delete(queue_name(namespace, lane))


def address_of(namespace: str, lane: Lane) -> str:
    """Return the address that another program uses, which knows only the name of the queue."""
    return f"/amq/queue/{queue_name(namespace, lane)}"


def reply_client(node: AmqpNode) -> AbstractAsyncContextManager[ReplyClient]:
    """A foreign program that waits for answers at its own queue."""
    name = f"answers-{fresh_id()}"

    def leave() -> None:
        with channel_to(node) as channel:
            channel.queue_delete(name)

    return amqp_stranger.reply_client(node.url, f"/queue/{name}", leave)

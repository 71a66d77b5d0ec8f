"""Every broker's suite over pairs: AMQP 1.0 carries the messages, another keeps the books."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from amqp_broker import amqp_node, channel_to
from test_rabbitmq_node import Node
from test_split import postgres, split, sqlite

from umbel.backends import Lost, OpenTransport
from umbel.backends.amqp.address import Home
from umbel.backends.amqp.transport import AmqpTransport
from umbel.testing import Backends
from umbel.testing.brokers import BrokerSuite

__all__ = ["amqp_node", "postgres", "sqlite"]

pytestmark = pytest.mark.xdist_group("amqp-node")


@pytest.fixture
def amqp(amqp_node: Node) -> Iterator[Any]:
    home = Home(f"amqp1://guest:guest@127.0.0.1:{amqp_node.port}")
    opened: list[AmqpTransport] = []

    def carry(namespace: str) -> OpenTransport:
        def open_one(lost: Lost) -> AmqpTransport:
            opened.append(AmqpTransport(home, namespace=namespace, lost=lost))
            return opened[-1]

        return open_one

    yield carry
    with channel_to(amqp_node) as channel:
        for name in {name for one in opened for name in one._receiver._lanes._names.values()}:
            channel.queue_delete(name)


class TestAmqpAndPostgres(BrokerSuite):
    @pytest.fixture
    def backend(self, amqp: Any, postgres: Any) -> Backends:
        return lambda: split(postgres(), amqp)


class TestAmqpAndSqlite(BrokerSuite):
    @pytest.fixture
    def backend(self, amqp: Any, sqlite: Any) -> Backends:
        return lambda: split(sqlite(), amqp)

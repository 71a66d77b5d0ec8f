"""The broker suite over pairs of AMQP 1.0 as the transport and another server as the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from amqp_broker import AmqpNode, channel_to
from pair_adapters import OpenTransportOf, open_pair

from umbel.backends import Lane, OnLaneMissing, OpenTransport
from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.amqp.queue_names import queue_name
from umbel.backends.amqp.transport import AmqpTransport
from umbel.backends.transport import report_missing_lane
from umbel.testing import OpenAdapters
from umbel.testing.brokers import BrokerSuite

pytestmark = pytest.mark.xdist_group("amqp-node")


@pytest.fixture
def amqp(amqp_node: AmqpNode) -> Iterator[OpenTransportOf]:
    address = AmqpAddress(f"amqp1://guest:guest@127.0.0.1:{amqp_node.port}")
    made: set[str] = set()

    def transport_of(namespace: str) -> OpenTransport:
        def open_transport(on_lane_missing: OnLaneMissing) -> AmqpTransport:
            async def record(lane: Lane) -> None:
                made.add(queue_name(namespace, lane))
                await report_missing_lane(on_lane_missing, lane)

            return AmqpTransport(address, namespace=namespace, on_lane_missing=record)

        return open_transport

    yield transport_of
    with channel_to(amqp_node) as channel:
        for name in made:
            channel.queue_delete(name)


class TestAmqpAndPostgres(BrokerSuite):
    @pytest.fixture
    def backend(self, amqp: Any, postgres: Any) -> OpenAdapters:
        return lambda: open_pair(postgres(), amqp)


class TestAmqpAndSqlite(BrokerSuite):
    @pytest.fixture
    def backend(self, amqp: Any, sqlite: Any) -> OpenAdapters:
        return lambda: open_pair(sqlite(), amqp)

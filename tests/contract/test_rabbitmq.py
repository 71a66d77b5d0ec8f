"""The transport's suite over RabbitMQ, each test in a namespace of its own, through a proxy."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("pika")

from rabbitmq_transports import rabbitmq_corner, refusal

from umbel.testing.transports import (
    OpenServer,
    TransportSuite,
)

if refused := refusal():
    pytest.skip(f"not run: the suite over RabbitMQ; {refused}", allow_module_level=True)


class TestRabbit(TransportSuite):
    """The suite on a real server."""

    @pytest.fixture
    def server(self, vhost: str) -> OpenServer:
        return lambda: rabbitmq_corner(vhost)


class TestRabbitOnUvloop(TestRabbit):
    """The suite on uvloop."""

    @pytest.fixture(autouse=True)
    def _on_uvloop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        uvloop = pytest.importorskip("uvloop")
        monkeypatch.setattr(asyncio, "run", uvloop.run)

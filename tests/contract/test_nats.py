"""The transport's suite over NATS, each test in a namespace of its own, through a proxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos.proxy import Proxy

pytest.importorskip("nats")

from local_servers import NATS_URL, PORTS
from nats_transports import nats_corner, refusal

from umbel.testing.transports import (
    OpenServer,
    TransportSuite,
)

if refused := refusal():
    pytest.skip(
        f"not run: the suite over NATS; {NATS_URL} does not answer ({refused})",
        allow_module_level=True,
    )


class TestNats(TransportSuite):
    """One server with JetStream."""

    @pytest.fixture
    def server(self) -> Iterator[OpenServer]:
        proxy = Proxy(PORTS["nats"], seed=0)
        yield lambda: nats_corner(proxy)
        proxy.close()

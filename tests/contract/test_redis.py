"""Every suite over Redis."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

redis = pytest.importorskip("redis")

from umbel.backends.redis.address import Home  # noqa: E402
from umbel.backends.redis.control import RedisControl  # noqa: E402
from umbel.backends.redis.database import Database  # noqa: E402
from umbel.backends.redis.deployments import RedisDeployments  # noqa: E402
from umbel.backends.redis.gates import RedisGates  # noqa: E402
from umbel.backends.redis.job_store import RedisJobStore  # noqa: E402
from umbel.backends.redis.records import RedisRecords  # noqa: E402
from umbel.backends.redis.registry import RedisRegistry  # noqa: E402
from umbel.backends.redis.routes import RedisRoutes  # noqa: E402
from umbel.backends.redis.steps import RedisSteps  # noqa: E402
from umbel.clock import Clock, SystemClock  # noqa: E402
from umbel.messages import fresh_id  # noqa: E402
from umbel.testing import Backend, Backends, wrong_clocks  # noqa: E402
from umbel.testing.brokers import BrokerSuite, GateSuite, LedgerSuite, RouteSuite  # noqa: E402
from umbel.testing.brokers.machine import MachineSuite  # noqa: E402
from umbel.testing.stores import StoreSuite  # noqa: E402

URL = os.environ.get("UMBEL_TEST_REDIS", "redis://127.0.0.1:6379/0")
PATIENCE = 3600.0
"""Seconds between safety looks: so long that a test passes only if it is woken."""


def _refusal() -> str:
    try:
        with redis.Redis.from_url(URL, socket_connect_timeout=2) as client:
            client.ping()
    except redis.RedisError as error:
        return str(error).strip().splitlines()[0]
    return ""


if refused := _refusal():
    pytest.skip(
        f"not run: the suites over Redis; {URL} does not answer ({refused})",
        allow_module_level=True,
    )


@pytest.fixture(scope="module")
def prefix() -> Iterator[str]:
    """What the namespaces of this module and process begin with; their keys are gone afterwards."""
    name = f"test-{os.getpid()}-{fresh_id()[-6:]}-"
    yield name
    with redis.Redis.from_url(URL) as client:
        for key in client.scan_iter(match=f"umbel:{{{name}*", count=1000):
            client.delete(key)


@asynccontextmanager
async def opened(prefix: str, name: str, clocks: Iterator[Clock]) -> AsyncIterator[Backend]:
    """One process's adapters. Whatever a test calls a namespace, it is this module's own."""
    namespace = name if name.startswith(prefix) else prefix + name
    database = Database(Home(URL))
    how = {"namespace": namespace, "clock": next(clocks)}
    try:
        yield Backend(
            broker=RedisJobStore(database, **how, safety_poll=PATIENCE),
            records=RedisRecords(database, **how, safety_poll=PATIENCE),
            registry=RedisRegistry(database, **how),
            control=RedisControl(database, **how, safety_poll=PATIENCE),
            gates=RedisGates(database, **how),
            steps=RedisSteps(database, **how),
            deployments=RedisDeployments(database, **how),
            routes=RedisRoutes(database, **how),
            clock=SystemClock(),
            namespace=namespace,
            another=lambda other=None: opened(prefix, other or namespace, clocks),
        )
    finally:
        await database.close()


class TestRedis(BrokerSuite, GateSuite, RouteSuite, LedgerSuite, StoreSuite, MachineSuite):
    """Each process its own connections to one server, and a wrong clock."""

    @pytest.fixture
    def backend(self, prefix: str, request: pytest.FixtureRequest) -> Backends:
        return lambda: opened(prefix, fresh_id(), wrong_clocks(request.node.name))

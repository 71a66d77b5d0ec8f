"""Every suite over Redis."""

from __future__ import annotations

import pytest

pytest.importorskip("redis")

import redis
from local_servers import REDIS_URL
from redis_adapters import open_redis

from umbel.messages import fresh_id
from umbel.testing import OpenAdapters, wrong_clocks
from umbel.testing.brokers import BrokerSuite, GateSuite, JobStoreSuite, RouteSuite
from umbel.testing.brokers.machine import MachineSuite
from umbel.testing.stores import CoordinationSuite, JoinSuite, StoreSuite
from umbel.testing.stores.coordination_machine import CoordinationMachineSuite
from umbel.testing.stores.join_machine import JoinMachineSuite


def _refusal() -> str:
    try:
        with redis.Redis.from_url(REDIS_URL, socket_connect_timeout=2) as client:
            client.ping()
    except redis.RedisError as error:
        return str(error).strip().splitlines()[0]
    return ""


if refused := _refusal():
    pytest.skip(
        f"not run: the suites over Redis; {REDIS_URL} does not answer ({refused})",
        allow_module_level=True,
    )


class TestRedis(
    BrokerSuite,
    GateSuite,
    RouteSuite,
    JobStoreSuite,
    StoreSuite,
    CoordinationSuite,
    JoinSuite,
    MachineSuite,
    CoordinationMachineSuite,
    JoinMachineSuite,
):
    """Each process has its own connections to one server, and a wrong clock."""

    @pytest.fixture
    def backend(self, redis_prefix: str, request: pytest.FixtureRequest) -> OpenAdapters:
        return lambda: open_redis(fresh_id(), wrong_clocks(request.node.name), prefix=redis_prefix)

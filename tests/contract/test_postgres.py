"""Every suite over PostgreSQL: with LISTEN, and by polling only, as behind PgBouncer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from local_servers import NEVER, POSTGRES_URL
from postgres_adapters import new_schema, open_postgres, refusal

from umbel.messages import fresh_id
from umbel.testing import OpenAdapters, wrong_clocks
from umbel.testing.brokers import BrokerSuite, GateSuite, JobStoreSuite, RouteSuite
from umbel.testing.brokers.machine import MachineSuite
from umbel.testing.stores import CoordinationSuite, JoinSuite, StoreSuite
from umbel.testing.stores.coordination_machine import CoordinationMachineSuite
from umbel.testing.stores.entry_leases import Watching
from umbel.testing.stores.join_machine import JoinMachineSuite

if refused := refusal():
    pytest.skip(
        f"not run: the suites over PostgreSQL; {POSTGRES_URL} does not answer ({refused})",
        allow_module_level=True,
    )


@pytest.fixture(scope="module")
def schema_url() -> Iterator[str]:
    """The URL of a schema for this module."""
    with new_schema("test") as url:
        yield url


class TestListening(
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
    """With notifications of the server. Each process has a wrong clock."""

    examples = 25
    join_examples = 15
    coordination_examples = 25

    @pytest.fixture
    def backend(self, schema_url: str, request: pytest.FixtureRequest) -> OpenAdapters:
        url, test = schema_url, request.node.name
        return lambda: open_postgres(url, f"t{fresh_id()}", wrong_clocks(test), safety_poll=NEVER)


class TestPolling(BrokerSuite, GateSuite, MachineSuite):
    """By polling only, for poolers that share connections."""

    examples = 10

    @pytest.fixture
    def backend(self, schema_url: str, request: pytest.FixtureRequest) -> OpenAdapters:
        url, test = f"{schema_url}&listen=false&poll=0.05", request.node.name
        return lambda: open_postgres(url, f"t{fresh_id()}", wrong_clocks(test))


class TestWatchingByPolling(Watching):
    """Changes of entries, by polling only."""

    push_seconds = 10.0
    backend = TestPolling.backend

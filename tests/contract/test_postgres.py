"""Every suite over PostgreSQL: woken by LISTEN, and in poll-only mode as behind pgbouncer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import psycopg
import pytest

from umbel.backends.postgres.address import Home
from umbel.backends.postgres.control import PostgresControl
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.deployments import PostgresDeployments
from umbel.backends.postgres.gates import PostgresGates
from umbel.backends.postgres.job_store import PostgresJobStore
from umbel.backends.postgres.records import PostgresRecords
from umbel.backends.postgres.registry import PostgresRegistry
from umbel.backends.postgres.routes import PostgresRoutes
from umbel.backends.postgres.schema import migrate
from umbel.backends.postgres.step_transactions import PostgresTransactions
from umbel.backends.postgres.steps import PostgresSteps
from umbel.clock import Clock, SystemClock
from umbel.messages import fresh_id
from umbel.testing import Backend, Backends, wrong_clocks
from umbel.testing.brokers import BrokerSuite, GateSuite, LedgerSuite, RouteSuite
from umbel.testing.brokers.machine import MachineSuite
from umbel.testing.stores import StoreSuite

URL = os.environ.get("UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
PATIENCE = 3600.0
"""Seconds between safety looks: so long that a test passes only if it is woken."""


def _refusal() -> str:
    try:
        psycopg.connect(URL, connect_timeout=2).close()
    except psycopg.OperationalError as error:
        return str(error).strip().splitlines()[0]
    return ""


if refused := _refusal():
    pytest.skip(
        f"not run: the suites over PostgreSQL; {URL} does not answer ({refused})",
        allow_module_level=True,
    )


@pytest.fixture(scope="module")
def schema() -> Iterator[str]:
    """A schema of this module's and this process's own."""
    name = f"umbel_test_{os.getpid()}_{fresh_id()[-6:]}"
    asyncio.run(_migrate(Home(f"{URL}?schema={name}")))
    yield name
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute(f'drop schema "{name}" cascade')


async def _migrate(home: Home) -> None:
    await migrate(home)


@asynccontextmanager
async def opened(
    url: str, namespace: str, clocks: Iterator[Clock], **looks: float
) -> AsyncIterator[Backend]:
    """One process's adapters."""
    database = Database(Home(url))
    how = {"namespace": namespace, "clock": next(clocks)}
    try:
        yield Backend(
            broker=PostgresJobStore(database, **how, **looks),
            records=PostgresRecords(database, **how, **looks),
            registry=PostgresRegistry(database, **how),
            control=PostgresControl(database, **how),
            gates=PostgresGates(database, **how),
            steps=PostgresSteps(database, **how),
            deployments=PostgresDeployments(database, **how),
            routes=PostgresRoutes(database, **how),
            clock=SystemClock(),
            namespace=namespace,
            another=lambda other=None: opened(url, other or namespace, clocks, **looks),
            transaction=async_transaction,
            sync_transaction=transaction,
            step_transactions=(transactions := PostgresTransactions(database.home)),
        )
    finally:
        transactions.close()
        await database.close()


@contextmanager
def transaction() -> Iterator[psycopg.Connection]:
    """A caller's own connection and transaction."""
    with psycopg.connect(URL) as connection:
        connection.execute("select 1")
        yield connection


@asynccontextmanager
async def async_transaction() -> AsyncIterator[psycopg.AsyncConnection]:
    """The same for async code."""
    async with await psycopg.AsyncConnection.connect(URL) as connection:
        await connection.execute("select 1")
        yield connection


class TestListening(BrokerSuite, GateSuite, RouteSuite, LedgerSuite, StoreSuite, MachineSuite):
    """Woken by the server. Each process has a wrong clock."""

    examples = 25

    @pytest.fixture
    def backend(self, schema: str, request: pytest.FixtureRequest) -> Backends:
        url, test = f"{URL}?schema={schema}", request.node.name
        return lambda: opened(url, f"t{fresh_id()}", wrong_clocks(test), safety_poll=PATIENCE)


class TestPolling(BrokerSuite, GateSuite, MachineSuite):
    """Nothing but looking again, for poolers that hand connections around."""

    examples = 10

    @pytest.fixture
    def backend(self, schema: str, request: pytest.FixtureRequest) -> Backends:
        url, test = f"{URL}?schema={schema}&listen=false&poll=0.05", request.node.name
        return lambda: opened(url, f"t{fresh_id()}", wrong_clocks(test))

"""Every suite over SQLite: a file shared by processes, and a database in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from umbel.backends.sqlite.control import SqliteControl
from umbel.backends.sqlite.database import Database, Home
from umbel.backends.sqlite.deployments import SqliteDeployments
from umbel.backends.sqlite.gates import SqliteGates
from umbel.backends.sqlite.job_store import SqliteJobStore
from umbel.backends.sqlite.records import SqliteRecords
from umbel.backends.sqlite.registry import SqliteRegistry
from umbel.backends.sqlite.routes import SqliteRoutes
from umbel.backends.sqlite.step_transactions import SqliteTransactions
from umbel.backends.sqlite.steps import SqliteSteps
from umbel.testing import Backend, Backends, FakeClock
from umbel.testing.brokers import BrokerSuite, GateSuite, LedgerSuite, RouteSuite
from umbel.testing.brokers.machine import MachineSuite
from umbel.testing.stores import StoreSuite

PATIENCE = 3600.0
"""Seconds between safety looks: so long that a test passes only if it is woken."""


@asynccontextmanager
async def opened(
    home: Callable[[], Home], clock: FakeClock, namespace: str = "umbel"
) -> AsyncIterator[Backend]:
    """One process's adapters."""
    database = Database(home())
    how = {"namespace": namespace, "clock": clock}
    path = None if database.home.in_memory else database.home.path
    try:
        await database.open()  # makes the tables
        yield Backend(
            broker=SqliteJobStore(database, **how, safety_poll=PATIENCE),
            records=SqliteRecords(database, **how, safety_poll=PATIENCE),
            registry=SqliteRegistry(database, **how),
            control=SqliteControl(database, **how),
            gates=SqliteGates(database, **how),
            steps=SqliteSteps(database, **how),
            deployments=SqliteDeployments(database, **how),
            routes=SqliteRoutes(database, **how),
            clock=clock,
            namespace=namespace,
            another=lambda other=None: opened(home, clock, other or namespace),
            transaction=None if path is None else lambda: async_transaction(path),
            sync_transaction=None if path is None else lambda: transaction(path),
            step_transactions=(transactions := SqliteTransactions(database.home)),
        )
    finally:
        transactions.close()
        await database.close()


@contextmanager
def transaction(path: str) -> Iterator[sqlite3.Connection]:
    """A caller's own connection and transaction."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table if not exists theirs (x)")
        connection.execute("insert into theirs values (1)")
        yield connection


@asynccontextmanager
async def async_transaction(path: str) -> AsyncIterator[sqlite3.Connection]:
    """The same for async code."""
    with transaction(path) as connection:
        yield connection


class TestFile(BrokerSuite, GateSuite, RouteSuite, LedgerSuite, StoreSuite, MachineSuite):
    """Each process its own connection to one file."""

    @pytest.fixture
    def backend(self, tmp_path_factory: pytest.TempPathFactory) -> Backends:
        def fresh() -> Path:
            return tmp_path_factory.mktemp("sqlite") / "umbel.db"

        def open_one() -> object:
            path = str(fresh())
            return opened(lambda: Home(path, synchronous="off"), FakeClock())

        return open_one  # type: ignore[return-value]


class TestMemory(BrokerSuite, GateSuite, RouteSuite, LedgerSuite, StoreSuite, MachineSuite):
    """All parts of one process share one connection."""

    @pytest.fixture
    def backend(self) -> Backends:
        def open_one() -> object:
            home = Home(":memory:")
            return opened(lambda: home, FakeClock())

        return open_one  # type: ignore[return-value]

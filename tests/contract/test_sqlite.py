"""Every suite over SQLite: a file shared by processes, and a database in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlite_adapters import open_sqlite

from umbel.backends.sqlite.database import SqliteFile
from umbel.testing import FakeClock, OpenAdapters
from umbel.testing.brokers import BrokerSuite, GateSuite, JobStoreSuite, RouteSuite
from umbel.testing.brokers.machine import MachineSuite
from umbel.testing.stores import CoordinationSuite, JoinSuite, StoreSuite
from umbel.testing.stores.coordination_machine import CoordinationMachineSuite
from umbel.testing.stores.join_machine import JoinMachineSuite


class TestFile(
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
    """Each process has its own connection to one file."""

    @pytest.fixture
    def backend(self, tmp_path_factory: pytest.TempPathFactory) -> OpenAdapters:
        def fresh() -> Path:
            return tmp_path_factory.mktemp("sqlite") / "umbel.db"

        def open_one() -> object:
            path = str(fresh())
            return open_sqlite(lambda: SqliteFile(path, synchronous="off"), FakeClock())

        return open_one  # type: ignore[return-value]


class TestMemory(
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
    """All parts of one process share one connection."""

    @pytest.fixture
    def backend(self) -> OpenAdapters:
        def open_one() -> object:
            file = SqliteFile(":memory:")
            return open_sqlite(lambda: file, FakeClock())

        return open_one  # type: ignore[return-value]

"""The adapters on SQLite for the suites, as one process opens them."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager

from local_servers import NEVER

from umbel.backends.sql.control import SqlControl
from umbel.backends.sqlite.coordination import SqliteCoordination
from umbel.backends.sqlite.database import Database, SqliteFile
from umbel.backends.sqlite.gates import SqliteGates
from umbel.backends.sqlite.job_store import SqliteJobStore
from umbel.backends.sqlite.joins import SqliteJoins
from umbel.backends.sqlite.records import SqliteRecords
from umbel.backends.sqlite.registry import SqliteRegistry
from umbel.backends.sqlite.routes import SqliteRoutes
from umbel.backends.sqlite.step_transactions import SqliteTransactions
from umbel.backends.sqlite.steps import SqliteSteps
from umbel.testing import Adapters, FakeClock


@asynccontextmanager
async def open_sqlite(
    file: Callable[[], SqliteFile], clock: FakeClock, namespace: str = "umbel"
) -> AsyncIterator[Adapters]:
    """Open one process's adapters on a SQLite file."""
    database = Database(file())
    how = {"namespace": namespace, "clock": clock}
    path = None if database.file.in_memory else database.file.path
    try:
        await database.open()  # makes the tables
        yield Adapters(
            broker=SqliteJobStore(database, **how, safety_poll=NEVER),
            records=SqliteRecords(database, **how, safety_poll=NEVER),
            registry=SqliteRegistry(database, **how),
            control=SqlControl(database, **how),
            gates=SqliteGates(database, **how),
            steps=SqliteSteps(database, **how),
            routes=SqliteRoutes(database, **how),
            joins=SqliteJoins(database, **how),
            coordination=SqliteCoordination(database, **how),
            clock=clock,
            namespace=namespace,
            another=lambda other=None: open_sqlite(file, clock, other or namespace),
            transaction=None if path is None else lambda: async_transaction(path),
            sync_transaction=None if path is None else lambda: transaction(path),
            step_transactions=(transactions := SqliteTransactions(database.file)),
        )
    finally:
        transactions.close()
        await database.close()


@contextmanager
def transaction(path: str) -> Iterator[sqlite3.Connection]:
    """Open a connection and a transaction of the caller's own."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table if not exists theirs (x)")
        connection.execute("insert into theirs values (1)")
        yield connection


@asynccontextmanager
async def async_transaction(path: str) -> AsyncIterator[sqlite3.Connection]:
    """The same for async code."""
    with transaction(path) as connection:
        yield connection

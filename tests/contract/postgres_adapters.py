"""The adapters on PostgreSQL for the suites, as one process opens them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import psycopg
from local_servers import POSTGRES_URL

from umbel.backends.postgres.address import PostgresAddress
from umbel.backends.postgres.coordination import PostgresCoordination
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.gates import PostgresGates
from umbel.backends.postgres.job_store import PostgresJobStore
from umbel.backends.postgres.joins import PostgresJoins
from umbel.backends.postgres.records import PostgresRecords
from umbel.backends.postgres.registry import PostgresRegistry
from umbel.backends.postgres.routes import PostgresRoutes
from umbel.backends.postgres.schema import migrate
from umbel.backends.postgres.step_transactions import PostgresTransactions
from umbel.backends.postgres.steps import PostgresSteps
from umbel.backends.sql.control import SqlControl
from umbel.clock import Clock, SystemClock
from umbel.messages import fresh_id
from umbel.testing import Adapters


def refusal() -> str:
    """Return why the server cannot be used; an empty string if it can."""
    try:
        psycopg.connect(POSTGRES_URL, connect_timeout=2).close()
    except psycopg.OperationalError as error:
        return str(error).strip().splitlines()[0]
    return ""


@contextmanager
def new_schema(purpose: str) -> Iterator[str]:
    """Create a schema of this process's own; yield its URL, and drop it afterwards."""
    name = f"umbel_{purpose}_{os.getpid()}_{fresh_id()[-6:]}"
    url = f"{POSTGRES_URL}?schema={name}"
    try:
        asyncio.run(migrate(PostgresAddress(url)))
        yield url
    finally:
        with psycopg.connect(POSTGRES_URL, autocommit=True) as connection:
            connection.execute(f'drop schema if exists "{name}" cascade')


@asynccontextmanager
async def open_postgres(
    url: str, namespace: str, clocks: Iterator[Clock], **polls: float
) -> AsyncIterator[Adapters]:
    """Open one process's adapters on a PostgreSQL schema."""
    database = Database(PostgresAddress(url))
    how = {"namespace": namespace, "clock": next(clocks)}
    try:
        yield Adapters(
            broker=PostgresJobStore(database, **how, **polls),
            records=PostgresRecords(database, **how, **polls),
            registry=PostgresRegistry(database, **how),
            control=SqlControl(database, **how),
            gates=PostgresGates(database, **how),
            steps=PostgresSteps(database, **how),
            routes=PostgresRoutes(database, **how),
            joins=PostgresJoins(database, **how),
            coordination=PostgresCoordination(database, **how),
            clock=SystemClock(),
            namespace=namespace,
            another=lambda other=None: open_postgres(url, other or namespace, clocks, **polls),
            transaction=async_transaction,
            sync_transaction=transaction,
            step_transactions=(transactions := PostgresTransactions(database.address)),
        )
    finally:
        transactions.close()
        await database.close()


@contextmanager
def transaction() -> Iterator[psycopg.Connection]:
    """Open a connection and a transaction of the caller's own."""
    with psycopg.connect(POSTGRES_URL) as connection:
        connection.execute("select 1")
        yield connection


@asynccontextmanager
async def async_transaction() -> AsyncIterator[psycopg.AsyncConnection]:
    """The same for async code."""
    async with await psycopg.AsyncConnection.connect(POSTGRES_URL) as connection:
        await connection.execute("select 1")
        yield connection

"""A PostgreSQL database as broker and store."""

from __future__ import annotations

from typing import Any

from umbel.backends.backend import Roles
from umbel.backends.caller_connections import aunwrap
from umbel.backends.erasing import NamespaceEraser
from umbel.backends.postgres.address import PostgresAddress
from umbel.backends.postgres.broker import PostgresBroker
from umbel.backends.postgres.coordination import PostgresCoordination
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.erasing import PostgresEraser
from umbel.backends.postgres.gates import PostgresGates
from umbel.backends.postgres.job_store import PostgresJobStore
from umbel.backends.postgres.joins import PostgresJoins
from umbel.backends.postgres.records import PostgresRecords
from umbel.backends.postgres.registry import PostgresRegistry
from umbel.backends.postgres.routes import PostgresRoutes
from umbel.backends.postgres.schema import migrate, newest, schema_version
from umbel.backends.postgres.step_transactions import PostgresTransactions
from umbel.backends.postgres.steps import PostgresSteps
from umbel.backends.sql.control import SqlControl
from umbel.backends.steps import Transactions
from umbel.clock import Clock


class PostgresBackend:
    """A PostgreSQL database, in a schema of Umbel's own."""

    def __init__(self, url: str, *, namespace: str, deadline: float, clock: Clock) -> None:
        self._address = PostgresAddress(url)
        self._namespace = namespace
        self._clock = clock

    def open(self, *, is_loop_dedicated: bool = False, as_job_store: bool = False) -> Roles:
        database = Database(self._address)
        common: Any = {"namespace": self._namespace, "clock": self._clock}
        return Roles(
            (PostgresJobStore if as_job_store else PostgresBroker)(database, **common),
            PostgresRecords(database, **common),
            PostgresRegistry(database, **common),
            SqlControl(database, **common),
            PostgresGates(database, **common),
            PostgresSteps(database, **common),
            PostgresRoutes(database, **common),
            PostgresJoins(database, **common),
            PostgresCoordination(database, **common),
        )

    async def migrate(self) -> list[int]:
        return await migrate(self._address)

    async def version(self) -> tuple[int, int]:
        return await schema_version(self._address) or 0, newest()

    def eraser(self) -> NamespaceEraser:
        database = Database(self._address)
        return PostgresEraser(database, namespace=self._namespace, clock=self._clock)

    def transactions(self) -> Transactions:
        return PostgresTransactions(self._address)

    async def unwrap(self, connection: Any) -> Any:
        return await aunwrap(connection)


store = PostgresBackend
"""The backend for the store of a URL. Raises ConfigurationError."""

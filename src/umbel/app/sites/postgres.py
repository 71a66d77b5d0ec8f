"""A PostgreSQL database: broker and store in one."""

from __future__ import annotations

from typing import Any

from umbel.clock import Clock
from umbel.configuration import Settings
from umbel.errors import ConfigurationError
from umbel.router import Backend
from umbel.stores import Transactions


class PostgresSite:
    """A PostgreSQL database, in a schema of Umbel's own."""

    def __init__(self, url: str, settings: Settings, clock: Clock) -> None:
        try:
            # All that ``open`` needs: a signal handler must not come while it is imported.
            import umbel.brokers.postgres
            import umbel.stores.postgres  # noqa: F401
            from umbel.drivers.postgres import Home
        except ImportError as error:
            raise ConfigurationError(
                f"PostgreSQL needs its driver: pip install 'umbel[postgres]' ({error})"
            ) from None
        self._home = Home(url)
        self._settings = settings
        self._clock = clock

    def open(self, *, inline: bool = False, ledger: bool = False) -> Backend:
        from umbel.brokers.postgres import PostgresBroker, PostgresLedger
        from umbel.drivers.postgres import Database
        from umbel.stores.postgres import (
            PostgresControl,
            PostgresDeployments,
            PostgresGates,
            PostgresRecords,
            PostgresRegistry,
            PostgresRoutes,
            PostgresSteps,
        )

        database = Database(self._home)
        common: Any = {"namespace": self._settings.namespace, "clock": self._clock}
        return Backend(
            (PostgresLedger if ledger else PostgresBroker)(database, **common),
            PostgresRecords(database, **common),
            PostgresRegistry(database, **common),
            PostgresControl(database, **common),
            PostgresGates(database, **common),
            PostgresSteps(database, **common),
            PostgresDeployments(database, **common),
            PostgresRoutes(database, **common),
        )

    async def migrate(self) -> list[int]:
        from umbel.drivers.postgres import migrate

        return await migrate(self._home)

    async def version(self) -> tuple[int, int]:
        from umbel.drivers.postgres import newest, schema_version

        return await schema_version(self._home) or 0, newest()

    def transactions(self) -> Transactions:
        from umbel.stores.postgres import PostgresTransactions

        return PostgresTransactions(self._home)

    async def unwrap(self, connection: Any) -> Any:
        from umbel.drivers.connections import aunwrap

        return await aunwrap(connection)

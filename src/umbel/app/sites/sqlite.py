"""A SQLite file: broker and store in one."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from umbel.clock import Clock
from umbel.configuration import Settings
from umbel.errors import ConfigurationError
from umbel.router import Backend
from umbel.stores import Transactions
from umbel.urls import masked_url, unknown_options


class SqliteSite:
    """A SQLite file: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite:///:memory:``."""

    def __init__(self, url: str, settings: Settings, clock: Clock) -> None:
        # All that ``open`` needs: a signal handler must not come while it is imported.
        import umbel.brokers.sqlite
        import umbel.stores.sqlite  # noqa: F401
        from umbel.drivers.sqlite import Home

        parts = urlsplit(url)
        path = unquote(parts.path)[1:]
        if parts.netloc or not path:
            raise ConfigurationError(
                f"{masked_url(url)!r}: three slashes and a path, as in sqlite:///umbel.db"
            )
        options = dict(parse_qsl(parts.query))
        unknown = options.keys() - {"synchronous"}
        if unknown:
            raise ConfigurationError(
                f"{masked_url(url)!r}: unknown option {unknown_options(unknown, url)};"
                " use synchronous"
            )
        self._home = Home(path, **options)
        self._settings = settings
        self._clock = clock

    def open(self, *, inline: bool = False, ledger: bool = False) -> Backend:
        from umbel.brokers.sqlite import SqliteBroker, SqliteLedger
        from umbel.drivers.sqlite import Database
        from umbel.stores.sqlite import (
            SqliteControl,
            SqliteDeployments,
            SqliteGates,
            SqliteRecords,
            SqliteRegistry,
            SqliteRoutes,
            SqliteSteps,
        )

        busy = self._settings.deadline if inline else 5.0
        database = Database(self._home, inline=inline, busy=busy)
        common: Any = {"namespace": self._settings.namespace, "clock": self._clock}
        return Backend(
            (SqliteLedger if ledger else SqliteBroker)(database, **common),
            SqliteRecords(database, **common),
            SqliteRegistry(database, **common),
            SqliteControl(database, **common),
            SqliteGates(database, **common),
            SqliteSteps(database, **common),
            SqliteDeployments(database, **common),
            SqliteRoutes(database, **common),
        )

    async def migrate(self) -> list[int]:
        from umbel.drivers.sqlite import Database, migrations

        before, _ = await self.version()
        database = Database(self._home)
        await database.open()  # which brings its schema up to date
        await database.close()
        return [number for number, _ in migrations() if number > before]

    async def version(self) -> tuple[int, int]:
        from umbel.drivers.sqlite import migrations, version_of

        return version_of(self._home.path), migrations()[-1][0]

    def transactions(self) -> Transactions:
        from umbel.stores.sqlite import SqliteTransactions

        return SqliteTransactions(self._home)

    async def unwrap(self, connection: Any) -> Any:
        from umbel.drivers.connections import aunwrap

        return await aunwrap(connection)

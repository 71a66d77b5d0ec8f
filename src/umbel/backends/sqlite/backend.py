"""A SQLite file: broker and store in one."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from umbel.backends.backend import Roles
from umbel.backends.caller_connections import aunwrap
from umbel.backends.sqlite.broker import SqliteBroker
from umbel.backends.sqlite.control import SqliteControl
from umbel.backends.sqlite.database import Database, Home
from umbel.backends.sqlite.deployments import SqliteDeployments
from umbel.backends.sqlite.gates import SqliteGates
from umbel.backends.sqlite.job_store import SqliteJobStore
from umbel.backends.sqlite.records import SqliteRecords
from umbel.backends.sqlite.registry import SqliteRegistry
from umbel.backends.sqlite.routes import SqliteRoutes
from umbel.backends.sqlite.schema import migrations, version_of
from umbel.backends.sqlite.step_transactions import SqliteTransactions
from umbel.backends.sqlite.steps import SqliteSteps
from umbel.backends.steps import Transactions
from umbel.clock import Clock
from umbel.errors import ConfigurationError
from umbel.urls import masked_url, unknown_options


class SqliteBackend:
    """A SQLite file: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite:///:memory:``."""

    def __init__(self, url: str, *, namespace: str, deadline: float, clock: Clock) -> None:
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
        self._namespace = namespace
        self._deadline = deadline
        self._clock = clock

    def open(self, *, inline: bool = False, ledger: bool = False) -> Roles:
        busy = self._deadline if inline else 5.0
        database = Database(self._home, inline=inline, busy=busy)
        common: Any = {"namespace": self._namespace, "clock": self._clock}
        return Roles(
            (SqliteJobStore if ledger else SqliteBroker)(database, **common),
            SqliteRecords(database, **common),
            SqliteRegistry(database, **common),
            SqliteControl(database, **common),
            SqliteGates(database, **common),
            SqliteSteps(database, **common),
            SqliteDeployments(database, **common),
            SqliteRoutes(database, **common),
        )

    async def migrate(self) -> list[int]:
        before, _ = await self.version()
        database = Database(self._home)
        await database.open()  # which brings its schema up to date
        await database.close()
        return [number for number, _ in migrations() if number > before]

    async def version(self) -> tuple[int, int]:
        return version_of(self._home.path), migrations()[-1][0]

    def transactions(self) -> Transactions:
        return SqliteTransactions(self._home)

    async def unwrap(self, connection: Any) -> Any:
        return await aunwrap(connection)


store = SqliteBackend
"""Opens the store of a URL. Raises ConfigurationError."""

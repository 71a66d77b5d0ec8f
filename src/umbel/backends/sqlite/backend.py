"""A SQLite file as broker and store."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from umbel.backends.backend import Roles
from umbel.backends.caller_connections import aunwrap
from umbel.backends.erasing import NamespaceEraser
from umbel.backends.sql.control import SqlControl
from umbel.backends.sqlite.broker import SqliteBroker
from umbel.backends.sqlite.coordination import SqliteCoordination
from umbel.backends.sqlite.database import Database, SqliteFile
from umbel.backends.sqlite.erasing import SqliteEraser
from umbel.backends.sqlite.gates import SqliteGates
from umbel.backends.sqlite.job_store import SqliteJobStore
from umbel.backends.sqlite.joins import SqliteJoins
from umbel.backends.sqlite.records import SqliteRecords
from umbel.backends.sqlite.registry import SqliteRegistry
from umbel.backends.sqlite.routes import SqliteRoutes
from umbel.backends.sqlite.schema import migrations, version_of
from umbel.backends.sqlite.step_transactions import SqliteTransactions
from umbel.backends.sqlite.steps import SqliteSteps
from umbel.backends.steps import Transactions
from umbel.clock import Clock
from umbel.errors import ConfigurationError
from umbel.urls import mask_url, unknown_options


class SqliteBackend:
    """A SQLite file: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite:///:memory:``."""

    def __init__(self, url: str, *, namespace: str, deadline: float, clock: Clock) -> None:
        parts = urlsplit(url)
        path = unquote(parts.path)[1:]
        if parts.netloc or not path:
            raise ConfigurationError(
                f"{mask_url(url)!r}: three slashes and a path, as in sqlite:///umbel.db"
            )
        options = dict(parse_qsl(parts.query))
        unknown = options.keys() - {"synchronous"}
        if unknown:
            raise ConfigurationError(
                f"{mask_url(url)!r}: unknown option {unknown_options(unknown, url)};"
                " use synchronous"
            )
        self._file = SqliteFile(path, **options)
        self._namespace = namespace
        self._deadline = deadline
        self._clock = clock

    def open(self, *, is_loop_dedicated: bool = False, as_job_store: bool = False) -> Roles:
        busy = self._deadline if is_loop_dedicated else 5.0
        database = Database(self._file, is_loop_dedicated=is_loop_dedicated, busy=busy)
        common: Any = {"namespace": self._namespace, "clock": self._clock}
        return Roles(
            (SqliteJobStore if as_job_store else SqliteBroker)(database, **common),
            SqliteRecords(database, **common),
            SqliteRegistry(database, **common),
            SqlControl(database, **common),
            SqliteGates(database, **common),
            SqliteSteps(database, **common),
            SqliteRoutes(database, **common),
            SqliteJoins(database, **common),
            SqliteCoordination(database, **common),
        )

    def close(self) -> None:
        """Delete a database in memory. For a file, do nothing."""
        self._file.close()

    async def migrate(self) -> list[int]:
        before, _ = await self.version()
        database = Database(self._file)
        await database.open()  # this migrates the schema
        await database.close()
        return [number for number, _ in migrations() if number > before]

    async def version(self) -> tuple[int, int]:
        return version_of(self._file.path), migrations()[-1][0]

    def eraser(self) -> NamespaceEraser:
        database = Database(self._file)
        return SqliteEraser(database, namespace=self._namespace, clock=self._clock)

    def transactions(self) -> Transactions:
        return SqliteTransactions(self._file)

    async def unwrap(self, connection: Any) -> Any:
        return await aunwrap(connection)


store = SqliteBackend
"""The backend for the store of a URL. Raises ConfigurationError."""

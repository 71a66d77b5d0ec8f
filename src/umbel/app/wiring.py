"""From a URL to the adapters behind it. Drivers are imported here, on first use."""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from umbel.clock import Clock
from umbel.configuration import Settings
from umbel.errors import ConfigurationError
from umbel.router import Backend


class Site(Protocol):
    """One address: opens adapters for an event loop, and keeps the schema there."""

    def open(self, *, inline: bool = False) -> Backend:
        """Adapters for the loop that will use them. ``inline``: it has nothing else to do."""

    async def migrate(self) -> list[int]:
        """Bring the schema up to date; returns the numbers of what was applied."""

    async def version(self) -> tuple[int, int]:
        """The schema's version there, and the newest this Umbel knows."""

    async def unwrap(self, connection: Any) -> Any:
        """The driver connection inside what async code handed over."""


def site(settings: Settings, clock: Clock) -> Site:
    """The site of the settings' broker, which is the store too."""
    if settings.store and settings.store != settings.broker:
        raise ConfigurationError(
            f"store={settings.store!r}: SQLite and PostgreSQL are broker and store in one;"
            " leave store out or give it the broker's URL"
        )
    if urlsplit(settings.broker).scheme == "sqlite":
        return SqliteSite(settings, clock)
    return PostgresSite(settings, clock)


class SqliteSite:
    """A SQLite file: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite:///:memory:``."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        from umbel.drivers.sqlite import Home

        parts = urlsplit(settings.broker)
        path = unquote(parts.path)[1:]
        if parts.netloc or not path:
            raise ConfigurationError(
                f"broker={settings.broker!r}: three slashes and a path, as in sqlite:///umbel.db"
            )
        options = dict(parse_qsl(parts.query))
        unknown = options.keys() - {"synchronous"}
        if unknown:
            raise ConfigurationError(f"broker: unknown option {sorted(unknown)}; use synchronous")
        self._home = Home(path, **options)
        self._settings = settings
        self._clock = clock

    def open(self, *, inline: bool = False) -> Backend:
        from umbel.brokers.sqlite import SqliteBroker
        from umbel.drivers.sqlite import Database
        from umbel.stores.sqlite import SqliteControl, SqliteRecords, SqliteRegistry

        busy = self._settings.deadline if inline else 5.0
        database = Database(self._home, inline=inline, busy=busy)
        common: Any = {"namespace": self._settings.namespace, "clock": self._clock}
        return Backend(
            SqliteBroker(database, **common),
            SqliteRecords(database, **common),
            SqliteRegistry(database, **common),
            SqliteControl(database, **common),
        )

    async def migrate(self) -> list[int]:
        from umbel.drivers.sqlite import Database

        before, newest = await self.version()
        database = Database(self._home)
        await database.open()  # which brings its schema up to date
        await database.close()
        return list(range(before + 1, newest + 1))

    async def version(self) -> tuple[int, int]:
        from umbel.drivers.sqlite import migrations, version_of

        return version_of(self._home.path), migrations()[-1][0]

    async def unwrap(self, connection: Any) -> Any:
        from umbel.drivers.connections import aunwrap

        return await aunwrap(connection)


class PostgresSite:
    """A PostgreSQL database, in a schema of Umbel's own."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        try:
            from umbel.drivers.postgres import Home
        except ImportError as error:
            raise ConfigurationError(
                f"PostgreSQL needs its driver: pip install 'umbel[postgres]' ({error})"
            ) from None
        self._home = Home(settings.broker)
        self._settings = settings
        self._clock = clock

    def open(self, *, inline: bool = False) -> Backend:
        from umbel.brokers.postgres import PostgresBroker
        from umbel.drivers.postgres import Database
        from umbel.stores.postgres import PostgresControl, PostgresRecords, PostgresRegistry

        database = Database(self._home)
        common: Any = {"namespace": self._settings.namespace, "clock": self._clock}
        return Backend(
            PostgresBroker(database, **common),
            PostgresRecords(database, **common),
            PostgresRegistry(database, **common),
            PostgresControl(database, **common),
        )

    async def migrate(self) -> list[int]:
        from umbel.drivers.postgres import migrate

        return await migrate(self._home)

    async def version(self) -> tuple[int, int]:
        from umbel.drivers.postgres import newest, schema_version

        return await schema_version(self._home) or 0, newest()

    async def unwrap(self, connection: Any) -> Any:
        from umbel.drivers.connections import aunwrap

        return await aunwrap(connection)

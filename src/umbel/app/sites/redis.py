"""A Redis or Valkey server: broker and store in one."""

from __future__ import annotations

from typing import Any

from umbel.clock import Clock
from umbel.configuration import Settings
from umbel.errors import ConfigurationError
from umbel.router import Backend
from umbel.stores import NoTransactions, Transactions

REDIS = (
    *("redis", "rediss", "redis+unix", "redis+sentinel", "rediss+sentinel"),
    *("valkey", "valkeys", "valkey+unix", "valkey+sentinel", "valkeys+sentinel"),
)


class RedisSite:
    """A namespace on a Redis server. It has no schema that could be old."""

    def __init__(self, url: str, settings: Settings, clock: Clock) -> None:
        try:
            # All that ``open`` needs: a signal handler must not come while it is imported.
            import umbel.brokers.redis
            import umbel.stores.redis  # noqa: F401
            from umbel.drivers.redis import Home
        except ImportError as error:
            raise ConfigurationError(
                f"Redis needs its driver: pip install 'umbel[redis]' ({error})"
            ) from None
        self._home = Home(url)
        self._settings = settings
        self._clock = clock

    def open(self, *, inline: bool = False, ledger: bool = False) -> Backend:
        from umbel.brokers.redis import RedisBroker, RedisLedger
        from umbel.drivers.redis import Database
        from umbel.stores.redis import (
            RedisControl,
            RedisDeployments,
            RedisGates,
            RedisRecords,
            RedisRegistry,
            RedisRoutes,
            RedisSteps,
        )

        database = Database(self._home)
        common: Any = {"namespace": self._settings.namespace, "clock": self._clock}
        records = RedisRecords(database, **common)
        return Backend(
            (RedisLedger if ledger else RedisBroker)(database, **common, find=records.find),
            records,
            RedisRegistry(database, **common),
            RedisControl(database, **common),
            RedisGates(database, **common),
            RedisSteps(database, **common),
            RedisDeployments(database, **common),
            RedisRoutes(database, **common),
        )

    async def migrate(self) -> list[int]:
        return []

    async def version(self) -> tuple[int, int]:
        return 1, 1

    def transactions(self) -> Transactions:
        return NoTransactions(
            "Redis has no transactions that your code could be part of; PostgreSQL and SQLite have,"
            ' also as the store beside another broker: store="postgresql://…"'
        )

    async def unwrap(self, connection: Any) -> Any:
        return connection

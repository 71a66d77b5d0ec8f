"""The backend of a Redis or Valkey server, which is a broker and a store."""

from __future__ import annotations

from typing import Any

from umbel.backends.backend import Roles
from umbel.backends.erasing import NamespaceEraser
from umbel.backends.redis.address import RedisAddress
from umbel.backends.redis.broker import RedisBroker
from umbel.backends.redis.control import RedisControl
from umbel.backends.redis.coordination import RedisCoordination
from umbel.backends.redis.database import Database
from umbel.backends.redis.erasing import RedisEraser
from umbel.backends.redis.gates import RedisGates
from umbel.backends.redis.job_store import RedisJobStore
from umbel.backends.redis.joins import RedisJoins
from umbel.backends.redis.records import RedisRecords
from umbel.backends.redis.registry import RedisRegistry
from umbel.backends.redis.routes import RedisRoutes
from umbel.backends.redis.steps import RedisSteps
from umbel.backends.redis.transport import RedisTransport
from umbel.backends.steps import NoTransactions, Transactions
from umbel.backends.transport import OnLaneMissing, OpenTransport, Transport
from umbel.clock import Clock


class RedisBackend:
    """A namespace on a Redis server. It has no schema to migrate."""

    def __init__(self, url: str, *, namespace: str, deadline: float, clock: Clock) -> None:
        self._address = RedisAddress(url)
        self._namespace = namespace
        self._clock = clock

    def open(self, *, is_loop_dedicated: bool = False, as_job_store: bool = False) -> Roles:
        database = Database(self._address)
        common: Any = {"namespace": self._namespace, "clock": self._clock}
        records = RedisRecords(database, **common)
        return Roles(
            (RedisJobStore if as_job_store else RedisBroker)(database, **common, find=records.find),
            records,
            RedisRegistry(database, **common),
            RedisControl(database, **common),
            RedisGates(database, **common),
            RedisSteps(database, **common),
            RedisRoutes(database, **common),
            RedisJoins(database, **common),
            RedisCoordination(database, **common),
        )

    async def migrate(self) -> list[int]:
        return []

    async def version(self) -> tuple[int, int]:
        return 1, 1

    def eraser(self) -> NamespaceEraser:
        return RedisEraser(Database(self._address), namespace=self._namespace)

    def transactions(self) -> Transactions:
        return NoTransactions(
            "Redis has no transactions that your code could be part of; PostgreSQL and SQLite have,"
            ' also as the store beside another broker: store="postgresql://…"'
        )

    async def unwrap(self, connection: Any) -> Any:
        return connection


def transport(url: str, namespace: str) -> OpenTransport:
    """Return a function that opens a transport to this server. Raises ConfigurationError."""
    address = RedisAddress(url)

    def open_transport(on_lane_missing: OnLaneMissing) -> Transport:
        return RedisTransport(address, namespace=namespace, on_lane_missing=on_lane_missing)

    return open_transport


store = RedisBackend
"""Opens the store of a URL. Raises ConfigurationError."""

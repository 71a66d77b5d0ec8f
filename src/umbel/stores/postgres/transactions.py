"""Steps in transactions on PostgreSQL: in a connection on loan, or in the caller's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from umbel.drivers.connections import aunwrap, unwrap
from umbel.drivers.postgres import (
    Home,
    Lending,
    Row,
    aperform_within,
    explaining,
    is_async_connection,
    is_sync_connection,
    joins_nothing,
    one,
    perform_within,
)
from umbel.errors import ConfigurationError, LeaseLost
from umbel.messages import Kept
from umbel.stores.postgres.steps import FILE, keep_arrays


class PostgresTransactions:
    """See ``stores.steps.Transactions`` for what each method promises."""

    def __init__(self, home: Home) -> None:
        self._address = home.address
        self._keep = home.queries(*FILE)["keep"]
        self._lending = Lending(home)

    def run(self, work: Callable[[Any], Kept]) -> Kept:
        with self._lending.transaction() as connection:
            kept = work(connection)
            with explaining(self._address):
                _check(kept, perform_within(connection, one(self._keep, keep_arrays([kept]))))
        return kept

    async def arun(self, work: Callable[[Any], Awaitable[Kept]]) -> Kept:
        async with self._lending.atransaction() as connection:
            kept = await work(connection)
            with explaining(self._address):
                steps = one(self._keep, keep_arrays([kept]))
                _check(kept, await aperform_within(connection, steps))
        return kept

    def join(self, connection: Any) -> Any:
        joined = unwrap(connection)
        if is_async_connection(joined):
            raise ConfigurationError(
                "connection: an async connection is for async def tasks; give a psycopg.Connection"
            )
        return _joined(joined)

    async def ajoin(self, connection: Any) -> Any:
        return _joined(await aunwrap(connection))

    def keep_within(self, kept: Kept, connection: Any) -> None:
        with explaining(self._address):
            _check(kept, perform_within(connection, one(self._keep, keep_arrays([kept]))))

    async def akeep_within(self, kept: Kept, connection: Any) -> None:
        if not is_async_connection(connection):
            self.keep_within(kept, connection)
            return
        with explaining(self._address):
            steps = one(self._keep, keep_arrays([kept]))
            _check(kept, await aperform_within(connection, steps))

    def close(self) -> None:
        self._lending.close()


def _check(kept: Kept, rows: Sequence[Row]) -> None:
    if rows[0][0]:
        raise LeaseLost(f"job {kept.lease.job} was taken from this worker")


def _joined(connection: Any) -> Any:
    if not is_sync_connection(connection) and not is_async_connection(connection):
        raise ConfigurationError(
            f"connection={type(connection).__name__}: this store is PostgreSQL; give a psycopg"
            " connection to it, or a SQLAlchemy (postgresql+psycopg) one or session"
        )
    if joins_nothing(connection):
        raise ConfigurationError(
            "connection: it has no transaction open and commits each statement by itself; call the"
            " step inside `with connection.transaction():`"
        )
    return connection

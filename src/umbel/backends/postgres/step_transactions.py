"""Steps in transactions on PostgreSQL: in a connection on loan, or in the caller's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from umbel.backends.caller_connections import aunwrap, unwrap
from umbel.backends.postgres.address import Home
from umbel.backends.postgres.caller_connections import Caller, recognised
from umbel.backends.postgres.errors import explaining
from umbel.backends.postgres.lent_connections import Lending
from umbel.backends.postgres.same_database import Origins
from umbel.backends.postgres.statements import Row, one
from umbel.backends.postgres.steps import FILE, keep_arrays
from umbel.errors import ConfigurationError, LeaseLost
from umbel.messages import Kept


class PostgresTransactions:
    """See ``stores.steps.Transactions`` for what each method promises."""

    def __init__(self, home: Home) -> None:
        self._address = home.address
        self._keep = home.queries(FILE)["keep"]
        self._origins = Origins(home)
        self._lending = Lending(home)

    def run(self, work: Callable[[Any], Kept]) -> Kept:
        with self._lending.transaction() as connection:
            kept = work(connection)
            self.keep_within(kept, recognised(connection))
        return kept

    async def arun(self, work: Callable[[Any], Awaitable[Kept]]) -> Kept:
        async with self._lending.atransaction() as connection:
            kept = await work(connection)
            await self.akeep_within(kept, recognised(connection))
        return kept

    def join(self, connection: Any) -> Caller:
        with explaining(self._address):
            return _joined(self._origins.take(unwrap(connection)))

    async def ajoin(self, connection: Any) -> Caller:
        with explaining(self._address):
            return _joined(await self._origins.atake(await aunwrap(connection)))

    def keep_within(self, kept: Kept, connection: Caller) -> None:
        with explaining(self._address):
            _check(kept, connection.perform(one(self._keep, keep_arrays([kept]))))

    async def akeep_within(self, kept: Kept, connection: Caller) -> None:
        with explaining(self._address):
            _check(kept, await connection.aperform(one(self._keep, keep_arrays([kept]))))

    def close(self) -> None:
        self._lending.close()


def _check(kept: Kept, rows: Sequence[Row]) -> None:
    if rows[0][0]:
        raise LeaseLost(f"job {kept.lease.job} was taken from this worker")


def _joined(caller: Caller) -> Caller:
    if caller.joins_nothing:
        raise ConfigurationError(
            "connection: it has no transaction open and commits each statement by itself; call the"
            " step inside `with connection.transaction():`"
        )
    return caller

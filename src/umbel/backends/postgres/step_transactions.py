"""Steps in transactions on PostgreSQL: on a connection of Umbel, or on the caller's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from umbel.backends.caller_connections import aunwrap, unwrap
from umbel.backends.postgres.address import PostgresAddress
from umbel.backends.postgres.caller_connections import CallerConnection, wrap_connection
from umbel.backends.postgres.errors import translate_errors
from umbel.backends.postgres.same_database import DatabaseCheck
from umbel.backends.postgres.statements import single_statement
from umbel.backends.postgres.step_connections import StepConnections
from umbel.backends.postgres.steps import keep_arrays
from umbel.backends.sql.statements import Row
from umbel.errors import ConfigurationError, LeaseLost
from umbel.messages import KeptStep


class PostgresTransactions:
    """See ``umbel.backends.steps.Transactions`` for what each method promises."""

    def __init__(self, address: PostgresAddress) -> None:
        self._label = address.label
        self._keep = address.queries("steps.sql")["keep"]
        self._database_check = DatabaseCheck(address)
        self._connections = StepConnections(address)

    def run(self, work: Callable[[Any], KeptStep]) -> KeptStep:
        with self._connections.transaction() as connection:
            kept = work(connection)
            self.keep_within(kept, wrap_connection(connection))
        return kept

    async def arun(self, work: Callable[[Any], Awaitable[KeptStep]]) -> KeptStep:
        async with self._connections.atransaction() as connection:
            kept = await work(connection)
            await self.akeep_within(kept, wrap_connection(connection))
        return kept

    def join(self, connection: Any) -> CallerConnection:
        with translate_errors(self._label):
            return _joined(self._database_check.accept(unwrap(connection)))

    async def ajoin(self, connection: Any) -> CallerConnection:
        with translate_errors(self._label):
            return _joined(await self._database_check.aaccept(await aunwrap(connection)))

    def keep_within(self, kept: KeptStep, connection: CallerConnection) -> None:
        with translate_errors(self._label):
            _check(kept, connection.perform(single_statement(self._keep, keep_arrays([kept]))))

    async def akeep_within(self, kept: KeptStep, connection: CallerConnection) -> None:
        with translate_errors(self._label):
            _check(
                kept, await connection.aperform(single_statement(self._keep, keep_arrays([kept])))
            )

    def close(self) -> None:
        self._connections.close()


def _check(kept: KeptStep, rows: Sequence[Row]) -> None:
    if rows[0][0]:
        raise LeaseLost(f"job {kept.lease.job} was taken from this worker")


def _joined(caller: CallerConnection) -> CallerConnection:
    if caller.is_autocommit:
        raise ConfigurationError(
            "connection: it has no transaction open and commits each statement by itself; call the"
            " step inside `with connection.transaction():`"
        )
    return caller

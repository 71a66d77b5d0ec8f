"""Joins on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from umbel.backends.broker import Published
from umbel.backends.postgres.caller_connections import block_within
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.errors import translate_errors
from umbel.backends.postgres.publishing import publish_or_record_steps
from umbel.backends.postgres.same_database import DatabaseCheck
from umbel.backends.postgres.statements import atomically
from umbel.backends.sql.joins import SqlJoins
from umbel.backends.sql.statements import Steps
from umbel.clock import Clock
from umbel.messages import Envelope, Publication


class PostgresJoins(SqlJoins):
    """See ``umbel.backends.joins.Joins`` for what each method promises."""

    files = ("joins.sql", "store.sql", "broker.sql")

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        super().__init__(database, namespace=namespace, clock=clock)
        self._label = database.address.label
        self._database_check = DatabaseCheck(database.address)

    def add_within(self, publication: Publication, connection: Any) -> list[Published]:
        self.check(publication)
        with translate_errors(self._label):
            caller = self._database_check.accept(connection)
            return caller.perform(atomically(self.add_steps(publication), block_within(caller)))

    async def _add_within(self, publication: Publication, connection: Any) -> list[Published]:
        with translate_errors(self._label):
            caller = await self._database_check.aaccept(connection)
            steps = atomically(self.add_steps(publication), block_within(caller))
            return await caller.aperform(steps)

    def _publish_steps(
        self, envelopes: Sequence[Envelope], *, blocked: bool, part: bool
    ) -> Steps[list[Published]]:
        idle = "blocked" if blocked else "queued"
        return publish_or_record_steps(self._sql, envelopes, idle=idle, part=part)

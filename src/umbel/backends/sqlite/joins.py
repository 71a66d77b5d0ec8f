"""Joins on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from umbel.backends.broker import Published
from umbel.backends.sql.joins import SqlJoins
from umbel.backends.sql.statements import Steps
from umbel.backends.sqlite.database import Database
from umbel.backends.sqlite.publishing import caller_cursor, publish_or_record_steps
from umbel.backends.sqlite.transactions import perform, savepoint
from umbel.messages import Envelope, Publication


class SqliteJoins(SqlJoins):
    """See ``umbel.backends.joins.Joins`` for what each method promises."""

    _database: Database

    def add_within(self, publication: Publication, connection: Any) -> list[Published]:
        self.check(publication)
        with self._database.translate_errors():
            cursor = caller_cursor(self._database.file, connection)
            with savepoint(connection, cursor):
                # Takes the write lock. A transaction that has only read loses against a writer.
                cursor.execute("update job_join set id = id where false")
                return perform(cursor, self.add_steps(publication))

    async def _add_within(self, publication: Publication, connection: Any) -> list[Published]:
        return self.add_within(publication, connection)

    def _publish_steps(
        self, envelopes: Sequence[Envelope], *, blocked: bool, part: bool
    ) -> Steps[list[Published]]:
        idle = "blocked" if blocked else "queued"
        return publish_or_record_steps(envelopes, self._clock.now(), idle)

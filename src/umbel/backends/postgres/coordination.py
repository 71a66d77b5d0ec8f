"""Coordination on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from umbel.backends.broker import Published
from umbel.backends.postgres.publishing import publish_or_record_steps
from umbel.backends.sql.coordination import SqlCoordination
from umbel.backends.sql.statements import Steps
from umbel.messages import Envelope


class PostgresCoordination(SqlCoordination):
    """See ``umbel.backends.coordination.Coordination`` for what each method promises."""

    files = ("coordination.sql", "broker.sql")

    def _publish_steps(self, envelopes: Sequence[Envelope]) -> Steps[list[Published]]:
        return publish_or_record_steps(self._sql, envelopes)

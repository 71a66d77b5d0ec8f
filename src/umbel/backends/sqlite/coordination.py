"""Coordination on SQLite."""

from __future__ import annotations

from collections.abc import Sequence

from umbel.backends.broker import Published
from umbel.backends.sql.coordination import SqlCoordination
from umbel.backends.sql.statements import Steps
from umbel.backends.sqlite.publishing import publish_or_record_steps
from umbel.messages import Envelope


class SqliteCoordination(SqlCoordination):
    """See ``umbel.backends.coordination.Coordination`` for what each method promises."""

    def _publish_steps(self, envelopes: Sequence[Envelope]) -> Steps[list[Published]]:
        return publish_or_record_steps(envelopes, self._clock.now())

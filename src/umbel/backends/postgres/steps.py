"""Keeping steps on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from umbel.backends.postgres.arrays import blobs, numbers, texts
from umbel.backends.sql.steps import SqlSteps
from umbel.messages import KeptStep


class PostgresSteps(SqlSteps):
    """See ``umbel.backends.steps.Steps`` for what each method promises."""

    async def keep(self, done: Sequence[KeptStep]) -> list[KeptStep]:
        if not done:
            return []
        rows = await self._rows("keep", **keep_arrays(done))
        return [done[place - 1] for place in rows[0][0] or ()]


def keep_arrays(done: Sequence[KeptStep]) -> dict[str, Any]:
    """Return the parameters of ``keep``."""
    return {
        "id": texts([kept.lease.job for kept in done]),
        "owner": texts([kept.lease.owner for kept in done]),
        "fence": numbers([kept.lease.fence for kept in done]),
        "number": numbers([kept.step.number for kept in done]),
        "name": texts([kept.step.name for kept in done]),
        "content_type": texts([kept.step.result.content_type for kept in done]),
        "result": blobs([kept.step.result.data for kept in done]),
        "started": numbers([kept.step.started for kept in done]),
        "finished": numbers([kept.step.finished for kept in done]),
    }

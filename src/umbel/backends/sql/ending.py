"""Ending jobs that do not run: they become records in a final state."""

from __future__ import annotations

from collections.abc import Sequence

from umbel.backends.sql.role import SqlRole
from umbel.backends.sql.statements import Steps
from umbel.messages import State

EXPIRED = "expired before it could start"


def end_idle_steps(
    role: SqlRole, jobs: Sequence[str], reason: str, final: State
) -> Steps[list[str]]:
    """End those of these jobs that do not run, in the open transaction; return their ids.

    The role has the queries of ``store.sql``.
    """
    if not jobs:
        return []
    values = role.values(
        id=role.database.texts(jobs), reason=role.database.text(reason), final=final.value
    )
    ended = yield role.sql["cancel_idle"], values
    if ended and "delete_ended" in role.sql:  # SQLite cannot delete in the same statement
        yield role.sql["free_ended"], values
        yield role.sql["delete_ended"], values
    return [row[0] for row in ended]

"""Ending jobs that do not run."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from umbel.backends.queries import load
from umbel.backends.sql.statements import Steps
from umbel.backends.sqlite.transactions import perform
from umbel.messages import State

SQL = load("umbel.backends.sqlite", "store.sql")


def cancel_idle(
    cursor: sqlite3.Cursor, namespace: str, jobs: Sequence[str], reason: str, now: float
) -> None:
    """Turn those of these jobs that do not run into cancelled records."""
    perform(cursor, cancel_steps(namespace, jobs, reason, now))


def cancel_steps(
    namespace: str,
    jobs: Sequence[str],
    reason: str,
    now: float,
    final: State = State.CANCELLED,
) -> Steps[None]:
    """Turn those of these jobs that do not run into records."""
    row = {
        "namespace": namespace,
        "id": msgspec.json.encode([*jobs]).decode(),
        "reason": reason,
        "now": now,
        "final": final.value,
    }
    for query in ("cancel_idle", "free_ended", "delete_ended"):
        yield SQL[query], row

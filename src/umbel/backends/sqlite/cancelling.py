"""Ending jobs that do not run."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from umbel.backends.queries import load
from umbel.messages import State

SQL = load("umbel.backends.sqlite", "store.sql")


def cancel_idle(
    cursor: sqlite3.Cursor, namespace: str, jobs: Sequence[str], reason: str, now: float
) -> None:
    """Turn those of these jobs that do not run into cancelled records."""
    row = {
        "namespace": namespace,
        "id": msgspec.json.encode([*jobs]).decode(),
        "reason": reason,
        "now": now,
        "final": State.CANCELLED.value,
    }
    for query in ("cancel_idle", "free_ended", "delete_ended"):
        cursor.execute(SQL[query], row).fetchall()

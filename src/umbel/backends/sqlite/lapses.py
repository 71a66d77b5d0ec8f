"""Taking back deaths that were counted although the worker was alive.

Each function runs in the caller's transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from umbel.backends.queries import load

SQL = load("umbel.backends.sqlite", "lapses.sql")

_DAY = 86_400.0
"""How long deaths and reports are kept."""


def count_death(cursor: sqlite3.Cursor, row: Mapping[str, Any], *, blamed: bool) -> None:
    """Record that a death was counted against a job, so that it can be taken back."""
    cursor.execute(SQL["count"], {**row, "blamed": int(blamed)})


def report_lapses(cursor: sqlite3.Cursor, values: Mapping[str, Any], former: Iterable[str]) -> None:
    """Record that the process of these incarnations was alive, and take back their deaths."""
    for query in ("forget_deaths", "forget_lapses"):
        cursor.execute(SQL[query], {**values, "day": _DAY})
    for incarnation in former:
        cursor.execute(SQL["report"], {**values, "incarnation": incarnation})
    take_back_deaths(cursor, values)


def take_back_deaths(cursor: sqlite3.Cursor, values: Mapping[str, Any]) -> None:
    """Count each death of a reported incarnation as a lapse instead."""
    for incarnation, job, blamed in cursor.execute(SQL["wrong_deaths"], values).fetchall():
        row = {**values, "incarnation": incarnation, "job": job, "blamed": blamed}
        if cursor.execute(SQL["correct_live"], row).rowcount == 0:
            if cursor.execute(SQL["requeue_buried"], row).rowcount == 1:
                cursor.execute(SQL["remove_record"], row)
            else:
                cursor.execute(SQL["correct_record"], row)
        cursor.execute(SQL["settle"], row)

"""Deaths that are taken back, because the worker turned out to be alive.

Each function works inside a transaction of its caller's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from umbel.backends.queries import load

SQL = load("umbel.backends.sqlite", "lapses.sql")

_DAY = 86_400.0
"""For how long deaths and reports are remembered."""


def count_death(cursor: sqlite3.Cursor, row: Mapping[str, Any], *, blamed: bool) -> None:
    """Remember that a death was counted against a job, so that it can be taken back."""
    cursor.execute(SQL["count"], {**row, "blamed": int(blamed)})


def report_lapses(cursor: sqlite3.Cursor, here: Mapping[str, Any], former: Iterable[str]) -> None:
    """Note that the process of these incarnations was alive, and take back what was counted."""
    for query in ("forget_deaths", "forget_lapses"):
        cursor.execute(SQL[query], {**here, "day": _DAY})
    for incarnation in former:
        cursor.execute(SQL["report"], {**here, "incarnation": incarnation})
    take_back_deaths(cursor, here)


def take_back_deaths(cursor: sqlite3.Cursor, here: Mapping[str, Any]) -> None:
    """Count each death that was none as a lapse."""
    for incarnation, job, blamed in cursor.execute(SQL["taken_back"], here).fetchall():
        row = {**here, "incarnation": incarnation, "job": job, "blamed": blamed}
        if cursor.execute(SQL["correct_live"], row).rowcount == 0:
            if cursor.execute(SQL["come_back"], row).rowcount == 1:
                cursor.execute(SQL["remove_record"], row)
            else:
                cursor.execute(SQL["correct_record"], row)
        cursor.execute(SQL["settle"], row)

"""Steps with routes that more than one room takes, each inside a transaction of its caller's."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from umbel.backends.queries import load

SQL = load("umbel.backends.sqlite", "route_rows.sql")


class Live(NamedTuple):
    """A key's live route."""

    number: int
    seat: int


def live_route(cursor: sqlite3.Cursor, here: Mapping[str, Any], key: str) -> Live | None:
    """Where a key's jobs may go now. None: it has no route, or one that is to be released."""
    asked = {**here, "key": key}
    found = cursor.execute(SQL["live"], asked).fetchone()
    if found is not None and (found[2] or not found[3]):
        settle_routes(cursor, here)
        found = cursor.execute(SQL["live"], asked).fetchone()
    return None if found is None or found[2] else Live(*found[:2])


def is_closing(cursor: sqlite3.Cursor, here: Mapping[str, Any], key: str) -> bool:
    """Whether a key's route is still there, to be released when what runs is done."""
    return cursor.execute(SQL["live"], {**here, "key": key}).fetchone() is not None


def make_route(cursor: sqlite3.Cursor, here: Mapping[str, Any], key: str, task: str) -> Live | None:
    """To the worker with the fewest, then the lowest index. None when nobody could have it."""
    asked = {**here, "key": key, "task": task}
    among = cursor.execute(SQL["candidates"], asked).fetchall()
    if not among:
        return None
    wanted = cursor.execute(SQL["target"], asked).fetchone()
    index = among[0][0]
    if wanted is not None and any(wanted[0] == one for one, _ in among):
        index = wanted[0]
    made = {**asked, "idx": index, "among": msgspec.json.encode(among).decode()}
    cursor.execute(SQL["look"], asked)  # for those of other queues and kinds
    return Live(cursor.execute(SQL["make"], made).fetchone()[0], index)


def settle_routes(
    cursor: sqlite3.Cursor, here: Mapping[str, Any], idle: float | None = None
) -> list[Any]:
    """Release what is to be released, now that it can be; its jobs are back in line first."""
    cursor.execute(SQL["close_lost"], here)
    if idle is not None:
        cursor.execute(SQL["rests"], here)
        cursor.execute(SQL["close_idle"], {**here, "idle": idle})
    cursor.execute(SQL["put_back"], here)
    released = cursor.execute(SQL["finish"], here).fetchall()
    for route in released:
        cursor.execute(SQL["look"], {**here, "key": route[1]})
    return released

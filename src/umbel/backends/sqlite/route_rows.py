"""Reading and changing routes. Each function runs in the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from umbel.backends.queries import load

SQL = load("umbel.backends.sqlite", "route_rows.sql")


class LiveRoute(NamedTuple):
    """The live route of a key."""

    number: int
    worker_index: int


def live_route(cursor: sqlite3.Cursor, values: Mapping[str, Any], key: str) -> LiveRoute | None:
    """Return the route of a key; None if it has none, or one that is being released."""
    asked = {**values, "key": key}
    found = cursor.execute(SQL["live"], asked).fetchone()
    if found is not None and (found[2] or not found[3]):
        settle_routes(cursor, values)
        found = cursor.execute(SQL["live"], asked).fetchone()
    return None if found is None or found[2] else LiveRoute(*found[:2])


def is_closing(cursor: sqlite3.Cursor, values: Mapping[str, Any], key: str) -> bool:
    """Return whether a key has a route that is not released yet."""
    return cursor.execute(SQL["live"], {**values, "key": key}).fetchone() is not None


def make_route(
    cursor: sqlite3.Cursor, values: Mapping[str, Any], key: str, task: str
) -> LiveRoute | None:
    """Make a route to the worker with the fewest routes, then the lowest index.

    Return None if no worker could run the task.
    """
    asked = {**values, "key": key, "task": task}
    among = cursor.execute(SQL["candidates"], asked).fetchall()
    if not among:
        return None
    wanted = cursor.execute(SQL["target"], asked).fetchone()
    index = among[0][0]
    if wanted is not None and any(wanted[0] == one for one, _ in among):
        index = wanted[0]
    made = {**asked, "idx": index, "among": msgspec.json.encode(among).decode()}
    cursor.execute(SQL["check_waiting_lists"], asked)  # for jobs of other queues and kinds
    return LiveRoute(cursor.execute(SQL["make"], made).fetchone()[0], index)


def settle_routes(
    cursor: sqlite3.Cursor, values: Mapping[str, Any], idle: float | None = None
) -> list[Any]:
    """Release routes that are closing, if possible, and put their jobs back on the waiting list."""
    cursor.execute(SQL["close_lost"], values)
    if idle is not None:
        cursor.execute(SQL["start_idle_time"], values)
        cursor.execute(SQL["close_idle"], {**values, "idle": idle})
    cursor.execute(SQL["put_back"], values)
    released = cursor.execute(SQL["finish"], values).fetchall()
    for route in released:
        cursor.execute(SQL["check_waiting_lists"], {**values, "key": route[1]})
    return released

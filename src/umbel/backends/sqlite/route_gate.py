"""The gate of routed jobs: it sends a job to the inbox of the worker that has its key."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from umbel.backends.sqlite import route_rows as routing
from umbel.backends.sqlite.job_rows import SQL
from umbel.backends.sqlite.route_rows import LiveRoute
from umbel.messages import Slot, inbox, route_key
from umbel.messages.columns import read_slots

_RETRY_SECONDS = 1.0
"""Seconds after which to check whether an earlier job still waits."""
_json = msgspec.json.Encoder().encode


def route_jobs(
    cursor: sqlite3.Cursor, lane: dict[str, Any], limit: int, capacity: int
) -> tuple[int, int, float | None]:
    """Send jobs of one lane to their worker, at most ``limit``.

    Return how many passed, how many of them end in this queue because they have no route, and when
    to check again. None: when a worker registers, or a route is made or released.
    """
    key = route_key(lane["key"])
    waiting = cursor.execute(SQL["route_front"], {**lane, "limit": limit}).fetchall()
    route = routing.live_route(cursor, lane, key)
    if route is None and routing.is_closing(cursor, lane, key):
        return 0, 0, None
    ended, gate_check = 0, 0.0 if len(waiting) == limit else None
    rest: list[tuple[Any, ...]] = []
    for job in waiting:
        seq, _, task, only_if_routed, _ = job
        if route is None and not only_if_routed:
            route = routing.make_route(cursor, lane, key, task)
            if route is None:  # until a worker registers
                return ended, ended, gate_check if rest else None
        if route is not None:
            rest.append(job)
        elif cursor.execute(SQL["routes_before"], {**lane, "seq": seq}).fetchone():
            rest.append(job)
            gate_check = (
                lane["now"] + _RETRY_SECONDS
            )  # that job makes the route, or leaves without a wake-up
        elif ended < capacity:
            _pass(cursor, lane, job, lane["queue"], Slot(lane["key"], rejected=True))
            ended += 1
        else:
            return ended, ended, 0.0
    if route is None:
        return ended, ended, gate_check
    _send(cursor, lane, rest, route)
    return len(waiting), ended, 0.0 if len(waiting) == limit else None


def _send(
    cursor: sqlite3.Cursor, lane: dict[str, Any], jobs: Sequence[tuple[Any, ...]], route: LiveRoute
) -> None:
    """Move these jobs into the inbox of their worker."""
    cursor.execute(routing.SQL["hold"], {"id": route.number, "many": len(jobs)})
    slot = Slot(lane["key"], route=route.number, home=lane["queue"])
    for job in jobs:
        _pass(cursor, lane, job, inbox(route.worker_index), slot)


def _pass(
    cursor: sqlite3.Cursor, lane: dict[str, Any], job: tuple[Any, ...], queue: str, slot: Slot
) -> None:
    held = _json([*read_slots(job[4]), slot]).decode()
    cursor.execute(SQL["move_to_inbox"], {**lane, "id": job[1], "queue": queue, "slots": held})

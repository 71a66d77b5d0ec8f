"""Sending jobs to the worker that has their key: a gate that leads into that worker's queue."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from umbel.backends.sqlite import route_rows as routing
from umbel.backends.sqlite.job_rows import SQL
from umbel.backends.sqlite.route_rows import Live
from umbel.messages import Slot, inbox, route_key
from umbel.messages.columns import read_slots

_AGAIN = 1.0
"""Seconds after which to see whether somebody who came before still waits."""
_json = msgspec.json.Encoder().encode


def send_on(
    cursor: sqlite3.Cursor, lane: dict[str, Any], most: int, room: int
) -> tuple[int, int, float | None]:
    """Let some of one lane go to their worker. How many did, how many of them are to end in this
    queue, and when to look again; None: when a worker comes, a route is made or released."""
    key = route_key(lane["key"])
    waiting = cursor.execute(SQL["route_front"], {**lane, "limit": most}).fetchall()
    route = routing.live_route(cursor, lane, key)
    if route is None and routing.is_closing(cursor, lane, key):
        return 0, 0, None
    ended, look = 0, 0.0 if len(waiting) == most else None
    rest: list[tuple[Any, ...]] = []
    for job in waiting:
        seq, _, task, only_if_routed, _ = job
        if route is None and not only_if_routed:
            route = routing.make_route(cursor, lane, key, task)
            if route is None:  # until a worker comes
                return ended, ended, look if rest else None
        if route is not None:
            rest.append(job)
        elif cursor.execute(SQL["routes_before"], {**lane, "seq": seq}).fetchone():
            rest.append(job)
            look = lane["now"] + _AGAIN  # that one makes the route; or it goes, and tells nobody
        elif ended < room:
            _pass(cursor, lane, job, lane["queue"], Slot(lane["key"], rejected=True))
            ended += 1
        else:
            return ended, ended, 0.0
    if route is None:
        return ended, ended, look
    _send(cursor, lane, rest, route)
    return len(waiting), ended, 0.0 if len(waiting) == most else None


def _send(
    cursor: sqlite3.Cursor, lane: dict[str, Any], jobs: Sequence[tuple[Any, ...]], route: Live
) -> None:
    """These go into their worker's own queue."""
    cursor.execute(routing.SQL["hold"], {"id": route.number, "many": len(jobs)})
    slot = Slot(lane["key"], route=route.number, home=lane["queue"])
    for job in jobs:
        _pass(cursor, lane, job, inbox(route.seat), slot)


def _pass(
    cursor: sqlite3.Cursor, lane: dict[str, Any], job: tuple[Any, ...], queue: str, slot: Slot
) -> None:
    held = _json([*read_slots(job[4]), slot]).decode()
    cursor.execute(SQL["send_on"], {**lane, "id": job[1], "queue": queue, "slots": held})

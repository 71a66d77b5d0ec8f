"""Taking jobs under lease, and keeping track of what is held."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from umbel.backends.broker import Demand
from umbel.backends.sqlite.granting import grant
from umbel.backends.sqlite.job_rows import SQL, delivery
from umbel.backends.sqlite.savepoints import writing
from umbel.errors import LeaseLost
from umbel.messages import KINDS, Delivery, Lease, is_inbox


def claim(
    connection: sqlite3.Connection,
    where: dict[str, Any],
    queues: Sequence[str],
    demand: Demand,
) -> tuple[list[Delivery], float | None]:
    """Deliveries, or when to look again. Takes the write lock only when there is work.

    ``where`` names the namespace, the owner and the time.
    """
    where = {**where, "without": listed(demand.without)}
    now = where["now"]
    due = connection.execute(SQL["next_due"], where).fetchone()[0]
    is_due = due is not None and due <= now
    look = next_look(connection, where, queues, demand)
    may_pass = look is not None and look <= now
    ready = any(is_ready(connection, where, q, k) for q in queues for k in KINDS)
    if not is_due and not may_pass and not ready:
        return [], sooner(due, look)
    with writing(connection) as cursor:
        worker = cursor.execute(SQL["enlisted"], where).fetchone()
        if worker is None:
            raise LeaseLost(f"incarnation {where['owner']} is not enlisted")
        if is_due:
            cursor.execute(SQL["promote"], where)
        rows: list[Any] = []
        free = {"io": demand.io, "cpu": demand.cpu}
        for queue in open_queues(connection, where, queues):
            here = {**where, "worker": worker[0], "queue": queue}
            if may_pass or is_due:
                grant(cursor, here, {"": min(free.values()), **free})
            rows += _claim_queue(cursor, here, free)
        if may_pass or is_due:  # some may have been sent to a queue that was looked at before
            for queue in filter(is_inbox, open_queues(connection, where, queues)):
                rows += _claim_queue(cursor, {**where, "worker": worker[0], "queue": queue}, free)
        look = next_look(connection, where, queues, demand)
        if demand.without and look is not None and look <= now:
            look = None  # they may pass elsewhere; nothing changes here before somebody writes
    found = [delivery(row, where["namespace"], where["owner"], now) for row in rows]
    return found, sooner(now if is_due else due, look)


def next_look(
    connection: sqlite3.Connection, where: dict[str, Any], queues: Sequence[str], demand: Demand
) -> float | None:
    """When somebody may pass a gate for whom there is room."""
    room = {"": min(demand.io, demand.cpu), "io": demand.io, "cpu": demand.cpu}
    kinds = [kind for kind, many in room.items() if many > 0]
    open_ones = open_queues(connection, where, queues)
    row = {**where, "queues": listed(open_ones), "kinds": listed(kinds)}
    found: float | None = connection.execute(SQL["next_look"], row).fetchone()[0]
    return found


def sooner(one: float | None, other: float | None) -> float | None:
    """The earlier of two moments, if there are any."""
    return min((at for at in (one, other) if at is not None), default=None)


def open_queues(
    connection: sqlite3.Connection, where: dict[str, Any], queues: Sequence[str]
) -> list[str]:
    """Those that are not paused at this very moment."""
    pauses = connection.execute(SQL["pauses"], where).fetchall()
    if any(scope == "all" for scope, _ in pauses):
        return []
    paused = {name for scope, name in pauses if scope == "queue"}
    return [queue for queue in queues if queue not in paused]


def is_ready(
    connection: sqlite3.Connection,
    where: dict[str, Any],
    queue: str,
    kind: str,
    query: str = "ready_lane",
) -> bool:
    """Whether a lane has something."""
    row = {**where, "queue": queue, "kind": kind}
    return connection.execute(SQL[query], row).fetchone() is not None


def extend(
    connection: sqlite3.Connection, owner: str, held: Sequence[Lease], before: float
) -> list[Lease]:
    """Give back what was claimed before a moment and is not held; say what is held no more."""
    rows = connection.execute(SQL["held"], {"owner": owner}).fetchall()
    known = {(job, fence) for job, fence, _ in rows}
    old = {(job, fence) for job, fence, claimed in rows if claimed < before}
    unknown = old - {(lease.job, lease.fence) for lease in held}
    if unknown:
        with writing(connection) as cursor:
            for job, fence in unknown:
                cursor.execute(SQL["give_back"], {"id": job, "owner": owner, "fence": fence})
    return [lease for lease in held if (lease.job, lease.fence) not in known]


def _claim_queue(cursor: sqlite3.Cursor, where: dict[str, Any], free: dict[str, int]) -> list[Any]:
    """What a queue gives; ``free`` is what is left of the room for it."""
    claimed: list[Any] = []
    for kind in KINDS:
        limit = free[kind] if kind else _unknown_first(cursor, where, free)
        if limit > 0:
            values = {**where, "kind": kind, "limit": limit}
            rows = cursor.execute(SQL["claim"], values).fetchall()
            for taken in (kind,) if kind else tuple(free):
                free[taken] -= len(rows)
            # RETURNING promises no order.
            claimed += sorted(rows, key=lambda row: (-row[5], row[0]))
    return claimed


def _unknown_first(cursor: sqlite3.Cursor, where: dict[str, Any], free: dict[str, int]) -> int:
    """How many jobs of unknown kind are to be taken.

    A sender that does not know the task may mean either kind: both must have room, and it must
    be the job's turn in both.
    """
    front: list[Any] = []
    for kind, limit in (("", min(free.values())), *free.items()):
        row = {**where, "kind": kind, "limit": limit}
        front += cursor.execute(SQL["lane_front"], row).fetchall() if limit > 0 else []
        if not front:
            return 0
    left, taken = dict(free), 0
    for kind, _, _ in sorted(front, key=lambda row: (-row[1], row[2])):
        for needed in (kind,) if kind else tuple(free):
            left[needed] -= 1
        taken += kind == "" and min(left.values()) >= 0
    return taken


def listed(value: Sequence[str]) -> str:
    """Texts as one value of a statement."""
    return msgspec.json.encode([*value]).decode()

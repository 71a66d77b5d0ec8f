"""Claiming jobs under a lease, and giving back leases that their owner does not hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from umbel.backends.broker import Demand, needed
from umbel.backends.sqlite.granting import grant
from umbel.backends.sqlite.job_rows import SQL, delivery
from umbel.backends.sqlite.transactions import write_transaction
from umbel.errors import LeaseLost
from umbel.messages import KINDS, Delivery, Lease, is_inbox


def claim(
    connection: sqlite3.Connection,
    where: dict[str, Any],
    queues: Sequence[str],
    demand: Demand,
) -> tuple[list[Delivery], float | None]:
    """Return deliveries, and when to check again. Take the write lock only if there is work.

    ``where`` has the namespace, the owner and the time.
    """
    where = {**where, "without": json_list(demand.without)}
    now = where["now"]
    due = connection.execute(SQL["next_due"], where).fetchone()[0]
    is_due = due is not None and due <= now
    gate_check = next_gate_check(connection, where, queues, demand)
    may_pass = gate_check is not None and gate_check <= now
    ready = any(is_ready(connection, where, q, k) for q in queues for k in KINDS)
    if not is_due and not may_pass and not ready:
        return [], earliest(due, gate_check)
    with write_transaction(connection) as cursor:
        worker = cursor.execute(SQL["worker_name"], where).fetchone()
        if worker is None:
            raise LeaseLost(f"incarnation {where['owner']} is not registered")
        if is_due:
            cursor.execute(SQL["promote"], where)
        rows: list[Any] = []
        free = dict(demand.free)
        for queue in unpaused_queues(connection, where, queues):
            values = {**where, "worker": worker[0], "queue": queue}
            if may_pass or is_due:
                left = Demand(free)
                grant(cursor, values, {kind: left.capacity(kind) for kind in KINDS})
            rows += _claim_queue(cursor, values, free)
        if may_pass or is_due:  # jobs may have been sent to an inbox that was claimed from before
            for queue in filter(is_inbox, unpaused_queues(connection, where, queues)):
                rows += _claim_queue(cursor, {**where, "worker": worker[0], "queue": queue}, free)
        gate_check = next_gate_check(connection, where, queues, demand)
        if demand.without and gate_check is not None and gate_check <= now:
            # Another worker may let them pass. Here, nothing changes before the next commit.
            gate_check = None
    found = [delivery(row, where["namespace"], where["owner"], now) for row in rows]
    return found, earliest(now if is_due else due, gate_check)


def next_gate_check(
    connection: sqlite3.Connection, where: dict[str, Any], queues: Sequence[str], demand: Demand
) -> float | None:
    """Return when a job for which there is demand may pass a gate."""
    kinds = [kind for kind in KINDS if demand.capacity(kind) > 0]
    queues_to_check = unpaused_queues(connection, where, queues)
    row = {**where, "queues": json_list(queues_to_check), "kinds": json_list(kinds)}
    found: float | None = connection.execute(SQL["next_gate_check"], row).fetchone()[0]
    return found


def earliest(one: float | None, other: float | None) -> float | None:
    """Return the earlier of two times; None if there is none."""
    return min((at for at in (one, other) if at is not None), default=None)


def unpaused_queues(
    connection: sqlite3.Connection, where: dict[str, Any], queues: Sequence[str]
) -> list[str]:
    """Return the queues that are not paused now."""
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
    """Return whether a lane has a job."""
    row = {**where, "queue": queue, "kind": kind}
    return connection.execute(SQL[query], row).fetchone() is not None


def extend(
    connection: sqlite3.Connection, owner: str, held: Sequence[Lease], before: float
) -> list[Lease]:
    """Give back jobs claimed before a time that are not in ``held``. Return lost leases."""
    rows = connection.execute(SQL["held"], {"owner": owner}).fetchall()
    known = {(job, fence) for job, fence, _ in rows}
    old = {(job, fence) for job, fence, claimed in rows if claimed < before}
    unknown = old - {(lease.job, lease.fence) for lease in held}
    if unknown:
        with write_transaction(connection) as cursor:
            for job, fence in unknown:
                cursor.execute(SQL["give_back"], {"id": job, "owner": owner, "fence": fence})
    return [lease for lease in held if (lease.job, lease.fence) not in known]


def _claim_queue(cursor: sqlite3.Cursor, where: dict[str, Any], free: dict[str, int]) -> list[Any]:
    """Claim from one queue and reduce ``free``, the number of free slots per kind."""
    claimed: list[Any] = []
    for kind in KINDS:
        limit = free.get(kind, 0) if kind else _unknown_first(cursor, where, free)
        if limit > 0:
            values = {**where, "kind": kind, "limit": limit}
            rows = cursor.execute(SQL["claim"], values).fetchall()
            for taken in needed(kind) if rows else ():
                free[taken] -= len(rows)
            # RETURNING guarantees no order.
            claimed += sorted(rows, key=lambda row: (-row[5], row[0]))
    return claimed


def _unknown_first(cursor: sqlite3.Cursor, where: dict[str, Any], free: dict[str, int]) -> int:
    """Return how many jobs of unknown kind to claim.

    If the sender did not know the task, the job may be of either kind. So both kinds must have a
    free slot, and the job must be next in both.
    """
    front: list[Any] = []
    for kind in ("", *needed("")):
        limit = Demand(free).capacity(kind)
        row = {**where, "kind": kind, "limit": limit}
        front += cursor.execute(SQL["lane_front"], row).fetchall() if limit > 0 else []
        if not front:
            return 0
    left, taken = dict(free), 0
    for kind, _, _ in sorted(front, key=lambda row: (-row[1], row[2])):
        for one in needed(kind):
            left[one] -= 1
        taken += kind == "" and min(left[one] for one in needed("")) >= 0
    return taken


def json_list(value: Sequence[str]) -> str:
    """Return texts as one parameter of a statement."""
    return msgspec.json.encode([*value]).decode()

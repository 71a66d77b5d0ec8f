"""Ending leases: outcomes recorded, jobs put back, the dead's jobs recovered."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from umbel.brokers.sqlite.publishing import insert
from umbel.brokers.sqlite.rows import SQL, attempt_json, lost_attempt
from umbel.messages import (
    Again,
    Disposition,
    Finish,
    Lease,
    Settlement,
    State,
    Succeeded,
    disposition,
)
from umbel.messages.columns import read_sections
from umbel.resilience import Verdict, judge, spread

_MANY = 2**62


def settle(cursor: sqlite3.Cursor, settlements: Sequence[Settlement], now: float) -> list[Lease]:
    """Settle them; gives the leases that are not held any more: nothing of those has happened."""
    if _finish_all(cursor, settlements, now):
        return []
    return [s.lease for s in settlements if not _settle(cursor, s, now)]


def _finish_all(cursor: sqlite3.Cursor, settlements: Sequence[Settlement], now: float) -> bool:
    """Record a batch of plain successes, which is what almost all are, in two strokes.

    False when it is no such batch, or a lease in it is not held: then nothing has happened.
    """
    rows = [_success(s.outcome, s, now) for s in settlements if isinstance(s.outcome, Succeeded)]
    plain = sum(s.keep and not s.follow_ups for s in settlements)
    if len({row["id"] for row in rows}) < len(settlements) or plain < len(settlements):
        return False
    cursor.execute("savepoint umbel_batch")
    cursor.executemany(SQL["finish"], rows)
    whole = cursor.rowcount == len(rows)
    if whole:
        _free_together(cursor, rows)
        cursor.executemany(SQL["delete_leased"], rows)
    else:
        cursor.execute("rollback to umbel_batch")
    cursor.execute("release umbel_batch")
    return whole


def _success(outcome: Succeeded, settlement: Settlement, now: float) -> dict[str, Any]:
    lease, result = settlement.lease, outcome.result
    return {
        "id": lease.job,
        "owner": lease.owner,
        "fence": lease.fence,
        "attempt_story": attempt_json(settlement.attempt),
        "state": State.SUCCEEDED.value,
        "finished": now,
        "result_type": result.content_type if result else None,
        "result": result.data if result else None,
        "failure": None,
        "reason": "",
    }


def _settle(cursor: sqlite3.Cursor, settlement: Settlement, now: float) -> bool:
    row = _leased(settlement, now)
    end = disposition(settlement.outcome)
    if isinstance(end, Again):
        accepted = _put_back(cursor, row, end)
    elif end.state is State.SUCCEEDED and not settlement.keep:
        accepted = _delete(cursor, [row]) == 1
        if accepted:
            cursor.execute(SQL["forget_steps"], row)
    else:
        accepted = _finish(cursor, row, end)
    if accepted:
        for envelope in settlement.follow_ups:
            # A key that is taken means that the work is under way; the outcome stands.
            insert(cursor, replace(envelope, on_conflict="return"), now)
    return accepted


def _leased(settlement: Settlement, now: float) -> dict[str, Any]:
    lease = settlement.lease
    return {
        "id": lease.job,
        "owner": lease.owner,
        "fence": lease.fence,
        "now": now,
        "attempt_story": attempt_json(settlement.attempt),
    }


def recover(cursor: sqlite3.Cursor, orphans: Iterable[tuple[Any, ...]], now: float) -> None:
    """Put back jobs whose worker died and count the death, or bury them: rows of ``orphans``."""
    by_owner: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for orphan in orphans:
        by_owner[orphan[1]].append(orphan)
    for group in by_owner.values():
        verdicts = judge([orphan[6] for orphan in group])
        for orphan, verdict in zip(group, verdicts, strict=True):
            _recover(cursor, orphan, verdict, now)


def _recover(cursor: sqlite3.Cursor, orphan: tuple[Any, ...], verdict: Verdict, now: float) -> None:
    (job, owner, fence, worker, claimed, attempt, deaths, blame, max_deaths) = orphan
    blame = min(blame, _MANY) + verdict.blamed
    row = {
        "id": job,
        "owner": owner,
        "fence": fence,
        "now": now,
        "attempt_story": lost_attempt(attempt, worker, claimed, now),
        "blame": blame,
        "delay": verdict.within * spread(f"{job}:{deaths}"),
    }
    if blame < max_deaths and max_deaths > 1:
        cursor.execute(SQL["count_death"], row)
        return
    cursor.execute(SQL["add_death"], row)
    reason = f"poison: {deaths + 1} workers died while running it, the last was {worker}"
    _finish(cursor, row, Finish(State.BURIED, reason=reason))


def _put_back(cursor: sqlite3.Cursor, row: dict[str, Any], again: Again) -> bool:
    if again.gates is not None:
        row["gates"] = msgspec.json.encode(again.gates).decode() if again.gates else None
        return cursor.execute(SQL["park"], row).rowcount == 1
    sections = _counted(cursor, row, again.section) if again.section is not None else None
    row |= {"delay": again.delay, "cost": int(again.costs_attempt), "sections": sections}
    return cursor.execute(SQL["again"], row).rowcount == 1


def _counted(cursor: sqlite3.Cursor, row: dict[str, Any], section: str) -> str | None:
    """The job's section counters with one more for this section."""
    found = cursor.execute(SQL["sections"], row).fetchone()
    if found is None:
        return None
    counts = read_sections(found[0])
    return msgspec.json.encode({**counts, section: counts.get(section, 0) + 1}).decode()


def _finish(cursor: sqlite3.Cursor, row: dict[str, Any], finish: Finish) -> bool:
    if cursor.execute(SQL["finish"], _finish_row(row, finish)).rowcount != 1:
        return False
    _delete(cursor, [row])
    return True


def _free_together(cursor: sqlite3.Cursor, rows: Sequence[dict[str, Any]]) -> None:
    """What jobs that are about to leave hold: as the trigger of one does, but gate by gate."""
    ids = {"ids": msgspec.json.encode([row["id"] for row in rows]).decode()}
    names = ("namespace", "key", "route", "many", "named")
    for found in cursor.execute(SQL["held_slots"], ids).fetchall():
        held = dict(zip(names, found, strict=True))
        for query in ("free_gate", "forget_gate", "look_at_line"):
            cursor.execute(SQL[query], held)
        if held["named"]:
            cursor.execute(SQL["return_members"], ids)
        if held["route"]:
            cursor.execute(SQL["free_route"], held)


def _delete(cursor: sqlite3.Cursor, rows: Sequence[dict[str, Any]]) -> int:
    """Jobs leave the hot table, if they are still under these leases; gives how many."""
    cursor.executemany(SQL["free_slots"], rows)
    return cursor.executemany(SQL["delete_leased"], rows).rowcount


def _finish_row(row: dict[str, Any], end: Disposition) -> dict[str, Any]:
    assert isinstance(end, Finish)
    return row | {
        "state": end.state.value,
        "finished": row["now"],
        "result_type": end.result.content_type if end.result else None,
        "result": end.result.data if end.result else None,
        "failure": msgspec.json.encode(end.failure).decode() if end.failure else None,
        "reason": end.reason,
    }

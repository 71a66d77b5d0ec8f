"""Ending leases: outcomes recorded, jobs put back, the dead's jobs recovered."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec
from msgspec.structs import replace

from umbel.brokers.sqlite.publishing import insert
from umbel.brokers.sqlite.rows import SQL, attempt_json, lost_attempt
from umbel.messages import Again, Finish, Settlement, State, disposition
from umbel.messages.columns import read_sections


def settle(cursor: sqlite3.Cursor, settlement: Settlement, now: float) -> bool:
    """Settle one. False when its lease is not held any more; then nothing has happened."""
    lease = settlement.lease
    row: dict[str, Any] = {
        "id": lease.job,
        "owner": lease.owner,
        "fence": lease.fence,
        "now": now,
        "attempt_story": attempt_json(settlement.attempt),
    }
    end = disposition(settlement.outcome)
    if isinstance(end, Again):
        accepted = _put_back(cursor, row, end)
    elif end.state is State.SUCCEEDED and not settlement.keep:
        accepted = cursor.execute(SQL["delete_leased"], row).rowcount == 1
    else:
        accepted = _finish(cursor, row, end)
    if accepted:
        for envelope in settlement.follow_ups:
            # A key that is taken means that the work is under way; the outcome stands.
            insert(cursor, replace(envelope, on_conflict="return"), now)
    return accepted


def recover(cursor: sqlite3.Cursor, orphan: tuple[Any, ...], now: float) -> None:
    """Put back a job whose worker died and count the death, or bury it: one row of ``orphans``."""
    (job, owner, fence, worker, claimed, attempt, deaths, max_deaths) = orphan
    story = lost_attempt(attempt, worker, claimed, now)
    row = {"id": job, "owner": owner, "fence": fence, "now": now, "attempt_story": story}
    if deaths + 1 < max_deaths:
        cursor.execute(SQL["count_death"], row)
        return
    reason = f"poison: {deaths + 1} workers died while running it, the last was {worker}"
    cursor.execute(SQL["add_death"], row)
    _finish(cursor, row, Finish(State.BURIED, reason=reason))


def _put_back(cursor: sqlite3.Cursor, row: dict[str, Any], again: Again) -> bool:
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
    row |= {
        "state": finish.state.value,
        "finished": row["now"],
        "result_type": finish.result.content_type if finish.result else None,
        "result": finish.result.data if finish.result else None,
        "failure": msgspec.json.encode(finish.failure).decode() if finish.failure else None,
        "reason": finish.reason,
    }
    if cursor.execute(SQL["finish"], row).rowcount != 1:
        return False
    cursor.execute(SQL["delete_leased"], row)
    return True

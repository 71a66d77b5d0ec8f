"""Ending leases: recording outcomes, putting jobs back, recovering jobs of dead workers."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from umbel.backends.sql.statements import Steps
from umbel.backends.sqlite.job_rows import SQL, encode_attempt, encode_lost_attempt
from umbel.backends.sqlite.lapses import count_death, take_back_deaths
from umbel.backends.sqlite.publishing import publish_or_record_steps
from umbel.backends.sqlite.transactions import perform
from umbel.messages import (
    Disposition,
    Finish,
    Growth,
    Lease,
    Requeue,
    Settlement,
    State,
    Succeeded,
    disposition,
    without_growth,
)
from umbel.messages.columns import read_sections
from umbel.resilience import LAPSED_TOO_OFTEN, MAX_LAPSES, Verdict, judge, spread

_MAX_BLAME = 2**62


Grow = Callable[[Lease, Growth], Steps[str | None]]


def settle(
    cursor: sqlite3.Cursor, settlements: Sequence[Settlement], now: float, grow: Grow
) -> list[Lease]:
    """Settle and return the leases that are not held: their settlements change nothing."""
    if _finish_all(cursor, settlements, now):
        return []
    return [s.lease for s in settlements if not _settle(cursor, s, now, grow)]


def _finish_all(cursor: sqlite3.Cursor, settlements: Sequence[Settlement], now: float) -> bool:
    """Record a batch of plain successes, the common case, with two statements.

    Return False, with nothing changed, if an outcome is another or a lease is not held.
    """
    rows = [
        _success_row(s.outcome, s, now) for s in settlements if isinstance(s.outcome, Succeeded)
    ]
    plain = sum(s.keep and not s.follow_ups and s.growth is None for s in settlements)
    if len({row["id"] for row in rows}) < len(settlements) or plain < len(settlements):
        return False
    cursor.execute("savepoint umbel_batch")
    cursor.executemany(SQL["finish"], rows)
    whole = cursor.rowcount == len(rows)
    if whole:
        _free_slots(cursor, rows)
        cursor.executemany(SQL["delete_leased"], rows)
    else:
        cursor.execute("rollback to umbel_batch")
    cursor.execute("release umbel_batch")
    return whole


def _success_row(outcome: Succeeded, settlement: Settlement, now: float) -> dict[str, Any]:
    lease, result = settlement.lease, outcome.result
    return {
        "id": lease.job,
        "owner": lease.owner,
        "fence": lease.fence,
        "attempt_json": encode_attempt(settlement.attempt),
        "state": State.SUCCEEDED.value,
        "finished": now,
        "result_type": result.content_type if result else None,
        "result": result.data if result else None,
        "failure": None,
        "reason": "",
        "keep_for": outcome.keep_for,
    }


def _settle(cursor: sqlite3.Cursor, settlement: Settlement, now: float, grow: Grow) -> bool:
    row = _leased(settlement, now)
    end = disposition(settlement.outcome)
    if settlement.growth is not None and isinstance(end, Finish):
        reason = perform(cursor, grow(settlement.lease, settlement.growth))
        end = end if reason is None else without_growth(end, reason)
    if isinstance(end, Requeue):
        accepted = _put_back(cursor, row, end)
    elif end.state is State.SUCCEEDED and not settlement.keep and not _is_part(cursor, row):
        cursor.execute(SQL["forget_steps"], row)
        accepted = _delete(cursor, [row]) == 1
    else:
        accepted = _finish(cursor, row, end)
    if accepted:
        perform(cursor, publish_or_record_steps(settlement.follow_ups, now))
    return accepted


def _is_part(cursor: sqlite3.Cursor, row: dict[str, Any]) -> bool:
    """Return whether a join reads the result of the job."""
    return cursor.execute(SQL["is_part"], row).fetchone() is not None


def _leased(settlement: Settlement, now: float) -> dict[str, Any]:
    lease = settlement.lease
    return {
        "id": lease.job,
        "owner": lease.owner,
        "fence": lease.fence,
        "now": now,
        "attempt_json": encode_attempt(settlement.attempt),
    }


def recover(
    cursor: sqlite3.Cursor, orphans: Iterable[tuple[Any, ...]], values: dict[str, Any]
) -> None:
    """Put back the jobs of dead workers and count the death, or bury them: rows of ``orphans``.

    Deaths of incarnations that turned out to be alive are taken back at once.
    """
    by_owner: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for orphan in orphans:
        by_owner[orphan[1]].append(orphan)
    for group in by_owner.values():
        verdicts = judge([orphan[6] + orphan[9] for orphan in group])
        for orphan, verdict in zip(group, verdicts, strict=True):
            _recover(cursor, orphan, verdict, values)
    take_back_deaths(cursor, values)


def _recover(
    cursor: sqlite3.Cursor, orphan: tuple[Any, ...], verdict: Verdict, values: dict[str, Any]
) -> None:
    (job, owner, fence, worker, claimed, attempt, deaths, blame, max_deaths) = orphan[:9]
    lapses, is_alive = orphan[9:]
    now, blamed = values["now"], verdict.blamed and not is_alive
    blame = min(blame, _MAX_BLAME) + blamed
    row = {
        **values,
        "id": job,
        "owner": owner,
        "fence": fence,
        "attempt_json": encode_lost_attempt(attempt, worker, claimed, now),
        "blame": blame,
        "delay": verdict.within * spread(f"{job}:{deaths}"),
    }
    count_death(cursor, row, blamed=blamed)
    lapses_too_often = verdict.blamed and lapses >= MAX_LAPSES
    if blame < max_deaths and max_deaths > 1 and not lapses_too_often:
        cursor.execute(SQL["count_death"], row)
        return
    cursor.execute(SQL["add_death"], row)
    reason = f"poison: {deaths + 1} workers died while running it, the last was {worker}"
    if lapses_too_often:
        reason = LAPSED_TOO_OFTEN % lapses
    _finish(cursor, row, Finish(State.BURIED, reason=reason))


def _put_back(cursor: sqlite3.Cursor, row: dict[str, Any], again: Requeue) -> bool:
    if again.gates is not None:
        row["gates"] = msgspec.json.encode(again.gates).decode() if again.gates else None
        return cursor.execute(SQL["park"], row).rowcount == 1
    sections = _count_section(cursor, row, again.section) if again.section is not None else None
    row |= {"delay": again.delay, "cost": int(again.costs_attempt), "sections": sections}
    return cursor.execute(SQL["again"], row).rowcount == 1


def _count_section(cursor: sqlite3.Cursor, row: dict[str, Any], section: str) -> str | None:
    """Return the section counters of the job with this section counted once more."""
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


def _free_slots(cursor: sqlite3.Cursor, rows: Sequence[dict[str, Any]]) -> None:
    """Free the slots of jobs that are about to be deleted: as the trigger does, but per gate."""
    asked = {
        "ids": msgspec.json.encode([row["id"] for row in rows]).decode(),
        "owners": msgspec.json.encode([*{row["owner"] for row in rows}]).decode(),
    }
    names = ("namespace", "key", "route", "many", "named")
    for found in cursor.execute(SQL["held_slots"], asked).fetchall():
        held = dict(zip(names, found, strict=True))
        for query in ("free_gate", "forget_gate", "check_lanes"):
            cursor.execute(SQL[query], held)
        if held["named"]:
            cursor.execute(SQL["return_members"], asked | held)
        if held["route"]:
            cursor.execute(SQL["free_route"], held)


def _delete(cursor: sqlite3.Cursor, rows: Sequence[dict[str, Any]]) -> int:
    """Delete the live jobs under these leases and return how many there were."""
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
        "keep_for": end.keep_for,
    }

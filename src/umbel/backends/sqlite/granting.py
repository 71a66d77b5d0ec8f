"""Letting jobs pass their gates. A claim grants the slots in its own transaction, for as many jobs
as it can take. So slots are held by running jobs, not by jobs that wait for a worker."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from umbel.backends.sqlite.job_rows import SQL
from umbel.backends.sqlite.route_gate import route_jobs
from umbel.messages import KINDS, POOL_PREFIX, ROUTE_PREFIX, Rule, Slot, rule_of
from umbel.messages.columns import read_gates, read_rule, read_slots
from umbel.resilience import Pace

_NOW = 0.0
_MAX_MOVES = 1000
"""How many jobs may move from one gate to the next in one call, besides those claimed."""
_json = msgspec.json.Encoder().encode


def grant(cursor: sqlite3.Cursor, where: Mapping[str, Any], capacity: Mapping[str, int]) -> None:
    """Let the jobs pass that a claim of this queue would take now, ``capacity`` of each kind."""
    left, moved, limit = dict(capacity), 1, _MAX_MOVES + 2 * sum(capacity.values())
    while moved and limit > 0 and (kinds := [kind for kind in KINDS if left[kind] > 0]):
        asked = {**where, "kinds": _json(kinds).decode(), "limit": max(left.values())}
        lanes = cursor.execute(SQL["grantable_lanes"], asked).fetchall()
        moved = 0
        for place, (key, kind) in enumerate(lanes):
            share = max(1, left[kind] // (len(lanes) - place))
            if left[kind] > 0:
                lane = {**where, "key": key, "kind": kind}
                some, entered = _grant_lane(cursor, lane, share, left[kind])
                left[kind] -= entered
                moved += some
        limit -= moved


def _grant_lane(
    cursor: sqlite3.Cursor, lane: dict[str, Any], share: int, capacity: int
) -> tuple[int, int]:
    """Let jobs of one lane pass. Return how many passed, and how many reached their queue."""
    if lane["key"].startswith(ROUTE_PREFIX):
        passed, ended, gate_check = route_jobs(cursor, lane, _MAX_MOVES, min(share, capacity))
        _finish_turn(cursor, lane, gate_check)
        return passed, ended
    slots, gate_check = _free_slots(cursor, lane, share)
    waiting = cursor.execute(SQL["gate_front"], {**lane, "limit": len(slots)}).fetchall()
    queued = cursor.execute(SQL["first_to_claim"], {**lane, "limit": capacity}).fetchall()
    front = _ahead_of_queued(waiting, queued, capacity)
    if front:
        _save_slots(cursor, lane, slots[: len(front)])
    entered = sum(_pass(cursor, lane, job, slot) for job, slot in zip(front, slots, strict=False))
    if len(waiting) < len(slots):
        gate_check = None  # the jobs that are left are paused
    if len(front) < len(waiting) or lane["without"] != "[]":
        gate_check = _NOW  # they come after queued jobs, or are for another worker
    _finish_turn(cursor, lane, gate_check)
    return len(front), entered


def _finish_turn(cursor: sqlite3.Cursor, lane: dict[str, Any], gate_check: float | None) -> None:
    """Record that the lane had its turn. Delete the lane if no job waits in it."""
    ends = cursor.execute(SQL["has_waiting_job"], lane).fetchone() is None
    cursor.execute(
        SQL["delete_lane" if ends else "finish_turn"], {**lane, "next_check": gate_check}
    )


def _ahead_of_queued(
    waiting: Sequence[tuple[Any, ...]], queued: Sequence[tuple[int, int]], capacity: int
) -> list[tuple[Any, ...]]:
    """Return the waiting jobs that a claim of ``capacity`` jobs would take before queued ones."""
    places = [(-priority, seq) for priority, seq in queued]
    front: list[tuple[Any, ...]] = []
    for priority, seq, *job in waiting:
        if bisect_left(places, (-priority, seq)) + len(front) >= capacity:
            break
        front.append(tuple(job))
    return front


def _free_slots(
    cursor: sqlite3.Cursor, lane: dict[str, Any], limit: int
) -> tuple[list[Slot], float | None]:
    """Return the free slots, and when to check again after they are taken."""
    key, rule = lane["key"], _rule(cursor, lane)
    held, paces = _state(cursor, lane)
    if rule is None:
        return [], None
    if rule.kind == "pool":
        named = {**lane, "pool": key.removeprefix(POOL_PREFIX), "limit": limit}
        members = cursor.execute(SQL["free_members"], named).fetchall()
        slots = [
            Slot(key, name, fence + 1, msgspec.json.decode(data)) for name, data, fence in members
        ]
        return slots, _NOW if len(slots) == limit else None
    if rule.kind == "rate":
        pace = Pace(rule.rates, rule.burst)
        many = min(limit, pace.allowed(paces, lane["now"]))
        gate_check = pace.next_time(pace.spent(paces, lane["now"], many))
        return [Slot(key)] * many, _NOW if many == limit else gate_check
    if rule.kind == "open":
        return [Slot(key)] * limit, _NOW
    if rule.rejects and rule.capacity == 0:
        return [Slot(key, rejected=True)] * limit, _NOW
    many = max(min(limit, rule.capacity - held), 0)
    return [Slot(key)] * many, _NOW if many == limit else None


def _save_slots(cursor: sqlite3.Cursor, lane: dict[str, Any], slots: Sequence[Slot]) -> None:
    """Record that these slots are held."""
    rule = _rule(cursor, lane)
    held, paces = _state(cursor, lane)
    if rule is not None and rule.kind == "rate":
        paces = Pace(rule.rates, rule.burst).spent(paces, lane["now"], len(slots))
    saved = {"held": held + len(slots), "paces": _json(paces).decode()}
    cursor.execute(SQL["save_gate"], {**lane, **saved})


def _pass(cursor: sqlite3.Cursor, lane: dict[str, Any], found: tuple[Any, ...], slot: Slot) -> bool:
    """Give a job its slot and move it to its queue or to the next gate.

    Return whether it reached its queue.
    """
    job, gates, slots = found
    held = [*read_slots(slots), slot]
    onwards = read_gates(gates)[len(held) :]
    gate = onwards[0] if onwards else None
    row = {**lane, "id": job}
    cursor.execute(SQL["pass"], {**row, "gate": gate, "slots": _json(held).decode()})
    if slot.member:
        pool = slot.gate.removeprefix(POOL_PREFIX)
        cursor.execute(SQL["give_member"], {**row, "pool": pool, "member": slot.member})
    return gate is None


def _rule(cursor: sqlite3.Cursor, lane: dict[str, Any]) -> Rule | None:
    """Return the rule of a gate; None if it is not declared yet."""
    row = {**lane, "rule": rule_of(lane["key"])}
    found = cursor.execute(SQL["rule"], row).fetchone()
    return read_rule(*found) if found else None


def _state(cursor: sqlite3.Cursor, lane: dict[str, Any]) -> tuple[int, list[float]]:
    held, paces = cursor.execute(SQL["gate"], lane).fetchone() or (0, "[]")
    return held, msgspec.json.decode(paces)

"""Letting jobs pass their gates: whoever has room for them grants the slots, in one step with the
claim. So a slot is held by what runs, and not by what waits for a worker."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from umbel.backends.sqlite.job_rows import SQL
from umbel.backends.sqlite.route_gate import send_on
from umbel.messages import KINDS, POOL, ROUTE, Rule, Slot, rule_of
from umbel.messages.columns import read_gates, read_rule, read_slots
from umbel.resilience import Pace

_NOW = 0.0
_MANY = 1000
"""So many may go from one gate to the next in one step, besides those that are claimed."""
_json = msgspec.json.Encoder().encode


def grant(cursor: sqlite3.Cursor, where: Mapping[str, Any], room: Mapping[str, int]) -> None:
    """Let those pass that a claim of this queue would take now: so many of each kind."""
    left, moved, most = dict(room), 1, _MANY + 2 * sum(room.values())
    while moved and most > 0 and (kinds := [kind for kind in KINDS if left[kind] > 0]):
        asked = {**where, "kinds": _json(kinds).decode(), "limit": max(left.values())}
        lanes = cursor.execute(SQL["lines"], asked).fetchall()
        moved = 0
        for place, (key, kind) in enumerate(lanes):
            share = max(1, left[kind] // (len(lanes) - place))
            if left[kind] > 0:
                lane = {**where, "key": key, "kind": kind}
                some, entered = _serve(cursor, lane, share, left[kind])
                left[kind] -= entered
                moved += some
        most -= moved


def _serve(cursor: sqlite3.Cursor, lane: dict[str, Any], share: int, room: int) -> tuple[int, int]:
    """Let some of one lane pass. How many did, and how many of them are in their queue now."""
    if lane["key"].startswith(ROUTE):
        passed, ended, look = send_on(cursor, lane, _MANY, min(share, room))
        _served(cursor, lane, look)
        return passed, ended
    slots, look = _offered(cursor, lane, share)
    waiting = cursor.execute(SQL["line_front"], {**lane, "limit": len(slots)}).fetchall()
    queued = cursor.execute(SQL["first_to_claim"], {**lane, "limit": room}).fetchall()
    front = _before(waiting, queued, room)
    if front:
        _take(cursor, lane, slots[: len(front)])
    entered = sum(_pass(cursor, lane, job, slot) for job, slot in zip(front, slots, strict=False))
    if len(waiting) < len(slots):
        look = None  # those who are left are paused
    if len(front) < len(waiting) or lane["without"] != "[]":
        look = _NOW  # they are behind others in the queue, or for another worker
    _served(cursor, lane, look)
    return len(front), entered


def _served(cursor: sqlite3.Cursor, lane: dict[str, Any], look: float | None) -> None:
    """A lane has had its turn; it ends with the last who stood there."""
    ends = cursor.execute(SQL["somebody_waits"], lane).fetchone() is None
    cursor.execute(SQL["line_ends" if ends else "served"], {**lane, "look": look})


def _before(
    waiting: Sequence[tuple[Any, ...]], queued: Sequence[tuple[int, int]], room: int
) -> list[tuple[Any, ...]]:
    """Those for whom there is room besides what is in the queue already and comes first."""
    places = [(-priority, seq) for priority, seq in queued]
    front: list[tuple[Any, ...]] = []
    for priority, seq, *job in waiting:
        if bisect_left(places, (-priority, seq)) + len(front) >= room:
            break
        front.append(tuple(job))
    return front


def _offered(
    cursor: sqlite3.Cursor, lane: dict[str, Any], most: int
) -> tuple[list[Slot], float | None]:
    """Slots that are free, and when to look again once they are taken."""
    key, rule = lane["key"], _rule(cursor, lane)
    held, paces = _state(cursor, lane)
    if rule is None:
        return [], None
    if rule.kind == "pool":
        named = {**lane, "pool": key.removeprefix(POOL), "limit": most}
        members = cursor.execute(SQL["free_members"], named).fetchall()
        slots = [
            Slot(key, name, fence + 1, msgspec.json.decode(data)) for name, data, fence in members
        ]
        return slots, _NOW if len(slots) == most else None
    if rule.kind == "rate":
        pace = Pace(rule.rates, rule.burst)
        many = min(most, pace.allowed(paces, lane["now"]))
        look = pace.next_time(pace.spent(paces, lane["now"], many))
        return [Slot(key)] * many, _NOW if many == most else look
    if rule.kind == "open":
        return [Slot(key)] * most, _NOW
    if rule.rejects and rule.capacity == 0:
        return [Slot(key, rejected=True)] * most, _NOW
    many = max(min(most, rule.capacity - held), 0)
    return [Slot(key)] * many, _NOW if many == most else None


def _take(cursor: sqlite3.Cursor, lane: dict[str, Any], slots: Sequence[Slot]) -> None:
    """These slots are held from now on."""
    rule = _rule(cursor, lane)
    held, paces = _state(cursor, lane)
    if rule is not None and rule.kind == "rate":
        paces = Pace(rule.rates, rule.burst).spent(paces, lane["now"], len(slots))
    saved = {"held": held + len(slots), "paces": _json(paces).decode()}
    cursor.execute(SQL["save_gate"], {**lane, **saved})


def _pass(cursor: sqlite3.Cursor, lane: dict[str, Any], found: tuple[Any, ...], slot: Slot) -> bool:
    """One job takes a slot and goes on: into its queue, or else to the next gate."""
    job, gates, slots = found
    held = [*read_slots(slots), slot]
    onwards = read_gates(gates)[len(held) :]
    line = onwards[0] if onwards else None
    row = {**lane, "id": job}
    cursor.execute(SQL["pass"], {**row, "line": line, "slots": _json(held).decode()})
    if slot.member:
        pool = slot.gate.removeprefix(POOL)
        cursor.execute(SQL["hand_out"], {**row, "pool": pool, "member": slot.member})
    return line is None


def _rule(cursor: sqlite3.Cursor, lane: dict[str, Any]) -> Rule | None:
    """What a gate goes by; None before it was declared."""
    row = {**lane, "rule": rule_of(lane["key"])}
    found = cursor.execute(SQL["rule"], row).fetchone()
    return read_rule(*found) if found else None


def _state(cursor: sqlite3.Cursor, lane: dict[str, Any]) -> tuple[int, list[float]]:
    held, paces = cursor.execute(SQL["gate"], lane).fetchone() or (0, "[]")
    return held, msgspec.json.decode(paces)

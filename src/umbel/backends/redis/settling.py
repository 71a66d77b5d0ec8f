"""Ending leases: what a settlement sends, and the verdicts on the jobs of the dead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from umbel.backends.redis.job_rows import Row, job_row
from umbel.backends.redis.scripts import octets, pack
from umbel.backends.redis.values import moment, text, whole
from umbel.messages import Again, Attempt, Finish, Settlement, State, disposition
from umbel.resilience import LAPSED_TOO_OFTEN, MAX_LAPSES, Verdict, judge, spread

_json = msgspec.json.Encoder().encode
_MANY = 2**53 - 2


def settle_arguments(settlements: Sequence[Settlement]) -> bytes:
    """The arguments of ``settle``."""
    return pack([_row(one) for one in settlements])


def _row(settlement: Settlement) -> Row:
    lease, end = settlement.lease, disposition(settlement.outcome)
    after = [_follow_up(job_row(one)) for one in settlement.follow_ups]
    row: Row = [
        lease.job,
        lease.owner,
        lease.fence,
        octets(_json(settlement.attempt)),
        after or None,
    ]
    if isinstance(end, Again) and end.gates is not None:
        return [*row, "park", octets(_json(end.gates)) if end.gates else None]
    if isinstance(end, Again):
        return [*row, "again", float(end.delay), int(end.costs_attempt), end.section]
    keep = settlement.keep or end.state is not State.SUCCEEDED
    return [*row, "end", keep, end.state.value, _ending(end)]


def _follow_up(row: Row) -> Row:
    row[6] = "return"  # a key that is taken means that the work is under way; the outcome stands
    return row


def _ending(end: Finish) -> list[Any]:
    """The fields of a record that come with its end. What is usual is left out."""
    fields: list[Any] = []
    if end.result is not None:
        fields += ("result_type", end.result.content_type, "result", octets(end.result.data))
    if end.failure is not None:
        fields += ("failure", octets(_json(end.failure)))
    if end.reason:
        fields += ("reason", end.reason)
    return fields


def recover_arguments(orphans: Iterable[Row], now: float) -> bytes:
    """The arguments of ``recover`` for rows of ``orphans``: who goes back when, who is buried."""
    by_owner: dict[bytes, list[Row]] = defaultdict(list)
    for orphan in orphans:
        by_owner[orphan[0]].append(orphan)
    rows: list[Row] = []
    for group in by_owner.values():
        verdicts = judge([_deaths(orphan) + _lapses(orphan) for orphan in group])
        rows += [_judged(o, v, now) for o, v in zip(group, verdicts, strict=True)]
    return pack(rows)


def _judged(orphan: Row, verdict: Verdict, now: float) -> Row:
    owner, fence, job, worker, claimed, attempt, _, blame, most, _, is_alive = orphan
    name, deaths, max_deaths = text(worker), _deaths(orphan), whole(most, 3)
    blamed = verdict.blamed and not is_alive
    total = max(min(whole(blame), _MANY), -_MANY) + blamed
    reason = "its worker died or lost touch"
    started = moment(claimed)
    story = Attempt(
        whole(attempt, 1), name, now if started is None else started, now, "lost", reason=reason
    )
    why = None if total < max_deaths and max_deaths > 1 else _poison(deaths + 1, name)
    if verdict.blamed and _lapses(orphan) >= MAX_LAPSES:
        why = LAPSED_TOO_OFTEN % _lapses(orphan)
    return [
        octets(job),
        octets(owner),
        whole(fence),
        octets(_json(story)),
        deaths + 1,
        total,
        int(blamed),
        verdict.within * spread(f"{text(job)}:{deaths}"),
        why,
    ]


def _poison(deaths: int, worker: str) -> str:
    return f"poison: {deaths} workers died while running it, the last was {worker}"


def _deaths(orphan: Row) -> int:
    return max(min(whole(orphan[6]), _MANY), -_MANY)


def _lapses(orphan: Row) -> int:
    return max(min(whole(orphan[9]), _MANY), 0)

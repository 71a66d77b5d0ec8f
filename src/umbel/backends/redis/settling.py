"""The arguments of scripts that end leases: settlements, and the recovery of dead workers' jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from umbel.backends.redis.job_rows import Row, job_row
from umbel.backends.redis.publications import growth_row
from umbel.backends.redis.scripts import pack, pack_bytes
from umbel.backends.redis.values import integer, optional_float, text
from umbel.messages import Attempt, Finish, Requeue, Settlement, State, disposition
from umbel.resilience import LAPSED_TOO_OFTEN, MAX_LAPSES, Verdict, judge, spread

_json = msgspec.json.Encoder().encode
_MAX_COUNT = 2**53 - 2


def settle_arguments(settlements: Sequence[Settlement]) -> bytes:
    """Return the arguments of ``settle``."""
    return pack([_settle_row(one) for one in settlements])


def _settle_row(settlement: Settlement) -> Row:
    lease, end = settlement.lease, disposition(settlement.outcome)
    follow_ups = [job_row(one) for one in settlement.follow_ups]
    row: Row = [
        lease.job,
        lease.owner,
        lease.fence,
        pack_bytes(_json(settlement.attempt)),
        follow_ups or None,
        None if settlement.growth is None else growth_row(settlement.growth),
    ]
    if isinstance(end, Requeue) and end.gates is not None:
        return [*row, "park", pack_bytes(_json(end.gates)) if end.gates else None]
    if isinstance(end, Requeue):
        return [*row, "again", float(end.delay), int(end.costs_attempt), end.section]
    keep = settlement.keep or end.state is not State.SUCCEEDED
    return [*row, "end", keep, end.state.value, end_fields(end), end.keep_for]


def end_fields(end: Finish) -> list[Any]:
    """Return the fields of a record that are set at its end, without default values."""
    fields: list[Any] = []
    if end.result is not None:
        fields += ("result_type", end.result.content_type, "result", pack_bytes(end.result.data))
    if end.failure is not None:
        fields += ("failure", pack_bytes(_json(end.failure)))
    if end.reason:
        fields += ("reason", end.reason)
    return fields


def recover_arguments(orphans: Iterable[Row], now: float) -> bytes:
    """Return the arguments of ``recover``: when each orphan runs again, or why it is buried."""
    by_owner: dict[bytes, list[Row]] = defaultdict(list)
    for orphan in orphans:
        by_owner[orphan[0]].append(orphan)
    rows: list[Row] = []
    for group in by_owner.values():
        verdicts = judge([_deaths(orphan) + _lapses(orphan) for orphan in group])
        rows += [_recover_row(o, v, now) for o, v in zip(group, verdicts, strict=True)]
    return pack(rows)


def _recover_row(orphan: Row, verdict: Verdict, now: float) -> Row:
    owner, fence, job, worker, claimed, attempt, _, blame, stored_max_deaths, _, is_alive = orphan
    name, deaths, max_deaths = text(worker), _deaths(orphan), integer(stored_max_deaths, 3)
    blamed = verdict.blamed and not is_alive
    total = max(min(integer(blame), _MAX_COUNT), -_MAX_COUNT) + blamed
    reason = "its worker died or lost touch"
    started = optional_float(claimed)
    attempt_record = Attempt(
        integer(attempt, 1), name, now if started is None else started, now, "lost", reason=reason
    )
    why = None if total < max_deaths and max_deaths > 1 else _poison_reason(deaths + 1, name)
    if verdict.blamed and _lapses(orphan) >= MAX_LAPSES:
        why = LAPSED_TOO_OFTEN % _lapses(orphan)
    return [
        pack_bytes(job),
        pack_bytes(owner),
        integer(fence),
        pack_bytes(_json(attempt_record)),
        deaths + 1,
        total,
        int(blamed),
        verdict.within * spread(f"{text(job)}:{deaths}"),
        why,
    ]


def _poison_reason(deaths: int, worker: str) -> str:
    return f"poison: {deaths} workers died while running it, the last was {worker}"


def _deaths(orphan: Row) -> int:
    return max(min(integer(orphan[6]), _MAX_COUNT), -_MAX_COUNT)


def _lapses(orphan: Row) -> int:
    return max(min(integer(orphan[9]), _MAX_COUNT), 0)

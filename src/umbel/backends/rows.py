"""Converts rows to records. The queries of all adapters select the same columns in this order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from umbel.backends.records import Changes
from umbel.messages import GROUP_HEADER, NODE_HEADER, Body, Member, Record, State
from umbel.messages.columns import read_attempts, read_failure, read_headers, read_slots

SENT = "sent"
"""The state of a queued job whose message a transport has. Outside the tables it is queued."""

PRUNE_BATCH = 1000
"""Records deleted in one transaction, so that other transactions do not wait for long."""
GATE_SCAN_BATCH = 1000
MAX_RATE_PERIOD_SECONDS = 31 * 86_400.0
"""The longest period of a rate that the code may have had before."""


def stored_states(wanted: Iterable[State]) -> list[str]:
    """Return states as they are stored in the tables."""
    states = sorted(state.value for state in wanted)
    return [*states, SENT] if State.QUEUED in states else states


async def prune_in_batches(prune: Callable[[int], Awaitable[int]], limit: int) -> int:
    """Delete up to ``limit`` records, one batch after the other; return how many."""
    pruned = 0
    while pruned < limit:
        batch = min(PRUNE_BATCH, limit - pruned)
        some = await prune(batch)
        pruned += some
        if some < batch:
            break
    return pruned


def next_gate_scan(last: str | None, scanned: int, pruned: int) -> tuple[str, bool]:
    """Return where the next scan for unused gates begins, and whether it follows immediately.

    There may be one gate per user, so each scan covers one batch of them, by name. The next scan
    follows immediately if at least half of the batch was deleted. So at most about twice as many
    gates are stored as are in use, and most scans are short.
    """
    if last is None or scanned < GATE_SCAN_BATCH:
        return "", False
    return last, 2 * pruned >= scanned


def change_row(changes: Changes) -> dict[str, Any]:
    """Return the parameters of ``replay`` except the ids."""
    return {
        "task": changes.task,
        "kind": changes.kind,
        "queue": changes.queue,
        "priority": changes.priority,
        "content_type": changes.body.content_type if changes.body else None,
        "body": changes.body.data if changes.body else None,
        "from_scratch": changes.from_scratch,
    }


def record(row: Sequence[Any]) -> Record:
    """Return the record of a row of ``find_*`` or ``list_*``."""
    (job, task, namespace, queue, state, kind, priority, attempt, deaths) = row[:9]
    (created, not_before, expires, started, finished, worker, content_type, body) = row[9:17]
    (result_type, result, failure, reason, attempts, done, of, unique, trace) = row[17:26]
    (headers, gate, slots, ahead) = row[26:]
    return Record(
        id=job,
        task=task,
        namespace=namespace,
        queue=queue,
        state=State.QUEUED if state == SENT else State(state),
        kind=kind,
        priority=priority,
        attempt=attempt,
        deaths=deaths,
        created=created or 0.0,
        not_before=not_before,
        expires=expires,
        started=started,
        finished=finished,
        worker=worker,
        body=Body(content_type, body),
        result=Body(result_type or "", result) if result is not None else None,
        failure=read_failure(failure),
        reason=reason,
        attempts=read_attempts(attempts),
        progress=(done, of) if done is not None else None,
        gate=gate,
        ahead=ahead,
        slots=read_slots(slots),
        unique=unique,
        traceparent=trace,
        headers=read_headers(headers),
    )


def member(row: Sequence[Any]) -> Member:
    """Return the member of a row of ``members``."""
    (join, position, job, state, task, headers, result_type, failure, reason) = row[:9]
    (created, started, finished, worker) = row[9:]
    attributes = read_headers(headers)
    return Member(
        join=join,
        position=position,
        job=job,
        task=task,
        state=State.QUEUED if state == SENT else State(state),
        node=attributes.get(NODE_HEADER, ""),
        graph=attributes.get(GROUP_HEADER, ""),
        result_type=result_type,
        reason=reason,
        failure=read_failure(failure),
        created=created or 0.0,
        started=started,
        finished=finished,
        worker=worker,
    )

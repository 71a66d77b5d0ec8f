"""Between rows and records: every adapter's queries select the same columns in the same order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from umbel.backends.records import Changes
from umbel.messages import Body, Record, State
from umbel.messages.columns import read_attempts, read_failure, read_headers, read_slots

SENT = "sent"
"""A queued job whose message another broker carries. Outside the tables it is a queued one."""

PORTION = 1000
"""Records that are forgotten in one go: nobody else waits for more."""
GATE_PORTION = 1000
LONGEST = 31 * 86_400.0
"""Seconds that a rate which the code no longer has may have spanned."""


def stored_states(wanted: Iterable[State]) -> list[str]:
    """States as the tables say them."""
    states = sorted(state.value for state in wanted)
    return [*states, SENT] if State.QUEUED in states else states


async def in_portions(forget: Callable[[int], Awaitable[int]], limit: int) -> int:
    """Forget so many, a portion at a time, for as long as there are any. Gives how many."""
    forgotten = 0
    while forgotten < limit:
        portion = min(PORTION, limit - forgotten)
        some = await forget(portion)
        forgotten += some
        if some < portion:
            break
    return forgotten


def looked_on(last: str | None, many: int, gone: int) -> tuple[str, bool]:
    """Where the next look for gates to forget begins, and whether to take it at once.

    There may be a gate for each user: a look is at a portion of them, by name. While half of those
    are found to be forgotten there are more of them than of others, and they grow fewer; so all
    that is kept is at most about twice of what is in use, and most looks are short.
    """
    if last is None or many < GATE_PORTION:
        return "", False
    return last, 2 * gone >= many


def change_row(changes: Changes) -> dict[str, Any]:
    """The parameters of ``replay`` beside the ids."""
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
    """A record from a row of ``find_*`` or ``list_*``."""
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

"""Between rows and records: every adapter's queries select the same columns in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from umbel.messages import Body, Record, State
from umbel.messages.columns import read_attempts, read_failure, read_headers
from umbel.stores.records import Changes

SENT = "sent"
"""A queued job whose message another broker carries. Outside the tables it is a queued one."""


def stored_states(wanted: Iterable[State]) -> list[str]:
    """States as the tables say them."""
    states = sorted(state.value for state in wanted)
    return [*states, SENT] if State.QUEUED in states else states


def change_row(changes: Changes) -> dict[str, Any]:
    """The parameters of ``replay`` beside the ids."""
    return {
        "task": changes.task,
        "kind": changes.kind,
        "queue": changes.queue,
        "priority": changes.priority,
        "content_type": changes.body.content_type if changes.body else None,
        "body": changes.body.data if changes.body else None,
    }


def record(row: Sequence[Any]) -> Record:
    """A record from a row of ``find_*`` or ``list_*``."""
    (job, task, namespace, queue, state, kind, priority, attempt, deaths) = row[:9]
    (created, not_before, expires, started, finished, worker, content_type, body) = row[9:17]
    (result_type, result, failure, reason, attempts, done, of, unique, trace, headers) = row[17:]
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
        created=created,
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
        unique=unique,
        traceparent=trace,
        headers=read_headers(headers),
    )

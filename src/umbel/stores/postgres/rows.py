"""From rows to records."""

from __future__ import annotations

import msgspec

from umbel.drivers.postgres import Row
from umbel.messages import Attempt, Body, Failure, Record, State

_attempts = msgspec.json.Decoder(tuple[Attempt, ...]).decode
_failure = msgspec.json.Decoder(Failure).decode


def record(row: Row) -> Record:
    """A record from the columns that every query here selects in the same order."""
    (job, task, namespace, queue, state, kind, priority, attempt, deaths) = row[:9]
    (created, not_before, expires, started, finished, worker, content_type, body) = row[9:17]
    (result_type, result, failure, reason, attempts, done, of, unique, trace, headers) = row[17:]
    return Record(
        id=job,
        task=task,
        namespace=namespace,
        queue=queue,
        state=State(state),
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
        result=Body(result_type, result) if result is not None else None,
        failure=_failure(failure) if failure else None,
        reason=reason,
        attempts=_attempts(attempts),
        progress=(done, of) if done is not None else None,
        unique=unique,
        traceparent=trace,
        headers=msgspec.json.decode(headers),
    )

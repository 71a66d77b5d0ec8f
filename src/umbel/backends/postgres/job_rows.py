"""Between envelopes and rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

from umbel.backends.postgres.arrays import blobs, document, numbers, storable, texts
from umbel.backends.postgres.statements import Row
from umbel.messages import (
    JSON,
    Again,
    Body,
    Delivery,
    Envelope,
    Finish,
    Lease,
    MessageType,
    Settlement,
    State,
)
from umbel.messages.columns import read_gates, read_headers, read_sections, read_slots

_TYPES = {kind.value: kind for kind in MessageType}
_special = attrgetter(
    *("type", "priority", "body.content_type", "not_before", "expires", "attempt", "max_deaths"),
    *("unique", "headers", "gates", "delay", "expires_in"),
)
_NOTHING = _special(Envelope(id="", subject="", body=Body(JSON, b"")))
"""What the table says by default."""
_common = attrgetter(
    *("namespace", "queue", "kind", "subject", "type", "priority", "body.content_type"),
    *("not_before", "expires", "attempt", "max_deaths", "unique", "headers", "gates"),
    *("delay", "expires_in"),
)


def job_arrays(envelopes: Sequence[Envelope]) -> dict[str, Any]:
    """The parameters of ``insert_jobs`` but for the state: one array a column."""
    return {
        "id": texts([e.id for e in envelopes]),
        "namespace": texts([e.namespace for e in envelopes]),
        "queue": texts([e.queue for e in envelopes]),
        "kind": texts([e.kind for e in envelopes]),
        "task": texts([e.subject for e in envelopes]),
        "type": texts([e.type.value for e in envelopes]),
        "priority": numbers([e.priority for e in envelopes]),
        "content_type": texts([e.body.content_type for e in envelopes]),
        "body": blobs([e.body.data for e in envelopes]),
        "created": numbers([e.created for e in envelopes]),
        "not_before": numbers([e.not_before for e in envelopes]),
        "expires": numbers([e.expires for e in envelopes]),
        "delay": numbers([e.delay for e in envelopes]),
        "expires_in": numbers([e.expires_in for e in envelopes]),
        "attempt": numbers([e.attempt for e in envelopes]),
        "max_deaths": numbers([e.max_deaths for e in envelopes]),
        "unique_key": texts([e.unique for e in envelopes]),
        "traceparent": texts([e.traceparent for e in envelopes]),
        "gates": texts([_gates(e.gates) for e in envelopes]),
        "headers": document([e.headers for e in envelopes]),
    }


def job_row(envelope: Envelope) -> dict[str, Any]:
    """The parameters of ``insert_job`` but for the state."""
    return {
        "id": envelope.id,
        "namespace": storable(envelope.namespace),
        "queue": storable(envelope.queue),
        "kind": envelope.kind,
        "task": storable(envelope.subject),
        "type": envelope.type.value,
        "priority": envelope.priority,
        "content_type": storable(envelope.body.content_type),
        "body": envelope.body.data,
        "created": float(envelope.created),
        "not_before": envelope.not_before,
        "expires": envelope.expires,
        "delay": envelope.delay,
        "expires_in": envelope.expires_in,
        "attempt": envelope.attempt,
        "max_deaths": envelope.max_deaths,
        "unique_key": storable(envelope.unique),
        "traceparent": storable(envelope.traceparent),
        "gates": _gates(envelope.gates),
        "headers": document(envelope.headers),
    }


def is_plain(envelope: Envelope) -> bool:
    """Whether ``insert_plain`` can add it: most jobs have nothing special."""
    return _special(envelope) == _NOTHING


def plain_row(envelope: Envelope) -> dict[str, Any]:
    """The same for ``insert_plain``."""
    return {
        "id": envelope.id,
        "namespace": storable(envelope.namespace),
        "queue": storable(envelope.queue),
        "kind": envelope.kind,
        "task": storable(envelope.subject),
        "body": envelope.body.data,
        "created": float(envelope.created),
        "traceparent": storable(envelope.traceparent),
    }


def are_alike(envelopes: Sequence[Envelope]) -> bool:
    """Whether ``insert_alike`` can add them: most batches are calls of one task."""
    first = _common(envelopes[0])
    return envelopes[0].unique is None and all(_common(e) == first for e in envelopes)


def alike_arrays(envelopes: Sequence[Envelope]) -> dict[str, Any]:
    """The same for ``insert_alike``: what they share once, and an array for what not."""
    bodies = [e.body.data for e in envelopes]
    sizes = [len(body) for body in bodies]
    return job_row(envelopes[0]) | {
        "id": texts([e.id for e in envelopes]),
        "body": b"".join(bodies),
        "start": numbers([*accumulate(sizes[:-1], initial=1)]),
        "size": numbers(sizes),
        "created": numbers([e.created for e in envelopes]),
        "traceparent": texts([e.traceparent for e in envelopes]),
    }


def finish_arrays(ends: Sequence[tuple[Settlement, Finish]]) -> dict[str, Any]:
    """The parameters of ``finish``."""
    return {
        **_lease_arrays([s for s, _ in ends]),
        "state": texts([f.state.value for _, f in ends]),
        "result_type": texts([f.result.content_type if f.result else None for _, f in ends]),
        "result": blobs([f.result.data if f.result else None for _, f in ends]),
        "reason": texts([f.reason for _, f in ends]),
        "keep": numbers([s.keep or f.state is not State.SUCCEEDED for s, f in ends]),
        "failure": document([f.failure for _, f in ends]),
    }


def end_alike(ends: Sequence[tuple[Settlement, Finish]]) -> bool:
    """Whether ``finish_alike`` can settle them."""
    first = _end(*ends[0])
    return ends[0][1].failure is None and all(_end(s, f) == first for s, f in ends)


def alike_ends(ends: Sequence[tuple[Settlement, Finish]]) -> dict[str, Any]:
    """The same for ``finish_alike``: what they share once."""
    owner, keep, state, result_type, reason, _ = _end(*ends[0])
    return {
        "id": texts([s.lease.job for s, _ in ends]),
        "fence": numbers([s.lease.fence for s, _ in ends]),
        "story": document([s.attempt for s, _ in ends]),
        "result": blobs([f.result.data if f.result else None for _, f in ends]),
        "owner": owner,
        "keep": keep or state is not State.SUCCEEDED,
        "state": state.value,
        "result_type": result_type,
        "reason": storable(reason),
    }


def _end(settlement: Settlement, finish: Finish) -> tuple[Any, ...]:
    result_type = finish.result.content_type if finish.result else None
    how = finish.state, result_type, finish.reason, finish.failure
    return settlement.lease.owner, settlement.keep, *how


def again_arrays(ends: Sequence[tuple[Settlement, Again]]) -> dict[str, Any]:
    """The parameters of ``again``."""
    return {
        **_lease_arrays([s for s, _ in ends]),
        "delay": numbers([a.delay for _, a in ends]),
        "cost": numbers([int(a.costs_attempt) for _, a in ends]),
        "section": texts([a.section for _, a in ends]),
        "gates": texts([None if a.gates is None else document(a.gates) for _, a in ends]),
    }


def _gates(gates: tuple[str, ...]) -> str | None:
    return document(gates) if gates else None


def _lease_arrays(settlements: Sequence[Settlement]) -> dict[str, Any]:
    return {
        "id": texts([s.lease.job for s in settlements]),
        "owner": texts([s.lease.owner for s in settlements]),
        "fence": numbers([s.lease.fence for s in settlements]),
        "story": document([s.attempt for s in settlements]),
    }


def delivery(row: Row, namespace: str, queue: str, owner: str) -> Delivery:
    """A delivery from what ``claim`` or ``take`` returns."""
    deaths, sections, fence, claimed = row[16:20]
    found = envelope(row, namespace, queue)
    return Delivery(
        envelope=found,
        lease=Lease(found.id, owner, fence),
        attempt=found.attempt,
        deaths=deaths,
        sections=read_sections(sections),
        claimed=claimed,
        slots=read_slots(row[21]),
    )


def envelope(row: Row, namespace: str, queue: str) -> Envelope:
    """An envelope from what ``unsent``, ``claim`` or ``take`` returns."""
    (_, job, kind, task, priority, content_type, body, message, created, not_before) = row[:10]
    (expires, attempt, max_deaths, unique, trace, headers, _, sections) = row[10:18]
    return Envelope(
        id=job,
        subject=task,
        body=Body(content_type, body),
        type=_TYPES[message],
        namespace=namespace,
        queue=queue,
        kind=kind,
        priority=priority,
        created=created,
        not_before=not_before,
        expires=expires,
        attempt=attempt,
        max_deaths=max_deaths,
        unique=unique,
        traceparent=trace,
        gates=read_gates(row[20]),
        headers=read_headers(headers, sections),
    )

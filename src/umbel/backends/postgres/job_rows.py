"""Conversion between envelopes and rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

from umbel.backends.postgres.arrays import blobs, json_text, numbers, texts, without_nul
from umbel.backends.sql.statements import Row
from umbel.messages import (
    JSON,
    Body,
    Delivery,
    Envelope,
    Finish,
    Lease,
    MessageType,
    Requeue,
    Settlement,
    State,
    known_kind,
)
from umbel.messages.columns import read_gates, read_headers, read_sections, read_slots

_TYPES = {kind.value: kind for kind in MessageType}
_special = attrgetter(
    *("type", "priority", "body.content_type", "not_before", "expires", "attempt", "max_deaths"),
    *("unique", "headers", "gates", "delay", "expires_in"),
)
_PLAIN = _special(Envelope(id="", subject="", body=Body(JSON, b"")))
"""The defaults of the table."""
_common = attrgetter(
    *("namespace", "queue", "kind", "subject", "type", "priority", "body.content_type"),
    *("not_before", "expires", "attempt", "max_deaths", "unique", "headers", "gates"),
    *("delay", "expires_in"),
)


def job_arrays(envelopes: Sequence[Envelope]) -> dict[str, Any]:
    """Return the parameters of ``insert_jobs`` without the state: one array per column."""
    return {
        "id": texts([e.id for e in envelopes]),
        "namespace": texts([e.namespace for e in envelopes]),
        "queue": texts([e.queue for e in envelopes]),
        "kind": texts([known_kind(e.kind) for e in envelopes]),
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
        "headers": json_text([e.headers for e in envelopes]),
    }


def job_row(envelope: Envelope) -> dict[str, Any]:
    """Return the parameters of ``insert_job`` without the state."""
    return {
        "id": envelope.id,
        "namespace": without_nul(envelope.namespace),
        "queue": without_nul(envelope.queue),
        "kind": known_kind(envelope.kind),
        "task": without_nul(envelope.subject),
        "type": envelope.type.value,
        "priority": envelope.priority,
        "content_type": without_nul(envelope.body.content_type),
        "body": envelope.body.data,
        "created": float(envelope.created),
        "not_before": envelope.not_before,
        "expires": envelope.expires,
        "delay": envelope.delay,
        "expires_in": envelope.expires_in,
        "attempt": envelope.attempt,
        "max_deaths": envelope.max_deaths,
        "unique_key": without_nul(envelope.unique),
        "traceparent": without_nul(envelope.traceparent),
        "gates": _gates(envelope.gates),
        "headers": json_text(envelope.headers),
    }


def is_plain(envelope: Envelope) -> bool:
    """Return whether ``insert_plain`` can add it: most jobs have only default values."""
    return _special(envelope) == _PLAIN


def plain_row(envelope: Envelope) -> dict[str, Any]:
    """Return the parameters of ``insert_plain`` without the state."""
    return {
        "id": envelope.id,
        "namespace": without_nul(envelope.namespace),
        "queue": without_nul(envelope.queue),
        "kind": known_kind(envelope.kind),
        "task": without_nul(envelope.subject),
        "body": envelope.body.data,
        "created": float(envelope.created),
        "traceparent": without_nul(envelope.traceparent),
    }


def is_uniform(envelopes: Sequence[Envelope]) -> bool:
    """Return whether ``insert_uniform`` can add them: most batches are calls of one task."""
    first = _common(envelopes[0])
    return envelopes[0].unique is None and all(_common(e) == first for e in envelopes)


def uniform_arrays(envelopes: Sequence[Envelope]) -> dict[str, Any]:
    """Return the parameters of ``insert_uniform``: shared values once, the others as arrays."""
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
    """Return the parameters of ``finish``."""
    return {
        **_lease_arrays([s for s, _ in ends]),
        "state": texts([f.state.value for _, f in ends]),
        "result_type": texts([f.result.content_type if f.result else None for _, f in ends]),
        "result": blobs([f.result.data if f.result else None for _, f in ends]),
        "reason": texts([f.reason for _, f in ends]),
        "keep": numbers([s.keep or f.state is not State.SUCCEEDED for s, f in ends]),
        "keep_for": numbers([f.keep_for for _, f in ends]),
        "failure": json_text([f.failure for _, f in ends]),
    }


def ends_are_uniform(ends: Sequence[tuple[Settlement, Finish]]) -> bool:
    """Return whether ``finish_uniform`` can settle them."""
    first = _end(*ends[0])
    return ends[0][1].failure is None and all(_end(s, f) == first for s, f in ends)


def uniform_ends(ends: Sequence[tuple[Settlement, Finish]]) -> dict[str, Any]:
    """Return the parameters of ``finish_uniform``: shared values once."""
    owner, keep, state, result_type, reason, _, keep_for = _end(*ends[0])
    return {
        "id": texts([s.lease.job for s, _ in ends]),
        "fence": numbers([s.lease.fence for s, _ in ends]),
        "attempt_json": json_text([s.attempt for s, _ in ends]),
        "result": blobs([f.result.data if f.result else None for _, f in ends]),
        "owner": owner,
        "keep": keep or state is not State.SUCCEEDED,
        "state": state.value,
        "result_type": result_type,
        "reason": without_nul(reason),
        "keep_for": keep_for,
    }


def _end(settlement: Settlement, finish: Finish) -> tuple[Any, ...]:
    result_type = finish.result.content_type if finish.result else None
    how = finish.state, result_type, finish.reason, finish.failure, finish.keep_for
    return settlement.lease.owner, settlement.keep, *how


def again_arrays(ends: Sequence[tuple[Settlement, Requeue]]) -> dict[str, Any]:
    """Return the parameters of ``again``."""
    return {
        **_lease_arrays([s for s, _ in ends]),
        "delay": numbers([a.delay for _, a in ends]),
        "cost": numbers([int(a.costs_attempt) for _, a in ends]),
        "section": texts([a.section for _, a in ends]),
        "gates": texts([None if a.gates is None else json_text(a.gates) for _, a in ends]),
    }


def _gates(gates: tuple[str, ...]) -> str | None:
    return json_text(gates) if gates else None


def _lease_arrays(settlements: Sequence[Settlement]) -> dict[str, Any]:
    return {
        "id": texts([s.lease.job for s in settlements]),
        "owner": texts([s.lease.owner for s in settlements]),
        "fence": numbers([s.lease.fence for s in settlements]),
        "attempt_json": json_text([s.attempt for s in settlements]),
    }


def delivery(row: Row, namespace: str, queue: str, owner: str) -> Delivery:
    """Return a delivery from a row of ``claim`` or ``take``."""
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
    """Return an envelope from a row of ``unsent``, ``claim`` or ``take``."""
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

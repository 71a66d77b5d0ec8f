"""Conversion between envelopes and rows, and the queries of the broker."""

from __future__ import annotations

from typing import Any

import msgspec

from umbel.backends.queries import load
from umbel.messages import (
    Attempt,
    Body,
    Delivery,
    Envelope,
    Lease,
    MessageType,
    known_kind,
    resolve_time,
)
from umbel.messages.columns import read_gates, read_headers, read_sections, read_slots

SQL = load("umbel.backends.sqlite", "broker.sql")

_json = msgspec.json.Encoder().encode


def job_row(envelope: Envelope, now: float, idle: str = "queued") -> tuple[Any, ...]:
    """Return the parameters of ``insert_job``."""
    return (
        envelope.id,
        envelope.namespace,
        envelope.queue,
        known_kind(envelope.kind),
        envelope.subject,
        envelope.type.value,
        envelope.priority,
        envelope.body.content_type,
        envelope.body.data,
        envelope.created or now,
        resolve_time(envelope.not_before, envelope.delay, now),
        resolve_time(envelope.expires, envelope.expires_in, now),
        envelope.attempt,
        envelope.max_deaths,
        envelope.unique,
        envelope.traceparent,
        _json(envelope.headers).decode() if envelope.headers else "{}",
        now,
        idle,
        _json(envelope.gates).decode() if envelope.gates else None,
        envelope.gates[0] if envelope.gates else None,
    )


def delivery(row: tuple[Any, ...], namespace: str, owner: str, now: float) -> Delivery:
    """Return a delivery from a row of ``claim`` or ``take``."""
    deaths, sections, fence = row[16:19]
    found = envelope(row, namespace)
    return Delivery(
        envelope=found,
        lease=Lease(found.id, owner, fence),
        attempt=found.attempt,
        deaths=deaths,
        sections=read_sections(sections),
        claimed=now,
        slots=read_slots(row[21]),
    )


def envelope(row: tuple[Any, ...], namespace: str) -> Envelope:
    """Return an envelope from a row of ``unsent``, ``claim`` or ``take``."""
    (_, job, queue, kind, task, priority, content_type, body, created, not_before) = row[:10]
    (expires, attempt, max_deaths, unique, trace, headers, _, sections, _, message) = row[10:20]
    return Envelope(
        id=job,
        subject=task,
        body=Body(content_type, body),
        type=MessageType(message),
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


def encode_attempt(attempt: Attempt) -> str:
    """Return an attempt as the history of a job stores it."""
    return _json(attempt).decode()


def encode_lost_attempt(number: int, worker: str, claimed: float, now: float) -> str:
    """Return the history entry of an attempt whose worker died."""
    reason = "its worker died or lost touch"
    return encode_attempt(Attempt(number, worker, claimed, now, "lost", reason=reason))

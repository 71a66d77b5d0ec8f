"""Converting between envelopes and the rows of scripts."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import msgspec

from umbel.backends.broker import unique_key_taken
from umbel.backends.redis.scripts import pack_bytes
from umbel.backends.redis.values import integer, optional_float, optional_text, text
from umbel.errors import BadMessage
from umbel.messages import (
    DEFAULT_KINDS,
    GROUP_HEADER,
    JSON,
    KINDS,
    ROUTE_PREFIX,
    Body,
    Delivery,
    Envelope,
    Lease,
    MessageType,
    Slot,
    known_kind,
)
from umbel.messages.columns import MALFORMED, read_gates, read_headers, read_sections

_json = msgspec.json.Encoder().encode
_KINDS = {kind.encode(): kind for kind in KINDS if kind}
"""The kinds as scripts store them; any other value means that the kind is unknown."""
_TYPES = {kind.value.encode(): kind for kind in MessageType}
_MAX_NAME_LENGTH = 255
_INT32_LIMIT = 2**31
"""Integers below this limit are exact in Lua and in every option of the server."""
_DELIVERY_FIELDS = [
    name.encode()
    for name in (
        *("task", "queue", "kind", "priority", "type", "content_type", "body", "created"),
        *("not_before", "expires", "attempt", "max_deaths", "unique", "traceparent", "headers"),
        *("deaths", "sections", "gates", "slots"),
    )
]
"""The fields of a row after id and fence, in the order of ``read_delivery`` in lanes.lua."""
_FIRST_FENCE = 1
"""The fence of a job that was never claimed before."""
_SLOT_PARTS = 5
"""The number of parts of a slot, see jobs.lua."""

Row = list[Any]


def job_row(envelope: Envelope) -> Row:
    """Return a row of ``publish``.

    Raises:
        BadMessage: a value that no job can have.
    """
    _check(envelope)
    return [
        envelope.id,
        envelope.queue,
        envelope.kind,
        envelope.priority,
        None if envelope.not_before is None else float(envelope.not_before),
        envelope.unique,
        envelope.on_conflict,
        [pack_bytes(one) if isinstance(one, bytes) else one for one in _fields(envelope)],
        pack_bytes(_json(envelope.gates)) if envelope.gates else None,
        _seconds("delay", envelope.delay),
        _seconds("expires_in", envelope.expires_in),
        float(envelope.created) or None,
        None if envelope.expires is None else float(envelope.expires),
        None if envelope.unique is None else unique_key_taken(envelope.unique, ""),
    ]


def simple_arguments(envelope: Envelope, idle: str) -> list[Any] | None:
    """Return the arguments of ``publish_one``; None if the envelope needs ``publish``.

    Raises:
        BadMessage: a value that no job can have.
    """
    one = envelope
    if one.unique is not None or one.not_before is not None or one.attempt != 1 or one.gates:
        return None
    if one.kind and one.kind not in DEFAULT_KINDS:  # a worker on standby may have no capacity
        return None
    if one.delay is not None or one.expires_in is not None:
        return None
    if max(abs(one.priority), abs(one.max_deaths)) >= _INT32_LIMIT:
        return None
    _check(one)
    where = (one.id, one.queue, one.kind, -one.priority, idle)
    what = (one.subject, one.body.data, float(one.created) or "")
    expires = "" if one.expires is None else float(one.expires)
    return [*where, *what, expires, *_optional_fields(one)]


def _fields(envelope: Envelope) -> list[Any]:
    """Return the names and values of the fields that a job has from its message."""
    fields: list[Any] = [
        "task",
        envelope.subject,
        "queue",
        envelope.queue,
        "body",
        envelope.body.data,
    ]
    if envelope.kind:
        fields += ("kind", envelope.kind)
    return fields + _optional_fields(envelope)


def _optional_fields(envelope: Envelope) -> list[Any]:
    """Return the names and values of the fields that differ from their default."""
    body, fields = envelope.body, list[Any]()
    if envelope.traceparent is not None:
        fields += ("traceparent", envelope.traceparent)
    if envelope.priority:
        fields += ("priority", envelope.priority)
    if envelope.type is not MessageType.COMMAND:
        fields += ("type", envelope.type.value)
    if body.content_type != JSON:
        fields += ("content_type", body.content_type)
    if envelope.not_before is not None:
        fields += ("not_before", float(envelope.not_before))
    if envelope.expires is not None:
        fields += ("expires", float(envelope.expires))
    if envelope.attempt != 1:
        fields += ("attempt", envelope.attempt)
    if envelope.max_deaths != 3:
        fields += ("max_deaths", envelope.max_deaths)
    if envelope.unique is not None:
        fields += ("unique", envelope.unique)
    if envelope.headers:
        fields += ("headers", _json(envelope.headers))
        if GROUP_HEADER in envelope.headers:
            fields += ("group", envelope.headers[GROUP_HEADER])
    return fields


def _check(envelope: Envelope) -> None:
    """Raise BadMessage for a value that no job can have: Redis has no schema to refuse it."""
    known_kind(envelope.kind)
    if not 0 < len(envelope.queue) <= _MAX_NAME_LENGTH:
        raise BadMessage("queue", f"must have 1 to {_MAX_NAME_LENGTH} characters")
    if not 0 < len(envelope.subject) <= _MAX_NAME_LENGTH:
        raise BadMessage("subject", f"must have 1 to {_MAX_NAME_LENGTH} characters")
    if not envelope.id:
        raise BadMessage("id", "must not be empty")


def read_delivery(row: Row, namespace: str, owner: str, claimed: bytes | None) -> Delivery:
    """Return the delivery of a row of a claim. ``claimed`` is its time by the server's clock."""
    found = read_envelope(row, namespace)
    return Delivery(
        envelope=found,
        lease=Lease(found.id, owner, row[1]),
        attempt=found.attempt,
        deaths=0 if row[17] is None else integer(row[17]),
        sections={} if row[18] is None else read_sections(text(row[18])),
        claimed=optional_float(claimed) or 0.0,
        slots=_slots(row[20]) if row[20] else (),
    )


def handed_delivery(job: Sequence[bytes], namespace: str, owner: str) -> Delivery:
    """Return the delivery of a job that was handed over: id, field, value, field, value, …"""
    fields = dict(zip(job[1::2], job[2::2], strict=True))
    row = [job[0], _FIRST_FENCE, *map(fields.get, _DELIVERY_FIELDS)]
    return read_delivery(row, namespace, owner, fields.get(b"claimed"))


def _slots(packed: bytes) -> tuple[Slot, ...]:
    """Return the slots of a job: gate, member, fence, data and whether it is rejected, of each.

    At the gate of a route, the original queue and the route number replace member and fence.
    """
    try:
        parts = msgspec.msgpack.decode(packed)
        each = zip(*(parts[part::_SLOT_PARTS] for part in range(_SLOT_PARTS)), strict=True)
        return tuple(_slot(*one) for one in each)
    except (msgspec.MsgspecError, UnicodeError, ValueError, TypeError, AttributeError):
        return ()


def _slot(gate: str, member: str, number: int, data: str, rejected: bool) -> Slot:
    if gate.startswith(ROUTE_PREFIX):
        return Slot(gate, rejected=rejected, route=number, home=member)
    return Slot(gate, member, number, msgspec.json.decode(data), rejected)


def read_envelope(row: Row, namespace: str) -> Envelope:
    """Return the envelope of a row of ``find_unsent`` or of a claim.

    People edit values by hand: a message that cannot be read has a header that says so, and is
    rejected.
    """
    (job, _, task, queue, kind, priority, message_type, content_type, body, created) = row[:10]
    (not_before, expires, attempt, max_deaths, unique, trace, headers, _, sections) = row[10:19]
    all_headers = {} if headers is sections is None else _read_all_headers(headers, sections)
    message = MessageType.COMMAND if message_type is None else _TYPES.get(message_type)
    if message is None:
        message, all_headers = MessageType.COMMAND, {MALFORMED: "type: is no type of message"}
    if task is None or body is None:
        all_headers = {MALFORMED: "task: is missing" if task is None else "body: is missing"}
    return Envelope(
        id=text(job),
        subject=text(task),
        body=Body(JSON if content_type is None else text(content_type), body or b""),
        type=message,
        namespace=namespace,
        queue=text(queue),
        kind=_KINDS.get(kind, ""),
        priority=0 if priority is None else integer(priority),
        created=optional_float(created) or 0.0,
        not_before=None if not_before is None else optional_float(not_before),
        expires=None if expires is None else optional_float(expires),
        attempt=1 if attempt is None else integer(attempt, 1),
        max_deaths=3 if max_deaths is None else integer(max_deaths, 3),
        unique=None if unique is None else optional_text(unique),
        traceparent=optional_text(trace),
        headers=all_headers,
        gates=read_gates(text(row[19])) if row[19] else (),
    )


def _read_all_headers(headers: bytes | None, sections: bytes | None) -> dict[str, str]:
    return read_headers(text(headers, "{}"), text(sections, "{}"))


def read_existing(answer: Sequence[Any]) -> dict[int, str]:
    """Return a mapping of index, counted from 1, to id, from a list of such pairs."""
    return {answer[at]: text(answer[at + 1]) for at in range(0, len(answer), 2)}


def _seconds(field: str, value: float | None) -> float | None:
    """Return a number of seconds. Raise BadMessage if the server's script could not compute it."""
    if value is not None and not isfinite(value):
        raise BadMessage(field, f"{value!r} is not a finite number of seconds")
    return None if value is None else float(value)

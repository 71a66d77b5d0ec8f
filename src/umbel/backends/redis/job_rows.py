"""Between envelopes and what scripts take and give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from umbel.backends.redis.scripts import octets
from umbel.backends.redis.values import maybe, moment, text, whole
from umbel.errors import BadMessage
from umbel.messages import (
    JSON,
    KINDS,
    ROUTE,
    Body,
    Delivery,
    Envelope,
    Lease,
    MessageType,
    Slot,
)
from umbel.messages.columns import MALFORMED, read_gates, read_headers, read_sections

_json = msgspec.json.Encoder().encode
_KINDS = {b"io": "io", b"cpu": "cpu"}
"""As the scripts take them: one that is none of these is unknown."""
_TYPES = {kind.value.encode(): kind for kind in MessageType}
_LONGEST = 255
_FEW = 2**31
"""Numbers below this are the same in every language."""
_COLUMNS = [
    name.encode()
    for name in (
        *("task", "queue", "kind", "priority", "type", "content_type", "body", "created"),
        *("not_before", "expires", "attempt", "max_deaths", "unique", "traceparent", "headers"),
        *("deaths", "sections", "gates", "slots"),
    )
]
"""The fields of a row after id and fence, as ``message`` in lanes.lua gives them."""
_FIRST = 1
"""The fence of a job that nobody has held before."""
_SLOT = 5
"""Parts of a slot, see jobs.lua."""

Row = list[Any]


def job_row(envelope: Envelope) -> Row:
    """A row of ``publish``.

    Raises:
        BadMessage: a part of it that no job can have.
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
        [octets(one) if isinstance(one, bytes) else one for one in _fields(envelope)],
        octets(_json(envelope.gates)) if envelope.gates else None,
        None if envelope.delay is None else float(envelope.delay),
        None if envelope.expires_in is None else float(envelope.expires_in),
        float(envelope.created) or None,
    ]


def plain_row(envelope: Envelope, idle: str) -> list[Any] | None:
    """The arguments of ``publish_plain``; None for what is not plain.

    Raises:
        BadMessage: a part of it that no job can have.
    """
    one = envelope
    if one.unique is not None or one.not_before is not None or one.attempt != 1 or one.gates:
        return None
    if one.delay is not None or one.expires_in is not None:
        return None
    if not -_FEW < one.priority < _FEW or not -_FEW < one.max_deaths < _FEW:
        return None
    _check(one)
    where = (one.id, one.queue, one.kind, -one.priority, idle)
    what = (one.subject, one.body.data, float(one.created) or "")
    return [*where, *what, *_unusual(one)]


def _fields(envelope: Envelope) -> list[Any]:
    """Names and values of what a job keeps of its message."""
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
    return fields + _unusual(envelope)


def _unusual(envelope: Envelope) -> list[Any]:
    """The same of what not every message says."""
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
    return fields


def _check(envelope: Envelope) -> None:
    """There is no schema that would refuse it."""
    if envelope.kind not in KINDS:
        raise BadMessage("kind", f"{envelope.kind!r} is none of io, cpu and nothing")
    if not 0 < len(envelope.queue) <= _LONGEST:
        raise BadMessage("queue", f"must have 1 to {_LONGEST} characters")
    if not 0 < len(envelope.subject) <= _LONGEST:
        raise BadMessage("subject", f"must have 1 to {_LONGEST} characters")
    if not envelope.id:
        raise BadMessage("id", "must not be empty")


def delivery(row: Row, namespace: str, owner: str, claimed: bytes | None) -> Delivery:
    """A delivery from a row of ``claim`` or ``take``, and when that was by the server's clock."""
    found = envelope(row, namespace)
    return Delivery(
        envelope=found,
        lease=Lease(found.id, owner, row[1]),
        attempt=found.attempt,
        deaths=0 if row[17] is None else whole(row[17]),
        sections={} if row[18] is None else read_sections(text(row[18])),
        claimed=moment(claimed) or 0.0,
        slots=_slots(row[20]) if row[20] else (),
    )


def handed(job: Sequence[bytes], namespace: str, owner: str) -> Delivery:
    """The delivery of a job that was handed over: its id, field, value, field, value, …"""
    fields = dict(zip(job[1::2], job[2::2], strict=True))
    row = [job[0], _FIRST, *map(fields.get, _COLUMNS)]
    return delivery(row, namespace, owner, fields.get(b"claimed"))


def _slots(packed: bytes) -> tuple[Slot, ...]:
    """What a job holds: gate, member, fence, data, whether it is rejected; and so on.

    Before a worker, the queue that it left and the number of the route stand for member and fence.
    """
    try:
        parts = msgspec.msgpack.decode(packed)
        each = zip(*(parts[part::_SLOT] for part in range(_SLOT)), strict=True)
        return tuple(_slot(*one) for one in each)
    except (msgspec.MsgspecError, UnicodeError, ValueError, TypeError, AttributeError):
        return ()


def _slot(gate: str, member: str, number: int, data: str, rejected: bool) -> Slot:
    if gate.startswith(ROUTE):
        return Slot(gate, rejected=rejected, route=number, home=member)
    return Slot(gate, member, number, msgspec.json.decode(data), rejected)


def envelope(row: Row, namespace: str) -> Envelope:
    """An envelope from a row of ``unsent``, ``claim`` or ``take``.

    People edit values by hand: what has no message type says so in a header, and is rejected.
    """
    (job, _, task, queue, kind, priority, kind_of, content_type, body, created) = row[:10]
    (not_before, expires, attempt, max_deaths, unique, trace, headers, _, sections) = row[10:19]
    told = {} if headers is sections is None else _told(headers, sections)
    message = MessageType.COMMAND if kind_of is None else _TYPES.get(kind_of)
    if message is None:
        message, told = MessageType.COMMAND, {MALFORMED: "type: is no type of message"}
    if task is None or body is None:
        told = {MALFORMED: "task: is missing" if task is None else "body: is missing"}
    return Envelope(
        id=text(job),
        subject=text(task),
        body=Body(JSON if content_type is None else text(content_type), body or b""),
        type=message,
        namespace=namespace,
        queue=text(queue),
        kind=_KINDS.get(kind, ""),
        priority=0 if priority is None else whole(priority),
        created=moment(created) or 0.0,
        not_before=None if not_before is None else moment(not_before),
        expires=None if expires is None else moment(expires),
        attempt=1 if attempt is None else whole(attempt, 1),
        max_deaths=3 if max_deaths is None else whole(max_deaths, 3),
        unique=None if unique is None else maybe(unique),
        traceparent=maybe(trace),
        headers=told,
        gates=read_gates(text(row[19])) if row[19] else (),
    )


def _told(headers: bytes | None, sections: bytes | None) -> dict[str, str]:
    return read_headers(text(headers, "{}"), text(sections, "{}"))


def by_place(answer: Sequence[Any]) -> dict[int, str]:
    """Pairs of a place, counted from 1, and an id."""
    return {answer[at]: text(answer[at + 1]) for at in range(0, len(answer), 2)}

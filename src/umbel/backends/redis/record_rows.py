"""Converting between the fields of a job and its record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from umbel.backends.records import Changes
from umbel.backends.redis.scripts import pack_bytes
from umbel.backends.redis.values import integer, optional_float, optional_text, text
from umbel.backends.rows import SENT, record
from umbel.messages import JSON, TERMINAL, Record, Slot, State

FIELDS = (
    *("state", "task", "queue", "kind", "priority", "attempt", "deaths", "created", "not_before"),
    *("expires", "claimed", "finished", "worker", "content_type", "body", "result_type", "result"),
    *("failure", "reason", "cancel", "attempts", "done", "of", "unique", "traceparent", "headers"),
)
"""The fields of a record, in the order of ``read_record``."""

_STATES = {state.value for state in State} | {SENT}
_FINAL = {state.value for state in TERMINAL}
_SLOT_PARTS = 5
_MAX_AHEAD = 1000


def is_final(fields: Sequence[bytes | None]) -> bool:
    """Return whether these are the fields of a finished job."""
    return text(fields[0]) in _FINAL


def read_record(
    job: str,
    namespace: str,
    fields: Sequence[bytes | None],
    gate: bytes | None = None,
    slots: Sequence[bytes] = (),
    ahead: int | None = None,
) -> Record | None:
    """Return a job's record; None if its state is unknown, because people edit values by hand."""
    (state, task, queue, kind, priority, attempt, deaths, created, not_before) = fields[:9]
    (expires, claimed, finished, worker, content_type, body, result_type, result) = fields[9:17]
    (failure, reason, cancel, attempts, done, of, unique, trace, headers) = fields[17:]
    if state is None or text(state) not in _STATES:
        return None
    found = record(
        (
            job,
            text(task),
            namespace,
            text(queue),
            text(state),
            text(kind),
            integer(priority),
            integer(attempt, 1),
            integer(deaths),
            optional_float(created) or 0.0,
            optional_float(not_before),
            optional_float(expires),
            optional_float(claimed),
            optional_float(finished),
            optional_text(worker),
            text(content_type, JSON),
            body or b"",
            optional_text(result_type),
            result,
            optional_text(failure),
            text(reason if is_final(fields) else cancel),
            _attempts_json(attempts),
            optional_float(done),
            optional_float(of),
            optional_text(unique),
            optional_text(trace),
            text(headers, "{}"),
            optional_text(gate),
            None,
            None if ahead is None else min(ahead, _MAX_AHEAD),
        )
    )
    return replace(found, slots=_slots(slots)) if slots else found


def change_fields(changes: Changes) -> list[Any]:
    """Return the fields of a job that change when it is replayed."""
    fields: list[Any] = []
    if changes.task is not None:
        fields += ("task", changes.task)
    if changes.kind is not None:
        fields += ("kind", changes.kind)
    if changes.queue is not None:
        fields += ("queue", changes.queue)
    if changes.priority is not None:
        fields += ("priority", changes.priority)
    if changes.body is not None:
        fields += ("content_type", changes.body.content_type, "body", pack_bytes(changes.body.data))
    return fields


def _attempts_json(attempts: bytes | None) -> str:
    """Return the attempts as a JSON list; they are stored as one JSON object per line."""
    return "[" + text(attempts).replace("\n", ",") + "]"


def read_data(value: bytes | None) -> dict[str, Any]:
    """Return the data of a pool member; empty if it cannot be read, because people edit values."""
    try:
        return msgspec.json.decode(value or b"{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}


def _slots(parts: Sequence[bytes]) -> tuple[Slot, ...]:
    """Return the slots of a job: gate, member, fence, data and whether it is rejected, of each."""
    groups = zip(*(parts[part::_SLOT_PARTS] for part in range(_SLOT_PARTS)), strict=False)
    return tuple(
        Slot(text(gate), text(member), integer(fence), read_data(data), rejected == b"true")
        for gate, member, fence, data, rejected in groups
    )

"""Between the fields of a job and its record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from umbel.backends.records import Changes
from umbel.backends.redis.scripts import octets
from umbel.backends.redis.values import maybe, moment, text, whole
from umbel.backends.rows import SENT, record
from umbel.messages import JSON, TERMINAL, Record, Slot, State

FIELDS = (
    *("state", "task", "queue", "kind", "priority", "attempt", "deaths", "created", "not_before"),
    *("expires", "claimed", "finished", "worker", "content_type", "body", "result_type", "result"),
    *("failure", "reason", "cancel", "attempts", "done", "of", "unique", "traceparent", "headers"),
)
"""What a record is made of, in the order ``read_record`` takes."""

_STATES = {state.value for state in State} | {SENT}
_FINAL = {state.value for state in TERMINAL}
_SLOT = 5
_COUNTED = 1000


def is_final(fields: Sequence[bytes | None]) -> bool:
    """Whether these are the fields of a job that has ended."""
    return text(fields[0]) in _FINAL


def read_record(
    job: str,
    namespace: str,
    fields: Sequence[bytes | None],
    gate: bytes | None = None,
    slots: Sequence[bytes] = (),
    ahead: int | None = None,
) -> Record | None:
    """A job's record. People edit values by hand: None when it is in no state that there is."""
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
            whole(priority),
            whole(attempt, 1),
            whole(deaths),
            moment(created) or 0.0,
            moment(not_before),
            moment(expires),
            moment(claimed),
            moment(finished),
            maybe(worker),
            text(content_type, JSON),
            body or b"",
            maybe(result_type),
            result,
            maybe(failure),
            text(reason if is_final(fields) else cancel),
            _story(attempts),
            moment(done),
            moment(of),
            maybe(unique),
            maybe(trace),
            text(headers, "{}"),
            maybe(gate),
            None,
            None if ahead is None else min(ahead, _COUNTED),
        )
    )
    return replace(found, slots=_slots(slots)) if slots else found


def change_fields(changes: Changes) -> list[Any]:
    """The fields of a job that are to be different when it is replayed."""
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
        fields += ("content_type", changes.body.content_type, "body", octets(changes.body.data))
    return fields


def _story(attempts: bytes | None) -> str:
    """Attempts stand in lines, each a JSON object."""
    return "[" + text(attempts).replace("\n", ",") + "]"


def read_data(written: bytes | None) -> dict[str, Any]:
    """What a pool says of a member. People edit values by hand: what cannot be read is nothing."""
    try:
        return msgspec.json.decode(written or b"{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}


def _slots(parts: Sequence[bytes]) -> tuple[Slot, ...]:
    """What a job holds: gate, member, fence, data, whether it is rejected; and so on."""
    each = zip(*(parts[part::_SLOT] for part in range(_SLOT)), strict=False)
    return tuple(
        Slot(text(gate), text(member), whole(fence), read_data(data), rejected == b"true")
        for gate, member, fence, data, rejected in each
    )

"""A job with its history as plain data, for programs."""

from __future__ import annotations

import base64
from typing import Any

from umbel.clock import iso_time
from umbel.errors import BadMessage
from umbel.messages import Attempt, Body, BodyCodec, Failure, Record, Slot
from umbel.urls import mask_secrets


def job_document(record: Record, codec: BodyCodec) -> dict[str, Any]:
    """Return the record with decoded arguments and result, and times in ISO 8601."""
    call = body_value(record.body, codec)
    is_call = isinstance(call, dict) and call.keys() <= {"args", "kwargs"}
    return {
        "id": record.id,
        "task": record.task,
        "queue": record.queue,
        "state": record.state.value,
        "attempt": record.attempt,
        "deaths": record.deaths,
        "priority": record.priority,
        "args": call.get("args", []) if is_call else None,
        "kwargs": call.get("kwargs", {}) if is_call else None,
        "body": None if is_call else call,
        "created": iso_time(record.created),
        "not_before": iso_time(record.not_before),
        "expires": iso_time(record.expires),
        "started": iso_time(record.started),
        "finished": iso_time(record.finished),
        "waited": None if record.waited is None else round(record.waited, 6),
        "ran": round(record.ran, 6),
        "worker": record.worker,
        "gate": record.gate,
        "ahead": record.ahead,
        "waiting_since": iso_time(record.waiting_since),
        "slots": [_slot_view(slot) for slot in record.slots],
        "progress": record.progress,
        "result": None if record.result is None else body_value(record.result, codec),
        "failure": _masked(record.failure),
        "reason": mask_secrets(record.reason),
        "unique": record.unique,
        "trace": trace_id(record),
        "headers": record.headers,
        "attempts": [_attempt_view(attempt) for attempt in record.attempts],
    }


def _slot_view(slot: Slot) -> dict[str, Any]:
    if not slot.member:
        return {"gate": slot.gate}
    return {"gate": slot.gate, "member": slot.member, "fence": slot.fence, "data": slot.data}


def _attempt_view(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "worker": attempt.worker,
        "started": iso_time(attempt.started),
        "finished": iso_time(attempt.finished),
        "seconds": round(attempt.finished - attempt.started, 6),
        "ended": attempt.ended,
        "failure": _masked(attempt.failure),
        "reason": mask_secrets(attempt.reason),
        "delay": attempt.delay,
        "members": attempt.members,
    }


def _masked(failure: Failure | None) -> Failure | None:
    """Return a failure without secrets: the text of an exception may contain a URL."""
    if failure is None:
        return None
    return Failure(
        failure.type,
        mask_secrets(failure.message),
        mask_secrets(failure.traceback),
        None if failure.args is None else mask_secrets(failure.args),
    )


def body_value(body: Body, codec: BodyCodec) -> Any:
    """Return the value of a body; if it cannot be decoded, its bytes in base64."""
    try:
        return codec.decode(body)
    except BadMessage as error:
        return {
            "unreadable": str(error),
            "content_type": body.content_type,
            "data_base64": base64.b64encode(body.data).decode(),
        }


def trace_id(record: Record) -> str | None:
    """Return the id of the trace to which a job belongs; None if it has none."""
    parts = (record.traceparent or "").split("-")
    return parts[1] if len(parts) == 4 else None

"""One job's whole story: for programs as a plain value, for people as a page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from umbel.cli.answers import as_json, coloured, say
from umbel.cli.words import ago, clock, duration, moment
from umbel.errors import BadMessage
from umbel.messages import Attempt, Body, BodyCodec, Failure, Record, Slot, State
from umbel.urls import masked

_BAR = 30
_ENDED = {"retry": "failed", "failed": "failed for good", "lost": "its worker died"}
"""How an attempt ended, in words; the other outcomes are words already."""


def view(record: Record, codec: BodyCodec) -> dict[str, Any]:
    """The record with arguments and result readable and times in ISO 8601."""
    call = _value(record.body, codec)
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
        "created": moment(record.created),
        "not_before": moment(record.not_before),
        "expires": moment(record.expires),
        "started": moment(record.started),
        "finished": moment(record.finished),
        "waited": None if record.waited is None else round(record.waited, 6),
        "ran": round(record.ran, 6),
        "worker": record.worker,
        "gate": record.gate,
        "ahead": record.ahead,
        "waiting_since": moment(record.waiting_since),
        "slots": [_slot_view(slot) for slot in record.slots],
        "progress": record.progress,
        "result": None if record.result is None else _value(record.result, codec),
        "failure": _masked(record.failure),
        "reason": masked(record.reason),
        "unique": record.unique,
        "trace": _trace(record),
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
        "started": moment(attempt.started),
        "finished": moment(attempt.finished),
        "seconds": round(attempt.finished - attempt.started, 6),
        "ended": attempt.ended,
        "failure": _masked(attempt.failure),
        "reason": masked(attempt.reason),
        "delay": attempt.delay,
    }


def _masked(failure: Failure | None) -> Failure | None:
    """A failure to show: the store keeps what the task raised, which may quote a URL."""
    if failure is None:
        return None
    return Failure(
        failure.type,
        masked(failure.message),
        masked(failure.traceback),
        None if failure.args is None else masked(failure.args),
    )


def _value(body: Body, codec: BodyCodec) -> Any:
    """The body's value; bytes that cannot be read are shown as they are."""
    try:
        return codec.decode(body)
    except BadMessage as error:
        return {
            "unreadable": str(error),
            "content_type": body.content_type,
            "data_base64": base64.b64encode(body.data).decode(),
        }


def _trace(record: Record) -> str | None:
    parts = (record.traceparent or "").split("-")
    return parts[1] if len(parts) == 4 else None


def progress_share(record: Record) -> str:
    """``30% (3 of 10)``, or how much is done when nobody said of how much."""
    if record.progress is None:
        return ""
    done, of = record.progress
    return f"{_share(done, of):.0%} ({done:g} of {of:g})" if of else f"{done:g} done"


def progress_text(record: Record) -> str:
    """The same behind a bar."""
    if record.progress is None or not record.progress[1]:
        return progress_share(record)
    filled = round(_share(*record.progress) * _BAR)
    return f"{'█' * filled}{'░' * (_BAR - filled)} {progress_share(record)}"


def _share(done: float, of: float | None) -> float:
    # In this order, so that what is no number counts as nothing.
    return min(max(0.0, done / of), 1.0) if of else 0.0


def result_text(record: Record, codec: BodyCodec) -> str:
    """The result as JSON; ``null`` when it is not kept."""
    return "null" if record.result is None else _shown(_value(record.result, codec))


def failure_text(record: Record) -> str:
    """Why there is no result."""
    head = f"job {record.id} was {record.state.value}"
    if record.failure is None:
        return f"{head}: {masked(record.reason)}"
    return f"{head}\n{masked(record.failure.traceback or record.failure.message)}".rstrip()


# --- for people ------------------------------------------------------------------------------


def tell(record: Record, codec: BodyCodec, now: float, hindrances: Sequence[str] = ()) -> None:
    """Print the story."""
    say(f"{'job':11} {record.id}   ", coloured(record.state.value))
    for label, text in _facts(record, codec, now):
        say(f"{label:11} {text}")
    for text in hindrances:
        say(f"{'waits':11} {text}")
    if record.attempts or record.state is State.RUNNING:
        say()
    for attempt in record.attempts:
        _tell_attempt(attempt)
    if record.state is State.RUNNING:
        _tell_running(record, now)
    _tell_end(record, codec)


def _facts(record: Record, codec: BodyCodec, now: float) -> list[tuple[str, str]]:
    facts = [("task", record.task), ("arguments", _call(record.body, codec))]
    extras = [f"priority {record.priority}"] if record.priority else []
    extras += [f"unique {record.unique!r}"] if record.unique else []
    extras += [f"{name}={value}" for name, value in record.headers.items()]
    facts.append(("queue", " · ".join([record.queue, *extras])))
    facts.append(("trace", _trace(record) or ""))
    for label, when in (
        ("published", record.created),
        ("not before", record.not_before),
        ("expires", record.expires),
        ("started", record.started),
        ("finished", record.finished),
    ):
        facts.append((label, f"{clock(when)}   {ago(when, now)}" if when is not None else ""))
    facts.append(("waits at", _place(record, now)))
    facts.append(("holds", ", ".join(map(_held, record.slots))))
    deaths = "" if not record.deaths else f"{record.deaths} of its workers died running it"
    facts.append(("deaths", deaths))
    return [(label, text) for label, text in facts if text]


def _place(record: Record, now: float) -> str:
    if record.gate is None or record.waiting_since is None:
        return ""
    waited = f"for {duration(max(0.0, now - record.waiting_since))}"
    if record.ahead is None:
        return f"{record.gate}   {waited}"
    before = "a thousand or more" if record.ahead >= 1000 else record.ahead or "nobody"
    return f"{record.gate}   {before} before it, {waited}"


def _held(slot: Slot) -> str:
    return f"{slot.member} of {slot.gate} (fence {slot.fence})" if slot.member else slot.gate


def _call(body: Body, codec: BodyCodec) -> str:
    call = _value(body, codec)
    if not isinstance(call, dict) or not call.keys() <= {"args", "kwargs"}:
        return _shown(call)
    args, kwargs = call.get("args") or [], call.get("kwargs") or {}
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return _shown(call)
    shown = [_shown(value) for value in args]
    shown += [f"{name}={_shown(value)}" for name, value in kwargs.items()]
    return f"({', '.join(shown)})"


def _shown(value: Any) -> str:
    return as_json(value)


def _tell_attempt(attempt: Attempt) -> None:
    words = [f"attempt {attempt.number}", clock(attempt.started)]
    words.append(f"on {attempt.worker}" if attempt.worker else "")
    took = duration(max(0.0, attempt.finished - attempt.started))
    words.append(f"{_ENDED.get(attempt.ended, attempt.ended)} after {took}")
    if attempt.delay is not None:
        words.append(f"to run again in {duration(attempt.delay)}")
    say("  ".join(filter(None, words)))
    if attempt.reason:
        _say_block(attempt.reason)
    if attempt.failure is not None:
        _tell_failure(attempt.failure)


def _tell_failure(failure: Failure) -> None:
    text = failure.traceback or f"{failure.type.rpartition(':')[2]}: {failure.message}"
    _say_block(text)


def _say_block(text: str) -> None:
    for line in masked(text).rstrip().split("\n"):
        say(f"    {line}")


def _tell_running(record: Record, now: float) -> None:
    since = duration(max(0.0, now - record.started)) if record.started is not None else "now"
    say(f"attempt {record.attempt}  runs on {record.worker} for {since}")
    if record.progress is not None:
        say(f"    {progress_text(record)}")
    if record.reason:
        say(f"    asked to stop: {masked(record.reason)}")


def _tell_end(record: Record, codec: BodyCodec) -> None:
    told = record.attempts[-1].failure if record.attempts else None
    if record.result is not None:
        say()
        say(f"{'result':11} {_shown(_value(record.result, codec))}")
    elif record.state.finished and record.reason and told is None:
        say()
        say(f"{'reason':11} {masked(record.reason)}")

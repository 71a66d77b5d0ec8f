"""One job with its history, as a page for people."""

from __future__ import annotations

from collections.abc import Sequence

from umbel.cli.formatting import count, duration, local_time, relative_time
from umbel.cli.output import as_json, colored, print_line
from umbel.messages import Attempt, Body, BodyCodec, Failure, Record, Slot, State
from umbel.operations import body_value, trace_id
from umbel.urls import mask_secrets

_BAR_WIDTH = 30
_ENDED = {"retry": "failed", "failed": "failed permanently", "lost": "its worker died"}
"""Texts for outcomes of an attempt; the other outcomes are shown as they are."""


def progress_share(record: Record) -> str:
    """Return progress such as ``30% (3 of 10)``, or ``3 done`` without a total."""
    if record.progress is None:
        return ""
    done, of = record.progress
    return f"{_share(done, of):.0%} ({done:g} of {of:g})" if of else f"{done:g} done"


def progress_text(record: Record) -> str:
    """Return the progress with a bar before it."""
    if record.progress is None or not record.progress[1]:
        return progress_share(record)
    filled = round(_share(*record.progress) * _BAR_WIDTH)
    return f"{'█' * filled}{'░' * (_BAR_WIDTH - filled)} {progress_share(record)}"


def _share(done: float, of: float | None) -> float:
    # In this order, so that NaN counts as 0.
    return min(max(0.0, done / of), 1.0) if of else 0.0


def result_text(record: Record, codec: BodyCodec) -> str:
    """Return the result as JSON; ``null`` if the store does not keep it."""
    return "null" if record.result is None else as_json(body_value(record.result, codec))


def failure_text(record: Record) -> str:
    """Return the reason for which a job has no result."""
    head = f"job {record.id} was {record.state.value}"
    if record.failure is None:
        return f"{head}: {mask_secrets(record.reason)}"
    return f"{head}\n{mask_secrets(record.failure.traceback or record.failure.message)}".rstrip()


# --- for people ------------------------------------------------------------------------------


def print_job(record: Record, codec: BodyCodec, now: float, hindrances: Sequence[str] = ()) -> None:
    """Print the job with its history."""
    print_line(f"{'job':11} {record.id}   ", colored(record.state.value))
    for label, text in _facts(record, codec, now):
        print_line(f"{label:11} {text}")
    for text in hindrances:
        print_line(f"{'waiting':11} {text}")
    if record.attempts or record.state is State.RUNNING:
        print_line()
    for attempt in record.attempts:
        _print_attempt(attempt)
    if record.state is State.RUNNING:
        _print_running(record, now)
    _print_end(record, codec)


def _facts(record: Record, codec: BodyCodec, now: float) -> list[tuple[str, str]]:
    facts = [("task", record.task), ("arguments", _call(record.body, codec))]
    extras = [f"priority {record.priority}"] if record.priority else []
    extras += [f"unique {record.unique!r}"] if record.unique else []
    extras += [f"{name}={value}" for name, value in record.headers.items()]
    facts.append(("queue", " · ".join([record.queue, *extras])))
    facts.append(("trace", trace_id(record) or ""))
    for label, when in (
        ("published", record.created),
        ("not before", record.not_before),
        ("expires", record.expires),
        ("started", record.started),
        ("finished", record.finished),
    ):
        facts.append(
            (label, f"{local_time(when)}   {relative_time(when, now)}" if when is not None else "")
        )
    facts.append(("waiting at", _place(record, now)))
    facts.append(("holds", ", ".join(map(_held, record.slots))))
    deaths = "" if not record.deaths else f"{record.deaths} workers died while they ran it"
    facts.append(("deaths", deaths))
    return [(label, text) for label, text in facts if text]


def _place(record: Record, now: float) -> str:
    if record.gate is None or record.waiting_since is None:
        return ""
    waited = f"for {duration(max(0.0, now - record.waiting_since))}"
    if record.ahead is None:
        return f"{record.gate}   {waited}"
    before = "1,000 or more jobs" if record.ahead >= 1000 else count(record.ahead, "job")
    return f"{record.gate}   {before} before it, {waited}"


def _held(slot: Slot) -> str:
    return f"{slot.member} of {slot.gate} (fence {slot.fence})" if slot.member else slot.gate


def _call(body: Body, codec: BodyCodec) -> str:
    call = body_value(body, codec)
    if not isinstance(call, dict) or not call.keys() <= {"args", "kwargs"}:
        return as_json(call)
    args, kwargs = call.get("args") or [], call.get("kwargs") or {}
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return as_json(call)
    shown = [as_json(value) for value in args]
    shown += [f"{name}={as_json(value)}" for name, value in kwargs.items()]
    return f"({', '.join(shown)})"


def _print_attempt(attempt: Attempt) -> None:
    words = [f"attempt {attempt.number}", local_time(attempt.started)]
    words.append(f"on {attempt.worker}" if attempt.worker else "")
    took = duration(max(0.0, attempt.finished - attempt.started))
    words.append(f"{_ENDED.get(attempt.ended, attempt.ended)} after {took}")
    words += [f"with {member} of pool {pool}" for pool, member in attempt.members.items()]
    if attempt.delay is not None:
        words.append(f"next attempt in {duration(attempt.delay)}")
    print_line("  ".join(filter(None, words)))
    if attempt.reason:
        _print_block(attempt.reason)
    if attempt.failure is not None:
        _print_failure(attempt.failure)


def _print_failure(failure: Failure) -> None:
    _print_block(failure.traceback or failure.line)


def _print_block(text: str) -> None:
    for line in mask_secrets(text).rstrip().split("\n"):
        print_line(f"    {line}")


def _print_running(record: Record, now: float) -> None:
    since = duration(max(0.0, now - record.started)) if record.started is not None else "now"
    print_line(f"attempt {record.attempt}  running on {record.worker} for {since}")
    if record.progress is not None:
        print_line(f"    {progress_text(record)}")
    if record.reason:
        print_line(f"    cancellation requested: {mask_secrets(record.reason)}")


def _print_end(record: Record, codec: BodyCodec) -> None:
    failure = record.attempts[-1].failure if record.attempts else None
    if record.result is not None:
        print_line()
        print_line(f"{'result':11} {as_json(body_value(record.result, codec))}")
    elif record.state.finished and record.reason and failure is None:
        print_line()
        print_line(f"{'reason':11} {mask_secrets(record.reason)}")

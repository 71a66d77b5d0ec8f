"""One job as lines of text: its facts, its attempts, its tracebacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from umbel.messages import BodyCodec, Record
from umbel.operations import body_value
from umbel.top.glyphs import clock, span
from umbel.urls import mask_secrets

_MAX_TEXT = 4_000
_MAX_TRACEBACK = 64_000


def job_lines(job: Record, hindrances: Sequence[str], now: float, codec: BodyCodec) -> list[str]:
    """Return the facts of a job and its attempts."""
    lines = [f"{job.state.value}  {job.task}  {job.id}", ""]
    lines += [f"! {text}" for text in hindrances]
    lines += [f"{label:11} {text}" for label, text in _facts(job, now, codec) if text]
    if job.attempts:
        lines.append("")
    for attempt in reversed(job.attempts):
        took = span(max(0.0, attempt.finished - attempt.started))
        words = [f"attempt {attempt.number}", clock(attempt.started)]
        words += [f"on {attempt.worker}"] if attempt.worker else []
        words.append(f"{attempt.ended} after {took}")
        lines.append("  ".join(words))
        if attempt.failure is not None:
            lines.append(f"    {_short(attempt.failure.line)}")
        elif attempt.reason:
            lines.append(f"    {_short(attempt.reason)}")
    return lines


def _facts(job: Record, now: float, codec: BodyCodec) -> Iterator[tuple[str, str]]:
    yield "arguments", _short(_json(body_value(job.body, codec)))
    yield "queue", job.queue + (f"   priority {job.priority}" if job.priority else "")
    for label, when in (
        ("published", job.created),
        ("not before", job.not_before),
        ("started", job.started),
        ("finished", job.finished),
    ):
        if when is not None:
            ago = f"in {span(when - now)}" if when > now else f"{span(now - when)} ago"
            yield label, f"{clock(when)}   {ago}"
    yield "worker", job.worker or ""
    if job.waiting_since is not None:
        yield "waits at", f"{job.gate}   for {span(max(0.0, now - job.waiting_since))}"
    yield "holds", ", ".join(slot.gate for slot in job.slots)
    yield "deaths", f"{job.deaths} workers died while they ran it" if job.deaths else ""
    if job.progress is not None:
        done, of = job.progress
        yield "progress", f"{done:g} of {of:g}" if of else f"{done:g}"
    if job.result is not None:
        yield "result", _short(_json(body_value(job.result, codec)))
    yield "reason", _short(job.reason)


def traceback_lines(job: Record) -> list[str]:
    """Return the tracebacks of all attempts, the newest first."""
    lines: list[str] = []
    for attempt in reversed(job.attempts):
        failure = attempt.failure
        if failure is None and not attempt.reason:
            continue
        text = attempt.reason
        if failure is not None:
            text = failure.traceback or failure.line
        lines.append(f"attempt {attempt.number}  {clock(attempt.started)}  {attempt.ended}")
        lines += mask_secrets(text[:_MAX_TRACEBACK]).rstrip().split("\n")
        lines.append("")
    return lines or ["No attempt of this job has failed."]


def _json(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=repr).decode()


def _short(text: str) -> str:
    cut = mask_secrets(text[:_MAX_TEXT]).replace("\n", " ")
    return cut if len(text) <= _MAX_TEXT else f"{cut}…"

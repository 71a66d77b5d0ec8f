"""The ways in for bytes from outside. Each takes any bytes and fails when a promise is broken.

Hypothesis feeds them inputs that are nearly right, the coverage-guided run whatever leads to new
lines, and the corpus what once broke them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from typing import Any, cast

import msgspec
from hostile import assert_readable, assert_refusal, storable
from zoo import PARAMETERS, nothing

from umbel.backends.rows import record
from umbel.cli import job_details, output
from umbel.clock import SystemClock
from umbel.errors import BadMessage, NotEncodable
from umbel.messages import (
    JSON,
    MESSAGEPACK,
    PICKLE,
    Body,
    BodyCodec,
    Delivery,
    Envelope,
    Interrupted,
    Lease,
    Rejected,
    wire,
)
from umbel.messages.columns import (
    MALFORMED,
    read_attempts,
    read_failure,
    read_headers,
    read_sections,
)
from umbel.operations import job_document
from umbel.tasks import Registry, task
from umbel.worker.activation import Activator
from umbel.worker.incarnation import Incarnation
from umbel.worker.progress import ProgressNotes
from umbel.worker.runs import Activation

JOB = "0190a3f0-0000-7000-8000-000000000001"
KEY = b"the right key"
CONTENT_TYPES = (
    *(JSON, MESSAGEPACK, PICKLE, f"{JSON}; charset=latin-1", "application/vnd.x+json"),
    *("text/plain", "", "\x00", "x" * 5_000, "\ud800"),
)
CODECS = {kind: BodyCodec(content_type=kind, pickle_key=KEY) for kind in (JSON, MESSAGEPACK)}


def event(data: bytes) -> None:
    """A CloudEvent is read or refused; what is read can be stored and survives the wire."""
    try:
        envelope = wire.read(data)
    except BadMessage as error:
        assert_refusal(error)
        return
    texts = (envelope.subject, envelope.queue, envelope.namespace, envelope.body.content_type)
    extras = (envelope.unique or "", envelope.traceparent or "", *envelope.headers)
    for text in (*texts, *extras, *envelope.headers.values()):
        assert storable(text), f"read, and no store takes it: {text[:100]!r}"
    assert wire.read(wire.write(envelope)) == envelope


def body(data: bytes) -> None:
    """Bytes of any media type are decoded or refused. The first byte chooses the type."""
    if data:
        decode_body(CONTENT_TYPES[data[0] % len(CONTENT_TYPES)], data[1:])


def decode_body(content_type: str, data: bytes) -> None:
    """A body is decoded or refused; what is decoded survives being sent on."""
    for codec in CODECS.values():
        try:
            value = codec.decode(Body(content_type, data))
        except BadMessage as error:
            assert_refusal(error)
            continue
        try:
            once = codec.encode(value)
        except NotEncodable as error:
            assert_readable(str(error))
            continue
        with suppress(NotEncodable):
            assert codec.encode(codec.decode(once)).data == once.data


def call(data: bytes) -> None:
    """Arguments fit a task or are refused. The first byte chooses the task."""
    if not data:
        return
    with suppress(ValueError, RecursionError):
        decode_call(data[0] % len(PARAMETERS), json.loads(data[1:]))


def decode_call(number: int, value: Any) -> None:
    """What comes out of decoding can be called; else the refusal names what does not fit."""
    parameters = PARAMETERS[number]
    try:
        args, kwargs = parameters.decode(value)
    except BadMessage as error:
        assert_refusal(error)
        return
    parameters.signature.bind(*args, **kwargs)


def columns(data: bytes) -> None:
    """The JSON columns of a row: nothing raises, and each gives what it says."""
    text = data.decode("utf-8", "surrogatepass") if _is_text(data) else data.decode("latin-1")
    read_columns(text)


def read_columns(text: str) -> None:
    """Every column is read, whatever is in it; a refused one says which it is."""
    for headers in (read_headers(text), read_headers("{}", text), read_headers(text, text)):
        assert all(isinstance(one, str) for pair in headers.items() for one in pair)
        activate(headers)
    assert all(isinstance(count, int) for count in read_sections(text).values())
    assert isinstance(read_attempts(text), tuple)
    read_failure(text)
    show(headers=text, attempts=text, failure=text, gate=text, slots=text)


def headers(data: bytes) -> None:
    """Per-call options in headers are applied or refused, as a database gives them."""
    with suppress(ValueError, RecursionError):
        found = json.loads(data)
        if isinstance(found, dict):
            found.pop(MALFORMED, None)  # no header that comes in has this name
            activate({_kept(name): _kept(str(value)) for name, value in found.items()})


def _kept(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


_registry = Registry()
_registry.add(task(name="zoo.nothing")(nothing))
_activator = Activator(
    _registry,
    CODECS[JSON],
    incarnation=Incarnation("worker"),
    progress=ProgressNotes(cast(Any, None)),
)


def activate(found: dict[str, str], data: bytes = b"{}", subject: str = "zoo.nothing") -> None:
    """A delivery can run, goes back, or is rejected with a reason that names the field."""
    envelope = Envelope(id=JOB, subject=subject, body=Body(JSON, data), headers=found)
    outcome = _activator.activate(Delivery(envelope=envelope, lease=Lease(JOB, "me", 1)))
    if isinstance(outcome, Activation):
        return
    assert isinstance(outcome, Rejected | Interrupted), outcome
    assert_readable(outcome.reason)
    if isinstance(outcome, Interrupted):  # a worker that has the task may run it
        assert outcome.reason.startswith("this worker does not have the task: "), outcome.reason
    else:
        assert outcome.reason.partition(":")[0].isidentifier(), outcome.reason


ROW: dict[str, Any] = {
    "id": JOB,
    "task": "zoo.nothing",
    "namespace": "umbel",
    "queue": "default",
    "state": "running",
    "kind": "",
    "priority": 0,
    "attempt": 1,
    "deaths": 0,
    "created": 0.0,
    "not_before": None,
    "expires": None,
    "started": None,
    "finished": None,
    "worker": None,
    "content_type": JSON,
    "body": b"{}",
    "result_type": None,
    "result": None,
    "failure": None,
    "reason": "",
    "attempts": "[]",
    "done": None,
    "of": None,
    "unique": None,
    "trace": None,
    "headers": "{}",
    "gate": None,
    "slots": None,
    "ahead": None,
}


def show(**changed: Any) -> None:
    """A row with any column changed can be listed and shown, to people and to programs."""
    found = record(tuple((ROW | changed).values()))
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    with redirect_stdout(out):
        output.print_json(job_document(found, CODECS[JSON]))
        job_details.print_job(found, CODECS[JSON], SystemClock().now())
        out.flush()
    first = out.buffer.getvalue().partition(b"\n")[0]
    assert isinstance(msgspec.json.decode(first), dict)


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


TARGETS: dict[str, Callable[[bytes], None]] = {
    "event": event,
    "body": body,
    "call": call,
    "columns": columns,
    "headers": headers,
}

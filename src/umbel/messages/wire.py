"""The open wire form: CloudEvents 1.0, as structured JSON or in binary mode.

Programs in any language can publish a task by writing this JSON. ``schema.json`` in this folder
describes it. ``read`` accepts what the schema accepts; otherwise its error names the field.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from umbel.errors import BadMessage
from umbel.messages.bodies import JSON, Body, not_finite
from umbel.messages.columns import MALFORMED, plain_headers
from umbel.messages.documents import (
    CORRELATION,
    MAX_ADDRESS_LENGTH,
    MAX_CORRELATION_LENGTH,
    REPLY_TO,
)
from umbel.messages.envelopes import KINDS, Envelope, MessageType
from umbel.messages.gates import AFFINITY_KEY, ROUTE_PREFIX, route_key

SPECVERSION = "1.0"
MEDIA_TYPE = "application/cloudevents+json"

DEFINED_ATTRIBUTES = frozenset(
    {"specversion", "id", "type", "source", "subject", "time", "datacontenttype", "dataschema"}
    | {"data", "data_base64", "namespace", "queue", "kind", "priority", "notbefore", "expiry"}
    | {"attempt", "maxdeaths", "uniquekey", "onconflict", "traceparent"}
)
_MAX_HEADER_CHARACTERS = 65_536
"""The sum over all headers of a message: every fetch carries them."""
_DURATION = re.compile(r"PT([0-9]{1,11}(?:\.[0-9]{1,6})?)S", re.ASCII)
_INTEGER = re.compile(r"-?[0-9]{1,10}")
_CONFLICT_CHOICES = ("raise", "return", "replace")
_REPLY_HEADERS = {REPLY_TO: MAX_ADDRESS_LENGTH, CORRELATION: MAX_CORRELATION_LENGTH}
"""The headers of a reply request, and their largest lengths."""
_TEXT_HEADERS = {**_REPLY_HEADERS, AFFINITY_KEY: 255}


def source_of(namespace: str) -> str:
    """Return the attribute ``source`` of the messages that Umbel itself sends."""
    return f"/umbel/{namespace}"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the wire form."""
    found: dict[str, Any] = msgspec.json.decode(
        Path(__file__).with_name("schema.json").read_bytes()
    )
    return found


def write(envelope: Envelope) -> bytes:
    """Return an envelope as a CloudEvent in structured JSON.

    Raises:
        BadMessage: a time is outside the years 1 to 9999; the error names the field.
    """
    event: dict[str, Any] = {
        "specversion": SPECVERSION,
        "id": envelope.id,
        "type": envelope.type.value,
        "source": source_of(envelope.namespace),
        "subject": envelope.subject,
        **_times(envelope),
        "datacontenttype": envelope.body.content_type,
        "namespace": envelope.namespace,
        "queue": envelope.queue,
        "priority": envelope.priority,
        "attempt": envelope.attempt,
        "maxdeaths": envelope.max_deaths,
    }
    if _is_json(envelope.body):
        event["data"] = msgspec.Raw(envelope.body.data)
    else:
        event["data_base64"] = base64.b64encode(envelope.body.data).decode()
    optional = {
        "kind": envelope.kind or None,
        "uniquekey": envelope.unique,
        "onconflict": envelope.on_conflict if envelope.on_conflict != "raise" else None,
        "traceparent": envelope.traceparent,
        AFFINITY_KEY: _affinity_key(envelope),
    }
    event.update((name, value) for name, value in optional.items() if value is not None)
    event.update(
        (name, text) for name, text in envelope.headers.items() if name not in DEFINED_ATTRIBUTES
    )
    return msgspec.json.encode(event)


def attributes(envelope: Envelope) -> dict[str, str]:
    """Return an envelope's attributes for binary mode, where the body is sent separately.

    Raises:
        BadMessage: a time is outside the years 1 to 9999; the error names the field.
    """
    found = {
        "specversion": SPECVERSION,
        "id": envelope.id,
        "type": envelope.type.value,
        "source": source_of(envelope.namespace),
        "subject": envelope.subject,
        **_times(envelope),
        "namespace": envelope.namespace,
        "queue": envelope.queue,
    }
    if envelope.kind:
        found["kind"] = envelope.kind
    if envelope.priority:
        found["priority"] = str(envelope.priority)
    if envelope.attempt != 1:
        found["attempt"] = str(envelope.attempt)
    if envelope.max_deaths != 3:
        found["maxdeaths"] = str(envelope.max_deaths)
    if envelope.unique:
        found["uniquekey"] = envelope.unique
    if envelope.on_conflict != "raise":
        found["onconflict"] = envelope.on_conflict
    if envelope.traceparent:
        found["traceparent"] = envelope.traceparent
    if key := _affinity_key(envelope):
        found[AFFINITY_KEY] = key
    for name, text in envelope.headers.items():
        if name not in DEFINED_ATTRIBUTES:
            found[name] = text
    return found


def _affinity_key(envelope: Envelope) -> str | None:
    """Return the key of the job's route; None if it has none, or only in a header."""
    found = (route_key(gate) for gate in envelope.gates if gate.startswith(ROUTE_PREFIX))
    return next(found, None)


def read_message(attributes: Mapping[str, Any], content_type: str, data: bytes) -> Envelope:
    """Return the envelope of a message with headers, in binary mode or in structured mode.

    A reply request may also be in the headers of a structured event, from the transport's own
    properties.

    Raises:
        BadMessage: not a CloudEvent, or a field has the wrong form; the error names the field.
    """
    if content_type.partition(";")[0].strip().lower() == MEDIA_TYPE:
        return _add_reply_headers(attributes, read(data))
    if attributes.get("specversion") != SPECVERSION:
        raise BadMessage(
            "specversion",
            f'must be "{SPECVERSION}": send CloudEvents attributes as headers, or one event as'
            f" {MEDIA_TYPE}",
        )
    _text(dict(attributes), "source")
    return _envelope(dict(attributes), Body(content_type or JSON, data))


def read_reply_headers(attributes: Mapping[str, Any], data: bytes) -> dict[str, str]:
    """Return the headers of the reply request in a message that cannot be read, if there is one.

    Its sender gets a reply that says what is wrong with the message.
    """
    try:
        event = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        event = None
    found = {**(event if isinstance(event, dict) else {}), **attributes}
    return {
        name: found[name]
        for name, limit in _REPLY_HEADERS.items()
        if isinstance(found.get(name), str)
        and "\0" not in found[name]
        and len(found[name]) <= limit
    }


def _add_reply_headers(attributes: Mapping[str, Any], found: Envelope) -> Envelope:
    """Add a reply request from the headers, unless the event itself has one."""
    added = {name: attributes[name] for name in _REPLY_HEADERS if attributes.get(name)}
    if not added:
        return found
    return replace(found, headers={**_headers(added), **found.headers})


def read(data: bytes) -> Envelope:
    """Return the envelope of a CloudEvent in structured JSON.

    Raises:
        BadMessage: not JSON, not a CloudEvent, or a field has the wrong form; the error names it.
    """
    try:
        event = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage("body", f"not JSON: {error}") from None
    if not isinstance(event, dict):
        raise BadMessage("body", "a CloudEvent must be a JSON object")
    if event.get("specversion") != SPECVERSION:
        raise BadMessage("specversion", f'must be "{SPECVERSION}"')
    _text(event, "source")
    try:
        return _envelope(event, _body(event))
    except RecursionError:  # it could be decoded, but not encoded again
        raise BadMessage("body", "nested too deeply") from None


def _envelope(event: dict[str, Any], body: Body) -> Envelope:
    return Envelope(
        id=_id(event),
        type=_type(event),
        subject=_text(event, "subject", limit=255),
        body=body,
        namespace=_text(event, "namespace", "umbel", limit=63),
        queue=_text(event, "queue", "default", limit=255),
        kind=_choice(event, "kind", "", KINDS),
        priority=_integer(event, "priority", 0, -32768, 32767),
        created=_time(event, "time") or 0.0,
        not_before=None if _is_duration(event, "notbefore") else _time(event, "notbefore"),
        expires=None if _is_duration(event, "expiry") else _time(event, "expiry"),
        delay=_duration(event, "notbefore"),
        expires_in=_duration(event, "expiry"),
        attempt=_integer(event, "attempt", 1, 1, 2**31 - 1),
        max_deaths=_integer(event, "maxdeaths", 3, 1, 32767),
        unique=None if event.get("uniquekey") is None else _text(event, "uniquekey", limit=255),
        on_conflict=_choice(event, "onconflict", "raise", _CONFLICT_CHOICES),
        traceparent=_text(event, "traceparent")
        if event.get("traceparent") not in (None, "")
        else None,
        headers=_headers(event),
    )


def _headers(event: dict[str, Any]) -> dict[str, str]:
    found = {name: value for name, value in event.items() if name not in DEFINED_ATTRIBUTES}
    for name, value in found.items():
        _check_attribute(name, value)
    for name, limit in _TEXT_HEADERS.items():
        if found.get(name) is not None:
            _text(found, name, limit=limit)
    headers = plain_headers(found)
    if sum(map(len, (*headers, *headers.values()))) > _MAX_HEADER_CHARACTERS:
        raise BadMessage(
            "body", f"has more than {_MAX_HEADER_CHARACTERS:,} characters in extension attributes"
        )
    return headers


def _check_attribute(name: str, value: Any) -> None:
    if name == MALFORMED:
        raise BadMessage(name, "is a reserved name; use another name for the attribute")
    if not name or len(name) > 255 or "\x00" in name:
        raise BadMessage(name, "an attribute's name must have 1 to 255 characters, and no NUL")
    if isinstance(value, str) and "\x00" in value:
        raise BadMessage(name, "must not contain the character NUL")
    if not isinstance(value, str) and (found := not_finite(value)) is not None:
        raise BadMessage(name, found.within(""))


def _id(event: dict[str, Any]) -> str:
    text = _text(event, "id")
    bare = text.replace("-", "").lower()
    if len(bare) != 32 or any(letter not in "0123456789abcdef" for letter in bare):
        raise BadMessage("id", "must be a UUID")
    return f"{bare[:8]}-{bare[8:12]}-{bare[12:16]}-{bare[16:20]}-{bare[20:]}"


def _type(event: dict[str, Any]) -> MessageType:
    try:
        return MessageType(str(event.get("type")))
    except ValueError:
        known = ", ".join(kind.value for kind in MessageType)
        raise BadMessage("type", f"must be one of {known}") from None


def _body(event: dict[str, Any]) -> Body:
    content_type = _text(event, "datacontenttype", JSON)
    if "data_base64" in event:
        if "data" in event:
            raise BadMessage("data_base64", "must not be sent together with data; send one of them")
        return Body(content_type, _from_base64(event["data_base64"]))
    if "data" not in event:
        raise BadMessage("data", 'is missing; a command has {"args": [...], "kwargs": {...}}')
    if content_type.partition(";")[0].strip() != JSON:
        raise BadMessage("data", f"must be data_base64 when datacontenttype is {content_type}")
    return Body(JSON, msgspec.json.encode(event["data"]))


def _from_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):  # binascii.Error is a ValueError
        raise BadMessage("data_base64", "must be text in base64") from None


def _is_json(body: Body) -> bool:
    """Return whether it can be written as ``data`` and read again as exactly the same bytes."""
    if body.content_type != JSON:
        return False
    try:
        return msgspec.json.encode(msgspec.json.decode(body.data)) == body.data
    except (ValueError, RecursionError):
        return False


_REQUIRED = object()


def _text(event: dict[str, Any], name: str, default: Any = _REQUIRED, limit: int = 1024) -> str:
    value = event.get(name, default)
    if value is _REQUIRED:
        raise BadMessage(name, "is missing")
    if not isinstance(value, str) or not value or len(value) > limit or "\x00" in value:
        raise BadMessage(name, f"must be a non-empty string of at most {limit} characters")
    return value


def _choice(event: dict[str, Any], name: str, default: str, known: tuple[str, ...]) -> str:
    value = event.get(name, default)
    if value not in known:
        raise BadMessage(name, f"must be one of {', '.join(filter(None, known))}")
    assert isinstance(value, str)
    return value


def _integer(event: dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = event.get(name, default)
    if isinstance(value, str):  # binary-mode transports carry every attribute as text
        value = int(value) if _INTEGER.fullmatch(value) else None
    if isinstance(value, float) and value.is_integer():  # 5.0 is an integer in JSON Schema
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadMessage(name, f"must be an integer from {low} to {high}")
    return value


def _time(event: dict[str, Any], name: str) -> float | None:
    value = event.get(name)
    if value is None:
        return None
    try:
        moment = msgspec.convert(value, datetime)
        seconds = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
        datetime.fromtimestamp(
            seconds, UTC
        )  # near the years 1 and 9999, a time zone can lead outside
        return seconds
    except (msgspec.ValidationError, OverflowError, ValueError):
        raise BadMessage(name, "must be an RFC 3339 time, such as 2026-01-31T12:00:00Z") from None


def _is_duration(event: dict[str, Any], name: str) -> bool:
    value = event.get(name)
    return isinstance(value, str) and value.startswith("P")


def _duration(event: dict[str, Any], name: str) -> float | None:
    """Return seconds, counted from when a store takes the message."""
    if not _is_duration(event, name):
        return None
    found = _DURATION.fullmatch(event[name])
    if found is None:
        raise BadMessage(name, "must be a time, or seconds as a duration, such as PT30S")
    return float(found[1])


def _times(envelope: Envelope) -> dict[str, str]:
    """Return the attributes with times: as points in time, or seconds as a duration."""
    found: dict[str, str] = {}
    if envelope.created:
        found["time"] = _to_rfc3339("created", envelope.created)
    if envelope.not_before is not None:
        found["notbefore"] = _to_rfc3339("not_before", envelope.not_before)
    elif envelope.delay is not None:
        found["notbefore"] = _to_duration(envelope.delay)
    if envelope.expires is not None:
        found["expiry"] = _to_rfc3339("expires", envelope.expires)
    elif envelope.expires_in is not None:
        found["expiry"] = _to_duration(envelope.expires_in)
    return found


def _to_duration(seconds: float) -> str:
    return f"PT{seconds:.6f}".rstrip("0").rstrip(".") + "S"


def _to_rfc3339(field: str, moment: float) -> str:
    try:
        return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, TypeError, OverflowError, OSError):
        raise BadMessage(
            field,
            f"{moment!r} seconds after 1970 is outside the years 1 to 9999; publish the job again"
            " with a time in these years",
        ) from None

"""The NATS binding of CloudEvents: attributes are headers, and the data is unchanged.

A header is one line, so values are percent-encoded as CloudEvents requires. Names are in lower
case; other characters of a name are percent-encoded, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote, unquote

from nats.js.api import Header

from umbel.backends.transport import MessageHeaders
from umbel.messages import Envelope
from umbel.messages.wire import MEDIA_TYPE, attributes

_PREFIX = "ce-"
_SAFE_NAME = re.compile("[a-z0-9_.-]+")
_SAFE_VALUE = re.compile("[!#$&-~]*")
_SAFE_CHARACTERS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_ONE_LINE = re.compile("[ -~]+")
_STRUCTURED = "application/cloudevents"
"""The binding's content type of a structured event in any format. It is read as JSON."""


def write(envelope: Envelope, send_id: str = "") -> dict[str, str]:
    """Return the headers of an envelope.

    The server drops a second message with the same job id and ``send_id``.
    """
    content_type = envelope.body.content_type
    values = attributes(envelope)
    values["datacontenttype"] = content_type
    if not _SAFE_VALUE.fullmatch("".join(values.values())):
        values = {name: _encode_value(value) for name, value in values.items()}
    found: dict[str, str] = {}
    if send_id:
        found[Header.MSG_ID.value] = f"{values['id']}:{send_id}"
    if _ONE_LINE.fullmatch(content_type):
        found["Content-Type"] = content_type
    return found | {_name(name): value for name, value in values.items()}


def size_of(headers: Mapping[str, str]) -> int:
    """Return the size of headers in a message, in bytes. The server's limit includes it."""
    lines = sum(len(name) + len(value) + len(": \r\n") for name, value in headers.items())
    return len("NATS/1.0\r\n\r\n") + lines


def find_id(headers: Mapping[str, str] | None) -> str | None:
    """Return the id in the headers, if it is formatted as ``write`` does."""
    found = headers.get("ce-id") if headers else None
    return found if found and _SAFE_VALUE.fullmatch(found) else None


def read(headers: Mapping[str, str] | None, data: bytes) -> MessageHeaders:
    """Parse headers."""
    if not headers:  # a structured event from a client without headers
        return MessageHeaders({}, MEDIA_TYPE if data[:1] == b"{" else "")
    found: dict[str, str] = {}
    declared = ""
    for name, value in headers.items():
        attribute = _attribute(name)
        if attribute is not None:
            found[attribute] = _decode(value)
        elif name.lower() == "content-type":
            declared = value
    if declared.partition(";")[0].strip().lower() in (_STRUCTURED, MEDIA_TYPE):
        return MessageHeaders(found, MEDIA_TYPE)
    content_type = found.pop("datacontenttype", declared)
    return MessageHeaders(found, content_type)


@lru_cache(maxsize=64)
def _name(name: str) -> str:
    if _SAFE_NAME.fullmatch(name):
        return _PREFIX + name
    safe = "".join(c if _SAFE_NAME.fullmatch(c) else _escape(c) for c in name)
    return _PREFIX + safe


@lru_cache(maxsize=64)
def _attribute(name: str) -> str | None:
    """Return the attribute that a header contains; None if it is not a CloudEvents header."""
    name = name.lower()
    return _decode(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None


def _escape(character: str) -> str:
    return "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "replace"))


def _encode_value(value: str) -> str:
    return (
        value
        if _SAFE_VALUE.fullmatch(value)
        else quote(value, safe=_SAFE_CHARACTERS, errors="replace")
    )


def _decode(text: str) -> str:
    return unquote(text) if "%" in text else text

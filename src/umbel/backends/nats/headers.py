"""CloudEvents over NATS: attributes as headers, the data as it is.

Headers are one line each, so values are percent-encoded as CloudEvents asks. Names are in lower
case there; other letters in a name are encoded, too, and so come back as they were.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote

from umbel.backends.transport import Heading
from umbel.messages import Envelope
from umbel.messages.wire import MEDIA_TYPE, attributes

_PREFIX = "ce-"
_PLAIN_NAME = re.compile("[a-z0-9_.-]+")
_PLAIN = re.compile("[!#$&-~]*")
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_ONE_LINE = re.compile("[ -~]+")
_ID = re.compile(rb"\r\nce-id: ([!#$&-~]+)\r\n")
_GENERAL = "application/cloudevents"
"""What the binding calls a structured event, whatever it is written in. It is JSON."""


def write(envelope: Envelope, sending: str = "") -> bytes:
    """The block of headers for an envelope.

    By the job's id and ``sending`` together the server knows a message that it has already.
    """
    content_type = envelope.body.content_type
    told = attributes(envelope)
    told["datacontenttype"] = content_type
    if not _PLAIN.fullmatch("".join(told.values())):
        told = {name: _value(value) for name, value in told.items()}
    found = ["NATS/1.0"]
    if sending:
        found.append(f"Nats-Msg-Id: {told['id']}:{sending}")
    if _ONE_LINE.fullmatch(content_type):
        found.append(f"Content-Type: {content_type}")
    found += [f"{_name(name)}: {value}" for name, value in told.items()]
    return ("\r\n".join(found) + "\r\n\r\n").encode()


def glimpse(headers: bytes) -> str | None:
    """The id in a block of headers, if it stands there as we write it."""
    found = _ID.search(headers)
    return found[1].decode() if found else None


def read(headers: bytes, data: bytes) -> Heading:
    """What a block of headers says."""
    if not headers:  # before NATS had headers, an event was the whole message
        return Heading({}, MEDIA_TYPE if data[:1] == b"{" else "")
    found: dict[str, str] = {}
    declared = ""
    for line in headers.decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        attribute = _attribute(name) if colon else None
        if attribute is not None:
            found[attribute] = _decoded(value.strip())
        elif name.strip().lower() == "content-type":
            declared = value.strip()
    if declared.partition(";")[0].strip().lower() in (_GENERAL, MEDIA_TYPE):
        return Heading(found, MEDIA_TYPE)
    content_type = found.pop("datacontenttype", declared)
    return Heading(found, content_type)


@lru_cache(maxsize=64)
def _name(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name):
        return _PREFIX + name
    plain = "".join(c if _PLAIN_NAME.fullmatch(c) else _escaped(c) for c in name)
    return _PREFIX + plain


@lru_cache(maxsize=64)
def _attribute(name: str) -> str | None:
    """What a header with this name says; None: nothing of ours."""
    name = name.strip().lower()
    return _decoded(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None


def _escaped(sign: str) -> str:
    return "".join(f"%{byte:02x}" for byte in sign.encode("utf-8", "replace"))


def _value(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else quote(value, safe=_SAFE, errors="replace")


def _decoded(text: str) -> str:
    return unquote(text) if "%" in text else text

"""The sections of a message, written and read by hand: many times as fast as Proton does it.

Writing covers all that we send. Reading covers what nearly every message is like; whatever else
there is, and all that is wrong, is ``Unusual`` and left to Proton.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

_HEADER, _PROPERTIES, _APPLICATION, _DATA = 0x70, 0x73, 0x74, 0x75
_ANNOTATIONS = (0x71, 0x72)
_DURABLE = b"\x00\x53\x70\xc0\x02\x01\x41"
_NULL, _TRUE, _FALSE = b"\x40", b"\x41", b"\x42"
_TEXT = 0xA1
"""What a short text begins with."""
_MANY = 1024
"""Names of properties that are remembered, as text and as bytes."""


class Unusual(Exception):
    """Nothing that is read here."""


class Sections(NamedTuple):
    """What was in a message."""

    subject: Any
    reply_to: Any
    correlation: Any
    content_type: Any
    properties: dict[str, Any]
    body: bytes


# --- writing -----------------------------------------------------------------------------------


def write(
    body: bytes,
    properties: Iterable[tuple[str, Any]],
    *,
    message_id: str = "",
    subject: str = "",
    reply_to: str = "",
    correlation: str = "",
    content_type: str = "",
) -> bytes:
    """A durable message: properties, the application's own properties, data.

    Raises:
        UnicodeEncodeError: a text has no bytes; a content type has to be ASCII.
    """
    fields = [
        *(_text(message_id), _NULL, _NULL, _text(subject), _text(reply_to), _text(correlation)),
        _variable(content_type.encode("ascii"), b"\xa3", b"\xb3") if content_type else _NULL,
    ]
    parts = [_DURABLE, b"\x00\x53\x73", _compound(fields, b"\xc0", b"\xd0")]
    pairs = [part for name, value in properties for part in (_name(name), _value(value))]
    if pairs:
        parts += (b"\x00\x53\x74", _compound(pairs, b"\xc1", b"\xd1"))
    parts += (b"\x00\x53\x75", _variable(body, b"\xa0", b"\xb0"))
    return b"".join(parts)


@lru_cache(maxsize=_MANY)
def _name(name: str) -> bytes:
    return _variable(name.encode(), b"\xa1", b"\xb1")


def _text(text: str) -> bytes:
    return _variable(text.encode(), b"\xa1", b"\xb1") if text else _NULL


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return _variable(value.encode(), b"\xa1", b"\xb1")
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return b"\x81" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"\x82" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return _variable(value, b"\xa0", b"\xb0")
    return _value(str(value))


def _variable(data: bytes, short: bytes, long: bytes) -> bytes:
    size = len(data)
    return short + bytes((size,)) + data if size < 256 else long + struct.pack(">I", size) + data


def _compound(items: list[bytes], short: bytes, long: bytes) -> bytes:
    data = b"".join(items)
    if len(data) < 255 and len(items) < 256:
        return short + bytes((len(data) + 1, len(items))) + data
    return long + struct.pack(">II", len(data) + 4, len(items)) + data


# --- reading -----------------------------------------------------------------------------------


def read(data: bytes) -> Sections:
    """A message of one data section. Raises Unusual."""
    try:
        return _read(data)
    except (IndexError, struct.error, UnicodeDecodeError):
        raise Unusual from None


def _read(data: bytes) -> Sections:
    fields: list[Any] = [None] * 7
    properties: dict[str, Any] = {}
    at, end = 0, len(data)
    while at < end:
        if data[at] != 0 or data[at + 1] != 0x53:
            raise Unusual
        code, at = data[at + 2], at + 3
        if code == _DATA:
            body, at = _simple(data, at)
            if at != end or not isinstance(body, bytes):
                raise Unusual
            _, _, _, subject, reply_to, correlation, content_type = fields
            return Sections(subject, reply_to, correlation, content_type, properties, body)
        count, first, at = _bounds(data, at)
        if code == _PROPERTIES:
            _read_fields(data, first, at, min(count, len(fields)), fields)
        elif code == _APPLICATION:
            properties = _read_map(data, first, at, count)
        elif code != _HEADER and code not in _ANNOTATIONS:
            raise Unusual
    raise Unusual


def _bounds(data: bytes, at: int) -> tuple[int, int, int]:
    """How many items a list or map has, where they begin, and where they end."""
    kind = data[at]
    if kind in (0xC0, 0xC1):
        count, first, end = data[at + 2], at + 3, at + 2 + data[at + 1]
    elif kind in (0xD0, 0xD1):
        size, count = struct.unpack_from(">II", data, at + 1)
        first, end = at + 9, at + 5 + size
    elif kind == 0x45:
        count, first, end = 0, at + 1, at + 1
    else:
        raise Unusual
    if not first <= end <= len(data):
        raise Unusual
    return count, first, end


def _read_fields(data: bytes, at: int, end: int, many: int, fields: list[Any]) -> None:
    for place in range(many):
        fields[place], at = _simple(data, at)
    if at > end:
        raise Unusual


def _read_map(data: bytes, at: int, end: int, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(count // 2):
        if data[at] == _TEXT:  # as nearly all of them are
            first = at + 2
            at = first + data[at + 1]
            name = _decoded(data[first:at])
        else:
            name, at = _simple(data, at)
        if data[at] == _TEXT:
            first = at + 2
            at = first + data[at + 1]
            found[name] = data[first:at].decode()
        else:
            found[name], at = _simple(data, at)
        if not isinstance(name, str):
            raise Unusual
    if at != end:
        raise Unusual
    return found


@lru_cache(maxsize=_MANY)
def _decoded(name: bytes) -> str:
    return name.decode()


def _simple(data: bytes, at: int) -> tuple[Any, int]:
    """A value that has no parts, and where the next one begins."""
    kind = data[at]
    if kind in _SHORT:
        made, first = _SHORT[kind], at + 2
        end = first + data[at + 1]
    elif kind in _LONG:
        made, first = _LONG[kind], at + 5
        end = first + int.from_bytes(data[at + 1 : first])
    elif kind in _PLAIN:
        return _PLAIN[kind], at + 1
    elif kind in _PACKED:
        form = _PACKED[kind]
        return form.unpack_from(data, at + 1)[0], at + 1 + form.size
    else:
        raise Unusual
    if end > len(data):
        raise Unusual
    return made(data[first:end]), end


def _utf8(data: bytes) -> str:
    return data.decode()


def _ascii(data: bytes) -> str:
    return data.decode("ascii")


_SHORT: Mapping[int, Callable[[bytes], Any]] = {0xA0: bytes, 0xA1: _utf8, 0xA3: _ascii}
_LONG: Mapping[int, Callable[[bytes], Any]] = {0xB0: bytes, 0xB1: _utf8, 0xB3: _ascii}
_PLAIN: Mapping[int, Any] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_UNSIGNED = {0x50: ">B", 0x52: ">B", 0x53: ">B", 0x60: ">H", 0x70: ">I", 0x80: ">Q"}
_SIGNED = {0x51: ">b", 0x54: ">b", 0x55: ">b", 0x61: ">h", 0x71: ">i", 0x81: ">q"}
_FORMS = _UNSIGNED | _SIGNED | {0x56: ">?", 0x82: ">d"}
_PACKED = {kind: struct.Struct(form) for kind, form in _FORMS.items()}

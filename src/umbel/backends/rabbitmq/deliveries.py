"""Messages that the server pushes: found at a glance, and read when somebody asks.

pika reads every header of each message, and copies all that has come after each frame. Most
messages here are in the books already, and nothing is wanted of them but their id.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from pika import exceptions, spec  # type: ignore[import-untyped]

from umbel.backends.rabbitmq.frames import FRAME, LONG

_METHOD = struct.Struct(">BHLL")
HEADER = struct.Struct(">BHLHHQ")
_TAG = struct.Struct(">Q")
_FLAGS = struct.Struct(">H")
_TEXT = ord("S")
_BEFORE_HEADERS = spec.BasicProperties.FLAG_HEADERS | spec.BasicProperties.FLAG_CONTENT_ENCODING | 1
"""Whether there are headers, and what hardly anybody sends before them: an encoding, more flags."""
UNREADABLE = (ValueError, OverflowError, OSError, LookupError, struct.error, exceptions.AMQPError)
"""What pika raises over properties that it cannot read: a date after the year 9999 is enough."""


class Told(NamedTuple):
    """What a message says of itself."""

    headers: Mapping[Any, Any] = {}
    content_type: str = ""
    reply_to: str = ""
    correlation: str = ""


class Delivery:
    """A message as it came: what to acknowledge it by, and what it holds.

    Its properties are as they came, too, unless pika has read them.
    """

    __slots__ = ("_properties", "body", "tag")

    def __init__(self, tag: int, properties: bytes | spec.BasicProperties, body: bytes) -> None:
        self.tag = tag
        self.body = body
        self._properties = properties

    def glimpse(self, header: str) -> str | None:
        """The text of a header, if it can be told without reading the others."""
        told = self._properties
        if not isinstance(told, bytes):
            found = (told.headers or {}).get(header)
            return found if isinstance(found, str) else None
        try:
            return _text_of(told, header.encode())
        except (struct.error, IndexError):
            return None

    def read(self) -> Told:
        """All of it; nothing, if pika cannot read it."""
        told = self._properties
        if isinstance(told, bytes):
            try:
                told = spec.BasicProperties().decode(told)
            except UNREADABLE:
                return Told()
        return Told(
            told.headers or {},
            _text(told.content_type),
            _text(told.reply_to),
            _text(told.correlation_id),
        )


class Pushed(NamedTuple):
    """A message among what the server has said, and where it ends there."""

    channel: int
    consumer: bytes
    delivery: Delivery
    end: int


def pushed(said: bytes, at: int) -> Pushed | None:
    """The message that begins there; None if it is another thing, or not all of it is here."""
    try:
        kind, channel, size, index = _METHOD.unpack_from(said, at)
        if kind != spec.FRAME_METHOD or index != spec.Basic.Deliver.INDEX:
            return None
        head = _after(said, at, size)
        name = at + _METHOD.size + 1
        consumer = said[name : name + said[name - 1]]
        (tag,) = _TAG.unpack_from(said, name + len(consumer))
        kind, other, size, _, _, left = HEADER.unpack_from(said, head)
        if kind != spec.FRAME_HEADER or other != channel:
            return None
        end = _after(said, head, size)
        told = said[head + HEADER.size : end - 1]
        pieces: list[bytes] = []
        while left > 0:
            kind, other, size = FRAME.unpack_from(said, end)
            if kind != spec.FRAME_BODY or other != channel:
                return None
            begin, end = end + FRAME.size, _after(said, end, size)
            pieces.append(said[begin : begin + size])
            left -= size
    except (struct.error, IndexError):
        return None
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return Pushed(channel, consumer, Delivery(tag, told, body), end) if left == 0 else None


def _after(said: bytes, at: int, size: int) -> int:
    """Where the next frame begins. Raises IndexError: this one does not end as it should."""
    end = at + FRAME.size + size
    if said[end] != spec.FRAME_END:
        raise IndexError(end)
    return end + 1


def _text_of(told: bytes, header: bytes) -> str | None:
    """Steps over headers that are plain texts, as ours are, to the one of that name.

    Raises:
        struct.error, IndexError: they end before they should.
    """
    (flags,) = _FLAGS.unpack_from(told)
    if flags & _BEFORE_HEADERS != spec.BasicProperties.FLAG_HEADERS:
        return None
    at = _FLAGS.size
    if flags & spec.BasicProperties.FLAG_CONTENT_TYPE:
        at += 1 + told[at]
    (size,) = LONG.unpack_from(told, at)
    at += LONG.size
    end = at + size
    while at < end:
        name, kind = at + 1, at + 1 + told[at]
        if told[kind] != _TEXT:
            return None
        (size,) = LONG.unpack_from(told, kind + 1)
        at = kind + 1 + LONG.size + size
        if told[name:kind] == header:
            text = told[at - size : at]
            return text.decode() if at <= end and text.isascii() else None
    return None


def _text(value: str | bytes | None) -> str:
    """A property of a message. What is not UTF-8 pika leaves as it is."""
    return value.decode("latin-1") if isinstance(value, bytes) else value or ""

"""A message as the frames it travels in: the very bytes that pika writes, in a tenth of the time.

pika makes an object for each frame and a call for each part of a header; of what a caller waits
for, that was more than the server's own work. Nothing else of the protocol is written here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from pika import data, exceptions, spec  # type: ignore[import-untyped]

FRAME = struct.Struct(">BHL")
_PUBLISH = struct.Struct(">HHH")
_HEADER = struct.Struct(">BHLHHQH")
LONG = struct.Struct(">L")
_CONFIRM = struct.Struct(">BHLLQBB")
_END = bytes([spec.FRAME_END])
_BEFORE_PROPERTIES = _HEADER.size - FRAME.size
_AROUND = spec.FRAME_HEADER_SIZE + spec.FRAME_END_SIZE
_MANDATORY = b"\x01"
_DURABLE = b"\x02"
_TEXT = b"S"
_TOLD = (
    spec.BasicProperties.FLAG_CONTENT_TYPE
    | spec.BasicProperties.FLAG_HEADERS
    | spec.BasicProperties.FLAG_DELIVERY_MODE
    | spec.BasicProperties.FLAG_MESSAGE_ID
)


class Message(NamedTuple):
    """What is sent to a queue, and the id by which an unroutable one is known again."""

    queue: str
    id: str
    headers: Mapping[str, str]
    content_type: str
    body: bytes
    correlation: str | None = None


class Confirm(NamedTuple):
    """What the server has taken: a message, by its number on the channel, or all up to it."""

    number: int
    and_lower: bool


def publish(channel: Any, message: Message) -> None:
    """Send a message over a channel of pika's. Raises pika's errors."""
    if not channel.is_open:
        raise exceptions.ChannelWrongStateError("the channel is closed")
    line = channel.connection
    line._output_marshaled_frames([written(message, channel.channel_number, line.params.frame_max)])


def written(message: Message, channel: int, largest: int) -> bytes:
    """The frames of a message that outlives a restart, and comes back where there is no queue.

    None of them is larger than ``largest``, the server's limit, but the one with the headers.

    Raises:
        pika.exceptions.ShortStringTooLong: a name or an id has more than 255 bytes.
    """
    flags, parts = _TOLD, [_known(message.content_type), _table(message.headers), _DURABLE]
    if message.correlation is not None:
        flags |= spec.BasicProperties.FLAG_CORRELATION_ID
        parts.append(_short(message.correlation))
    parts.append(_short(message.id))
    properties, body = b"".join(parts), message.body
    size = _BEFORE_PROPERTIES + len(properties)
    head = _HEADER.pack(spec.FRAME_HEADER, channel, size, spec.Basic.INDEX, 0, len(body), flags)
    found = [_method(channel, message.queue), head, properties, _END]
    room = largest - _AROUND
    for at in range(0, len(body), room):
        piece = body[at : at + room]
        found += (FRAME.pack(spec.FRAME_BODY, channel, len(piece)), piece, _END)
    return b"".join(found)


def confirms(heard: bytes, channel: int) -> tuple[list[Confirm], bytes]:
    """What the server has taken, as far as it says nothing else before, and what else it says."""
    found: list[Confirm] = []
    ours = (spec.FRAME_METHOD, channel, _CONFIRM.size - _AROUND, spec.Basic.Ack.INDEX)
    at = 0
    while len(heard) - at >= _CONFIRM.size:
        *what, number, and_lower, end = _CONFIRM.unpack_from(heard, at)
        if (*what,) != ours or end != spec.FRAME_END:
            break
        found.append(Confirm(number, bool(and_lower & 1)))
        at += _CONFIRM.size
    return found, heard[at:]


@lru_cache(maxsize=1024)
def _method(channel: int, queue: str) -> bytes:
    """The frame that says where a message goes: by way of the exchange without a name."""
    index = spec.Basic.Publish.INDEX
    said = _PUBLISH.pack(index >> 16, index & 0xFFFF, 0) + _short("") + _short(queue) + _MANDATORY
    return FRAME.pack(spec.FRAME_METHOD, channel, len(said)) + said + _END


def _table(headers: Mapping[str, str]) -> bytes:
    parts: list[bytes] = []
    for name, text in headers.items():
        value = text.encode()
        parts += (_known(name), _TEXT, LONG.pack(len(value)), value)
    table = b"".join(parts)
    return LONG.pack(len(table)) + table


def _short(text: str) -> bytes:
    pieces: list[bytes] = []
    data.encode_short_string(pieces, text)
    return b"".join(pieces)


_known = lru_cache(maxsize=1024)(_short)
"""Of what is said again and again: names of headers, content types."""

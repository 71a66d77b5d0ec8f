"""CloudEvents as stream entries: a field for each attribute, ``datacontenttype``, and ``data``.

An event may also be one field, ``data``, with the whole event as structured JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from umbel.backends.redis.scripts import pack_bytes
from umbel.backends.redis.values import text
from umbel.backends.transport import Lane, MessageHeaders
from umbel.errors import MessageTooLarge
from umbel.messages import Envelope
from umbel.messages.wire import MEDIA_TYPE, attributes

MAX_BODY_BYTES = 16 * 1024 * 1024
"""The server has a limit of its own, proto-max-bulk-len, usually 512 MiB."""
_CONTENT_TYPE, _DATA = "datacontenttype", "data"
_MAX_MESSAGES, _MAX_BYTES = 1000, 8_000_000
"""Limits of one call."""

Row = list[Any]


def lane_name(lane: Lane) -> str:
    """Return the name of a lane in a key."""
    return f"{lane.kind}:{lane.queue}"


def to_row(envelope: Envelope) -> Row:
    """Return a row of ``send``: the lane, then fields and values.

    Raises:
        MessageTooLarge: the body is over the limit.
    """
    data = envelope.body.data
    if len(data) > MAX_BODY_BYTES:
        raise MessageTooLarge(
            f"job {envelope.id} has {len(data):,} bytes; the limit over Redis is"
            f" {MAX_BODY_BYTES:,}. Pass a reference (a path, a key, a URL) instead of the data"
        )
    row: Row = [lane_name(Lane(envelope.queue, envelope.kind))]
    for pair in attributes(envelope).items():
        row += pair
    row += (_CONTENT_TYPE, envelope.body.content_type, _DATA, pack_bytes(data))
    return row


def from_fields(fields: Sequence[bytes]) -> tuple[MessageHeaders, bytes]:
    """Return the headers and the data of an entry."""
    found = {text(fields[at]): fields[at + 1] for at in range(0, len(fields), 2)}
    data = found.pop(_DATA, b"")
    content_type = text(found.pop(_CONTENT_TYPE, None))
    if not found and not content_type and data[:1] == b"{":
        content_type = MEDIA_TYPE
    return MessageHeaders({name: text(value) for name, value in found.items()}, content_type), data


def batches(envelopes: Sequence[Envelope]) -> Iterator[Sequence[Envelope]]:
    """Yield the envelopes in batches, each small enough for one call."""
    start, size = 0, 0
    for at, envelope in enumerate(envelopes):
        body_size = len(envelope.body.data)
        if at > start and (at - start == _MAX_MESSAGES or size + body_size > _MAX_BYTES):
            yield envelopes[start:at]
            start, size = at, 0
        size += body_size
    yield envelopes[start:]

"""CloudEvents in a stream: a field for each attribute, ``datacontenttype``, and the ``data``.

An event may also be one field, ``data``, with all of it as structured JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from umbel.backends.redis.scripts import octets
from umbel.backends.redis.values import text
from umbel.backends.transport import Heading, Lane
from umbel.errors import MessageTooLarge
from umbel.messages import Envelope
from umbel.messages.wire import MEDIA_TYPE, attributes

LIMIT = 16 * 1024 * 1024
"""Bytes of body. The server has a limit of its own, proto-max-bulk-len: 512 MiB as a rule."""
_TYPE, _DATA = "datacontenttype", "data"
_MOST, _LARGEST = 1000, 8_000_000
"""Messages, and bytes, that go to the server in one step."""

Row = list[Any]


def lane_name(lane: Lane) -> str:
    """What a lane is called in a key."""
    return f"{lane.kind}:{lane.queue}"


def to_row(envelope: Envelope) -> Row:
    """A row of ``send``: the lane, then fields and values.

    Raises:
        MessageTooLarge: the body is over the limit.
    """
    data = envelope.body.data
    if len(data) > LIMIT:
        raise MessageTooLarge(
            f"job {envelope.id} has {len(data):,} bytes; over Redis {LIMIT:,} are the most. Pass a"
            " reference (a path, a key, a URL) instead of the data"
        )
    row: Row = [lane_name(Lane(envelope.queue, envelope.kind))]
    for pair in attributes(envelope).items():
        row += pair
    row += (_TYPE, envelope.body.content_type, _DATA, octets(data))
    return row


def from_fields(fields: Sequence[bytes]) -> tuple[Heading, bytes]:
    """What an entry says, and its data."""
    found = {text(fields[at]): fields[at + 1] for at in range(0, len(fields), 2)}
    data = found.pop(_DATA, b"")
    content_type = text(found.pop(_TYPE, None))
    if not found and not content_type and data[:1] == b"{":
        content_type = MEDIA_TYPE
    return Heading({name: text(value) for name, value in found.items()}, content_type), data


def windows(envelopes: Sequence[Envelope]) -> Iterator[Sequence[Envelope]]:
    """The envelopes, as many at a time as go to the server in one step."""
    start, size = 0, 0
    for at, envelope in enumerate(envelopes):
        here = len(envelope.body.data)
        if at > start and (at - start == _MOST or size + here > _LARGEST):
            yield envelopes[start:at]
            start, size = at, 0
        size += here
    yield envelopes[start:]

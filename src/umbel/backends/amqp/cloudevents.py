"""Envelopes as messages and back: the AMQP 1.0 binding of CloudEvents."""

from __future__ import annotations

from typing import Any

import msgspec

from umbel.backends.amqp.message_bytes import Post, decode, encode
from umbel.backends.transport import Arrival, Heading, Lane
from umbel.errors import BadMessage
from umbel.messages import Envelope
from umbel.messages.documents import CORRELATION, REPLY_TO
from umbel.messages.wire import MEDIA_TYPE, attributes, write

LIMIT = 16 * 1024 * 1024
"""Bytes of body, where the broker names no limit of its own."""
_SHORT = 255


def to_message(envelope: Envelope, correlation: str = "") -> bytes:
    """What is sent. A content type that no symbol can hold travels in the body, with all else.

    Raises:
        BadMessage: an attribute is no text that can be encoded.
    """
    content_type = envelope.body.content_type
    if not content_type.isascii() or len(content_type) > _SHORT:
        structured = write(envelope)
        post = Post(
            id=envelope.id, body=structured, content_type=MEDIA_TYPE, correlation=correlation
        )
    else:
        post = Post(
            id=envelope.id,
            body=envelope.body.data,
            content_type=content_type,
            correlation=correlation,
            attributes=attributes(envelope),
        )
    return encode(post)


def to_arrival(lane: Lane, token: Any, data: bytes) -> Arrival:
    """What was received. A sender's own reply-to and correlation-id count as attributes."""
    try:
        post = decode(data)
    except BadMessage:
        return Arrival.of(lane, token, Heading({}, ""), data)
    asked = {REPLY_TO: post.reply_to, CORRELATION: post.correlation}
    asked = {name: text for name, text in asked.items() if text}
    if asked and post.content_type.partition(";")[0].strip().lower() == MEDIA_TYPE:
        heading = Heading({}, post.content_type)
        return Arrival.of(lane, token, heading, _amended(post.body, asked))
    heading = Heading(asked | post.attributes, post.content_type)
    return Arrival.of(lane, token, heading, post.body)


def _amended(event: bytes, asked: dict[str, str]) -> bytes:
    """A structured event with attributes that it does not have itself."""
    try:
        found = msgspec.json.decode(event)
        return msgspec.json.encode(asked | found) if isinstance(found, dict) else event
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return event  # whoever reads it says what is wrong

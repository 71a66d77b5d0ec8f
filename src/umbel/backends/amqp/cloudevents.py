"""Envelopes as AMQP messages and back: the AMQP 1.0 binding of CloudEvents."""

from __future__ import annotations

from typing import Any

import msgspec

from umbel.backends.amqp.message_codec import AmqpMessage, decode, encode
from umbel.backends.transport import Arrival, Lane, MessageHeaders
from umbel.errors import BadMessage
from umbel.messages import Envelope
from umbel.messages.documents import CORRELATION, REPLY_TO
from umbel.messages.wire import MEDIA_TYPE, attributes, write

DEFAULT_MAX_BODY_BYTES = 16 * 1024 * 1024
"""The limit where the broker reports none."""
_MAX_SYMBOL_LENGTH = 255
_MAX_HEADERS = 1_000
"""A message with more headers is sent in structured mode, in case Proton limits a map."""


def to_message(envelope: Envelope, correlation: str = "") -> bytes:
    """Return an envelope as a message: in binary mode, or in structured mode where that fails.

    Binary mode fails for a content type that is not an AMQP symbol, and for very many headers.

    Raises:
        BadMessage: an attribute is text that cannot be encoded.
    """
    if not _is_symbol(envelope.body.content_type) or len(envelope.headers) > _MAX_HEADERS:
        message = AmqpMessage(
            id=envelope.id, body=write(envelope), content_type=MEDIA_TYPE, correlation=correlation
        )
    else:
        message = AmqpMessage(
            id=envelope.id,
            body=envelope.body.data,
            content_type=envelope.body.content_type,
            correlation=correlation,
            attributes=attributes(envelope),
        )
    return encode(message)


def to_arrival(lane: Lane, token: Any, data: bytes) -> Arrival:
    """Return a received message as an arrival.

    Its AMQP properties reply-to and correlation-id count as attributes of the event, unless the
    event has such attributes itself.
    """
    try:
        message = decode(data)
    except BadMessage:
        return Arrival.of(lane, token, MessageHeaders({}, ""), data)
    properties = {REPLY_TO: message.reply_to, CORRELATION: message.correlation}
    properties = {name: text for name, text in properties.items() if text}
    if properties and message.content_type.partition(";")[0].strip().lower() == MEDIA_TYPE:
        headers = MessageHeaders({}, message.content_type)
        return Arrival.of(lane, token, headers, _add_attributes(message.body, properties))
    headers = MessageHeaders(properties | message.attributes, message.content_type)
    return Arrival.of(lane, token, headers, message.body)


def _is_symbol(text: str) -> bool:
    return text.isascii() and text.isprintable() and len(text) <= _MAX_SYMBOL_LENGTH


def _add_attributes(event: bytes, added: dict[str, str]) -> bytes:
    """Return a structured event with those attributes that it does not have itself."""
    try:
        found = msgspec.json.decode(event)
        return msgspec.json.encode(added | found) if isinstance(found, dict) else event
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return event  # its reader reports what is wrong with it

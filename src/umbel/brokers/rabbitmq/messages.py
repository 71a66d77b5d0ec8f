"""Envelopes as AMQP messages and back: the AMQP binding of CloudEvents 1.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from umbel.drivers.rabbitmq import Message
from umbel.errors import BadMessage, MessageTooLarge
from umbel.messages import Envelope
from umbel.messages.wire import MEDIA_TYPE, attributes, write

LIMIT = 16 * 1024 * 1024
"""Bytes of body. The server's own limit is configurable, 128 MiB or less by default."""

_PREFIX = "cloudEvents_"
_OTHER_PREFIX = "cloudEvents:"
_SHORT = 255
"""Bytes that AMQP allows a header's name, or a content type."""
_HEADERS = 65_536
"""Bytes of headers. They have to fit into one frame, of 128 KiB as a rule."""


def to_message(envelope: Envelope, queue: str) -> Message:
    """What is sent. Attributes that no header can hold travel in the body, as structured JSON.

    Raises:
        MessageTooLarge: the body is over the limit.
        BadMessage: an attribute is no text that can be encoded.
    """
    headers = {_PREFIX + name: text for name, text in attributes(envelope).items()}
    content_type, body = envelope.body.content_type, envelope.body.data
    if not _fits(headers, content_type):
        headers, content_type, body = {}, MEDIA_TYPE, write(envelope)
    if len(body) > LIMIT:
        raise MessageTooLarge(
            f"job {envelope.id} has {len(body):,} bytes; over RabbitMQ {LIMIT:,} are the most."
            " Pass a reference (a path, a key, a URL) instead of the data"
        )
    return Message(queue, envelope.id, headers, content_type, body)


def to_attributes(headers: Mapping[Any, Any]) -> dict[str, Any]:
    """CloudEvents attributes out of a message's headers; other headers are not ours."""
    prefixes = (_PREFIX, _OTHER_PREFIX)
    return {
        name[len(_PREFIX) :]: value
        for name, value in headers.items()
        if isinstance(name, str) and name.startswith(prefixes)
    }


def _fits(headers: Mapping[str, str], content_type: str) -> bool:
    try:
        longest = max(len(name.encode()) for name in (*headers, content_type))
        total = sum(len(name) + len(text.encode()) for name, text in headers.items())
    except UnicodeEncodeError as error:
        raise BadMessage("attributes", f"not text that can be sent: {error}") from None
    return longest <= _SHORT and total <= _HEADERS

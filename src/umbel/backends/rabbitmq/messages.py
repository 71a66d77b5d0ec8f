"""Envelopes as AMQP messages and back: the AMQP binding of CloudEvents 1.0."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from pika import exceptions, spec  # type: ignore[import-untyped]

from umbel.backends.transport import MessageHeaders, Reply
from umbel.errors import BadMessage, MessageTooLarge
from umbel.messages import Envelope
from umbel.messages.documents import CORRELATION, REPLY_TO, without_data
from umbel.messages.wire import MEDIA_TYPE, attributes, write

MAX_BODY_BYTES = 16 * 1024 * 1024
"""The server's own limit is configurable, 128 MiB or less by default."""

_PREFIX = "cloudEvents_"
_OTHER_PREFIX = "cloudEvents:"
_ID = _PREFIX + "id"
_MAX_SHORT_STRING_BYTES = 255
"""The limit of AMQP for names, content types and the fields of the properties."""
_MAX_HEADERS_BYTES = 65_536
"""All headers have to fit into one frame. Its limit is 128 KiB by default."""


class Message(NamedTuple):
    """A message for a queue. The id identifies it if the server returns it as unroutable."""

    queue: str
    id: str
    headers: Mapping[str, str]
    content_type: str
    body: bytes
    correlation: str | None = None

    @property
    def properties(self) -> spec.BasicProperties:
        """The properties of a persistent message."""
        return spec.BasicProperties(
            content_type=self.content_type,
            headers=self.headers,
            delivery_mode=spec.PERSISTENT_DELIVERY_MODE,
            correlation_id=self.correlation,
            message_id=self.id,
        )


class Delivery(NamedTuple):
    """A message that the server delivered, and the tag that acknowledges it."""

    tag: int
    properties: spec.BasicProperties
    body: bytes

    @property
    def id(self) -> str | None:
        """The CloudEvents id in the headers, if it is there."""
        found = (self.properties.headers or {}).get(_ID)
        return found if isinstance(found, str) else None


def to_message(envelope: Envelope, queue: str) -> Message:
    """Return the message of an envelope.

    Attributes that do not fit into headers are in the body, as structured JSON.

    Raises:
        MessageTooLarge: the body is over the limit.
        BadMessage: an attribute is not text that can be encoded.
    """
    headers = {_PREFIX + name: text for name, text in attributes(envelope).items()}
    content_type, body, unit = envelope.body.content_type, envelope.body.data, "bytes"
    if not _fits(headers, content_type):
        headers, content_type, body = {}, MEDIA_TYPE, write(envelope)
        unit = "bytes with its headers"
    if len(body) > MAX_BODY_BYTES:
        raise MessageTooLarge(
            f"job {envelope.id} has {len(body):,} {unit}; the limit over RabbitMQ is"
            f" {MAX_BODY_BYTES:,}. Pass a reference (a path, a key, a URL) instead of the data"
        )
    return Message(queue, envelope.id, headers, content_type, body)


def to_reply(reply: Reply) -> Message | None:
    """Return the message of a reply; None if the address cannot be the name of a queue."""
    address, document = reply.asked.address, reply.document
    if not _is_short(address):
        return None
    if len(document.body.data) > MAX_BODY_BYTES:
        document = without_data(document, MAX_BODY_BYTES)
    message = to_message(document, address)
    correlation = reply.asked.correlation
    return message._replace(correlation=correlation if _is_short(correlation) else None)


def to_headers(delivery: Delivery) -> MessageHeaders:
    """Return the CloudEvents attributes of a message. Headers without the prefix are ignored.

    AMQP has its own fields for the reply address; CloudEvents attributes take precedence.
    """
    prefixes, properties = (_PREFIX, _OTHER_PREFIX), delivery.properties
    found: dict[str, Any] = {
        name[len(_PREFIX) :]: value
        for name, value in (properties.headers or {}).items()
        if isinstance(name, str) and name.startswith(prefixes)
    }
    if properties.reply_to:
        found.setdefault(REPLY_TO, _text(properties.reply_to))
    if properties.correlation_id:
        found.setdefault(CORRELATION, _text(properties.correlation_id))
    return MessageHeaders(found, _text(properties.content_type))


def _text(value: str | bytes | None) -> str:
    """Return a property as text. pika leaves properties that are not UTF-8 as bytes."""
    return value.decode("latin-1") if isinstance(value, bytes) else value or ""


def _is_short(text: str) -> bool:
    """Return whether it can be the name of a queue, or a field of the properties."""
    try:
        return 0 < len(text.encode()) <= _MAX_SHORT_STRING_BYTES and "\0" not in text
    except UnicodeEncodeError:
        return False


def _fits(headers: Mapping[str, str], content_type: str) -> bool:
    try:
        total = len("".join((*headers, *headers.values())).encode())
        longest = max(len(name.encode()) for name in (*headers, content_type))
    except UnicodeEncodeError as error:
        raise BadMessage("attributes", f"not text that can be sent: {error}") from None
    return longest <= _MAX_SHORT_STRING_BYTES and total <= _MAX_HEADERS_BYTES


class _LenientProperties(spec.BasicProperties):  # type: ignore[misc]
    """Properties that are empty if they cannot be decoded.

    One header with a date after the year 9999 is enough for that. pika would end the connection,
    and the server would deliver the same message to the next connection.
    """

    def decode(self, encoded: bytes, offset: int = 0) -> Any:
        try:
            return super().decode(encoded, offset)
        except (
            ValueError,
            OverflowError,
            OSError,
            LookupError,
            struct.error,
            exceptions.AMQPError,
        ):
            self.__dict__.update(spec.BasicProperties().__dict__)
            return self


spec.props[spec.BasicProperties.INDEX] = _LenientProperties

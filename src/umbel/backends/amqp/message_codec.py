"""Encode and decode the bytes of an AMQP 1.0 message, the payload of a transfer."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
from proton import Message, ProtonException, timestamp

from umbel.errors import BadMessage
from umbel.messages import not_finite

_PREFIXES = ("cloudEvents:", "cloudEvents_")
"""Prefixes of CloudEvents attributes among the application properties; the first one is sent."""
_PREFIX_LENGTH = len(_PREFIXES[0])


class AmqpMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message. The body is bytes, whichever section of the message it came from."""

    body: bytes = b""
    subject: str = ""
    content_type: str = ""
    reply_to: str = ""
    correlation: str = ""
    attributes: dict[str, Any] = {}
    """CloudEvents attributes, without their prefix."""
    id: str = ""
    """The message's own id. It is sent, but ``decode`` does not read it."""


def encode(message: AmqpMessage) -> bytes:
    """Return the bytes of a durable message with one data section.

    Proton ends a subject, a reply-to and a content type at a NUL character.

    Raises:
        BadMessage: a text or an attribute cannot be encoded.
    """
    try:
        encoded = Message(message.body, durable=True, inferred=True)
        if message.id:
            encoded.id = message.id
        if message.subject:
            encoded.subject = message.subject
        if message.reply_to:
            encoded.reply_to = message.reply_to
        if message.correlation:
            encoded.correlation_id = message.correlation
        if message.content_type:
            encoded.content_type = message.content_type
        if message.attributes:
            encoded.properties = {
                _PREFIXES[0] + name: value for name, value in message.attributes.items()
            }
        return bytes(encoded.encode())
    except UnicodeEncodeError as error:
        raise BadMessage("attributes", f"not text that can be sent: {error}") from None
    except ProtonException as error:
        raise BadMessage("attributes", f"cannot be sent: {error}") from None


def decode(data: bytes) -> AmqpMessage:
    """Return the message in these bytes.

    Raises:
        BadMessage: the bytes are not an AMQP 1.0 message, or it is nested too deeply to be read.
    """
    decoded = Message()
    try:
        decoded.decode(data)
        return AmqpMessage(
            body=_to_bytes(decoded.body),
            subject=decoded.subject or "",
            content_type=_to_content_type(decoded.content_type),
            reply_to=decoded.reply_to or "",
            correlation=_to_text(decoded.correlation_id),
            attributes={
                name[_PREFIX_LENGTH:]: _to_plain(value)
                for name, value in (decoded.properties or {}).items()
                if name.startswith(_PREFIXES)
            },
        )
    except RecursionError:
        raise BadMessage("message", "nested too deeply") from None
    except (ProtonException, UnicodeDecodeError, ValueError, TypeError, KeyError) as error:
        raise BadMessage("message", f"not an AMQP 1.0 message: {error}") from None


def _to_text(value: Any) -> str:
    """Return a correlation id, which may be text, bytes, a number, a UUID or None, as text."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return "" if value is None else str(value)


def _to_bytes(body: Any) -> bytes:
    """Return a body as bytes: binary and text as they are, any other value as JSON."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    if isinstance(body, str):
        return body.encode()
    if body is None:
        return b""
    plain = _to_plain(body)
    if not_finite(plain) is None:
        return msgspec.json.encode(plain)
    # Python's json writes NaN and Infinity, which are not JSON: the reader then refuses the data.
    # msgspec would write null, which the reader would take for a value.
    return json.dumps(msgspec.to_builtins(plain)).encode()


def _to_plain(value: Any) -> Any:
    """Return Proton's own number and text types as Python's, and a timestamp in ISO 8601."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, dict):
        return {str(name): _to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, timestamp):
        return _to_time(int(value))
    plain_types: tuple[type[Any], ...] = (int, float, str, bytes)
    for plain_type in plain_types:
        if isinstance(value, plain_type):
            return plain_type(value)
    return str(value)


def _to_time(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)  # outside the years 1 to 9999


def _to_content_type(value: Any) -> str:
    return "" if value in (None, "None") else str(value)  # Proton returns symbol("None") for null

"""Messages as bytes: what travels in a transfer."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
from proton import Message, ProtonException, timestamp

from umbel.backends.amqp import message_sections as sections
from umbel.errors import BadMessage
from umbel.messages import not_finite

_PREFIXES = ("cloudEvents:", "cloudEvents_")
"""What CloudEvents attributes are called among application properties."""
_PREFIX = len(_PREFIXES[0])


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """A message. The body is bytes, whatever section it came in."""

    body: bytes = b""
    subject: str = ""
    content_type: str = ""
    reply_to: str = ""
    correlation: str = ""
    attributes: dict[str, Any] = {}
    """CloudEvents attributes, without their prefix."""
    id: str = ""
    """The message's own id. It is sent, and not read."""


def encode(post: Post) -> bytes:
    """A durable message. Raises BadMessage when a text of it cannot be sent."""
    try:
        return sections.write(
            post.body,
            ((_PREFIXES[0] + name, value) for name, value in post.attributes.items()),
            message_id=post.id,
            subject=post.subject,
            reply_to=post.reply_to,
            correlation=post.correlation,
            content_type=post.content_type,
        )
    except UnicodeEncodeError as error:
        raise BadMessage("attributes", f"not text that can be sent: {error}") from None


def decode(data: bytes) -> Post:
    """Raises BadMessage when it is no message."""
    try:
        found = sections.read(bytes(data))
    except sections.Unusual:
        return _decode_slowly(data)
    return Post(
        body=found.body,
        subject=_text(found.subject),
        content_type=_text(found.content_type),
        reply_to=_text(found.reply_to),
        correlation=_text(found.correlation),
        attributes={
            name[_PREFIX:]: value
            for name, value in found.properties.items()
            if name.startswith(_PREFIXES)
        },
    )


def _decode_slowly(data: bytes) -> Post:
    message = Message()
    try:
        message.decode(data)
        return Post(
            body=_bytes(message.body),
            subject=message.subject or "",
            content_type=_media_type(message.content_type),
            reply_to=message.reply_to or "",
            correlation=_text(message.correlation_id),
            attributes=_attributes(message.properties or {}),
        )
    except (ProtonException, UnicodeDecodeError, ValueError, TypeError, KeyError) as error:
        raise BadMessage("message", f"not one of AMQP 1.0: {error}") from None


def _attributes(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        name[_PREFIX:]: _plain(value)
        for name, value in properties.items()
        if name.startswith(_PREFIXES)
    }


def _text(value: Any) -> str:
    """A property that may be text, bytes, a number or nothing."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return "" if value is None else str(value)


def _bytes(body: Any) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    if isinstance(body, str):
        return body.encode()
    if body is None:
        return b""
    plain = _plain(body)
    if not_finite(plain) is None:
        return msgspec.json.encode(plain)
    # With the words that JSON does not have: the reader then refuses the data, instead of taking
    # null for a number.
    return json.dumps(msgspec.to_builtins(plain)).encode()


def _plain(value: Any) -> Any:
    """Proton's own kinds of number and text as Python's; a time as CloudEvents write it."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, timestamp):
        return _moment(int(value))
    kinds: tuple[type[Any], ...] = (int, float, str, bytes)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(value)
    return str(value)


def _moment(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)  # no time that anybody could mean


def _media_type(value: Any) -> str:
    return "" if value in (None, "None") else str(value)  # Proton makes a symbol even of nothing

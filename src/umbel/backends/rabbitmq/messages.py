"""Envelopes as AMQP messages and back: the AMQP binding of CloudEvents 1.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from umbel.backends.rabbitmq.deliveries import Delivery
from umbel.backends.rabbitmq.frames import Message
from umbel.backends.transport import Heading, Reply
from umbel.errors import BadMessage, MessageTooLarge
from umbel.messages import Envelope
from umbel.messages.documents import CORRELATION, REPLY_TO, without_data
from umbel.messages.wire import MEDIA_TYPE, attributes, write

LIMIT = 16 * 1024 * 1024
"""Bytes of body. The server's own limit is configurable, 128 MiB or less by default."""

_PREFIX = "cloudEvents_"
_OTHER_PREFIX = "cloudEvents:"
ID = _PREFIX + "id"
_SHORT = 255
"""Bytes that AMQP allows a header's name, or a content type."""
_LETTER = 4
"""Bytes that one has at the most."""
_HEADERS = 65_536
"""Bytes of headers. They have to fit into one frame, of 128 KiB as a rule."""


def to_message(envelope: Envelope, queue: str) -> Message:
    """What is sent. Attributes that no header can hold travel in the body, as structured JSON.

    Raises:
        MessageTooLarge: the body is over the limit.
        BadMessage: an attribute is no text that can be encoded.
    """
    headers = {_PREFIX + name: text for name, text in attributes(envelope).items()}
    content_type, body, what = envelope.body.content_type, envelope.body.data, "bytes"
    if not _fits(headers, content_type):
        headers, content_type, body = {}, MEDIA_TYPE, write(envelope)
        what = "bytes with its headers"
    if len(body) > LIMIT:
        raise MessageTooLarge(
            f"job {envelope.id} has {len(body):,} {what}; over RabbitMQ {LIMIT:,} are the most."
            " Pass a reference (a path, a key, a URL) instead of the data"
        )
    return Message(queue, envelope.id, headers, content_type, body)


def to_answer(reply: Reply) -> Message | None:
    """What an asker is sent; None when no queue can have such a name."""
    address, document = reply.asked.address, reply.document
    if not _is_short(address):
        return None
    if len(document.body.data) > LIMIT:
        document = without_data(document, LIMIT)
    message = to_message(document, address)
    word = reply.asked.correlation
    return message._replace(correlation=word if _is_short(word) else None)


def to_heading(delivery: Delivery) -> Heading:
    """What a message's headers say; those without a prefix are not ours.

    AMQP has words of its own for who asks; an attribute that says otherwise counts more.
    """
    prefixes, told = (_PREFIX, _OTHER_PREFIX), delivery.read()
    found: dict[str, Any] = {
        name[len(_PREFIX) :]: value
        for name, value in told.headers.items()
        if isinstance(name, str) and name.startswith(prefixes)
    }
    if told.reply_to and REPLY_TO not in found:
        found[REPLY_TO] = told.reply_to
    if told.correlation and CORRELATION not in found:
        found[CORRELATION] = told.correlation
    return Heading(found, told.content_type)


def _is_short(text: str) -> bool:
    """Whether AMQP can say it as a name, or as a word of its own."""
    try:
        return 0 < len(text.encode()) <= _SHORT and "\0" not in text
    except UnicodeEncodeError:
        return False


def _fits(headers: Mapping[str, str], content_type: str) -> bool:
    names = (*headers, content_type)
    try:
        total = len("".join((*headers, *headers.values())).encode())
        longest = max(map(len, names))
        if longest > _SHORT // _LETTER:  # else it fits, whatever its letters are
            longest = max(len(name.encode()) for name in names)
    except UnicodeEncodeError as error:
        raise BadMessage("attributes", f"not text that can be sent: {error}") from None
    return longest <= _SHORT and total <= _HEADERS

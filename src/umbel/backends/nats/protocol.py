"""Protocol lines for outgoing messages, and the responses to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from umbel.backends.nats.errors import NO_RESPONDERS


class OutgoingMessage(NamedTuple):
    """A message to publish. ``headers`` is a block of NATS headers, or empty."""

    subject: str
    headers: bytes
    data: bytes


class Response(NamedTuple):
    """The response to a message."""

    data: bytes
    status: int
    """The status of a response from the server itself, which nothing subscribed to; else 0."""

    @property
    def is_missing(self) -> bool:
        """Whether nothing is subscribed to the subject."""
        return self.status == NO_RESPONDERS


def request_lines(messages: Sequence[OutgoingMessage], inbox: str) -> bytes:
    """Return the protocol lines of messages. Each has its own reply subject below the inbox."""
    return b"".join([_lines(one, f"{inbox}.{number}") for number, one in enumerate(messages)])


def publish_lines(messages: Sequence[OutgoingMessage]) -> bytes:
    """Return the protocol lines of messages without a reply subject."""
    return b"".join([_lines(one, "") for one in messages])


def acknowledgement(token: bytes) -> bytes:
    """Return the line that makes JetStream delete a message."""
    return b"PUB %b 4\r\n+ACK\r\n" % token


def negative_acknowledgement(token: bytes) -> bytes:
    """Return the line that makes JetStream deliver a message again, to any receiver."""
    return b"PUB %b 4\r\n-NAK\r\n" % token


def status_of(headers: bytes) -> int:
    """Return the status in the first line of a block of headers (``NATS/1.0 503``), or 0."""
    digits = headers[9:12]
    return int(digits) if headers[8:9] == b" " and digits.isdigit() else 0


def _lines(message: OutgoingMessage, reply: str) -> bytes:
    subject, headers, data = message
    target = f"{subject} {reply}" if reply else subject
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (target.encode(), len(data), data)
    size = len(headers)
    first = f"HPUB {target} {size} {size + len(data)}\r\n".encode()
    return b"%b%b%b\r\n" % (first, headers, data)


class PendingResponses:
    """The responses to a batch of messages."""

    __slots__ = ("_missing", "complete", "found")

    def __init__(self, count: int) -> None:
        self.found: list[Response | None] = [None] * count
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when all responses have arrived, or when no more will arrive."""
        self._missing = count

    def add(self, number: bytes, data: bytes, headers: bytes) -> None:
        """Add the response to one message. Other numbers are ignored."""
        index = int(number) if number.isdigit() else len(self.found)
        if index < len(self.found) and self.found[index] is None:
            self.found[index] = Response(data, status_of(headers))
            self._missing -= 1
            if not self._missing:
                self.finish()

    def finish(self) -> None:
        """Stop waiting."""
        if not self.complete.done():
            self.complete.set_result(None)

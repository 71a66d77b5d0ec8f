"""Messages that were handed out, and their acknowledgements."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from umbel.backends.nats.connections import Connection
from umbel.backends.nats.protocol import acknowledgement, negative_acknowledgement
from umbel.backends.transport import Arrival

_MAX_UNSENT = 10_000
"""Acknowledgements kept for the next connection. Beyond that, messages are delivered again, which
is harmless."""


class Acknowledgements:
    """Acknowledges messages, positively or negatively.

    The server does not confirm acknowledgements. They are valid on any connection, so those
    without an open connection are sent over the next one.
    """

    def __init__(self) -> None:
        self._held: dict[bytes, None] = {}
        self._unsent: deque[bytes] = deque(maxlen=_MAX_UNSENT)

    def add(self, arrivals: Iterable[Arrival]) -> None:
        """Record messages that were handed out."""
        for arrival in arrivals:
            self._held[arrival.token] = None

    def accept(self, arrivals: Iterable[Arrival], connection: Connection | None) -> None:
        """Acknowledge messages."""
        tokens = self._remove(arrivals)
        self._send([acknowledgement(token) for token in tokens], connection)

    def release(self, arrivals: Iterable[Arrival], connection: Connection | None) -> None:
        """Return messages to the server."""
        tokens = self._remove(arrivals)
        self._send([negative_acknowledgement(token) for token in tokens], connection)

    def release_all(self, connection: Connection | None) -> None:
        """Return all messages that are neither accepted nor released."""
        held, self._held = self._held, {}
        self._send([negative_acknowledgement(token) for token in held], connection)

    def send_unsent(self, connection: Connection) -> None:
        """Send over a new connection what could not be sent before."""
        lines = list(self._unsent)
        self._unsent.clear()
        self._send(lines, connection)

    def _remove(self, arrivals: Iterable[Arrival]) -> list[bytes]:
        tokens = [arrival.token for arrival in arrivals]
        for token in tokens:
            self._held.pop(token, None)
        return tokens

    def _send(self, lines: list[bytes], connection: Connection | None) -> None:
        if connection is None:
            self._unsent.extend(lines)
        elif lines:
            connection.write(b"".join(lines))

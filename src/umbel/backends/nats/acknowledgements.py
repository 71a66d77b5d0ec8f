"""Messages that were handed out, and their acknowledgements."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from nats.aio.msg import Msg

from umbel.backends.nats.connections import Connection
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
        self._held: dict[str, None] = {}
        self._unsent: deque[tuple[str, bytes]] = deque(maxlen=_MAX_UNSENT)

    def add(self, arrivals: Iterable[Arrival]) -> None:
        """Record messages that were handed out."""
        for arrival in arrivals:
            self._held[arrival.token] = None

    async def accept(self, arrivals: Iterable[Arrival], connection: Connection | None) -> None:
        """Acknowledge messages."""
        await self._send(self._remove(arrivals), Msg.Ack.Ack, connection)

    async def release(self, arrivals: Iterable[Arrival], connection: Connection | None) -> None:
        """Return messages to the server."""
        await self._send(self._remove(arrivals), Msg.Ack.Nak, connection)

    async def release_all(self, connection: Connection | None) -> None:
        """Return all messages that are neither accepted nor released."""
        held, self._held = self._held, {}
        await self._send(held, Msg.Ack.Nak, connection)

    async def send_unsent(self, connection: Connection) -> None:
        """Send over a new connection what could not be sent before."""
        unsent = list(self._unsent)
        self._unsent.clear()
        for token, answer in unsent:
            await connection.write(token, answer)

    def _remove(self, arrivals: Iterable[Arrival]) -> list[str]:
        tokens = [arrival.token for arrival in arrivals]
        for token in tokens:
            self._held.pop(token, None)
        return tokens

    async def _send(
        self, tokens: Iterable[str], answer: bytes, connection: Connection | None
    ) -> None:
        if connection is None:
            self._unsent.extend((token, answer) for token in tokens)
        else:
            for token in tokens:
                await connection.write(token, answer)

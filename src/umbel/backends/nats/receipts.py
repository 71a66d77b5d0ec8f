"""What was received and is not settled, and the words to the server that settle it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from umbel.backends.nats.connections import Connection, acknowledgement, negative_acknowledgement
from umbel.backends.transport import Arrival

_MOST = 10_000
"""Words kept for the next connection. What is forgotten comes again, which is harmless."""


class Receipts:
    """Says which messages need not come again, and which are to go to somebody else.

    The words are written and not answered. They hold on any connection, so those that find none
    are said on the next one.
    """

    def __init__(self) -> None:
        self._held: dict[bytes, None] = {}
        self._unsaid: deque[bytes] = deque(maxlen=_MOST)

    def note(self, arrivals: Iterable[Arrival]) -> None:
        """These were handed out."""
        for arrival in arrivals:
            self._held[arrival.token] = None

    def accept(self, arrivals: Iterable[Arrival], connection: Connection | None) -> None:
        """These need not come again."""
        tokens = self._settled(arrivals)
        self._say([acknowledgement(token) for token in tokens], connection)

    def release(self, arrivals: Iterable[Arrival], connection: Connection | None) -> None:
        """These go back."""
        tokens = self._settled(arrivals)
        self._say([negative_acknowledgement(token) for token in tokens], connection)

    def release_all(self, connection: Connection | None) -> None:
        """All that is held goes back."""
        held, self._held = self._held, {}
        self._say([negative_acknowledgement(token) for token in held], connection)

    def catch_up(self, connection: Connection) -> None:
        """Say on a new connection what could not be said before."""
        words = list(self._unsaid)
        self._unsaid.clear()
        self._say(words, connection)

    def _settled(self, arrivals: Iterable[Arrival]) -> list[bytes]:
        tokens = [arrival.token for arrival in arrivals]
        for token in tokens:
            self._held.pop(token, None)
        return tokens

    def _say(self, words: list[bytes], connection: Connection | None) -> None:
        if connection is None:
            self._unsaid.extend(words)
        elif words:
            connection.write(b"".join(words))

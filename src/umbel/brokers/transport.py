"""What carries messages where another adapter keeps the books: RabbitMQ, NATS, AMQP 1.0.

A transport may deliver a message twice, late, or to two workers at once; the ledger sorts that
out. What it must not do is lose one that it has confirmed, as far as its server can promise that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from umbel.messages import Envelope


class Lane(NamedTuple):
    """Where a message waits: its queue, and the budget that will run it.

    Each lane is a queue of its own on the server, so that a worker whose threads are busy goes on
    receiving coroutines. The kind is empty when the sender did not know the task.
    """

    queue: str
    kind: str


class Arrival(msgspec.Struct, frozen=True):
    """A message that was received and not acknowledged yet: nobody has looked into it."""

    lane: Lane
    token: Any
    """What the adapter acknowledges it by."""
    attributes: Mapping[str, Any]
    """CloudEvents attributes from the message's headers, without the transport's prefix."""
    content_type: str
    data: bytes


Lost = Callable[[str], None]
"""Told a queue's name when a lane of it was not on the server and was made: for a new one, and for
one that somebody deleted with all that was sent to it."""


class Transport(Protocol):
    """Carries envelopes from whoever sends them to whoever receives them. One event loop's own.

    It connects on use and again after every loss, with all it needs on the server; until that
    works each call raises ``Unavailable`` within its time.
    """

    limit: int
    """Bytes of body the server accepts; a larger one is refused before it is sent."""

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        """All are durable on the server when it returns, in order within a lane.

        Raises:
            Unavailable: any of them may be there or not; sending again is safe.
        """

    async def receive(self, room: Mapping[Lane, int], wait: float) -> list[Arrival]:
        """Up to so many messages of each lane; waits up to ``wait`` seconds for the first.

        What there is no room for is left to other receivers. With no ``wait`` it still gives what
        was confirmed before the call, if nobody else has it.

        Raises:
            Unavailable: try again.
        """

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        """They are in the books and need not come again. One that comes again is harmless."""

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        """They go back, for anybody. What is lost with its connection goes back by itself."""

    def nudge(self) -> None:
        """Make a ``receive`` that waits return now, with what it has: nothing."""

    async def purge(self, queue: str) -> None:
        """Drop what waits in the lanes of a queue: the books hold what is to remain."""

    async def check(self) -> None:
        """Answer, or raise Unavailable with what is wrong."""

    async def close(self) -> None:
        """Free connections; what was not accepted goes back. Closing twice is fine."""


Carry = Callable[[Lost], Transport]
"""Opens a transport for the running event loop."""

"""What carries messages where another adapter keeps the books: RabbitMQ, NATS, AMQP 1.0.

A transport may deliver a message twice, late, or to two workers at once; the ledger sorts that
out. What it must not do is lose one that it has confirmed, as far as its server can promise that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from umbel.messages import Envelope
from umbel.messages.documents import Asked


class Lane(NamedTuple):
    """Where a message waits: its queue, and the budget that will run it.

    Each lane is a queue of its own on the server, so that a worker whose threads are busy goes on
    receiving coroutines. The kind is empty when the sender did not know the task.
    """

    queue: str
    kind: str


class Heading(NamedTuple):
    """What the headers of a message say."""

    attributes: Mapping[str, Any]
    """CloudEvents attributes, without the transport's prefix."""
    content_type: str


class Arrival(msgspec.Struct, frozen=True):
    """A message that was received and not acknowledged yet: nobody has looked into it.

    Most are in the books, and are not read at all: their id tells who they are.
    """

    lane: Lane
    token: Any
    """What the adapter acknowledges it by."""
    data: bytes
    id: Any
    """What the headers call it, as far as that can be told at a glance; None: read them."""
    read: Callable[[], Heading]
    """Reads the headers."""

    @classmethod
    def of(cls, lane: Lane, token: Any, heading: Heading, data: bytes) -> Arrival:
        """One whose headers had to be read for something else already."""
        return cls(lane, token, data, heading.attributes.get("id"), lambda: heading)


class Reply(msgspec.Struct, frozen=True):
    """A document for somebody who asked to hear of a job's end."""

    asked: Asked
    document: Envelope
    queue: str = ""
    """Where the job came from: of several brokers, its own knows the address."""


Lost = Callable[[Lane], object]
"""Told a lane that was not on the server: a new one, or one that somebody deleted with all that was
sent to it. What it returns may have to be awaited: see ``tell``."""


async def tell(lost: Lost, lane: Lane) -> None:
    """Tell of a lane that is missing, and wait until the books know. Then it may be made.

    Whoever dies before leaves it missing, so that the next one tells.
    """
    told = lost(lane)
    if isinstance(told, Awaitable):
        await told


class Transport(Protocol):
    """Carries envelopes from whoever sends them to whoever receives them. One event loop's own.

    It connects on use and again after every loss, with all it needs on the server; until that
    works each call raises ``Unavailable`` within its time.
    """

    @property
    def limit(self) -> int:
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

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Hand each document to the address that asked for it, as the server's own clients would.

        Nobody may be there any more: that is no error. Nothing is made on the server for it.

        Raises:
            Unavailable: any of them may have got there or not.
        """

    def nudge(self) -> None:
        """Make a ``receive`` that waits return now, with what it has: nothing."""

    async def purge(self, queue: str) -> None:
        """Drop what waits in the lanes of a queue: the books hold what is to remain."""

    async def check(self) -> None:
        """Answer, or raise Unavailable with what is wrong."""

    async def close(self) -> None:
        """Free connections; what was not accepted goes back. Closing twice is fine."""


OpenTransport = Callable[[Lost], Transport]
"""Opens a transport for the running event loop."""

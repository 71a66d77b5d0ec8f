"""The port of servers that only carry messages: RabbitMQ, NATS, AMQP 1.0, Redis streams.

A transport may deliver a message twice, late, or to two workers at once; the job store detects
that. A transport must not lose a message that it has confirmed, as far as its server allows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from umbel.messages import Envelope
from umbel.messages.documents import ReplyRequest


class Lane(NamedTuple):
    """Where a message waits: its queue, and the kind of its task.

    Each lane is a separate queue on the server, so that a worker whose threads are busy can still
    receive coroutines. The kind is empty if the sender did not know the task.
    """

    queue: str
    kind: str


class MessageHeaders(NamedTuple):
    """The headers of a message."""

    attributes: Mapping[str, Any]
    """CloudEvents attributes, without the transport's prefix."""
    content_type: str


class Arrival(msgspec.Struct, frozen=True):
    """A message that was received, and not yet parsed or acknowledged.

    The jobs of most messages are in the job store already. For those the id is enough, and the
    message is never parsed.
    """

    lane: Lane
    token: Any
    """What the adapter needs to acknowledge the message."""
    data: bytes
    id: Any
    """The id in the headers, if it can be found without parsing them; else None."""
    read: Callable[[], MessageHeaders]
    """Parses the headers."""

    @classmethod
    def of(cls, lane: Lane, token: Any, headers: MessageHeaders, data: bytes) -> Arrival:
        """Return an arrival whose headers are parsed already."""
        return cls(lane, token, data, headers.attributes.get("id"), lambda: headers)


class Reply(msgspec.Struct, frozen=True):
    """A document for a sender that asked for the result of its job."""

    asked: ReplyRequest
    document: Envelope
    queue: str = ""
    """The job's queue: with several brokers, it selects the one that knows the address."""


OnLaneMissing = Callable[[Lane], object]
"""Called with a lane that the server does not have: a new one, or one that was deleted with the
messages in it. The result may have to be awaited; ``report_missing_lane`` does that."""


async def report_missing_lane(on_lane_missing: OnLaneMissing, lane: Lane) -> None:
    """Report a missing lane, and return when the job store knows. Then the lane may be created.

    If the process dies before that, the lane is still missing and the next process reports it.
    """
    reported = on_lane_missing(lane)
    if isinstance(reported, Awaitable):
        await reported


class Transport(Protocol):
    """Carries messages from senders to receivers. Belongs to one event loop.

    It connects on first use and again after every lost connection, and creates what it needs on the
    server. Until that succeeds, each call raises ``Unavailable`` within its timeout.
    """

    @property
    def max_body_bytes(self) -> int:
        """The largest body that the server accepts. A larger one is refused before it is sent."""

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        """Send messages. When it returns, all are durable on the server, in order within a lane.

        Raises:
            Unavailable: each message may or may not be there; sending again is safe.
        """

    async def receive(self, capacity: Mapping[Lane, int], wait: float) -> list[Arrival]:
        """Receive up to that many messages of each lane. Wait up to ``wait`` seconds for the first.

        Messages beyond the capacity are left to other receivers. With ``wait=0`` it still returns
        messages that were confirmed before the call, unless another receiver has them.

        Raises:
            Unavailable: the caller should try again.
        """

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        """Acknowledge messages whose jobs are in the store. A repeated delivery is harmless."""

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        """Return messages to their lanes, for any receiver.

        Messages of a lost connection return by themselves.
        """

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Send each document to the address in its request, as the server's own clients would.

        It is not an error if nothing listens there any more. Nothing is created on the server.

        Raises:
            Unavailable: each document may or may not have arrived.
        """

    def stop_waiting(self) -> None:
        """Make a ``receive`` that waits return immediately with an empty list."""

    async def purge(self, queue: str) -> None:
        """Delete the messages in the lanes of a queue. The store holds the jobs that remain."""

    async def remove(self, queue: str) -> None:
        """Delete the lanes of a queue with their messages.

        If the server's protocol cannot delete a lane, only the messages are deleted.
        """

    async def check(self) -> None:
        """Return if the server answers. Raise Unavailable with the problem."""

    async def close(self) -> None:
        """Free connections; unacknowledged messages return to their lanes. May be called twice."""


OpenTransport = Callable[[OnLaneMissing], Transport]
"""Opens a transport for the running event loop."""

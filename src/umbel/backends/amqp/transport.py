"""The transport's port over AMQP 1.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from umbel.backends.amqp.address import Home
from umbel.backends.amqp.cloudevents import LIMIT
from umbel.backends.amqp.engine import ACCEPTED, RELEASED
from umbel.backends.amqp.lanes import Lanes
from umbel.backends.amqp.receiver import Receiver
from umbel.backends.amqp.reconnecting import Line
from umbel.backends.amqp.sender import Sender
from umbel.backends.transport import Arrival, Lane, Lost, Reply
from umbel.messages import Envelope


class AmqpTransport:
    """See ``brokers.transport.Transport`` for what each method promises.

    ``patience`` is how many seconds ``send`` waits for the next disposition before it gives up.
    """

    def __init__(self, home: Home, *, namespace: str, lost: Lost, patience: float = 5.0) -> None:
        self.limit = LIMIT
        lanes = Lanes(home, namespace, lost)
        self._lines = Line(home), Line(home)
        self._sender = Sender(self._lines[0], lanes, patience, self._limited)
        self._receiver = Receiver(self._lines[1], lanes)

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        await self._sender.send(envelopes)

    async def receive(self, room: Mapping[Lane, int], wait: float) -> list[Arrival]:
        return await self._receiver.receive(room, wait)

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        self._receiver.settle(arrivals, ACCEPTED)

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        self._receiver.settle(arrivals, RELEASED)

    async def reply(self, replies: Sequence[Reply]) -> None:
        await self._sender.reply(replies)

    def nudge(self) -> None:
        self._receiver.nudge()

    async def purge(self, queue: str) -> None:
        await self._receiver.purge(queue)

    async def check(self) -> None:
        await self._receiver.check()

    async def close(self) -> None:
        try:
            await self._lines[0].close()
        finally:
            await self._lines[1].close()

    def _limited(self, limit: int) -> None:
        self.limit = limit

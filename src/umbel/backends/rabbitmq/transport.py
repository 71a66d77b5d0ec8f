"""The transport's port over RabbitMQ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from umbel.backends.blocking import LostNow, Meanwhile
from umbel.backends.rabbitmq.address import Home
from umbel.backends.rabbitmq.blocking_sender import DirectSender
from umbel.backends.rabbitmq.messages import LIMIT
from umbel.backends.rabbitmq.queues import Queues
from umbel.backends.rabbitmq.receiver import Receiver
from umbel.backends.rabbitmq.sender import Sender
from umbel.backends.transport import Arrival, Lane, Lost, Reply
from umbel.errors import Unavailable
from umbel.messages import Envelope


class RabbitTransport:
    """See ``brokers.transport.Transport`` for what each method promises.

    ``patience`` is how many seconds ``send`` waits for the next confirm before it gives up.
    """

    def __init__(self, home: Home, *, namespace: str, lost: Lost, patience: float = 5.0) -> None:
        self.limit = LIMIT
        self._address = home.address
        queues = Queues(namespace, lost)
        self._sender = Sender(home, queues, patience)
        self._direct = DirectSender(home, queues, patience)
        self._receiver = Receiver(home, queues)

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        await self._sender.send(envelopes)

    def send_now(
        self, envelopes: Sequence[Envelope], timeout: float, lost: LostNow, meanwhile: Meanwhile
    ) -> None:
        self._direct.send(envelopes, timeout, lost, meanwhile)

    async def receive(self, room: Mapping[Lane, int], wait: float) -> list[Arrival]:
        return await self._receiver.receive(room, wait)

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        self._receiver.accept(arrivals)

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        self._receiver.release(arrivals)

    async def reply(self, replies: Sequence[Reply]) -> None:
        await self._sender.reply(replies)

    def nudge(self) -> None:
        self._receiver.nudge()

    async def purge(self, queue: str) -> None:
        await self._receiver.purge(queue)

    async def check(self) -> None:
        await self._receiver.check()
        if why := self._sender.blocked or self._direct.blocked:
            raise Unavailable(f"{self._address} takes no messages at the moment: {why}")

    async def close(self) -> None:
        self._direct.close()
        try:
            await self._sender.close()
        finally:
            await self._receiver.close()

"""The transport port over RabbitMQ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from umbel.backends.rabbitmq.address import RabbitAddress
from umbel.backends.rabbitmq.messages import MAX_BODY_BYTES
from umbel.backends.rabbitmq.queues import Queues
from umbel.backends.rabbitmq.receiver import Receiver
from umbel.backends.rabbitmq.sender import Sender
from umbel.backends.transport import Arrival, Lane, OnLaneMissing, Reply
from umbel.errors import Unavailable
from umbel.messages import Envelope


class RabbitTransport:
    """See ``Transport`` for what each method promises.

    ``confirm_timeout`` is the time in seconds that ``send`` waits for the next confirm.
    """

    def __init__(
        self,
        address: RabbitAddress,
        *,
        namespace: str,
        on_lane_missing: OnLaneMissing,
        confirm_timeout: float = 5.0,
    ) -> None:
        self.max_body_bytes = MAX_BODY_BYTES
        self._label = address.label
        queues = Queues(namespace, on_lane_missing)
        self._sender = Sender(address, queues, confirm_timeout)
        self._receiver = Receiver(address, queues)

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        await self._sender.send(envelopes)

    async def receive(self, capacity: Mapping[Lane, int], wait: float) -> list[Arrival]:
        return await self._receiver.receive(capacity, wait)

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        self._receiver.accept(arrivals)

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        self._receiver.release(arrivals)

    async def reply(self, replies: Sequence[Reply]) -> None:
        await self._sender.reply(replies)

    def stop_waiting(self) -> None:
        self._receiver.stop_waiting()

    async def purge(self, queue: str) -> None:
        await self._receiver.purge(queue)

    async def remove(self, queue: str) -> None:
        await self._receiver.remove(queue)

    async def check(self) -> None:
        await self._receiver.check()
        if self._sender.blocked:
            raise Unavailable(
                f"{self._label} takes no messages at the moment: {self._sender.blocked}"
            )

    async def close(self) -> None:
        try:
            await self._sender.close()
        finally:
            await self._receiver.close()

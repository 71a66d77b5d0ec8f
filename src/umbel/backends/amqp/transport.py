"""The transport port over AMQP 1.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.amqp.cloudevents import DEFAULT_MAX_BODY_BYTES
from umbel.backends.amqp.engine import ACCEPTED, RELEASED
from umbel.backends.amqp.lanes import LaneQueues
from umbel.backends.amqp.receiver import Receiver
from umbel.backends.amqp.reconnecting import Reconnector
from umbel.backends.amqp.sender import Sender
from umbel.backends.transport import Arrival, Lane, OnLaneMissing, Reply
from umbel.messages import Envelope


class AmqpTransport:
    """See ``backends.transport.Transport`` for what each method promises.

    ``send`` fails if no disposition comes for ``send_timeout`` seconds.
    """

    def __init__(
        self,
        address: AmqpAddress,
        *,
        namespace: str,
        on_lane_missing: OnLaneMissing,
        send_timeout: float = 5.0,
    ) -> None:
        self.max_body_bytes = DEFAULT_MAX_BODY_BYTES
        lanes = LaneQueues(address, namespace, on_lane_missing)
        self._reconnectors = Reconnector(address), Reconnector(address)
        self._sender = Sender(self._reconnectors[0], lanes, send_timeout, self._set_limit)
        self._receiver = Receiver(self._reconnectors[1], lanes)

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        await self._sender.send(envelopes)

    async def receive(self, capacity: Mapping[Lane, int], wait: float) -> list[Arrival]:
        return await self._receiver.receive(capacity, wait)

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        self._receiver.settle(arrivals, ACCEPTED)

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        self._receiver.settle(arrivals, RELEASED)

    async def reply(self, replies: Sequence[Reply]) -> None:
        await self._sender.reply(replies)

    def stop_waiting(self) -> None:
        self._receiver.stop_waiting()

    async def purge(self, queue: str) -> None:
        await self._receiver.purge(queue)

    async def remove(self, queue: str) -> None:
        await self.purge(queue)  # AMQP 1.0 has no request that deletes a queue

    async def check(self) -> None:
        await self._receiver.check()

    async def close(self) -> None:
        try:
            await self._reconnectors[0].close()
        finally:
            await self._reconnectors[1].close()

    def _set_limit(self, limit: int) -> None:
        self.max_body_bytes = limit

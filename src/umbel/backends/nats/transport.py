"""The transport port over NATS JetStream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from umbel.backends.nats.acknowledgements import Acknowledgements
from umbel.backends.nats.address import NatsAddress
from umbel.backends.nats.connections import Connection
from umbel.backends.nats.errors import translate_errors
from umbel.backends.nats.jetstream import check, delete_stream, purge
from umbel.backends.nats.lanes import LaneStreams
from umbel.backends.nats.receiver import Receiver
from umbel.backends.nats.reconnecting import Reconnector
from umbel.backends.nats.replies import ReplySender
from umbel.backends.nats.sender import DEFAULT_MAX_BODY_BYTES, Sender, max_body_bytes
from umbel.backends.transport import Arrival, Lane, OnLaneMissing, Reply
from umbel.errors import ConfigurationError
from umbel.messages import KINDS, Envelope


class NatsTransport:
    """See ``Transport`` for what each method promises.

    JetStream does not watch connections: it delivers the unacknowledged messages of a dead process
    again after ``ack_wait`` seconds. Messages are acknowledged right after they are received, so
    it need not be long.

    Raises:
        ConfigurationError: ``ack_wait`` is out of range.
    """

    def __init__(
        self,
        address: NatsAddress,
        *,
        namespace: str,
        on_lane_missing: OnLaneMissing,
        ack_wait: float = 30.0,
    ) -> None:
        if not 0.1 <= ack_wait <= 3600:
            raise ConfigurationError(f"ack_wait={ack_wait!r}: give seconds, 0.1 to 3600")
        self.max_body_bytes = DEFAULT_MAX_BODY_BYTES
        self._acknowledgements = Acknowledgements()
        self._reconnector = Reconnector(address, on_open=self._on_open)
        self._streams = LaneStreams(
            namespace=namespace,
            replicas=address.replicas,
            ack_wait=ack_wait,
            on_lane_missing=on_lane_missing,
        )
        self._sender = Sender(self._reconnector, self._streams)
        self._receiver = Receiver(self._reconnector, self._streams)
        self._reply_sender = ReplySender(address)

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        if envelopes:
            await self._sender.send(envelopes)

    async def receive(self, capacity: Mapping[Lane, int], wait: float) -> list[Arrival]:
        arrivals = await self._receiver.receive(capacity, wait)
        self._acknowledgements.add(arrivals)
        return arrivals

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        await self._acknowledgements.accept(arrivals, self._reconnector.current)

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        await self._acknowledgements.release(arrivals, self._reconnector.current)

    async def reply(self, replies: Sequence[Reply]) -> None:
        await self._reply_sender.reply(replies)

    def stop_waiting(self) -> None:
        self._receiver.stop_waiting()

    async def purge(self, queue: str) -> None:
        with translate_errors(self._reconnector.address.label):
            connection = await self._reconnector.connection()
            for kind in KINDS:
                await purge(connection, self._streams.stream(Lane(queue, kind)))

    async def remove(self, queue: str) -> None:
        with translate_errors(self._reconnector.address.label):
            connection = await self._reconnector.connection()
            for kind in KINDS:
                await delete_stream(connection, self._streams.stream(Lane(queue, kind)))

    async def check(self) -> None:
        with translate_errors(self._reconnector.address.label):
            await check(await self._reconnector.connection())

    async def close(self) -> None:
        await self._acknowledgements.release_all(self._reconnector.current)
        await self._reconnector.close()
        await self._reply_sender.close()

    async def _on_open(self, connection: Connection) -> None:
        self.max_body_bytes = max_body_bytes(connection.max_payload)
        await self._acknowledgements.send_unsent(connection)

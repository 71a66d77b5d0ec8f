"""Messages over NATS JetStream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from umbel.backends.blocking import LostNow, Meanwhile
from umbel.backends.nats.address import Home
from umbel.backends.nats.blocking_sender import DirectSender
from umbel.backends.nats.connections import Connection
from umbel.backends.nats.errors import explaining
from umbel.backends.nats.jetstream import ping, purge
from umbel.backends.nats.lanes import Lanes
from umbel.backends.nats.receipts import Receipts
from umbel.backends.nats.receiver import Receiver
from umbel.backends.nats.reconnecting import Link
from umbel.backends.nats.replies import Answerer
from umbel.backends.nats.sender import ASSUMED, Sender, limit_of
from umbel.backends.transport import Arrival, Lane, Lost, Reply
from umbel.errors import ConfigurationError
from umbel.messages import KINDS, Envelope


class NatsTransport:
    """See ``brokers.transport.Transport`` for what each method promises.

    JetStream does not watch connections: what a process received and did not settle before it
    died comes again after ``ack_wait`` seconds. Settling follows at once on receiving, so it need
    not be long.

    Raises:
        ConfigurationError: ``ack_wait`` is no time.
    """

    def __init__(self, home: Home, *, namespace: str, lost: Lost, ack_wait: float = 30.0) -> None:
        if not 0.1 <= ack_wait <= 3600:
            raise ConfigurationError(f"ack_wait={ack_wait!r}: give seconds, 0.1 to 3600")
        self.limit = ASSUMED
        self._receipts = Receipts()
        self._link = Link(home, opened=self._opened)
        self._lanes = Lanes(
            namespace=namespace, replicas=home.replicas, ack_wait=ack_wait, lost=lost
        )
        self._sender = Sender(self._link, self._lanes)
        self._direct = DirectSender(home, self._lanes)
        self._receiver = Receiver(self._link, self._lanes)
        self._answerer = Answerer(home)

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        if envelopes:
            await self._sender.send(envelopes)

    def send_now(
        self, envelopes: Sequence[Envelope], timeout: float, lost: LostNow, meanwhile: Meanwhile
    ) -> None:
        self.limit = limit_of(self._direct.send(envelopes, timeout, lost, meanwhile))

    async def receive(self, room: Mapping[Lane, int], wait: float) -> list[Arrival]:
        arrivals = await self._receiver.receive(room, wait)
        self._receipts.note(arrivals)
        return arrivals

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        self._receipts.accept(arrivals, self._link.living)

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        self._receipts.release(arrivals, self._link.living)

    async def reply(self, replies: Sequence[Reply]) -> None:
        await self._answerer.reply(replies)

    def nudge(self) -> None:
        self._receiver.nudge()

    async def purge(self, queue: str) -> None:
        with explaining(self._link.home.address):
            connection = await self._link.connection()
            for kind in KINDS:
                await purge(connection, self._lanes.stream(Lane(queue, kind)))

    async def check(self) -> None:
        with explaining(self._link.home.address):
            await ping(await self._link.connection())

    async def close(self) -> None:
        self._direct.close()
        self._receipts.release_all(self._link.living)
        await self._link.close()
        await self._answerer.close()

    def _opened(self, connection: Connection) -> None:
        self.limit = limit_of(connection.max_payload)
        self._receipts.catch_up(connection)

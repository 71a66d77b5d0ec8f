"""Sends envelopes over a connection of its own, which an alarm of the server may block."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from umbel.backends.rabbitmq.address import Home
from umbel.backends.rabbitmq.connections import Connection, connect
from umbel.backends.rabbitmq.frames import Message
from umbel.backends.rabbitmq.messages import to_answer, to_message
from umbel.backends.rabbitmq.publishing import Publishing
from umbel.backends.rabbitmq.queues import Queues
from umbel.backends.transport import Lane, Reply
from umbel.errors import Unavailable
from umbel.messages import Envelope

TRIES = 5
PAUSE = 0.05
"""Seconds, longer each time: a queue that somebody else is just making takes messages soon."""


def untaken(home: Home, message: Message) -> Unavailable:
    """What is wrong when a queue that is there takes nothing."""
    return Unavailable(
        f"{home.address} does not take messages for the queue {message.queue}: it is over its"
        " length, has lost most of its nodes, or is deleted again and again; see the server's log"
    )


class Sender:
    """See ``Transport.send``. Connects on use and again after a loss."""

    def __init__(self, home: Home, queues: Queues, patience: float) -> None:
        self._home = home
        self._queues = queues
        self._patience = patience
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        self._publishing: Publishing | None = None
        self._answering: Publishing | None = None

    @property
    def blocked(self) -> str:
        """Why the server takes no messages at the moment, as far as it has said so."""
        connection = self._connection
        return connection.blocked if connection is not None and connection.is_open else ""

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        """All are durable when it returns. What is not taken is sent again to a queue that is."""
        if not envelopes:
            return
        lanes: dict[str, Lane] = {}
        left: list[Message] = []
        for envelope in envelopes:
            lane = Lane(envelope.queue, envelope.kind)
            name = self._queues.name(lane)
            lanes[name] = lane
            left.append(to_message(envelope, name))
        for number in range(TRIES):
            connection, publishing = await self._connected()
            left = await publishing.publish(left)
            if not left:
                self._queues.saw(lanes.values())
                return
            for name in dict.fromkeys(one.queue for one in left):
                (await self._queues.open(connection, lanes[name])).close()
            await asyncio.sleep(PAUSE * number)
        raise untaken(self._home, left[0])

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Hand over documents. What the server has no queue for, nobody waits for any more.

        They have a channel of their own: the server closes it over an address that it cannot
        read, and what else was on its way there would be in doubt.
        """
        messages = [one for one in map(to_answer, replies) if one is not None]
        if not messages:
            return
        connection, _ = await self._connected()
        async with self._connecting:
            if self._answering is None or not self._answering.is_open:
                self._answering = await connection.publishing(self._patience)
            answering = self._answering
        await answering.publish(messages)

    async def close(self) -> None:
        """Free the connection. Twice is fine."""
        connection, self._connection = self._connection, None
        self._publishing = self._answering = None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> tuple[Connection, Publishing]:
        async with self._connecting:
            connection, publishing = self._connection, self._publishing
            if connection is None or not connection.is_open:
                connection = self._connection = await connect(self._home, "sender")
                publishing = None
            if publishing is None or not publishing.is_open:
                publishing = self._publishing = await connection.publishing(self._patience)
            return connection, publishing

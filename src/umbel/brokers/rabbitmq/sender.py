"""Sends envelopes over a connection of its own, which an alarm of the server may block."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from umbel.brokers.rabbitmq.messages import to_message
from umbel.brokers.rabbitmq.queues import Queues
from umbel.brokers.transport import Lane
from umbel.drivers.rabbitmq import Connection, Home, Message, Publishing, connect
from umbel.errors import Unavailable
from umbel.messages import Envelope

_TRIES = 5
_PAUSE = 0.05
"""Seconds, longer each time: a queue that somebody else is just making takes messages soon."""


class Sender:
    """See ``Transport.send``. Connects on use and again after a loss."""

    def __init__(self, home: Home, queues: Queues, patience: float) -> None:
        self._home = home
        self._queues = queues
        self._patience = patience
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        self._publishing: Publishing | None = None

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
        for number in range(_TRIES):
            connection, publishing = await self._connected()
            left = await publishing.publish(left)
            if not left:
                self._queues.saw(lanes.values())
                return
            for name in dict.fromkeys(one.queue for one in left):
                (await self._queues.open(connection, lanes[name])).close()
            await asyncio.sleep(_PAUSE * number)
        raise Unavailable(
            f"{self._home.address} does not take messages for the queue {left[0].queue}: it is over"
            " its length, has lost most of its nodes, or is deleted again and again; see the"
            " server's log"
        )

    async def close(self) -> None:
        """Free the connection. Twice is fine."""
        connection, self._connection, self._publishing = self._connection, None, None
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

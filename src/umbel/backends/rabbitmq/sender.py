"""Sends envelopes over its own connection, which an alarm of the server may block."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from umbel.backends.rabbitmq.address import RabbitAddress
from umbel.backends.rabbitmq.connections import Connection, connect
from umbel.backends.rabbitmq.messages import Message, to_message, to_reply
from umbel.backends.rabbitmq.publishing import ConfirmChannel
from umbel.backends.rabbitmq.queues import Queues
from umbel.backends.transport import Lane, Reply
from umbel.errors import Unavailable
from umbel.messages import Envelope

_MAX_ATTEMPTS = 5
_RETRY_DELAY = 0.05
"""Seconds, times the number of the attempt. A queue that another process is declaring accepts
messages soon."""
_MAX_UNCONFIRMED = 1000
"""Messages of one caller. pika writes them without letting the event loop run."""


class Sender:
    """See ``Transport.send``. It connects on use, and again after a loss."""

    def __init__(self, address: RabbitAddress, queues: Queues, confirm_timeout: float) -> None:
        self._address = address
        self._queues = queues
        self._confirm_timeout = confirm_timeout
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        self._jobs: ConfirmChannel | None = None
        self._replies: ConfirmChannel | None = None

    @property
    def blocked(self) -> str:
        """Why the server accepts no messages at the moment; empty if it does."""
        connection = self._connection
        return connection.blocked if connection is not None and connection.is_open else ""

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        """See ``Transport.send``. Missing queues are declared."""
        lanes: dict[str, Lane] = {}
        messages: list[Message] = []
        for envelope in envelopes:
            lane = Lane(envelope.queue, envelope.kind)
            name = self._queues.name(lane)
            lanes[name] = lane
            messages.append(to_message(envelope, name))
        for start in range(0, len(messages), _MAX_UNCONFIRMED):
            await self._send(messages[start : start + _MAX_UNCONFIRMED], lanes)
        self._queues.mark_seen(lanes.values())

    async def _send(self, messages: list[Message], lanes: Mapping[str, Lane]) -> None:
        for attempt in range(_MAX_ATTEMPTS):
            connection, channel = await self._connect()
            messages = await channel.publish(messages)
            if not messages:
                return
            for name in dict.fromkeys(one.queue for one in messages):
                (await self._queues.open(connection, lanes[name])).close()
            await asyncio.sleep(_RETRY_DELAY * attempt)
        raise Unavailable(
            f"{self._address.label} accepts no messages for the queue {messages[0].queue}: it is"
            " over its length, has lost most of its nodes, or is deleted again and again; see the"
            " server's log"
        )

    async def reply(self, replies: Sequence[Reply]) -> None:
        """See ``Transport.reply``. Messages that the server returns are dropped.

        Replies have their own channel: the server closes it if it cannot parse an address, and it
        is then unknown which other messages of the channel have arrived.
        """
        messages = [one for one in map(to_reply, replies) if one is not None]
        if not messages:
            return
        connection, _ = await self._connect()
        async with self._connecting:
            if self._replies is None or not self._replies.is_open:
                self._replies = await ConfirmChannel.open(connection, self._confirm_timeout)
            channel = self._replies
        await channel.publish(messages)

    async def close(self) -> None:
        """Close the connection. Twice is fine."""
        connection, self._connection = self._connection, None
        self._jobs = self._replies = None
        if connection is not None:
            await connection.close()

    async def _connect(self) -> tuple[Connection, ConfirmChannel]:
        async with self._connecting:
            connection, channel = self._connection, self._jobs
            if connection is None or not connection.is_open:
                connection = self._connection = await connect(self._address, "sender")
                channel = None
            if channel is None or not channel.is_open:
                channel = self._jobs = await ConfirmChannel.open(connection, self._confirm_timeout)
            return connection, channel

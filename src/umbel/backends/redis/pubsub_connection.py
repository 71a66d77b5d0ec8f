"""Receiving the messages of channels in the same step of the event loop in which they arrive.

redis-py gives one message at a time to a task that asks for it. A process that waits for a wake-up
would be woken after that task has asked for the next message, which costs more than everything
else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis.exceptions import ResponseError

from umbel.backends.redis.connections import Connection


class PubSubConnection(asyncio.Protocol):
    """Takes over a connection and calls ``on_message(channel, message)`` for each message."""

    def __init__(self, connection: Connection, on_message: Callable[[bytes, bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._reader = hiredis.Reader(replyError=ResponseError)
        self._reads = 0
        """How many times data has arrived."""
        self._subscribed: asyncio.Future[None] = loop.create_future()
        """Done when the server has answered the last SUBSCRIBE."""
        self._lost: asyncio.Future[None] = loop.create_future()
        self._transport: Any = connection._writer.transport
        # All commands of redis-py were answered, so it has no unread data.
        self._transport.set_protocol(self)
        if self._transport.is_closing() or connection._reader.at_eof():
            self.connection_lost(None)

    async def subscribe(self, channels: Sequence[str]) -> None:
        """Subscribe to these channels. Raises ResponseError, and OSError."""
        for channel in channels:
            self._subscribed = asyncio.get_running_loop().create_future()
            self._send("SUBSCRIBE", channel)
            both = [self._subscribed, self._lost]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not self._subscribed.done():
                raise _lost_error()
            self._subscribed.result()

    async def watch(self, probe_every: float, probe_answer: float) -> None:
        """Run until the connection is lost; then raise OSError.

        After ``probe_every`` seconds without data, the server must answer a ping within
        ``probe_answer`` seconds.
        """
        while True:
            reads = self._reads
            await self._wait(probe_every)
            if reads == self._reads:
                self._send("PING")
                await self._wait(probe_answer)
            if reads == self._reads:
                raise TimeoutError

    async def _wait(self, seconds: float) -> None:
        await asyncio.wait([self._lost], timeout=seconds)
        if self._lost.done():
            raise _lost_error()

    def _send(self, *command: str) -> None:
        self._transport.write(hiredis.pack_command(command))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Process the messages that are complete."""
        self._reads += 1
        self._reader.feed(data)
        while (message := self._reader.gets()) is not False:
            if isinstance(message, ResponseError):
                if not self._subscribed.done():
                    self._subscribed.set_exception(message)
            elif message[0] == b"message":
                self._on_message(message[1], message[2])
            elif message[0] == b"subscribe" and not self._subscribed.done():
                self._subscribed.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let ``subscribe`` and ``watch`` raise."""
        if not self._lost.done():
            self._lost.set_result(None)


def _lost_error() -> OSError:
    return ConnectionResetError("the server has closed the connection")

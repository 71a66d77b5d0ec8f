"""Hearing what a server says unasked, in the very step in which it arrives.

redis-py gives one message at a time to a task that asks for it. Whoever waits for a hint would be
woken after that task has asked for the next one, which costs more than all the rest of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis.exceptions import ResponseError

from umbel.backends.redis.connections import Connection


class Attention(asyncio.Protocol):
    """Takes over a connection, for good. Each message of its channels is passed on at once."""

    def __init__(self, connection: Connection, heard: Callable[[bytes, bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        self._heard = heard
        self._reader = hiredis.Reader(replyError=ResponseError)
        self._words = 0
        """How many times the server has said something."""
        self._answered: asyncio.Future[None] = loop.create_future()
        """Whether the channel that was asked for last is heard."""
        self._lost: asyncio.Future[None] = loop.create_future()
        self._transport: Any = connection._writer.transport
        # Everything that redis-py has asked was answered: nothing is left with it.
        self._transport.set_protocol(self)
        if self._transport.is_closing() or connection._reader.at_eof():
            self.connection_lost(None)

    async def subscribe(self, channels: Sequence[str]) -> None:
        """Hear these. Raises ResponseError, and OSError."""
        for channel in channels:
            self._answered = asyncio.get_running_loop().create_future()
            self._say("SUBSCRIBE", channel)
            both = [self._answered, self._lost]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not self._answered.done():
                raise _lost()
            self._answered.result()

    async def keep(self, every: float, answer: float) -> None:
        """Raise OSError when the connection is lost.

        After ``every`` seconds of silence the server has to say something within ``answer``.
        """
        while True:
            words = self._words
            await self._wait(every)
            if words == self._words:
                self._say("PING")
                await self._wait(answer)
            if words == self._words:
                raise TimeoutError

    async def _wait(self, seconds: float) -> None:
        await asyncio.wait([self._lost], timeout=seconds)
        if self._lost.done():
            raise _lost()

    def _say(self, *command: str) -> None:
        self._transport.write(hiredis.pack_command(command))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Pass on what is whole."""
        self._words += 1
        self._reader.feed(data)
        while (said := self._reader.gets()) is not False:
            if isinstance(said, ResponseError):
                if not self._answered.done():
                    self._answered.set_exception(said)
            elif said[0] == b"message":
                self._heard(said[1], said[2])
            elif said[0] == b"subscribe" and not self._answered.done():
                self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more will be heard."""
        if not self._lost.done():
            self._lost.set_result(None)


def _lost() -> OSError:
    return ConnectionResetError("the server has closed the connection")

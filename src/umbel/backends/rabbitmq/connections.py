"""One connection to the server, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pika import exceptions  # type: ignore[import-untyped]

from umbel.backends.rabbitmq.address import Home
from umbel.backends.rabbitmq.channels import Channel
from umbel.backends.rabbitmq.errors import explain, explaining
from umbel.backends.rabbitmq.pika_connection import Wire
from umbel.backends.rabbitmq.publishing import Publishing

_FAREWELL = 2.0
"""Seconds that the server has to say goodbye."""


async def connect(home: Home, purpose: str) -> Connection:
    """A new connection, ready for use.

    Raises:
        Unavailable: not reached within the home's ``connect_timeout``, or refused.
    """
    connection = Connection(home, purpose)
    try:
        with explaining(home.address):
            async with asyncio.timeout(home.connect_timeout):
                await connection.opened
    except BaseException:
        connection.drop()
        raise
    return connection


class Connection:
    """Channels to one virtual host. Once lost it stays so; make another."""

    def __init__(self, home: Home, purpose: str) -> None:
        self.address = home.address
        self.blocked = ""
        """Why the server takes no messages at the moment; empty if it does."""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._on_blocked: list[Callable[[], None]] = []
        self._wire = Wire(
            home.parameters(purpose),
            on_open_callback=self._has_opened,
            on_open_error_callback=self._was_refused,
            on_close_callback=self._was_lost,
        )
        self._wire.add_on_connection_blocked_callback(self._was_blocked)
        self._wire.add_on_connection_unblocked_callback(self._was_unblocked)

    @property
    def is_open(self) -> bool:
        """Whether it may be used."""
        return bool(self._wire.is_open) and not self._wire.hung_up

    async def channel(self) -> Channel:
        """A new channel. Raises Unavailable."""
        made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with explaining(self.address):
            channel = Channel(self._wire.channel(on_open_callback=_filling(made)), self.address)
            try:
                await channel.until(made)
            except BaseException:
                channel.close()
                raise
            return channel

    async def publishing(self, patience: float) -> Publishing:
        """A new channel that confirms what it is sent. Raises Unavailable."""
        channel = await self.channel()
        publishing = Publishing(channel, self._wire, self, patience)
        try:
            await publishing.begin()
        except BaseException:
            channel.close()
            raise
        self._on_blocked.append(publishing.blocked)
        return publishing

    def drop(self) -> None:
        """Free it at once; what was not acknowledged goes back."""
        self._wire.hang_up()

    async def close(self) -> None:
        """Say goodbye, so that all that was written is read; then free it. Twice is fine."""
        try:
            async with asyncio.timeout(_FAREWELL):
                self._wire.close()
                await self._ended.wait()
        except (TimeoutError, exceptions.AMQPError):
            pass  # lost already, or the server does not answer
        finally:
            self.drop()

    def _has_opened(self, _: Any) -> None:
        if not self.opened.done():
            self.opened.set_result(None)

    def _was_refused(self, _: Any, error: BaseException) -> None:
        self._ended.set()
        if not self.opened.done():
            self.opened.set_exception(explain(error, self.address))

    def _was_lost(self, _: Any, error: BaseException) -> None:
        self._ended.set()

    def _was_blocked(self, _: Any, notice: Any) -> None:
        self.blocked = notice.method.reason or "it is short of memory or disk space"
        for tell in self._on_blocked:
            tell()

    def _was_unblocked(self, _: Any, notice: Any) -> None:
        self.blocked = ""


def _filling(future: asyncio.Future[Any]) -> Callable[[Any], None]:
    """A callback that gives a future its result, if somebody still waits for it."""

    def fill(value: Any) -> None:
        if not future.done():
            future.set_result(value)

    return fill

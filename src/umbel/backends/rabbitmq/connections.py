"""Connections and channels: pika's callbacks turned into awaitable calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from pika import exceptions  # type: ignore[import-untyped]
from pika.adapters.asyncio_connection import (  # type: ignore[import-untyped]
    AsyncioConnection,
)

from umbel.backends.rabbitmq.address import RabbitAddress
from umbel.backends.rabbitmq.errors import is_missing, to_unavailable, translate_errors
from umbel.backends.rabbitmq.messages import Delivery

T = TypeVar("T")

_ANSWER_TIMEOUT_SECONDS = 10.0
"""Time for the server to answer. Declaring a queue in a busy cluster takes seconds."""
_CLOSE_TIMEOUT_SECONDS = 2.0

_QUEUE_ARGUMENTS = {
    # Replicated if there are several nodes, and on disk when it is confirmed.
    "x-queue-type": "quorum",
    # From version 4 on, the server drops a message that was returned twenty times. Workers without
    # capacity return messages any number of times; the job store decides which jobs are poisonous.
    "x-delivery-limit": 2**31 - 1,
}

# pika logs each loss and refusal with a traceback. They are raised here, with a remedy.
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL)


async def connect(address: RabbitAddress, purpose: str) -> Connection:
    """Return a new open connection.

    Raises:
        Unavailable: not reached within the ``connect_timeout`` of the address, or refused.
    """
    connection = Connection(address, purpose)
    try:
        with translate_errors(address.label):
            async with asyncio.timeout(address.connect_timeout):
                await connection.opened
    except BaseException:
        connection.drop()
        raise
    return connection


class Connection:
    """A connection to one virtual host. It does not reconnect."""

    def __init__(self, address: RabbitAddress, purpose: str) -> None:
        self.label = address.label
        self.blocked = ""
        """Why the server accepts no messages at the moment; empty if it does."""
        self.on_blocked: list[Callable[[], None]] = []
        """Called when the server stops accepting messages."""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._channels: set[Channel] = set()
        self._pika = AsyncioConnection(
            address.parameters(purpose),
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_open_error,
            on_close_callback=self._on_close,
        )
        self._pika.add_on_connection_blocked_callback(self._on_blocked)
        self._pika.add_on_connection_unblocked_callback(self._on_unblocked)

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return bool(self._pika.is_open)

    async def channel(self) -> Channel:
        """Return a new open channel. Raise Unavailable."""
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with translate_errors(self.label):
            raw = self._pika.channel(on_open_callback=lambda raw: _set_result(opened, raw))
            channel = Channel(raw, self)
            self._channels.add(channel)
            try:
                await channel.wait_for(opened)
            except BaseException:
                channel.close()
                raise
            return channel

    def forget(self, channel: Channel) -> None:
        """Forget a channel that has ended."""
        self._channels.discard(channel)

    def drop(self) -> None:
        """Stop using the connection at once, and fail all calls that wait on it.

        A server that is alive closes it and requeues unacknowledged messages. If the server does
        not answer, pika frees the socket when the heartbeat fails.
        """
        # A RuntimeError means that the event loop is closed.
        with suppress(exceptions.ConnectionWrongStateError, RuntimeError):
            self._pika.close()
        for channel in [*self._channels]:
            channel.end(exceptions.StreamLostError("the connection was dropped"))

    async def close(self) -> None:
        """Close it after the server has read everything that was written. Twice is fine."""
        try:
            with suppress(TimeoutError, exceptions.ConnectionWrongStateError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_SECONDS):
                    self._pika.close()
                    await self._ended.wait()
        finally:
            self.drop()

    def _on_open(self, _: Any) -> None:
        _set_result(self.opened, None)

    def _on_open_error(self, _: Any, error: BaseException) -> None:
        self._ended.set()
        if not self.opened.done():
            self.opened.set_exception(to_unavailable(error, self.label))

    def _on_close(self, _: Any, error: BaseException) -> None:
        self._ended.set()

    def _on_blocked(self, _: Any, notice: Any) -> None:
        self.blocked = notice.method.reason or "it is short of memory or disk space"
        for callback in self.on_blocked:
            callback()

    def _on_unblocked(self, _: Any, notice: Any) -> None:
        self.blocked = ""


class Channel:
    """A channel. Every method that waits raises Unavailable if the channel is closed meanwhile."""

    def __init__(self, raw: Any, connection: Connection) -> None:
        self.raw = raw
        """pika's channel."""
        self._connection = connection
        self._waiting: set[asyncio.Future[Any]] = set()
        self._on_end: Callable[[BaseException], None] | None = None
        raw.add_on_close_callback(lambda _, reason: self.end(reason))
        raw.add_on_cancel_callback(lambda _: self.end(exceptions.ConsumerCancelled()))

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return bool(self.raw.is_open)

    def on_end(self, callback: Callable[[BaseException], None]) -> None:
        """Call this, once, when the channel is lost or the server cancels its consumer."""
        self._on_end = callback

    async def wait_for(self, answer: asyncio.Future[T]) -> T:
        """Return the result of a future. Raise pika's error if the channel ends before."""
        self._waiting.add(answer)
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_SECONDS):
                return await answer
        except TimeoutError:
            self._connection.drop()  # the server is gone; a new connection may reach another
            raise
        finally:
            self._waiting.discard(answer)

    async def call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a method of pika's channel and return the server's answer. Raise pika's errors."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        method(*args, callback=lambda frame: _set_result(answer, frame.method), **options)
        return await self.wait_for(answer)

    async def exists(self, queue: str) -> bool:
        """Return whether a queue exists. If it does not, the server closes this channel."""
        return await self._unless_missing(self.raw.queue_declare, queue, passive=True)

    async def purge(self, queue: str) -> None:
        """Remove a queue's messages. If there is no such queue, the server closes this channel."""
        await self._unless_missing(self.raw.queue_purge, queue)

    async def delete(self, queue: str) -> None:
        """Delete a queue. If there is no such queue, the server may close this channel."""
        await self._unless_missing(self.raw.queue_delete, queue)

    async def declare(self, queue: str) -> None:
        """Create a durable queue."""
        with translate_errors(self._connection.label):
            await self.call(self.raw.queue_declare, queue, durable=True, arguments=_QUEUE_ARGUMENTS)

    async def delete_if_idle(self, queue: str) -> bool:
        """Delete a queue that has no messages and no consumers. Return whether it was deleted."""
        with translate_errors(self._connection.label):
            found = await self.call(self.raw.queue_declare, queue, passive=True)
            if found.message_count or found.consumer_count:
                return False
            await self.call(self.raw.queue_delete, queue)
            return True

    async def count(self, queue: str) -> int:
        """Return how many messages wait in a queue, after all deliveries to this channel."""
        with translate_errors(self._connection.label):
            found = await self.call(self.raw.queue_declare, queue, passive=True)
            # The server may answer before it delivers a message that it has taken from the queue
            # for this channel. It does so before it reads the next request.
            await self.call(self.raw.basic_qos, prefetch_count=1)
            return int(found.message_count)

    async def consume(
        self, queue: str, *, tag: str, prefetch: int, deliver: Callable[[Delivery], None]
    ) -> None:
        """Start a consumer with at most ``prefetch`` unacknowledged messages."""

        def on_message(_: Any, method: Any, properties: Any, body: bytes) -> None:
            deliver(Delivery(method.delivery_tag, properties, body))

        with translate_errors(self._connection.label):
            self.raw.basic_qos(prefetch_count=prefetch)
            await self.call(self.raw.basic_consume, queue, on_message, consumer_tag=tag)

    def cancel(self, tag: str) -> None:
        """Stop a consumer. pika returns messages that arrive after this to the queue."""
        self.raw.basic_cancel(tag, callback=lambda _: None)

    def acknowledge(self, tag: int, *, and_lower: bool = False) -> None:
        """Let the server delete a message."""
        self.raw.basic_ack(tag, multiple=and_lower)

    def requeue(self, tag: int, *, and_lower: bool = False) -> None:
        """Let the server put a message back into its queue."""
        self.raw.basic_nack(tag, multiple=and_lower, requeue=True)

    def close(self) -> None:
        """Close it; the server requeues what was not acknowledged. Twice is fine."""
        self._on_end = None
        if not (self.raw.is_closed or self.raw.is_closing) and self._connection.is_open:
            self.raw.close()

    def end(self, reason: BaseException) -> None:
        """Fail all calls that wait on this channel."""
        self._connection.forget(self)
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(reason)
        callback, self._on_end = self._on_end, None
        if callback is not None:
            callback(reason)

    async def _unless_missing(self, method: Callable[..., Any], queue: str, **options: Any) -> bool:
        with translate_errors(self._connection.label):
            try:
                await self.call(method, queue, **options)
            except exceptions.ChannelClosedByBroker as error:
                if is_missing(error):
                    return False
                raise
            return True


def _set_result(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():  # the caller may have been cancelled
        future.set_result(value)

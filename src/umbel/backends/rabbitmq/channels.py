"""A channel that is awaited: one question, one answer, and an end that everybody hears of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pika  # type: ignore[import-untyped]

from umbel.backends.rabbitmq.deliveries import Delivery
from umbel.backends.rabbitmq.errors import explaining, is_missing

T = TypeVar("T")

ANSWER = 10.0
"""Seconds that the server has for an answer. Making a queue in a busy cluster takes some."""

QUEUE = {
    # Replicated where there are several nodes, on disk when it is confirmed.
    "x-queue-type": "quorum",
    # From version 4 on the server drops a message that came back twenty times. Ours may come
    # back as often as workers have no room for them; the books judge what is poisonous.
    "x-delivery-limit": 2**31 - 1,
}


class Channel:
    """Raises Unavailable when it is closed, by whomever, in every method that waits."""

    def __init__(self, raw: Any, address: str) -> None:
        self.raw = raw
        self._address = address
        self._waiting: set[asyncio.Future[Any]] = set()
        self._on_end: Callable[[], None] | None = None
        raw.add_on_close_callback(self._was_closed)
        raw.add_on_cancel_callback(self._was_cancelled)

    @property
    def is_open(self) -> bool:
        """Whether it may be used."""
        return bool(self.raw.is_open)

    async def until(self, answer: asyncio.Future[T]) -> T:
        """What an answer brings. Raises pika's error when the channel is closed before."""
        self._waiting.add(answer)
        try:
            async with asyncio.timeout(ANSWER):
                return await answer
        except TimeoutError:
            self.raw.connection.hang_up()  # a peer that vanished; another connection may do
            raise
        finally:
            self._waiting.discard(answer)

    async def ask(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a method of pika's that has an answer, and wait for it. Raises pika's errors."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(frame: Any) -> None:
            if not answer.done():
                answer.set_result(frame.method)

        method(*args, callback=answered, **options)
        return await self.until(answer)

    async def finds(self, queue: str) -> bool:
        """Whether a queue exists. If not, the server closes this channel."""
        return await self._unless_missing(self.raw.queue_declare, queue, passive=True)

    async def purges(self, queue: str) -> bool:
        """Empty a queue; False if it does not exist, and then the server closes this channel."""
        return await self._unless_missing(self.raw.queue_purge, queue)

    async def declare(self, queue: str) -> None:
        """Make a queue for good."""
        with explaining(self._address):
            await self.ask(self.raw.queue_declare, queue, durable=True, arguments=QUEUE)

    async def deletes_if_idle(self, queue: str) -> bool:
        """Delete a queue without messages and consumers. Whether it had neither."""
        with explaining(self._address):
            found = await self.ask(self.raw.queue_declare, queue, passive=True)
            if found.message_count or found.consumer_count:
                return False
            await self.ask(self.raw.queue_delete, queue)
            return True

    async def count(self, queue: str) -> int:
        """How many messages wait in a queue, after all that is on its way here has arrived."""
        with explaining(self._address):
            found = await self.ask(self.raw.queue_declare, queue, passive=True)
            # The server may answer before it passes on a message that it has taken out for us.
            # It does that before it reads the next question, so ask one.
            await self.ask(self.raw.basic_qos, prefetch_count=1)
            return int(found.message_count)

    async def consume(
        self, queue: str, *, name: str, prefetch: int, deliver: Callable[[Delivery], None]
    ) -> None:
        """Have messages pushed here, so many unacknowledged at a time."""

        def came(_: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            deliver(Delivery(method.delivery_tag, properties, body))

        with explaining(self._address):
            self.raw.basic_qos(prefetch_count=prefetch)
            await self.ask(self.raw.basic_consume, queue, came, consumer_tag=name)
        if self.is_open:
            self.raw.connection.hear(self.raw.channel_number, name, deliver)

    def cancel(self, name: str) -> None:
        """Stop a consumer. What is pushed to it after this goes back by itself."""
        self._hear_no_more()
        self.raw.basic_cancel(name, callback=lambda _: None)

    def acknowledge(self, tag: int, *, and_lower: bool = False) -> None:
        """Tell the server that a message need not come again."""
        self.raw.basic_ack(tag, multiple=and_lower)

    def give_back(self, tag: int, *, and_lower: bool = False) -> None:
        """Tell the server to put a message back where it was."""
        self.raw.basic_nack(tag, multiple=and_lower, requeue=True)

    def on_end(self, tell: Callable[[], None]) -> None:
        """Tell when it is closed, or when the server cancels a consumer of it."""
        self._on_end = tell

    def close(self) -> None:
        """Free it; what was not acknowledged goes back. Twice is fine."""
        self._on_end = None
        if not (self.raw.is_closed or self.raw.is_closing) and self.raw.connection.is_open:
            self._hear_no_more()  # else it is done, and its number may be another's by now
            self.raw.close()

    async def _unless_missing(self, method: Callable[..., Any], queue: str, **options: Any) -> bool:
        with explaining(self._address):
            try:
                await self.ask(method, queue, **options)
            except pika.exceptions.ChannelClosedByBroker as error:
                if is_missing(error):
                    return False
                raise
            return True

    def _hear_no_more(self) -> None:
        self.raw.connection.hear_no_more(self.raw.channel_number)

    def _was_closed(self, _: Any, reason: BaseException) -> None:
        self._hear_no_more()
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(reason)
        self._tell_end()

    def _was_cancelled(self, _: Any) -> None:
        self._tell_end()

    def _tell_end(self) -> None:
        if self._on_end is not None:
            self._on_end()

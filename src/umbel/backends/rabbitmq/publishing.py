"""Publishing with confirms: a message is durable when the server has confirmed it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pika import spec  # type: ignore[import-untyped]

from umbel.backends.rabbitmq.connections import Channel, Connection
from umbel.backends.rabbitmq.errors import blocked_error, to_unavailable, translate_errors
from umbel.backends.rabbitmq.messages import Message
from umbel.errors import Unavailable


class _Batch:
    """Messages that were published together, and a future for their confirms."""

    def __init__(self, messages: Sequence[Message], first: int) -> None:
        self.unconfirmed = len(messages)
        self.refused: list[Message] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._messages = messages
        self._first = first

    def confirm(self, number: int, is_accepted: bool) -> None:
        self.unconfirmed -= 1
        if not is_accepted:
            self.refused.append(self._messages[number - self._first])
        if self.unconfirmed == 0 and not self.done.done():
            self.done.set_result(None)


class ConfirmChannel:
    """A channel in confirm mode. Several callers may publish at once.

    It gives up when no confirm has arrived for ``confirm_timeout`` seconds, and at once when the
    server reports that it is blocked: it reads nothing until memory or disk space is free again.
    """

    def __init__(self, channel: Channel, connection: Connection, confirm_timeout: float) -> None:
        self._channel = channel
        self._connection = connection
        self._confirm_timeout = confirm_timeout
        self._published = 0
        self._batches: dict[int, _Batch] = {}
        """The batch of each unconfirmed message, by its number on the channel."""
        self._returned: set[tuple[str, str]] = set()

    @classmethod
    async def open(cls, connection: Connection, confirm_timeout: float) -> ConfirmChannel:
        """Return a new one. Raise Unavailable."""
        channel = await connection.channel()
        opened = cls(channel, connection, confirm_timeout)
        channel.raw.add_on_return_callback(opened._on_return)
        channel.on_end(lambda reason: opened._fail(to_unavailable(reason, connection.label)))
        try:
            with translate_errors(connection.label):
                await channel.call(channel.raw.confirm_delivery, opened._on_confirm)
        except BaseException:
            channel.close()
            raise
        connection.on_blocked.append(lambda: opened._fail(opened._blocked_error()))
        return opened

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self._channel.is_open

    async def publish(self, messages: Sequence[Message]) -> list[Message]:
        """Publish messages and return those that the server did not accept.

        The server returns a message if its queue does not exist. It refuses a message if its
        queue is being created, is over its length, or has lost the majority of its nodes.

        Raises:
            Unavailable: each message may be on the server or not.
        """
        if self._connection.blocked:
            raise self._blocked_error()
        batch = self._publish(messages)
        await self._wait_for_confirms(batch)
        if not self._returned:
            return batch.refused
        unroutable = [one for one in messages if (one.queue, one.id) in self._returned]
        self._returned.difference_update((one.queue, one.id) for one in unroutable)
        return unroutable + batch.refused

    def _publish(self, messages: Sequence[Message]) -> _Batch:
        batch = _Batch(messages, self._published + 1)
        raw = self._channel.raw
        try:
            with translate_errors(self._connection.label):
                for one in messages:
                    self._published += 1
                    self._batches[self._published] = batch
                    raw.basic_publish("", one.queue, one.body, one.properties, mandatory=True)
        except BaseException:
            self._connection.drop()  # its numbers may differ from the server's
            raise
        return batch

    async def _wait_for_confirms(self, batch: _Batch) -> None:
        while not batch.done.done():
            before = batch.unconfirmed
            await asyncio.wait([batch.done], timeout=self._confirm_timeout)
            if batch.unconfirmed == before and not batch.done.done():
                self._connection.drop()
                raise Unavailable(
                    f"{self._connection.label} has confirmed nothing for"
                    f" {self._confirm_timeout:g} s; check its load and its log"
                )
        batch.done.result()

    def _on_confirm(self, frame: Any) -> None:
        is_accepted = isinstance(frame.method, spec.Basic.Ack)
        number = frame.method.delivery_tag
        if not frame.method.multiple:
            if (batch := self._batches.pop(number, None)) is not None:
                batch.confirm(number, is_accepted)
            return
        while self._batches and (lowest := next(iter(self._batches))) <= number:
            self._batches.pop(lowest).confirm(lowest, is_accepted)

    def _on_return(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        self._returned.add((method.routing_key, properties.message_id))

    def _fail(self, error: Unavailable) -> None:
        for batch in set(self._batches.values()):
            if not batch.done.done():
                batch.done.set_exception(error)
                batch.done.exception()  # the caller may have been cancelled
        self._batches.clear()

    def _blocked_error(self) -> Unavailable:
        return blocked_error(self._connection.label, self._connection.blocked)

"""Batches out, confirms in: a message is durable when the server says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import pika  # type: ignore[import-untyped]

from umbel.backends.rabbitmq.channels import Channel
from umbel.backends.rabbitmq.errors import explain, explaining, is_blocked
from umbel.backends.rabbitmq.frames import Message, publish
from umbel.backends.rabbitmq.pika_connection import Wire
from umbel.errors import Unavailable


class _Line(Protocol):
    """The connection: whether it takes messages, and how to be rid of it."""

    address: str
    blocked: str

    def drop(self) -> None: ...


class _Batch:
    """What was sent together and is waited for together."""

    def __init__(self, messages: Sequence[Message], first: int) -> None:
        self.left = len(messages)
        self.refused: list[Message] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._messages = messages
        self._first = first

    def confirm(self, number: int, taken: bool) -> None:
        self.left -= 1
        if not taken:
            self.refused.append(self._messages[number - self._first])
        if self.left == 0 and not self.done.done():
            self.done.set_result(None)


class Publishing:
    """A channel in confirm mode. Several may publish at once.

    It gives up when no confirm has come for ``patience`` seconds, and at once when the server
    says that it is blocked: it would read nothing until memory or disk space is free again.
    """

    def __init__(self, channel: Channel, wire: Wire, line: _Line, patience: float) -> None:
        self._channel = channel
        self._wire = wire
        self._line = line
        self._patience = patience
        self._sent = 0
        self._awaited: dict[int, _Batch] = {}
        self._returned: set[tuple[str, str]] = set()

    @property
    def is_open(self) -> bool:
        """Whether it may be used."""
        return self._channel.is_open

    async def begin(self) -> None:
        """Turn confirms on. Raises Unavailable."""
        raw = self._channel.raw
        raw.add_on_return_callback(self._was_returned)
        raw.add_on_close_callback(self._was_closed)
        with explaining(self._line.address):
            await self._channel.ask(raw.confirm_delivery, self._was_confirmed)

    async def publish(self, messages: Sequence[Message]) -> list[Message]:
        """Send them; those that the server did not take.

        It returns what no queue is there for, and refuses what a queue cannot take: one that is
        just being made, is over its length, or has lost most of its nodes.

        Raises:
            Unavailable: any of the others may be on the server or not.
        """
        if self._line.blocked:
            raise self._is_blocked()
        batch = self._send(messages)
        await self._confirmed(batch)
        if not self._returned:
            return batch.refused
        unroutable = [one for one in messages if (one.queue, one.id) in self._returned]
        self._returned.difference_update((one.queue, one.id) for one in unroutable)
        return unroutable + batch.refused

    def blocked(self) -> None:
        """The server reads nothing more: whoever waits for a confirm need not."""
        self._fail(self._is_blocked())

    def _send(self, messages: Sequence[Message]) -> _Batch:
        batch = _Batch(messages, self._sent + 1)
        try:
            with explaining(self._line.address), self._wire.piling():
                for message in messages:
                    self._sent += 1
                    self._awaited[self._sent] = batch
                    publish(self._channel.raw, message)
        except BaseException:
            self._line.drop()  # nobody knows how much of it went out
            raise
        return batch

    async def _confirmed(self, batch: _Batch) -> None:
        while not batch.done.done():
            left = batch.left
            await asyncio.wait([batch.done], timeout=self._patience)
            if batch.left == left and not batch.done.done():
                self._line.drop()
                raise Unavailable(
                    f"{self._line.address} has confirmed nothing for {self._patience:g} s;"
                    " check its load and its log"
                )
        batch.done.result()

    def _was_confirmed(self, frame: Any) -> None:
        taken = isinstance(frame.method, pika.spec.Basic.Ack)
        tag = frame.method.delivery_tag
        if not frame.method.multiple:
            if (batch := self._awaited.pop(tag, None)) is not None:
                batch.confirm(tag, taken)
            return
        while self._awaited and (first := next(iter(self._awaited))) <= tag:
            self._awaited.pop(first).confirm(first, taken)

    def _was_returned(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        self._returned.add((method.routing_key, properties.message_id))

    def _was_closed(self, _: Any, reason: BaseException) -> None:
        self._fail(explain(reason, self._line.address))

    def _fail(self, error: Unavailable) -> None:
        for batch in set(self._awaited.values()):
            if not batch.done.done():
                batch.done.set_exception(error)
                batch.done.exception()  # perhaps nobody waits for it any more
        self._awaited.clear()

    def _is_blocked(self) -> Unavailable:
        return is_blocked(self._line.address, self._line.blocked)

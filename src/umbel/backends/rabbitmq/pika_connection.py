"""pika's connection with habits of its own: it piles up frames, hears messages, and hangs up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pika import exceptions, frame, spec  # type: ignore[import-untyped]
from pika.adapters.asyncio_connection import (  # type: ignore[import-untyped]
    AsyncioConnection,
)

from umbel.backends.rabbitmq.deliveries import HEADER, UNREADABLE, Delivery, pushed

Deliver = Callable[[Delivery], None]

_PILE = 262_144
"""Bytes that are written at once: enough to save the system calls, too few to matter in memory."""

# pika logs each loss and refusal with a traceback. All of that is raised here, with its remedy.
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL)


class Wire(AsyncioConnection):  # type: ignore[misc]
    """One connection as pika knows it."""

    hung_up = False
    _pile: list[bytes] | None = None
    _piled = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        self._ears: dict[int, tuple[bytes, Deliver]] = {}
        """By channel: a consumer, and who is told of what is pushed to it."""
        super().__init__(*args, **options)

    def hear(self, channel: int, consumer: str, deliver: Deliver) -> None:
        """Tell at once of what is pushed to a consumer, the only one of its channel."""
        self._ears[channel] = consumer.encode(), deliver

    def hear_no_more(self, channel: int) -> None:
        """Leave what is pushed there to pika. Twice is fine."""
        self._ears.pop(channel, None)

    @contextmanager
    def piling(self) -> Iterator[None]:
        """What is sent within goes out in few writes; pika alone does three for a message."""
        self._pile, self._piled = [], 0
        try:
            yield
            self._flush()
        finally:
            self._pile = None

    def hang_up(self) -> None:
        """Drop the connection now, without a word to the server."""
        if not (self.is_closed or self.hung_up):
            self.hung_up = True
            self._terminate_stream(exceptions.StreamLostError("dropped by us"))

    def _adapter_emit_data(self, data: bytes) -> None:
        if self._pile is None:
            super()._adapter_emit_data(data)
            return
        self._pile.append(data)
        self._piled += len(data)
        if self._piled >= _PILE:
            self._flush()

    def _flush(self) -> None:
        if self._pile:
            super()._adapter_emit_data(b"".join(self._pile))
            self._pile.clear()
            self._piled = 0

    def _on_data_available(self, data_in: bytes) -> None:
        """What pika does, but for messages that somebody hears at once."""
        self._frame_buffer += data_in
        while self._has_more():
            consumed, found = self._read_frame()
            if not found:
                return
            self._trim_frame_buffer(consumed)
            self._process_frame(found)

    def _has_more(self) -> bool:
        """Whether anything is left but messages that were told of. They stand in their order."""
        said: bytes = self._frame_buffer
        at = 0
        try:
            while self._ears and (found := pushed(said, at)) is not None:
                consumer, deliver = self._ears.get(found.channel, (b"", None))
                if deliver is None or consumer != found.consumer:
                    break
                at = found.end
                deliver(found.delivery)
        finally:
            if at:
                self._trim_frame_buffer(at)  # it counts: a server that sends messages is alive
        return len(said) > at

    def _read_frame(self) -> tuple[int, Any]:
        """A frame. Headers that pika cannot read are left out, and the message arrives bare.

        A date after the year 9999 is enough. The error would end the connection, the message
        would come again to the next one, and end that.
        """
        try:
            found: tuple[int, Any] = super()._read_frame()
            return found
        except UNREADABLE:
            data = self._frame_buffer
            if data[:1] != bytes([spec.FRAME_HEADER]):
                raise
            _, channel, size, _, _, length = HEADER.unpack_from(data)
            end = spec.FRAME_HEADER_SIZE + size + spec.FRAME_END_SIZE
            return end, frame.Header(channel, length, spec.BasicProperties())

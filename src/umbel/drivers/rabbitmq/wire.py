"""pika's connection with three habits of its own: it piles up frames, reads on, and hangs up."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pika import exceptions, frame, spec  # type: ignore[import-untyped]
from pika.adapters.asyncio_connection import (  # type: ignore[import-untyped]
    AsyncioConnection,
)

_PILE = 262_144
"""Bytes that are written at once: enough to save the system calls, too few to matter in memory."""
_HEADER = struct.Struct(">BHLHHQ")
_UNREADABLE = (ValueError, OverflowError, OSError, LookupError, struct.error, exceptions.AMQPError)

# pika logs each loss and refusal with a traceback. All of that is raised here, with its remedy.
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL)


class Wire(AsyncioConnection):  # type: ignore[misc]
    """One connection as pika knows it."""

    hung_up = False
    _pile: list[bytes] | None = None
    _piled = 0

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

    def _read_frame(self) -> tuple[int, Any]:
        """A frame. Headers that pika cannot read are left out, and the message arrives bare.

        A date after the year 9999 is enough. The error would end the connection, the message
        would come again to the next one, and end that.
        """
        try:
            found: tuple[int, Any] = super()._read_frame()
            return found
        except _UNREADABLE:
            data = self._frame_buffer
            if data[:1] != bytes([spec.FRAME_HEADER]):
                raise
            _, channel, size, _, _, length = _HEADER.unpack_from(data)
            end = spec.FRAME_HEADER_SIZE + size + spec.FRAME_END_SIZE
            return end, frame.Header(channel, length, spec.BasicProperties())

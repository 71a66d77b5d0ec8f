"""pika's protocol over a socket that is read only while somebody waits: no event loop."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from pika import connection, exceptions  # type: ignore[import-untyped]

from umbel.backends.rabbitmq.frames import Confirm, confirms
from umbel.backends.spin_wait import SpinWait

_READ = 65_536
_PILE = 262_144
"""Bytes that are written at once: enough to save the system calls, too few to matter in memory."""
_IDLE = 600
"""Seconds of silence, doubled, after which the server closes it: nobody is here to send signs of
life, and a caller that has vanished must not keep a connection for ever."""


class Line(connection.Connection):  # type: ignore[misc]
    """One connection as pika knows it. No read or write of it ends after the moment ``until``."""

    def __init__(self, parameters: Any, until: float) -> None:
        self.until = until
        self.blocked = ""
        """Why the server takes no messages at the moment; empty if it does."""
        self.loss: BaseException | None = None
        self.publishing: Any = None
        """The channel that confirms, how much was sent there, and why it was closed."""
        self.sent = 0
        self.closed: BaseException | None = None
        self.confirmed: Callable[[Confirm], object] = lambda _: None
        """Told what the server has taken."""
        self._socket: Any = None
        self._pile: list[bytes] = []
        self._piled = 0
        if parameters.heartbeat:
            parameters.heartbeat = _IDLE
        super().__init__(
            parameters,
            on_open_callback=None,
            on_open_error_callback=self._was_lost,
            on_close_callback=self._was_lost,
        )
        self.add_on_connection_blocked_callback(self._was_blocked)
        self.add_on_connection_unblocked_callback(self._was_unblocked)

    def wait(self, done: Callable[[], object]) -> None:
        """Write what is piled up, and read until it is done. Raises pika's errors, and OSError."""
        self.flush()
        while not done():
            if self.loss is not None:
                raise self.loss
            self._socket.settimeout(max(self.until - time.monotonic(), 0.001))
            self._read()

    def flush(self) -> None:
        """Write what is piled up."""
        if self._pile and self.loss is None:
            pile, self._pile, self._piled = b"".join(self._pile), [], 0
            self._socket.settimeout(max(self.until - time.monotonic(), 0.001))
            self._socket.sendall(pile)

    def catch_up(self) -> None:
        """Read what the server has said unasked. After a loss, see ``loss``."""
        while self.loss is None and (self._has_more() or self._lookout.sees()):
            self._socket.settimeout(1.0)
            self._read()

    def drop(self) -> None:
        """Close it without a word."""
        if self.loss is None:
            self._terminate_stream(exceptions.StreamLostError("dropped by us"))

    def was_closed(self, _: Any, reason: BaseException) -> None:
        """Note the end of the channel that confirms."""
        self.closed = reason

    def _has_more(self) -> bool:
        """Whether TLS has read more than it gave."""
        pending = getattr(self._socket, "pending", None)
        return pending is not None and pending() > 0

    def _read(self) -> None:
        data = self._socket.recv(_READ)
        if not data:
            self._terminate_stream(exceptions.StreamLostError("the server has closed it"))
        elif rest := self._but_confirms(data):
            self._on_data_available(rest)
            self.flush()

    def _but_confirms(self, data: bytes) -> bytes:
        """What is left for pika, unless it is in the middle of something: confirms are ours."""
        if self.publishing is None or self._frame_buffer:
            return data
        found, rest = confirms(data, self.publishing.channel_number)
        for one in found:
            self.confirmed(one)
        return rest

    def _was_lost(self, _: Any, error: BaseException) -> None:
        self.loss = error

    def _was_blocked(self, _: Any, notice: Any) -> None:
        self.blocked = notice.method.reason or "it is short of memory or disk space"

    def _was_unblocked(self, _: Any, notice: Any) -> None:
        self.blocked = ""

    # --- what pika asks of whoever reads and writes -----------------------------------------

    def _adapter_connect_stream(self) -> None:
        where = self.params.host, self.params.port
        left = max(self.until - time.monotonic(), 0.001)
        plain = self._socket = socket.create_connection(where, left)
        self._lookout = SpinWait(plain)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if (tls := self.params.ssl_options) is not None:
                self._socket = tls.context.wrap_socket(plain, server_hostname=tls.server_hostname)
        except BaseException:
            plain.close()
            raise
        self._on_stream_connected()

    def _adapter_disconnect_stream(self) -> None:
        self._socket.close()
        self._on_stream_terminated(None)

    def _adapter_emit_data(self, data: bytes) -> None:
        self._pile.append(data)
        self._piled += len(data)
        if self._piled >= _PILE:
            self.flush()

    def _adapter_call_later(self, delay: float, callback: Callable[[], None]) -> object:
        return None

    def _adapter_remove_timeout(self, timeout_id: object) -> None:
        return None

    def _adapter_add_callback_threadsafe(self, callback: Callable[[], None]) -> None:
        callback()  # there is no loop: whoever has the line is the only one who uses it

    def _create_heartbeat_checker(self) -> None:
        return None

"""A blocking socket to a server.

It is used without redis-py's layers, because they cost more time than the system calls.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import hiredis
from redis.connection import DefaultParser
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import InvalidResponse, NoScriptError, RedisError

from umbel.backends.redis.connections import SyncConnection
from umbel.backends.redis.scripts import Arguments, Script
from umbel.backends.spin_wait import SpinWait

_READ_BYTES = 4096
_LARGE_COMMAND_BYTES = 16384
"""A larger command may not fit into the send buffer of the socket."""
_RECENT_SECONDS = 0.0002
"""A connection that answered within this time is considered usable without a check."""
_MAX_SOCKET_TIMEOUT = 0.1
"""Seconds for which one system call waits; then the deadline is checked again."""
_TIMEOUT_TOLERANCE = 0.9
"""Share of the wanted socket timeout that is enough: changing it takes two system calls."""


ReadAnswer = Callable[[], Any]


class RawConnection:
    """Runs scripts over the socket of a connection that redis-py has opened."""

    def __init__(self, connection: SyncConnection) -> None:
        self._connection = connection
        self._socket: socket.socket = connection._sock  # redis-py does not give it otherwise
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=DefaultParser.parse_error
        )
        self._spin_wait = SpinWait(self._socket)
        self._timeout = 0.0
        self._answered_at = 0.0

    def is_usable(self, now: float) -> bool:
        """Return whether the connection has no unread data.

        Data that was not requested means that the server is closing the connection.
        """
        return now - self._answered_at < _RECENT_SECONDS or not self._spin_wait.is_readable()

    def start(self, script: Script, root: str, arguments: Arguments, until: float) -> ReadAnswer:
        """Send a script; return a function that waits for its answer and is called once.

        Both raise redis-py's errors, OSError, and TimeoutError at the time ``until``. After any
        error except an error answer, or if the answer is not read, the connection is unusable. A
        server that does not know the script gets its text.
        """
        self._send(("EVALSHA", script.digest, 1, root, *arguments), until)

        def read_answer() -> Any:
            try:
                return self._read_answer(until)
            except NoScriptError:
                self._send(("EVAL", script.text, 1, root, *arguments), until)
                return self._read_answer(until)

        return read_answer

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def _send(self, command: tuple[Any, ...], until: float) -> None:
        packed = hiredis.pack_command(command)
        self._set_deadline(until, is_large=len(packed) > _LARGE_COMMAND_BYTES)
        try:
            self._socket.sendall(packed)  # the send buffer is empty: what is not large fits
        except BlockingIOError:
            raise TimeoutError from None

    def _read_answer(self, until: float) -> Any:
        answer = self._reader.gets()
        while answer is False:  # incomplete; no script answers with False
            self._spin_wait.wait()
            data = self._receive(until)
            if not data:
                raise NotConnected("Connection closed by server.")
            self._reader.feed(data)
            answer = self._reader.gets()
        self._answered_at = time.monotonic()
        if isinstance(answer, RedisError):
            raise answer
        return answer

    def _receive(self, until: float) -> bytes:
        while True:
            self._set_deadline(until)
            with suppress(BlockingIOError, TimeoutError):  # check the deadline
                return self._socket.recv(_READ_BYTES)

    def _set_deadline(self, until: float, *, is_large: bool = False) -> None:
        """Let the next system call end by this time. Raises TimeoutError if the time has come."""
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        wanted = min(left, _MAX_SOCKET_TIMEOUT)
        if is_large or not _TIMEOUT_TOLERANCE * wanted <= self._timeout <= left:
            self._set_timeout(left if is_large else wanted, is_large=is_large)

    def _set_timeout(self, seconds: float, *, is_large: bool) -> None:
        if is_large or isinstance(self._socket, ssl.SSLSocket):
            # Data that is sent in several pieces: Python limits the total time.
            self._socket.settimeout(seconds)
            self._timeout = 0.0 if is_large else seconds
            return
        # Set a timeout of the system: with one of Python, each call would poll the socket first.
        self._socket.settimeout(None)
        microseconds = max(int(seconds * 1e6), 1)
        packed = struct.pack("ll", *divmod(microseconds, 1_000_000))
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, packed)
        self._timeout = seconds

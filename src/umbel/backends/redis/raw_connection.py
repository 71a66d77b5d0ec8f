"""A blocking connection, used without redis-py's layers, which cost more than the system calls."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import hiredis
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import InvalidResponse, NoScriptError, RedisError

from umbel.backends.redis.connections import Blocking
from umbel.backends.redis.scripts import Arguments, Script
from umbel.backends.spin_wait import SpinWait

_AT_ONCE = 4096
_LARGE = 16384
"""Bytes that may not leave at once."""
_LATELY = 0.0002
"""Seconds for which a connection that has just answered is taken for one that still does."""
_TURN = 0.1
"""Seconds that the system waits at a time; then it is for us to see whether there are more."""
_ROUGHLY = 0.9
"""Of that, or of the time that is left, so much is as good as all: setting it anew takes system
calls, and those who use a line in turn have little time, or much."""


Answer = Callable[[], Any]


class Line:
    """One server's ear and voice for a thread that may wait. redis-py has made the connection."""

    def __init__(self, connection: Blocking) -> None:
        self._connection = connection
        self._socket: socket.socket = connection._sock
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=BaseParser.parse_error
        )
        self._lookout = SpinWait(self._socket)
        self._timeout = 0.0
        self._answered = 0.0

    def is_fresh(self, now: float) -> bool:
        """Whether the server has left it alone. A server that goes away closes it, unasked."""
        return now - self._answered < _LATELY or not self._lookout.sees()

    def ask(self, script: Script, root: str, arguments: Arguments, until: float) -> Answer:
        """Have a script run, by a moment; what it gives waits for the answer, and is called once.

        Both raise redis-py's errors, and OSError. After any but an answer, or unless the answer
        is taken, the line is unusable. A server that has not seen the script gets the text.
        """
        self._say(("EVALSHA", script.digest, 1, root, *arguments), until)

        def answer() -> Any:
            try:
                return self._hear(until)
            except NoScriptError:
                self._say(("EVAL", script.text, 1, root, *arguments), until)
                return self._hear(until)

        return answer

    def close(self) -> None:
        """Hang up."""
        self._connection.disconnect()

    def _say(self, command: tuple[Any, ...], until: float) -> None:
        packed = hiredis.pack_command(command)
        self._keep(until, large=len(packed) > _LARGE)
        try:
            self._socket.sendall(packed)  # nothing else is on its way: what is not large fits
        except BlockingIOError:
            raise TimeoutError from None

    def _hear(self, until: float) -> Any:
        answer = self._reader.gets()
        while answer is False:  # not all of it is here; no script answers with that
            self._lookout.wait()
            heard = self._read(until)
            if not heard:
                raise NotConnected("Connection closed by server.")
            self._reader.feed(heard)
            answer = self._reader.gets()
        self._answered = time.monotonic()
        if isinstance(answer, RedisError):
            raise answer
        return answer

    def _read(self, until: float) -> bytes:
        while True:
            self._keep(until)
            with suppress(BlockingIOError, TimeoutError):  # a turn is over, perhaps not all of them
                return self._socket.recv(_AT_ONCE)

    def _keep(self, until: float, *, large: bool = False) -> None:
        """Wait no longer than to this moment. Raises TimeoutError when it has come."""
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        turn = min(left, _TURN)
        if large or not _ROUGHLY * turn <= self._timeout <= left:
            self._allow(left if large else turn, large=large)

    def _allow(self, left: float, *, large: bool) -> None:
        """Wait no longer than this at a time, or a little less."""
        if large or isinstance(self._socket, ssl.SSLSocket):
            # What leaves in pieces: Python sees to the time that all of them take.
            self._socket.settimeout(left)
            self._timeout = 0.0 if large else left
            return
        # Kept by the system: Python would ask it before each call whether that may go ahead.
        self._socket.settimeout(None)
        microseconds = max(int(left * 1e6), 1)
        packed = struct.pack("ll", *divmod(microseconds, 1_000_000))
        for way in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, way, packed)
        self._timeout = left

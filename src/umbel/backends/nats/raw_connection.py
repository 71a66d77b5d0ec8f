"""A connection for a caller's own thread. It reads only while the caller waits for responses.

A caller that hands each message to an event loop publishes a third as many messages in a second.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import msgspec
from nats import errors

from umbel.backends.nats.address import NatsAddress
from umbel.backends.nats.errors import NO_RESPONDERS, JetStreamError
from umbel.backends.nats.protocol import OutgoingMessage, Response, request_lines, status_of
from umbel.backends.spin_wait import SpinWait
from umbel.messages import random_hex

_READ_BYTES = 65_536
_CONNECT_OPTIONS = {
    "lang": "python3",
    "name": "umbel",
    "protocol": 1,
    "verbose": False,
    "pedantic": False,
    "headers": True,
    "no_responders": True,
}
_LOGIN_FIELDS = {"user": "user", "password": "pass", "token": "auth_token"}


class RawConnection:
    """Publishes messages and reads the responses. No read or write exceeds ``until``.

    Raises the errors of nats-py and of sockets. After an error it cannot be used any more.
    """

    def __init__(self, address: NatsAddress, server: str, until: float) -> None:
        parts = urlsplit(server)
        host = parts.hostname or ""
        self.until = until
        self.max_payload = 0
        self._info: dict[str, Any] = {}
        self._inbox = f"_INBOX.{random_hex(16)}"
        self._numbers = count(1)
        self._buffer = bytearray()
        self._batch = b""
        self._responses: list[Response | None] = []
        self._missing = 0
        self._has_pong = False
        self._socket: Any = socket.create_connection((host, parts.port), self._seconds_left())
        self._spin_wait = SpinWait(self._socket)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._log_in(address, host)
        except BaseException:
            self.close()
            raise

    def publish(self, messages: Sequence[OutgoingMessage]) -> None:
        """Write a batch of messages."""
        batch = next(self._numbers)
        self._batch, self._missing = b"%d" % batch, len(messages)
        self._responses = [None] * len(messages)
        self._write(request_lines(messages, f"{self._inbox}.{batch}"))

    def responses(self) -> list[Response | None]:
        """Return the response to each message of the last batch; None if it timed out."""
        with suppress(TimeoutError):
            while self._missing:
                self._read()
        return self._responses

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        """See ``Connection.request``. It never suspends."""
        self.publish([OutgoingMessage(subject, b"", data)])
        (response,) = self.responses()
        if response is None:
            raise TimeoutError(f"no response on {subject}")
        if response.is_missing:
            raise JetStreamError(NO_RESPONDERS, f"nothing responds on {subject}")
        return response.data

    def read_pending(self) -> None:
        """Read what the server has sent since: pings, or that it closes the connection."""
        while self._buffer or self._spin_wait.is_readable():
            self._read()

    def close(self) -> None:
        """Close the socket. Everything that was confirmed is on the server."""
        self._socket.close()

    def _log_in(self, address: NatsAddress, host: str) -> None:
        while not self._info:
            self._read()
        if address.requires_tls or self._info.get("tls_required"):
            if not (self._info.get("tls_required") or self._info.get("tls_available")):
                raise errors.SecureConnWantedError
            context = address.ssl_context or ssl.create_default_context()
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        login = {_LOGIN_FIELDS[name]: value for name, value in address.login.items()}
        options = msgspec.json.encode(_CONNECT_OPTIONS | login)
        self._write(b"CONNECT %b\r\nPING\r\n" % options)
        while not self._has_pong:
            self._read()
        self._write(b"SUB %b.*.* 1\r\n" % self._inbox.encode())

    def _seconds_left(self) -> float:
        return max(self.until - time.monotonic(), 0.001)

    def _write(self, data: bytes) -> None:
        self._socket.settimeout(self._seconds_left())
        self._socket.sendall(data)

    def _fill_buffer(self, size: int) -> None:
        while len(self._buffer) < size:
            self._socket.settimeout(self._seconds_left())
            self._spin_wait.wait()
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise errors.ConnectionClosedError
            self._buffer += data

    def _read(self) -> None:
        """Read and process one protocol line, with its message."""
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._fill_buffer(len(self._buffer) + 1)
        words = bytes(self._buffer[:end]).split()
        del self._buffer[: end + 2]
        match words:
            case [b"MSG", subject, _, size]:
                self._read_response(subject, 0, int(size))
            case [b"HMSG", subject, _, headers_size, size]:
                self._read_response(subject, int(headers_size), int(size))
            case [b"PING"]:
                self._write(b"PONG\r\n")
            case [b"PONG"]:
                self._has_pong = True
            case [b"INFO", *rest]:
                self._info = msgspec.json.decode(b" ".join(rest))
                self.max_payload = self._info["max_payload"]
            case [b"-ERR", *rest]:
                raise errors.Error(b" ".join(rest).decode(errors="replace").strip("'").lower())

    def _read_response(self, subject: bytes, headers_size: int, size: int) -> None:
        self._fill_buffer(size + 2)
        headers = bytes(self._buffer[:headers_size])
        data = bytes(self._buffer[headers_size:size])
        del self._buffer[: size + 2]
        _, batch, number = subject.rsplit(b".", 2)
        index = int(number) if number.isdigit() else len(self._responses)
        is_expected = batch == self._batch and index < len(self._responses)
        if is_expected and self._responses[index] is None:
            self._responses[index] = Response(data, status_of(headers))
            self._missing -= 1

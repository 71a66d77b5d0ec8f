"""A connection without an event loop: it is read only while somebody waits for answers."""

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

from umbel.backends.nats.address import Home
from umbel.backends.nats.client import Client
from umbel.backends.nats.errors import NO_RESPONDERS, Refused
from umbel.backends.nats.outgoing import Answer, Post, is_missing, lines, status
from umbel.backends.spin_wait import SpinWait

_READ = 65_536


class Line:
    """Publishes, and hears the answers. No read or write of it ends after the moment ``until``.

    Raises the errors of nats-py, and of sockets; it is of no use after one.
    """

    def __init__(self, home: Home, server: str, until: float) -> None:
        where = urlsplit(server)
        host = where.hostname or ""
        self.until = until
        self.max_payload = 0
        self._info: dict[str, Any] = {}
        self._numbers = count(1)
        self._heard = bytearray()
        self._call = b""
        self._found: list[Answer | None] = []
        self._left = 0
        self._ponged = False
        self._socket: Any = socket.create_connection((host, where.port), self._seconds())
        self._lookout = SpinWait(self._socket)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._greet(home, host)
        except BaseException:
            self.drop()
            raise

    def post(self, posts: Sequence[Post]) -> None:
        """Publish all at once."""
        call = next(self._numbers)
        self._call, self._left = b"%d" % call, len(posts)
        self._found = [None] * len(posts)
        self._write(lines(posts, f"{self._inbox}.{call}"))

    def answers(self) -> list[Answer | None]:
        """The answer to each of the last posts; None where none came in time."""
        with suppress(TimeoutError):
            while self._left:
                self._hear()
        return self._found

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        """What a service answers. It never suspends: see ``Connection.request``."""
        self.post([Post(subject, b"", data)])
        (answer,) = self.answers()
        if answer is None:
            raise TimeoutError(f"no answer on {subject}")
        if is_missing(answer):
            raise Refused(NO_RESPONDERS, f"nobody answers on {subject}")
        return answer.data

    def catch_up(self) -> None:
        """Hear what the server has said unasked: a ping, or that it goes away."""
        while self._heard or self._lookout.sees():
            self._hear()

    def drop(self) -> None:
        """Close it without a word. All that was confirmed is on the server."""
        self._socket.close()

    def _greet(self, home: Home, host: str) -> None:
        while not self._info:
            self._hear()
        if home.tls or self._info.get("tls_required"):
            if not (self._info.get("tls_required") or self._info.get("tls_available")):
                raise errors.SecureConnWantedError
            context = home.context or ssl.create_default_context()
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        client = Client(insists_on_tls=home.tls)
        self._inbox = client.new_inbox()
        self._write(client.introduction(self._info, home.login) + b"PING\r\n")
        while not self._ponged:
            self._hear()
        self._write(b"SUB %b.*.* 1\r\n" % self._inbox.encode())

    def _seconds(self) -> float:
        return max(self.until - time.monotonic(), 0.001)

    def _write(self, data: bytes) -> None:
        self._socket.settimeout(self._seconds())
        self._socket.sendall(data)

    def _fill(self, size: int) -> None:
        """Have so many bytes."""
        while len(self._heard) < size:
            self._socket.settimeout(self._seconds())
            self._lookout.wait()
            data = self._socket.recv(_READ)
            if not data:
                raise errors.ConnectionClosedError
            self._heard += data

    def _hear(self) -> None:
        """One thing that the server says."""
        while (end := self._heard.find(b"\r\n")) < 0:
            self._fill(len(self._heard) + 1)
        words = bytes(self._heard[:end]).split()
        del self._heard[: end + 2]
        match words:
            case [b"MSG", subject, _, size]:
                self._answered(subject, 0, int(size))
            case [b"HMSG", subject, _, head, size]:
                self._answered(subject, int(head), int(size))
            case [b"PING"]:
                self._write(b"PONG\r\n")
            case [b"PONG"]:
                self._ponged = True
            case [b"INFO", *rest]:
                self._info = msgspec.json.decode(b" ".join(rest))
                self.max_payload = self._info["max_payload"]
            case [b"-ERR", *rest]:
                raise errors.Error(b" ".join(rest).decode(errors="replace").strip("'").lower())

    def _answered(self, subject: bytes, head: int, size: int) -> None:
        self._fill(size + 2)
        headers, data = bytes(self._heard[:head]), bytes(self._heard[head:size])
        del self._heard[: size + 2]
        _, call, number = subject.rsplit(b".", 2)
        place = int(number) if number.isdigit() else len(self._found)
        if call == self._call and place < len(self._found) and self._found[place] is None:
            self._found[place] = Answer(data, status(headers) if headers else 0)
            self._left -= 1

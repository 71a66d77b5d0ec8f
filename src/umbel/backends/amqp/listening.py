"""Listening: each peer that connects gets a wire and an owner.

A peer that connects costs a file descriptor and some memory before it has proved anything. So those
that have not opened their connection yet are few, and the oldest of them makes room for the next.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import stat
import time
from collections.abc import Callable
from typing import cast

from umbel.backends.amqp.address import Home
from umbel.backends.amqp.connections import Wire
from umbel.backends.amqp.engine import IDLE, Owner
from umbel.errors import Unavailable

Greet = Callable[[Callable[[], Wire]], Owner]
"""Makes the owner of a new connection, who may ask for its wire later."""

_MAX_OPENING = 64
"""Connections that have not been opened by their peers yet."""
_RESERVED_FILES = 64
"""File descriptors that connections leave for everything else in the process."""


class Connected:
    """The connections of one listening socket: makes room for the next."""

    def __init__(self, greet: Greet) -> None:
        self._greet = greet
        self._wires: set[Wire] = set()

    def accept(self) -> Wire:
        """A wire for a new connection."""
        self._wires = {wire for wire in self._wires if not wire.lost.is_set()}
        made: list[Wire] = []
        wire = Wire(self._greet(lambda: made[0]), server=True)
        made.append(wire)
        wire.unwelcome = self._make_room()
        self._wires.add(wire)
        return wire

    def _make_room(self) -> str:
        """Drop a connection if need be; why the new one is not to stay, or nothing."""
        opening = [wire for wire in self._wires if not wire.engine.is_open]
        if len(opening) >= _MAX_OPENING:
            oldest = min(opening, key=lambda wire: wire.born)
            oldest.expel(f"{_MAX_OPENING} newer connections are not opened yet, either")
        elif len(self._wires) >= _max_connections():
            quietest = min(self._wires, key=lambda wire: wire.heard)
            # By the protocol every peer has to say something twice in this time.
            if time.monotonic() - quietest.heard <= IDLE / 2:
                return "there are as many connections as this process may have"
            quietest.expel("is silent, and there is no room for another connection")
        return ""


class Handshake(asyncio.Protocol):
    """A connection on which TLS is still to be agreed on; then it is a wire's."""

    def __init__(self, wire: Wire, context: ssl.SSLContext) -> None:
        self._wire = wire
        self._context = context
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)
        plain.pause_reading()
        self._wire.carried_by(plain)
        if self._wire.unwelcome:
            self._wire.expel(self._wire.unwelcome)
            return
        self._task = asyncio.get_running_loop().create_task(self._agree(plain))

    def connection_lost(self, error: Exception | None) -> None:
        self._wire.connection_lost(error)

    async def _agree(self, plain: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                plain, self._wire, self._context, server_side=True, ssl_handshake_timeout=IDLE
            )
        except OSError as error:
            plain.abort()
            self._wire.connection_lost(error)
            return
        if secured is None or secured.is_closing():
            self._wire.connection_lost(None)
        else:
            self._wire.connection_made(secured)


async def listen(home: Home, greet: Greet) -> asyncio.Server:
    """Serve connections at this address.

    Raises:
        Unavailable: the address cannot be had.
    """
    loop, connected, context = asyncio.get_running_loop(), Connected(greet), home.context(True)

    def accept() -> asyncio.Protocol:
        wire = connected.accept()
        return wire if context is None else Handshake(wire, context)

    try:
        if home.path:
            _clear(home.path)
            return await loop.create_unix_server(accept, sock=_bound(home.path))
        return await loop.create_server(accept, home.host, home.port)
    except OSError as error:
        raise Unavailable(f"cannot listen at {home.address}: {error}") from None


def _max_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft - _RESERVED_FILES, _RESERVED_FILES)


def _bound(path: str) -> socket.socket:
    """A socket at this path, with its mode set before anyone can connect to it."""
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(path)
        os.chmod(path, 0o660)
    except BaseException:
        made.close()
        raise
    return made


def _clear(path: str) -> None:
    """Remove a socket that nobody serves any more. Raises Unavailable when somebody does."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise Unavailable(f"cannot listen at {path}: there is a file that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)
            return
    raise Unavailable(f"cannot listen at {path}: another process does")

"""Listen for connections: each peer that connects gets a protocol and a handler.

A peer that connects uses a file descriptor and some memory before it has proved anything. The
number of connections that are not open yet is therefore limited: for a new connection above the
limit, the oldest of them is closed.
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

from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.amqp.connections import AmqpProtocol
from umbel.backends.amqp.engine import IDLE_TIMEOUT_SECONDS, ConnectionHandler
from umbel.errors import Unavailable

MakeHandler = Callable[[Callable[[], AmqpProtocol]], ConnectionHandler]
"""Makes the handler of a new connection. Its argument returns the protocol, but not before the
handler has been made."""

_MAX_OPENING = 64
"""Connections that their peers have not opened yet."""
_RESERVED_FILES = 64
"""File descriptors that connections leave for everything else in the process."""


class ServerConnections:
    """The connections of one listening socket."""

    def __init__(self, make_handler: MakeHandler) -> None:
        self._make_handler = make_handler
        self._protocols: set[AmqpProtocol] = set()

    def accept(self) -> AmqpProtocol:
        """Return the protocol of a new connection, and disconnect another if there are too many."""
        self._protocols = {one for one in self._protocols if not one.closed.is_set()}
        made: list[AmqpProtocol] = []
        protocol = AmqpProtocol(self._make_handler(lambda: made[0]), server=True)
        made.append(protocol)
        protocol.refusal_reason = self._free_capacity()
        self._protocols.add(protocol)
        return protocol

    def _free_capacity(self) -> str:
        """Disconnect a peer if there are too many.

        Returns why the new connection must be refused, or an empty text.
        """
        opening = [protocol for protocol in self._protocols if not protocol.engine.is_open]
        if len(opening) >= _MAX_OPENING:
            oldest = min(opening, key=lambda protocol: protocol.connected_at)
            oldest.disconnect(f"{_MAX_OPENING} newer connections are not open yet, either")
        elif len(self._protocols) >= _max_connections():
            quietest = min(self._protocols, key=lambda protocol: protocol.last_received_at)
            # By the protocol, every peer has to send something twice in this time.
            if time.monotonic() - quietest.last_received_at <= IDLE_TIMEOUT_SECONDS / 2:
                return "this process has as many connections as it may have"
            quietest.disconnect("is silent, and this process may have no further connection")
        return ""


class TlsHandshake(asyncio.Protocol):
    """A connection during its TLS handshake; afterwards it belongs to the AMQP protocol."""

    def __init__(self, protocol: AmqpProtocol, context: ssl.SSLContext) -> None:
        self._protocol = protocol
        self._context = context
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)
        plain.pause_reading()
        self._protocol.set_plain_socket(plain)
        if self._protocol.refusal_reason:
            self._protocol.disconnect(self._protocol.refusal_reason)
            return
        self._task = asyncio.get_running_loop().create_task(self._start_tls(plain))

    def connection_lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)

    async def _start_tls(self, plain: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                plain,
                self._protocol,
                self._context,
                server_side=True,
                ssl_handshake_timeout=IDLE_TIMEOUT_SECONDS,
            )
        except OSError as error:
            self._protocol.remedy = _remedy(error)
            plain.abort()
            self._protocol.connection_lost(error)
            return
        if secured is None or secured.is_closing():
            self._protocol.connection_lost(None)
        else:
            self._protocol.connection_made(secured)


def _remedy(error: OSError) -> str:
    """Return how a peer that failed in the TLS handshake can connect; empty if TLS did not fail."""
    if not isinstance(error, ssl.SSLError):
        return ""
    reason = error.reason or ""
    if "ALERT" in reason:  # sent by the peer
        return "give the peer the authority of this server's certificate as cafile in its URL"
    if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE" in reason:
        return (
            "give the peer a certificate of the authority in this server's cafile, as certfile and"
            " keyfile in its URL"
        )
    return "connect with the scheme umbel:// and certificates"


async def listen(address: AmqpAddress, make_handler: MakeHandler) -> asyncio.Server:
    """Serve connections at this address.

    Raises:
        Unavailable: the process cannot listen at the address.
    """
    loop, context = asyncio.get_running_loop(), address.ssl_context(True)
    connections = ServerConnections(make_handler)

    def accept() -> asyncio.Protocol:
        protocol = connections.accept()
        return protocol if context is None else TlsHandshake(protocol, context)

    try:
        if address.path:
            _remove_stale_socket(address.path)
            return await loop.create_unix_server(accept, sock=_bind(address.path))
        return await loop.create_server(accept, address.host, address.port)
    except OSError as error:
        raise Unavailable(f"cannot listen at {address.label}: {error}") from None


def _max_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft - _RESERVED_FILES, _RESERVED_FILES)


def _bind(path: str) -> socket.socket:
    """Return a socket at this path; its mode is set before a client can connect to it."""
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(path)
        os.chmod(path, 0o660)
    except BaseException:
        made.close()
        raise
    return made


def _remove_stale_socket(path: str) -> None:
    """Remove a socket that no process serves any more. Raises Unavailable if one does."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise Unavailable(f"cannot listen at {path}: there is a file that is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)
            return
    raise Unavailable(f"cannot listen at {path}: another process listens there")

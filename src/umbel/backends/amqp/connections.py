"""A connection with a socket: the event loop reads and writes the bytes of an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import cast

from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.amqp.engine import (
    IDLE_TIMEOUT_SECONDS,
    ConnectionHandler,
    Engine,
    OnMessage,
    ReceivingLink,
    SendingLink,
    Session,
)
from umbel.errors import Unavailable

_CLOSE_TIMEOUT_SECONDS = 2.0
"""How long the peer may take to answer when a connection is closed."""
_MAX_BLOCKED_SECONDS = 120.0
"""A peer that gives no credit for its waiting answers for this long is disconnected."""
_CHECK_INTERVAL_SECONDS = 1.0
"""Time between checks of a peer that connected to us."""


class AmqpProtocol(asyncio.Protocol):
    """Moves bytes between a socket and an engine."""

    def __init__(self, handler: ConnectionHandler, *, server: bool) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._is_flush_scheduled = False
        self.engine = Engine(handler, self._schedule_flush, server=server)
        self.has_disconnected_peer = False
        """Whether we have disconnected the peer because it broke a limit or missed a deadline."""
        self.refusal_reason = ""
        """Why the peer is disconnected as soon as it has connected; empty if it is accepted."""
        self.peer = ""
        """The peer's address: host and port, or that it is on this machine."""
        self.remedy = ""
        """What makes a peer acceptable that failed in the TLS handshake; empty if none did."""
        self.last_received_at = time.monotonic()
        """When bytes last came from the peer; at first, when it connected."""
        self.connected_at = self.last_received_at
        if server:
            self.engine.start()
        self._socket: asyncio.Transport | None = None
        self._plain_socket: asyncio.Transport | None = None
        self._credentials = ("", "", "")
        self._paused = False
        self._tick_timer: asyncio.TimerHandle | None = None
        self.closed = asyncio.Event()
        """Set when there is no socket any more."""
        self.on_data: Callable[[], None] = _do_nothing
        """Called when bytes from the peer have been processed."""

    def set_credentials(self, host: str, user: str, password: str) -> None:
        """Set the virtual host and the login with which a client opens the connection."""
        self._credentials = (host, user, password)

    # --- asyncio -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass
        self.peer = self.peer or _peer_address(transport)
        if self.refusal_reason:
            self.disconnect(self.refusal_reason)
            return
        if not self._server:
            self.engine.start(*self._credentials)
        self._schedule_flush()
        self._tick()

    def data_received(self, data: bytes) -> None:
        self.last_received_at = time.monotonic()
        self.engine.feed(data)
        if self.engine.violation:
            self.disconnect(self.engine.violation)
        self.on_data()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._socket = self._plain_socket = None
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self.engine.mark_lost(f"the connection was lost{f': {error}' if error else ''}")
        self.closed.set()

    def pause_writing(self) -> None:
        self._paused = True
        self.engine.is_writable = False
        if self._server and self._socket is not None and not self._socket.is_closing():
            self._socket.pause_reading()  # a peer that does not read its answers may not ask more

    def resume_writing(self) -> None:
        self._paused = False
        self.engine.is_writable = True
        if self._server and self._socket is not None and not self._socket.is_closing():
            self._socket.resume_reading()
        self.engine.send_waiting()
        self._schedule_flush()

    # --- writing and closing -----------------------------------------------------------------

    def _schedule_flush(self) -> None:
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._is_flush_scheduled = False
        while self._socket is not None and not self._paused:
            data = self.engine.take_output()
            if not data:
                break
            self._socket.write(data)
        if self._socket is not None and self.engine.is_finished:
            self._socket.close()

    def _tick(self) -> None:
        if self._socket is None:
            return
        now = time.monotonic()
        reason = self._find_timeout(now) if self._server else ""
        if reason:
            self.disconnect(reason)
            return
        due = self.engine.tick(now)
        self._schedule_flush()
        delay = max(due - now, 0.1) if due else 5.0
        self._tick_timer = self._loop.call_later(
            min(delay, _CHECK_INTERVAL_SECONDS) if self._server else delay, self._tick
        )

    def _find_timeout(self, now: float) -> str:
        """Return what a peer that connected to us has not done in time, or an empty text."""
        if now - self.last_received_at > IDLE_TIMEOUT_SECONDS:
            if self._paused:
                return f"has not read its answers for {IDLE_TIMEOUT_SECONDS:g} seconds"
            return f"was silent for {IDLE_TIMEOUT_SECONDS:g} seconds"
        if not self.engine.is_open and now - self.connected_at > IDLE_TIMEOUT_SECONDS:
            return f"has not opened the connection within {IDLE_TIMEOUT_SECONDS:g} seconds"
        blocked_since = self.engine.blocked_since
        if blocked_since is not None and now - blocked_since > _MAX_BLOCKED_SECONDS:
            return f"has taken none of its answers for {_MAX_BLOCKED_SECONDS:g} seconds"
        return ""

    def disconnect(self, reason: str) -> None:
        """Send the peer the reason, if the socket accepts it, and free the socket at once."""
        if self.engine.close_reason:
            self.abort()
            return
        self.has_disconnected_peer = True
        self.engine.close("amqp:resource-limit-exceeded", reason)
        if not self._paused:
            self.flush()
        self.engine.mark_lost(reason)
        self.abort()

    def flush(self) -> None:
        """Write all output now, so that later output comes after it and does not replace it."""
        while self._socket is not None and (data := self.engine.take_output()):
            self._socket.write(data)

    def set_plain_socket(self, transport: asyncio.Transport) -> None:
        """Set the socket that ``abort`` frees while the TLS handshake has not finished."""
        self._plain_socket = transport
        self.peer = _peer_address(transport)

    def abort(self) -> None:
        """Free the socket at once."""
        transport = self._socket or self._plain_socket
        if transport is not None:
            transport.abort()

    async def close(self) -> None:
        """Close the connection, wait for the peer's answer and free the socket.

        Closing twice is allowed.
        """
        self.engine.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_SECONDS):
                await self.closed.wait()
        except TimeoutError:
            pass
        finally:
            self.abort()


def _peer_address(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a process of this machine"


def _do_nothing() -> None:
    pass


class Connection:
    """A client's connection. A lost connection cannot be opened again; make another."""

    def __init__(self, address: AmqpAddress) -> None:
        self.address = address
        self._is_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._activity = asyncio.Event()
        self._protocol = AmqpProtocol(self, server=False)
        self._protocol.on_data = self.wake_waiters
        self._protocol.set_credentials(address.virtual_host, address.user, address.password)

    async def open(self) -> None:
        """Connect to the peer. Raises Unavailable."""
        address, loop = self.address, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(address.connect_timeout):
                if address.path:
                    await loop.create_unix_connection(lambda: self._protocol, address.path)
                else:
                    await loop.create_connection(
                        lambda: self._protocol,
                        address.host,
                        address.port,
                        ssl=address.ssl_context(),
                        server_hostname=address.server_name if address.tls else None,
                    )
                await self._is_open
        except TimeoutError:
            self._protocol.abort()
            raise Unavailable(f"{address.label} does not answer") from None
        except Unavailable:
            self._protocol.abort()
            raise
        except OSError as error:
            self._protocol.abort()
            raise Unavailable(f"{address.label} cannot be reached: {error}") from None
        except BaseException:
            self._protocol.abort()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the connection can be used."""
        return not self._protocol.engine.close_reason

    @property
    def product(self) -> tuple[str, str]:
        """The peer's product name and version, as it reports them."""
        return self._protocol.engine.product

    def wake_waiters(self) -> None:
        """Make every ``wait_until`` check its condition again."""
        self._activity.set()

    def flush(self) -> None:
        """Write all output now, so that later output comes after it and does not replace it."""
        self._protocol.flush()

    def revoke_credit(self, links: Iterable[ReceivingLink]) -> None:
        """Take back the credit of these links. Messages that are under way still arrive."""
        for link in links:
            link.revoke_credit()
        self.flush()

    async def wait_until(self, condition: Callable[[], object], timeout: float) -> bool:
        """Wait until a condition holds; return False if it still does not after ``timeout``.

        Raises:
            Unavailable: the connection was lost.
        """
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    self.check()
                    self._activity.clear()
                    await self._activity.wait()
        except TimeoutError:
            return bool(condition())
        return True

    def open_session(self) -> Session:
        """Begin a session of its own; its failure ends no other link. Raises Unavailable."""
        self.check()
        return self._protocol.engine.open_session()

    def open_sender(self, address: str) -> SendingLink:
        """Open a link that sends to this address. Raises Unavailable."""
        self.check()
        return self._protocol.engine.open_sender(address)

    def open_receiver(
        self, address: str | None, on_message: OnMessage, credit: int, max_bytes: int
    ) -> ReceivingLink:
        """Open a link that receives from this address; for None the peer chooses an address.

        Raises:
            Unavailable: the connection was lost.
        """
        self.check()
        return self._protocol.engine.open_receiver(address, on_message, credit, max_bytes)

    async def open_reply_receiver(
        self, on_message: OnMessage, credit: int, max_bytes: int
    ) -> ReceivingLink:
        """Open a link that receives from an address that the peer has made for us.

        Raises:
            Unavailable: the peer gives no such address. TimeoutError: it does not answer.
        """
        attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        link = self.open_receiver(None, on_message, credit, max_bytes)

        def on_attached() -> None:
            if not attached.done():
                attached.set_result(None)

        link.on_attached = on_attached
        async with asyncio.timeout(self.address.connect_timeout):
            await attached
        if link.close_reason or not link.address:
            reason = link.close_reason or "gives no address for replies"
            raise Unavailable(f"{self.address.label}: {reason}")
        return link

    def abort(self, reason: str = "the connection was lost") -> None:
        """Free the connection at once. Calls that wait on it raise Unavailable with the reason."""
        self._protocol.engine.mark_lost(reason)
        self._protocol.abort()

    async def close(self) -> None:
        """Close the connection and free it. Closing twice is allowed."""
        await self._protocol.close()

    def check(self) -> None:
        """Raise Unavailable if the connection is lost."""
        if self._protocol.engine.close_reason:
            raise Unavailable(f"{self.address.label}: {self._protocol.engine.close_reason}")

    # --- ConnectionHandler -------------------------------------------------------------------

    def on_open(self) -> None:
        if not self._is_open.done():
            self._is_open.set_result(None)

    def on_peer_sender(self, address: str, accept: Callable[[OnMessage, int, int], None]) -> str:
        return "this client does not receive"

    def on_peer_receiver(self, address: str, link: SendingLink) -> str:
        return "this client does not send"

    def on_closed(self, reason: str) -> None:
        if not self._is_open.done():
            refused = Unavailable(f"{self.address.label} refuses the connection: {reason}")
            self._is_open.set_exception(refused)
            self._is_open.exception()  # marks it as read: ``open`` may no longer await it
        self.wake_waiters()
        self._close_callback(reason)

    def call_on_close(self, callback: Callable[[str], None]) -> None:
        """Call this with the reason when the connection ends."""
        self._close_callback = callback

    _close_callback: Callable[[str], None] = staticmethod(lambda reason: None)


async def connect(address: AmqpAddress) -> Connection:
    """Return a new open connection. Raises Unavailable."""
    connection = Connection(address)
    await connection.open()
    return connection

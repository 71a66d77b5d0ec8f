"""A connection with a socket: the engine's bytes are read and written by the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from umbel.backends.amqp.address import Home
from umbel.backends.amqp.engine import IDLE, Aside, Engine, Incoming, Outgoing, Owner, Received
from umbel.errors import Unavailable

_FAREWELL = 2.0
"""Seconds that the peer has to say goodbye."""
_UNTAKEN = 120.0
"""Seconds after which a peer is dropped that gives no credit for answers that wait for it."""
_CHECK = 1.0
"""Seconds between checks of a peer that connected to us."""


class Wire(asyncio.Protocol):
    """Reads and writes for an engine."""

    def __init__(self, owner: Owner, *, server: bool) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._flushing = False
        self.engine = Engine(owner, self._changed, server=server)
        self.expelled = False
        """Whether we have dropped the peer for something that it did or failed to do."""
        self.unwelcome = ""
        """Why a peer is dropped as soon as it has connected; empty if it is not."""
        self.heard = time.monotonic()
        """When the peer was last heard; at first, when it connected."""
        self.born = self.heard
        """When the peer connected."""
        if server:
            self.engine.begin()
        self._socket: asyncio.Transport | None = None
        self._carrier: asyncio.Transport | None = None
        self._credentials = ("", "", "")
        self._paused = False
        self._ticking: asyncio.TimerHandle | None = None
        self.lost = asyncio.Event()
        """Set when there is no socket any more."""
        self.moved: Callable[[], None] = _nothing
        """Called when the peer has said something."""

    def introduce(self, host: str, user: str, password: str) -> None:
        """Whom a client asks for, and who it is."""
        self._credentials = (host, user, password)

    @property
    def peer(self) -> str:
        """Who is at the other end: the name in its certificate, or its address."""
        assert self._socket is not None
        certificate = self._socket.get_extra_info("peercert") or {}
        names = [value for pairs in certificate.get("subject", ()) for key, value in pairs]
        return names[-1] if names else str(self._socket.get_extra_info("peername") or "unix socket")

    # --- asyncio -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        if self.unwelcome:
            self.expel(self.unwelcome)
            return
        if not self._server:
            self.engine.begin(*self._credentials)
        self._changed()
        self._tick()

    def data_received(self, data: bytes) -> None:
        self.heard = time.monotonic()
        self.engine.feed(data)
        if self.engine.excess:
            self.expel(self.engine.excess)
        self.moved()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._socket = self._carrier = None
        if self._ticking is not None:
            self._ticking.cancel()
        self.engine.cut(f"the connection was lost{f': {error}' if error else ''}")
        self.lost.set()

    def pause_writing(self) -> None:
        self._paused = True
        self.engine.writable = False
        if self._server and self._socket is not None and not self._socket.is_closing():
            self._socket.pause_reading()  # a peer that does not read its answers asks no more

    def resume_writing(self) -> None:
        self._paused = False
        self.engine.writable = True
        if self._server and self._socket is not None and not self._socket.is_closing():
            self._socket.resume_reading()
        self.engine.pump()
        self._changed()

    # --- bytes out ---------------------------------------------------------------------------

    def _changed(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._socket is not None and not self._paused:
            data = self.engine.take()
            if not data:
                break
            self._socket.write(data)
        if self._socket is not None and self.engine.finished:
            self._socket.close()

    def _tick(self) -> None:
        if self._socket is None:
            return
        now = time.monotonic()
        why = self._overdue(now) if self._server else ""
        if why:
            self.expel(why)
            return
        due = self.engine.tick(now)
        self._changed()
        delay = max(due - now, 0.1) if due else 5.0
        self._ticking = self._loop.call_later(
            min(delay, _CHECK) if self._server else delay, self._tick
        )

    def _overdue(self, now: float) -> str:
        """What a peer that connected to us has not done in time; nothing if all is well."""
        if now - self.heard > IDLE:
            if self._paused:
                return f"has not read its answers for {IDLE:g} seconds"
            return f"was silent for {IDLE:g} seconds"
        if not self.engine.is_open and now - self.born > IDLE:
            return f"has not opened the connection within {IDLE:g} seconds"
        waits = self.engine.waits_since
        if waits is not None and now - waits > _UNTAKEN:
            return f"has taken none of its answers for {_UNTAKEN:g} seconds"
        return ""

    def expel(self, why: str) -> None:
        """Tell the peer why, if it listens, and free the socket at once."""
        if self.engine.why:
            self.drop()
            return
        self.expelled = True
        self.engine.close("amqp:resource-limit-exceeded", why)
        if not self._paused:
            self.flush()
        self.engine.cut(why)
        self.drop()

    def flush(self) -> None:
        """Write what there is to say now; what follows is said after it, and not instead."""
        while self._socket is not None and (data := self.engine.take()):
            self._socket.write(data)

    def carried_by(self, transport: asyncio.Transport) -> None:
        """What is to be freed while there is no agreement on TLS, and so no socket, yet."""
        self._carrier = transport

    def drop(self) -> None:
        """Free the socket at once."""
        transport = self._socket or self._carrier
        if transport is not None:
            transport.abort()

    async def close(self) -> None:
        """Say goodbye, then free the socket. Twice is fine."""
        self.engine.close()
        try:
            async with asyncio.timeout(_FAREWELL):
                await self.lost.wait()
        except TimeoutError:
            pass
        finally:
            self.drop()


def _nothing() -> None:
    pass


class Connection:
    """A client's connection. Once lost it stays so; make another."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._is_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._moved = asyncio.Event()
        self._wire = Wire(self, server=False)
        self._wire.moved = self.stir
        self._wire.introduce(home.virtual, home.user, home.password)

    async def open(self) -> None:
        """Reach the peer. Raises Unavailable."""
        home, loop = self.home, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(home.connect_timeout):
                if home.path:
                    await loop.create_unix_connection(lambda: self._wire, home.path)
                else:
                    await loop.create_connection(
                        lambda: self._wire,
                        home.host,
                        home.port,
                        ssl=home.context(),
                        server_hostname=home.server_name if home.tls else None,
                    )
                await self._is_open
        except TimeoutError:
            self._wire.drop()
            raise Unavailable(f"{home.address} does not answer") from None
        except Unavailable:
            self._wire.drop()
            raise
        except OSError as error:
            self._wire.drop()
            raise Unavailable(f"{home.address} cannot be reached: {error}") from None
        except BaseException:
            self._wire.drop()
            raise

    @property
    def is_open(self) -> bool:
        """Whether it may be used."""
        return not self._wire.engine.why

    @property
    def product(self) -> tuple[str, str]:
        """What the peer says it is, and its version."""
        return self._wire.engine.product

    def stir(self) -> None:
        """Whoever waits for something here is to look again."""
        self._moved.set()

    def flush(self) -> None:
        """Write what there is to say now; what follows is said after it, and not instead."""
        self._wire.flush()

    def take_back(self, links: Iterable[Incoming]) -> None:
        """No more may come on these. What is on its way does."""
        for link in links:
            link.less()
        self.flush()

    async def until(self, holds: Callable[[], object], patience: float) -> bool:
        """Wait until something holds; False when the time is over before.

        Raises:
            Unavailable: the connection was lost.
        """
        try:
            async with asyncio.timeout(patience):
                while not holds():
                    self.check()
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return bool(holds())
        return True

    def aside(self) -> Aside:
        """A session of its own, whose failures are its own. Raises Unavailable."""
        self.check()
        return self._wire.engine.aside()

    def sender(self, address: str) -> Outgoing:
        """A link on which to send there. Raises Unavailable."""
        self.check()
        return self._wire.engine.sender(address)

    def receiver(
        self, address: str | None, received: Received, credit: int, limit: int
    ) -> Incoming:
        """A link on which to receive from there; from an address made up when None is given."""
        self.check()
        return self._wire.engine.receiver(address, received, credit, limit)

    async def inbox(self, received: Received, credit: int, limit: int) -> Incoming:
        """A link on which to receive from an address of our own, which it tells.

        Raises:
            Unavailable: the peer gives us none.
        """
        attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        link = self.receiver(None, received, credit, limit)

        def heard() -> None:
            if not attached.done():
                attached.set_result(None)

        link.on_attached = heard
        async with asyncio.timeout(self.home.connect_timeout):
            await attached
        if link.why or not link.address:
            raise Unavailable(f"{self.home.address}: {link.why or 'gives no address for replies'}")
        return link

    async def deliver(self, link: Outgoing, messages: Sequence[bytes]) -> list[str]:
        """What became of each message: nothing when it was accepted, else why not.

        Raises:
            Unavailable: the connection was lost; any of them may be there or not.
        """
        answers: list[str | None] = [None] * len(messages)
        left = len(messages)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not left:
            return []

        def told(place: int, why: str) -> None:
            nonlocal left
            answers[place], left = why, left - 1
            if not left and not done.done():
                done.set_result(None)

        for place, message in enumerate(messages):
            link.send(message, lambda why, place=place: told(place, why))  # type: ignore[misc]
        await done
        self.check()
        if link.why:
            raise Unavailable(f"{self.home.address}: {link.why}")
        return [answer or "" for answer in answers]

    def drop(self, why: str = "the connection was lost") -> None:
        """Free it at once. Nobody takes it for open from now on; who waits there hears why."""
        self._wire.engine.cut(why)
        self._wire.drop()

    async def close(self) -> None:
        """Say goodbye and free it. Twice is fine."""
        await self._wire.close()

    def check(self) -> None:
        """Raises Unavailable when it is lost."""
        if self._wire.engine.why:
            raise Unavailable(f"{self.home.address}: {self._wire.engine.why}")

    # --- Owner -------------------------------------------------------------------------------

    def opened(self) -> None:
        if not self._is_open.done():
            self._is_open.set_result(None)

    def linked(self, address: str, credit: Callable[[Received, int, int], None]) -> str:
        return "nobody receives here"

    def listens(self, address: str, link: Outgoing) -> str:
        return "nobody sends here"

    def ended(self, why: str) -> None:
        if not self._is_open.done():
            self._is_open.set_exception(Unavailable(f"{self.home.address} refuses us: {why}"))
            self._is_open.exception()  # told to whoever awaits it, or to nobody
        self.stir()
        self._on_ended(why)

    def on_ended(self, act: Callable[[str], None]) -> None:
        """Call this when the connection is over."""
        self._on_ended = act

    _on_ended: Callable[[str], None] = staticmethod(lambda why: None)


async def connect(home: Home) -> Connection:
    """A new connection, ready for use. Raises Unavailable."""
    connection = Connection(home)
    await connection.open()
    return connection

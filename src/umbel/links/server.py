"""Answering: ports of this process, served to others over links.

Each address is a node. A message to it is a call: its subject names the method, its body holds the
arguments; the answer goes to its reply-to. What waits for a peer is given up when the peer is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from umbel.drivers.amqp import (
    REJECTED,
    RELEASED,
    Home,
    Incoming,
    Outgoing,
    Post,
    Received,
    Wire,
    decode,
    encode,
    listen,
)
from umbel.errors import BadMessage, NotAllowed, UmbelError, Unavailable
from umbel.links.client import FAILED, LARGEST
from umbel.links.ports import methods, problem
from umbel.telemetry import Telemetry, events

_CREDIT = 200
"""Calls of one peer that may be on their way at once."""


class Served(NamedTuple):
    """A port, and who answers for it."""

    port: type
    answers: Any
    allowed: frozenset[str] | None = None
    """The methods that may be called; None for all."""


class Nodes(Protocol):
    """What one peer may call. It is asked once for each link."""

    def find(self, address: str) -> Served | Take | None:
        """Who is at this address; None: nobody."""

    async def gone(self) -> None:
        """The peer has gone: nobody waits for its calls any more."""


Take = Callable[[Post, Callable[[Post], None]], Awaitable[None]]
"""Takes a message that is no call, durably, and may answer later. Raises UmbelError: refused."""


class LinkServer:
    """Serves links at one address until it is closed."""

    def __init__(self, home: Home, nodes: Callable[[], Nodes], telemetry: Telemetry) -> None:
        self._home = home
        self._nodes = nodes
        self._telemetry = telemetry
        self._server: asyncio.Server | None = None
        self._peers: set[Peer] = set()

    async def start(self) -> str:
        """Listen; returns the address, with the port that was chosen if none was given.

        Raises:
            Unavailable: the address cannot be had. ConfigurationError: TLS is not set up right.
        """
        self._server = await listen(self._home, self._greet)
        if self._home.path:
            return self._home.path
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def close(self) -> None:
        """Say goodbye to every peer and listen no more. Twice is fine."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            await asyncio.gather(*(peer.close() for peer in self._peers))

    def _greet(self, wire: Callable[[], Wire]) -> Peer:
        return Peer(self, wire, self._nodes(), self._telemetry)

    def joined(self, peer: Peer) -> None:
        self._peers.add(peer)

    def left(self, peer: Peer) -> None:
        self._peers.discard(peer)


class Peer:
    """One connection from outside: its links, and its calls that are being answered."""

    def __init__(
        self,
        server: LinkServer,
        wire: Callable[[], Wire],
        nodes: Nodes,
        telemetry: Telemetry,
    ) -> None:
        self._server = server
        self._wire = wire
        self._nodes = nodes
        self._telemetry = telemetry
        self._replies: dict[str, Outgoing] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._known = False

    async def close(self) -> None:
        """Say goodbye."""
        await self._wire().close()

    # --- Owner -------------------------------------------------------------------------------

    def opened(self) -> None:
        self._known = True
        self._server.joined(self)

    def linked(self, address: str, credit: Callable[[Received, int, int], None]) -> str:
        found = self._nodes.find(address)
        if found is None:
            return f"{address!r}: there is nobody at this address"
        received = self._calls(found) if isinstance(found, Served) else self._takes(found)
        credit(received, _CREDIT, LARGEST)
        return ""

    def listens(self, address: str, link: Outgoing) -> str:
        if not address.startswith("replies/"):
            return f"{address!r}: ask for a dynamic address and give it as reply-to"
        self._replies[address] = link
        return ""

    def ended(self, why: str) -> None:
        self._server.left(self)
        if not self._known:
            self._telemetry.emit(events.PeerRefused(error=why))
        for task in self._tasks:
            task.cancel()
        self._replies.clear()
        self._keep(self._nodes.gone())

    # --- calls -------------------------------------------------------------------------------

    def _calls(self, served: Served) -> Received:
        found = methods(served.port)

        def received(link: Incoming, token: Any, data: bytes) -> None:
            link.answer(token)
            link.more(1)
            self._keep(self._answer(served, found, data))

        return received

    def _takes(self, take: Take) -> Received:
        def received(link: Incoming, token: Any, data: bytes) -> None:
            link.more(1)
            self._keep(self._take(take, link, token, data))

        return received

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, served: Served, found: Mapping[str, Any], data: bytes) -> None:
        post = Post()
        try:
            post = decode(data)
            method = found.get(post.subject)
            if method is None or (
                served.allowed is not None and post.subject not in served.allowed
            ):
                raise NotAllowed(
                    f"{post.subject}: not at this address, which serves workers and publishers;"
                    " give the broker's own URL, or start the router with --operate"
                )
            args, named = method.arguments(post.body)
            result = getattr(served.answers, post.subject)(*args, **named)
            if not method.answers:
                return
            answer = Post(body=method.answer(await result), correlation=post.correlation)
        except UmbelError as error:
            answer = Post(subject=FAILED, body=problem(error), correlation=post.correlation)
        except Exception as error:  # noqa: BLE001 - one peer's call must not end the others'
            self._telemetry.emit(events.ServiceFailed(service="link", error=repr(error), delay=0))
            hidden = UmbelError(f"{post.subject} failed in the process that was asked: {error!r}")
            answer = Post(subject=FAILED, body=problem(hidden), correlation=post.correlation)
        self._reply(post.reply_to, answer)

    async def _take(self, take: Take, link: Incoming, token: Any, data: bytes) -> None:
        try:
            post = decode(data)
            await take(post, lambda answer: self._reply(post.reply_to, answer))
        except Unavailable:
            link.answer(token, RELEASED)  # nothing is wrong with it: later
        except UmbelError as error:
            link.answer(token, REJECTED, str(error))
        else:
            link.answer(token)

    def _reply(self, address: str, answer: Post) -> None:
        link = self._replies.get(address)
        if link is not None:
            with suppress(BadMessage):
                link.send(encode(answer))

"""Answering: ports of this process, served to others over links.

Each address is a node. A message to it is a call: its subject names the method, its body holds the
arguments; the answer goes to its reply-to. What waits for a peer is given up when the peer is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from umbel.backends.amqp.address import Home
from umbel.backends.amqp.connections import Wire
from umbel.backends.amqp.engine import REJECTED, RELEASED, Incoming, Outgoing, Received
from umbel.backends.amqp.listening import listen
from umbel.backends.amqp.message_bytes import Post, decode, encode
from umbel.errors import BadMessage, NotAllowed, UmbelError, Unavailable
from umbel.links.client import FAILED, GIVEN_UP, LARGEST, WAITING
from umbel.links.ports import Arguments, Method, methods, problem
from umbel.telemetry import Telemetry, events

_CREDIT = 100
"""Calls that may be on their way at once on one link. A call that has to wait for something gives
its credit back at once while fewer than WAITING of its peer do; any other when the peer has taken
its answer. So waiting calls do not keep others from coming."""
_AT_ONCE = 32
"""Calls of one peer that are carried out at once, and whose answers wait to be taken."""
_MAX_UNSENT = 16_777_216
"""Bytes of answers above which a call that only reads is repeated later, not kept in memory."""
_REPEATABLE = frozenset({"finished"})
"""Calls that wait, and only read."""


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


Take = Callable[[Post], Awaitable[Awaitable[Post] | None]]
"""Takes a message that is no call, durably; returns what gives the answer later, if any is wanted.

Raises UmbelError: refused.
"""


class Call:
    """What a call of a peer occupies until the peer has taken its answer."""

    def __init__(self, link: Incoming, size: int) -> None:
        self._link = link
        self.size = size
        self.slot: asyncio.Semaphore | None = None
        """Where it is one of the calls that are carried out."""
        self.over = False
        self._owes = True

    def give_credit(self) -> None:
        """Let the peer send one more. Twice is fine."""
        if self._owes:
            self._owes = False
            self._link.more(1)

    async def take_slot(self, slots: asyncio.Semaphore) -> None:
        """Wait until it may be carried out."""
        await slots.acquire()
        self.slot = slots


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
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._waiting: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Calls that wait for something, by where their answers go: the last one for each."""
        self._waits_now = 0
        self._held = 0
        self._unsent = 0
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
        self._replies = {one: kept for one, kept in self._replies.items() if not kept.why}
        self._replies[address] = link
        return ""

    def ended(self, why: str) -> None:
        self._server.left(self)
        if not self._known:
            self._telemetry.emit(events.PeerRefused(error=why))
        elif self._wire().expelled:
            self._telemetry.emit(events.PeerDropped(error=why))
        for task in self._tasks:
            task.cancel()
        self._replies.clear()
        self._keep(self._nodes.gone())

    # --- calls -------------------------------------------------------------------------------

    def _calls(self, served: Served) -> Received:
        found = methods(served.port)

        def received(link: Incoming, token: Any, data: bytes) -> None:
            link.answer(token)
            self._keep(self._answer(served, found, self._begin(link, data), data))

        return received

    def _takes(self, take: Take) -> Received:
        def received(link: Incoming, token: Any, data: bytes) -> None:
            self._keep(self._take(take, link, token, self._begin(link, data), data))

        return received

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _begin(self, link: Incoming, data: bytes) -> Call:
        self._held += len(data)
        if self._held > LARGEST:
            self._wire().engine.exceed(f"has calls of more than {LARGEST:,} bytes under way")
        return Call(link, len(data))

    def _end(self, call: Call) -> None:
        """Its answer was taken, or nothing is to be answered. Twice is fine."""
        if call.over:
            return
        call.over = True
        self._held -= call.size
        if call.slot is not None:
            call.slot.release()
        call.give_credit()

    async def _answer(
        self, served: Served, found: Mapping[str, Method], call: Call, data: bytes
    ) -> None:
        post = Post()
        try:
            post = decode(data)
            if post.subject == GIVEN_UP:
                self._give_up(post)
                answer = None
            else:
                answer = await self._carry_out(served, found, call, post)
        except UmbelError as error:
            answer = Post(subject=FAILED, body=problem(error), correlation=post.correlation)
        except Exception as error:  # noqa: BLE001 - one peer's call must not end the others'
            self._telemetry.emit(events.ServiceFailed(service="link", error=repr(error), delay=0))
            hidden = UmbelError(f"{post.subject} failed in the process that was asked: {error!r}")
            answer = Post(subject=FAILED, body=problem(hidden), correlation=post.correlation)
        except asyncio.CancelledError:
            self._end(call)
            raise
        if answer is None:
            self._end(call)
        else:
            self._reply(post.reply_to, answer, call)

    async def _carry_out(
        self, served: Served, found: Mapping[str, Method], call: Call, post: Post
    ) -> Post | None:
        """The answer to a call; None if the caller waits for none. Raises what the call raises."""
        method = found.get(post.subject)
        if method is None or (served.allowed is not None and post.subject not in served.allowed):
            raise NotAllowed(
                f"{post.subject}: not at this address, which serves workers and publishers;"
                " give the broker's own URL, or start the router with --operate"
            )
        asked = method.arguments(post.body)
        act = getattr(served.answers, post.subject)
        if asked.waits:
            return await self._wait_for(act, method, asked, call, post)
        await call.take_slot(self._slots)
        result = act(*asked.args, **asked.named)
        if not method.answers:
            return None
        return Post(body=method.answer(await result), correlation=post.correlation)

    async def _wait_for(
        self, act: Any, method: Method, asked: Arguments, call: Call, post: Post
    ) -> Post:
        with self._waits(call, post):
            body = method.answer(await act(*asked.args, **asked.named))
            if self._unsent > _MAX_UNSENT and post.subject in _REPEATABLE:
                del body
                await call.take_slot(self._slots)
                body = method.answer(await act(*asked.args, **asked.named))
        return Post(body=body, correlation=post.correlation)

    @contextmanager
    def _waits(self, call: Call, post: Post) -> Iterator[None]:
        task, key = asyncio.current_task(), (post.reply_to, post.correlation)
        assert task is not None
        self._waiting[key] = task
        self._waits_now += 1
        if self._waits_now <= WAITING:
            call.give_credit()
        try:
            yield
        finally:
            self._waits_now -= 1
            if self._waiting.get(key) is task:
                del self._waiting[key]

    def _give_up(self, post: Post) -> None:
        task = self._waiting.get((post.reply_to, post.correlation))
        if task is not None:
            task.cancel()

    async def _take(self, take: Take, link: Incoming, token: Any, call: Call, data: bytes) -> None:
        try:
            post = decode(data)
            later = await take(post)
        except Unavailable:
            link.answer(token, RELEASED)  # nothing is wrong with it: later
        except UmbelError as error:
            link.answer(token, REJECTED, str(error))
        else:
            link.answer(token)
            if later is not None:
                with self._waits(call, post):
                    answer = await later
                self._reply(post.reply_to, answer, call)
                return
        self._end(call)

    def _reply(self, address: str, answer: Post, call: Call) -> None:
        link = self._replies.get(address)
        if link is None:
            self._end(call)
            return
        try:
            data = encode(answer)
        except BadMessage:
            self._end(call)
            return

        def left() -> None:
            self._unsent -= len(data)
            self._end(call)

        self._unsent += len(data)
        if self._unsent > LARGEST:
            self._wire().expel(f"has not taken answers of more than {LARGEST:,} bytes")
            return
        link.send(data, left=left)

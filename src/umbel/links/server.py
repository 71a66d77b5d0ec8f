"""The server of links: ports of this process that other processes call.

Each AMQP address is a node. A message to it is a call: its subject names the method, its body holds
the arguments, and the answer goes to its reply-to address. When a peer disconnects, its calls are
cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.amqp.connections import AmqpProtocol
from umbel.backends.amqp.engine import REJECTED, RELEASED, OnMessage, ReceivingLink, SendingLink
from umbel.backends.amqp.listening import listen
from umbel.backends.amqp.message_codec import AmqpMessage, decode, encode
from umbel.errors import BadMessage, NotAllowed, UmbelError, Unavailable
from umbel.links.client import FAILED, GIVEN_UP, MAX_MESSAGE_BYTES, MAX_WAITING_CALLS
from umbel.links.ports import CallArguments, Method, encode_error, port_methods
from umbel.telemetry import Telemetry, events

_CREDIT = 100
"""Calls that may be under way at once on one link.

A call that waits for something gives its credit back immediately while its peer has fewer than
MAX_WAITING_CALLS of them. Any other call gives it back when the peer has taken the answer. Waiting
calls therefore do not block others."""
_MAX_RUNNING_CALLS = 32
"""Calls of one peer that run at once, or whose answers the peer has not taken yet."""
_MAX_UNSENT_BYTES = 16_777_216
"""Above this size of unsent answers, a call that only reads is repeated later instead of keeping
its answer in memory."""
_REPEATABLE = frozenset({"wait_finished"})
"""Methods that wait and only read."""


class ServedPort(NamedTuple):
    """A port and the object that implements it."""

    port: type
    implementation: Any
    allowed: frozenset[str] | None = None
    """The methods that may be called; None for all."""


class PeerNodes(Protocol):
    """The nodes of one peer's connection."""

    def find(self, address: str) -> ServedPort | MessageHandler | None:
        """Return what is at an address, or None. Called once for each link."""

    async def close(self) -> None:
        """Free what the peer used: it has disconnected."""


MessageHandler = Callable[[AmqpMessage], Awaitable[Awaitable[AmqpMessage] | None]]
"""Stores a message that is not a call, durably.

Returns an awaitable of the later answer, or None if the sender wants no answer. Raises UmbelError
to refuse the message.
"""


class PendingCall:
    """The credit, memory and slot that a call uses until the peer has taken its answer."""

    def __init__(self, link: ReceivingLink, size: int) -> None:
        self._link = link
        self.size = size
        self.slot: asyncio.Semaphore | None = None
        """The semaphore of running calls, while this is one of them."""
        self.is_finished = False
        self._owes_credit = True

    def return_credit(self) -> None:
        """Allow the peer to send one more call. Calling this twice is allowed."""
        if self._owes_credit:
            self._owes_credit = False
            self._link.add_credit(1)

    async def take_slot(self, slots: asyncio.Semaphore) -> None:
        """Wait until the call may run."""
        await slots.acquire()
        self.slot = slots


class LinkServer:
    """Serves links at one address until it is closed."""

    def __init__(
        self, address: AmqpAddress, make_nodes: Callable[[], PeerNodes], telemetry: Telemetry
    ) -> None:
        self._address = address
        self._make_nodes = make_nodes
        self._telemetry = telemetry
        self._server: asyncio.Server | None = None
        self._peers: set[Peer] = set()

    async def start(self) -> str:
        """Listen; return the address, with the chosen port if the URL has port 0.

        Raises:
            Unavailable: the process cannot listen at the address.
            ConfigurationError: the TLS options are wrong.
        """
        self._server = await listen(self._address, self._make_peer)
        if self._address.path:
            return self._address.path
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def close(self) -> None:
        """Stop listening and close all connections. Closing twice is allowed."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            await asyncio.gather(*(peer.close() for peer in self._peers))

    def _make_peer(self, protocol: Callable[[], AmqpProtocol]) -> Peer:
        return Peer(self, protocol, self._make_nodes(), self._telemetry)

    def add_peer(self, peer: Peer) -> None:
        self._peers.add(peer)

    def remove_peer(self, peer: Peer) -> None:
        self._peers.discard(peer)


class Peer:
    """A connection that another process made: its links, and its calls in progress."""

    def __init__(
        self,
        server: LinkServer,
        protocol: Callable[[], AmqpProtocol],
        nodes: PeerNodes,
        telemetry: Telemetry,
    ) -> None:
        self._server = server
        self._protocol = protocol
        self._nodes = nodes
        self._telemetry = telemetry
        self._replies: dict[str, SendingLink] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_MAX_RUNNING_CALLS)
        self._waiting: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Calls that wait for something, by reply-to and correlation: the last one of each."""
        self._waiting_count = 0
        self._call_bytes = 0
        self._unsent_bytes = 0
        self._is_open = False

    async def close(self) -> None:
        """Close the connection."""
        await self._protocol().close()

    # --- ConnectionHandler -------------------------------------------------------------------

    def on_open(self) -> None:
        self._is_open = True
        self._server.add_peer(self)

    def on_peer_sender(self, address: str, accept: Callable[[OnMessage, int, int], None]) -> str:
        found = self._nodes.find(address)
        if found is None:
            return f"{address!r}: there is nothing at this address"
        if isinstance(found, ServedPort):
            on_message = self._make_call_receiver(found)
        else:
            on_message = self._make_message_receiver(found)
        accept(on_message, _CREDIT, MAX_MESSAGE_BYTES)
        return ""

    def on_peer_receiver(self, address: str, link: SendingLink) -> str:
        if not address.startswith("replies/"):
            return f"{address!r}: ask for a dynamic address and give it as reply-to"
        self._replies = {one: kept for one, kept in self._replies.items() if not kept.close_reason}
        self._replies[address] = link
        return ""

    def on_closed(self, reason: str) -> None:
        self._server.remove_peer(self)
        protocol = self._protocol()
        if not self._is_open:
            refused = events.PeerRefused(peer=protocol.peer, error=reason, remedy=protocol.remedy)
            self._telemetry.emit(refused)
        elif protocol.has_disconnected_peer:
            self._telemetry.emit(events.PeerDropped(peer=protocol.peer, error=reason))
        for task in self._tasks:
            task.cancel()
        self._replies.clear()
        self._start_task(self._nodes.close())

    # --- calls -------------------------------------------------------------------------------

    def _make_call_receiver(self, served: ServedPort) -> OnMessage:
        methods = port_methods(served.port)

        def on_message(link: ReceivingLink, token: Any, data: bytes) -> None:
            link.settle(token)
            self._start_task(self._answer(served, methods, self._begin(link, data), data))

        return on_message

    def _make_message_receiver(self, handler: MessageHandler) -> OnMessage:
        def on_message(link: ReceivingLink, token: Any, data: bytes) -> None:
            self._start_task(self._handle(handler, link, token, self._begin(link, data), data))

        return on_message

    def _start_task(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _begin(self, link: ReceivingLink, data: bytes) -> PendingCall:
        self._call_bytes += len(data)
        if self._call_bytes > MAX_MESSAGE_BYTES:
            self._protocol().engine.record_violation(
                f"has calls of more than {MAX_MESSAGE_BYTES:,} bytes under way"
            )
        return PendingCall(link, len(data))

    def _finish(self, call: PendingCall) -> None:
        """Free what a call uses: its answer was taken, or there is none. May be called twice."""
        if call.is_finished:
            return
        call.is_finished = True
        self._call_bytes -= call.size
        if call.slot is not None:
            call.slot.release()
        call.return_credit()

    async def _answer(
        self, served: ServedPort, methods: Mapping[str, Method], call: PendingCall, data: bytes
    ) -> None:
        request = AmqpMessage()
        try:
            request = decode(data)
            if request.subject == GIVEN_UP:
                self._cancel(request)
                answer = None
            else:
                answer = await self._run(served, methods, call, request)
        except UmbelError as error:
            answer = AmqpMessage(
                subject=FAILED, body=encode_error(error), correlation=request.correlation
            )
        except Exception as error:  # noqa: BLE001 - one peer's call must not end the others'
            self._telemetry.emit(events.ServiceFailed(service="link", error=repr(error), delay=0))
            hidden = UmbelError(
                f"{request.subject} failed in the process that serves it: {error!r}"
            )
            answer = AmqpMessage(
                subject=FAILED, body=encode_error(hidden), correlation=request.correlation
            )
        except asyncio.CancelledError:
            self._finish(call)
            raise
        if answer is None:
            self._finish(call)
        else:
            self._reply(request.reply_to, answer, call)

    async def _run(
        self,
        served: ServedPort,
        methods: Mapping[str, Method],
        call: PendingCall,
        request: AmqpMessage,
    ) -> AmqpMessage | None:
        """Return the answer to a call, or None if the method has no result.

        Raises what the method raises.
        """
        name = request.subject
        method = methods.get(name)
        if method is None or (served.allowed is not None and name not in served.allowed):
            raise NotAllowed(
                f"{name}: not allowed at this address, which serves workers and publishers;"
                " use the broker's own URL, or start the router with --operate"
            )
        arguments = method.decode_call(request.body)
        function = getattr(served.implementation, name)
        if arguments.may_wait:
            return await self._run_waiting(function, method, arguments, call, request)
        await call.take_slot(self._slots)
        result = function(*arguments.args, **arguments.kwargs)
        if not method.has_result:
            return None
        return AmqpMessage(body=method.encode_result(await result), correlation=request.correlation)

    async def _run_waiting(
        self,
        function: Any,
        method: Method,
        arguments: CallArguments,
        call: PendingCall,
        request: AmqpMessage,
    ) -> AmqpMessage:
        with self._count_waiting(call, request):
            body = method.encode_result(await function(*arguments.args, **arguments.kwargs))
            if self._unsent_bytes > _MAX_UNSENT_BYTES and request.subject in _REPEATABLE:
                del body
                await call.take_slot(self._slots)
                body = method.encode_result(await function(*arguments.args, **arguments.kwargs))
        return AmqpMessage(body=body, correlation=request.correlation)

    @contextmanager
    def _count_waiting(self, call: PendingCall, request: AmqpMessage) -> Iterator[None]:
        task, key = asyncio.current_task(), (request.reply_to, request.correlation)
        assert task is not None
        self._waiting[key] = task
        self._waiting_count += 1
        if self._waiting_count <= MAX_WAITING_CALLS:
            call.return_credit()
        try:
            yield
        finally:
            self._waiting_count -= 1
            if self._waiting.get(key) is task:
                del self._waiting[key]

    def _cancel(self, request: AmqpMessage) -> None:
        task = self._waiting.get((request.reply_to, request.correlation))
        if task is not None:
            task.cancel()

    async def _handle(
        self,
        handler: MessageHandler,
        link: ReceivingLink,
        token: Any,
        call: PendingCall,
        data: bytes,
    ) -> None:
        try:
            message = decode(data)
            later = await handler(message)
        except Unavailable:
            link.settle(token, RELEASED)  # the message is fine: the sender may try again later
        except UmbelError as error:
            link.settle(token, REJECTED, str(error))
        else:
            link.settle(token)
            if later is not None:
                with self._count_waiting(call, message):
                    answer = await later
                self._reply(message.reply_to, answer, call)
                return
        self._finish(call)

    def _reply(self, address: str, answer: AmqpMessage, call: PendingCall) -> None:
        link = self._replies.get(address)
        if link is None:
            self._finish(call)
            return
        try:
            data = encode(answer)
        except BadMessage:
            self._finish(call)
            return

        def on_dequeued() -> None:
            self._unsent_bytes -= len(data)
            self._finish(call)

        self._unsent_bytes += len(data)
        if self._unsent_bytes > MAX_MESSAGE_BYTES:
            self._protocol().disconnect(
                f"has not taken answers of more than {MAX_MESSAGE_BYTES:,} bytes"
            )
            return
        link.send(data, on_dequeued=on_dequeued)

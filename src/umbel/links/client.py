"""The client of a link: one connection to another Umbel process.

It is made on first use and again after every loss.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.amqp.connections import Connection, connect
from umbel.backends.amqp.engine import ReceivingLink, SendingLink
from umbel.backends.amqp.message_codec import AmqpMessage, decode, encode
from umbel.errors import BadMessage, Unavailable
from umbel.links.ports import CallRequest, decode_error, port_methods

_ANSWER_TIMEOUT_SECONDS = 10.0
"""How long an answer may take, in addition to the time that the call asks the server to wait."""
MAX_MESSAGE_BYTES = 268_435_456
"""The size of one call or answer: at most a batch of jobs."""
_CREDIT = 200
MAX_WAITING_CALLS = 1_000
"""Calls of one client that may wait on the server at once; further calls wait in the client."""
FAILED = "failed"
"""The subject of an answer that is an error."""
GIVEN_UP = "given-up"
"""The subject of a message that cancels a call: the client no longer wants its answer."""


class LinkClient:
    """Calls the ports of one address. Belongs to one event loop."""

    def __init__(self, address: AmqpAddress) -> None:
        self._address = address
        self._connection: Connection | None = None
        self._replies: ReceivingLink | None = None
        self._senders: dict[str, SendingLink] = {}
        self._call_numbers = count(1)
        self._pending: dict[str, asyncio.Future[AmqpMessage]] = {}
        self._waiting_slots = asyncio.Semaphore(MAX_WAITING_CALLS)
        self._connecting = asyncio.Lock()
        self._pid = os.getpid()

    async def call(self, node: str, name: str, request: CallRequest) -> bytes:
        """Call a method of a node and return the encoded result.

        Raises:
            Unavailable: no answer came; the call may or may not have been carried out.
            UmbelError: the method raised it.
        """
        if request.wait == 0:
            answer = await self._send_and_wait(node, name, request)
        else:
            async with self._waiting_slot(request.wait):
                answer = await self._send_and_wait(node, name, request)
        if answer.subject == FAILED:
            raise decode_error(answer.body)
        return answer.body

    def notify(self, node: str, name: str, request: CallRequest) -> None:
        """Call a method without waiting for an answer. Does nothing without a connection."""
        if self._connection is not None and self._connection.is_open:
            self._send(node, AmqpMessage(body=request.data, subject=name))

    async def close(self) -> None:
        """Close the connection. Closing twice is allowed."""
        connection, self._connection, self._replies = self._connection, None, None
        if connection is not None:
            await connection.close()

    @asynccontextmanager
    async def _waiting_slot(self, wait: float | None) -> AsyncIterator[None]:
        """Hold one of the slots for calls that wait on the server. Raises Unavailable."""
        try:
            async with asyncio.timeout(wait):
                await self._waiting_slots.acquire()
        except TimeoutError:
            raise Unavailable(
                f"{MAX_WAITING_CALLS:,} calls already wait at {self._address.label}, and none of"
                f" them was answered in {wait:g} seconds; wait for fewer results at once"
            ) from None
        try:
            yield
        finally:
            self._waiting_slots.release()

    async def _send_and_wait(self, node: str, name: str, request: CallRequest) -> AmqpMessage:
        replies = await self._open_replies()
        key = str(next(self._call_numbers))
        future: asyncio.Future[AmqpMessage] = asyncio.get_running_loop().create_future()
        self._pending[key] = future
        # Without a limit for a call that waits without one: the idle timeout notices a lost peer.
        timeout = None if request.wait is None else request.wait + _ANSWER_TIMEOUT_SECONDS
        try:
            async with asyncio.timeout(timeout):
                message = AmqpMessage(
                    body=request.data, subject=name, correlation=key, reply_to=replies.address
                )
                self._send(node, message)
                return await future
        except TimeoutError:
            raise Unavailable(f"{self._address.label} does not answer") from None
        finally:
            self._pending.pop(key, None)
            if request.wait != 0 and not (future.done() and not future.cancelled()):
                self._give_up(node, key, replies)

    def _give_up(self, node: str, key: str, replies: ReceivingLink) -> None:
        """Tell the server that the answer to a call that may wait long is no longer wanted."""
        if replies is self._replies and not replies.close_reason:
            message = AmqpMessage(subject=GIVEN_UP, correlation=key, reply_to=replies.address)
            self._send(node, message)

    # --- the connection ----------------------------------------------------------------------

    async def _open_replies(self) -> ReceivingLink:
        """Return the link for answers, on an open connection. Raises Unavailable."""
        if self._replies is not None and not self._replies.close_reason and self._is_same_process:
            return self._replies
        async with self._connecting:
            if self._replies is None or self._replies.close_reason or not self._is_same_process:
                if self._connection is not None and self._is_same_process:
                    self._connection.abort()  # after a fork, the parent's connection is left alone
                self._pid = os.getpid()
                await self._connect()
            assert self._replies is not None
            return self._replies

    @property
    def _is_same_process(self) -> bool:
        """Whether this process made the connection; False in a forked child."""
        return self._pid == os.getpid()

    async def _connect(self) -> None:
        self._senders = {}
        self._connection = connection = await connect(self._address)
        connection.call_on_close(self._on_closed)
        try:
            self._replies = await connection.open_reply_receiver(
                self._on_answer, _CREDIT, MAX_MESSAGE_BYTES
            )
        except TimeoutError:
            connection.abort()
            raise Unavailable(f"{self._address.label} does not answer") from None

    def _send(self, node: str, message: AmqpMessage) -> None:
        sender = self._senders.get(node)
        if sender is None or sender.close_reason:
            assert self._connection is not None
            sender = self._senders[node] = self._connection.open_sender(node)
        sender.send(encode(message), lambda reason: self._on_outcome(message.correlation, reason))

    def _on_outcome(self, key: str, reason: str) -> None:
        future = self._pending.get(key)
        if reason and future is not None and not future.done():
            future.set_exception(Unavailable(f"{self._address.label}: {reason}"))

    def _on_answer(self, link: ReceivingLink, token: Any, data: bytes) -> None:
        link.settle(token)
        link.add_credit(1)
        try:
            message = decode(data)
        except BadMessage:
            return
        future = self._pending.get(message.correlation)
        if future is not None and not future.done():
            future.set_result(message)

    def _on_closed(self, reason: str) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(Unavailable(f"{self._address.label}: {reason}"))


class Stub:
    """A port that another process serves: each method is a call of the same name."""

    def __init__(self, port: type, node: str, client: LinkClient, **attributes: Any) -> None:
        self._methods = port_methods(port)
        self._node = node
        self._client = client
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = self._methods.get(name)
        if method is None:
            raise AttributeError(name)
        return self._make_method(name)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    def _make_method(self, name: str) -> Callable[..., Any]:
        method = self._methods[name]

        async def call(*args: Any, **kwargs: Any) -> Any:
            request = method.encode_call(*args, **kwargs)
            return method.decode_result(await self._client.call(self._node, name, request))

        def notify(*args: Any, **kwargs: Any) -> None:
            self._client.notify(self._node, name, method.encode_call(*args, **kwargs))

        made: Callable[..., Awaitable[Any] | None] = call if method.has_result else notify
        vars(self)[name] = made  # the next access does not reach ``__getattr__``
        return made

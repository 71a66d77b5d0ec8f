"""Calling: one connection to a process of ours, made on use and again after every loss."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from umbel.backends.amqp.address import Home
from umbel.backends.amqp.connections import Connection, connect
from umbel.backends.amqp.engine import Incoming, Outgoing
from umbel.backends.amqp.message_bytes import Post, decode, encode
from umbel.errors import BadMessage, Unavailable
from umbel.links.ports import Question, methods, raised

PATIENCE = 10.0
"""Seconds that an answer may take, beyond those that the call itself asks the other end to wait."""
LARGEST = 268_435_456
"""Bytes of one answer: a batch of jobs at most."""
_CREDIT = 200
WAITING = 1_000
"""Calls of one peer that may wait at the other end at once; more of them wait here."""
FAILED = "failed"
"""The subject of an answer that is an error."""
GIVEN_UP = "given-up"
"""The subject of a message that says that the answer to a call is not wanted any more."""


class Link:
    """Calls to one address. Belongs to one event loop; connects when first used."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._connection: Connection | None = None
        self._replies: Incoming | None = None
        self._senders: dict[str, Outgoing] = {}
        self._questions = count(1)
        self._waiting: dict[str, asyncio.Future[Post]] = {}
        self._places = asyncio.Semaphore(WAITING)
        self._connecting = asyncio.Lock()
        self._pid = os.getpid()

    async def call(self, node: str, name: str, question: Question) -> bytes:
        """The answer to a question.

        Raises:
            Unavailable: nobody answers; the call may have happened or not. What the call raises.
        """
        if question.wait == 0:
            answer = await self._ask(node, name, question)
        else:
            async with self._place(question.wait):
                answer = await self._ask(node, name, question)
        if answer.subject == FAILED:
            raise raised(answer.body)
        return answer.body

    def tell(self, node: str, name: str, question: Question) -> None:
        """Call without waiting for anything; into the void when there is no connection."""
        if self._connection is not None and self._connection.is_open:
            self._send(node, Post(body=question.data, subject=name))

    async def close(self) -> None:
        """Free the connection. Twice is fine."""
        connection, self._connection, self._replies = self._connection, None, None
        if connection is not None:
            await connection.close()

    @asynccontextmanager
    async def _place(self, wait: float | None) -> AsyncIterator[None]:
        """One of the places for calls that wait at the other end. Raises Unavailable."""
        try:
            async with asyncio.timeout(wait):
                await self._places.acquire()
        except TimeoutError:
            raise Unavailable(
                f"{WAITING:,} calls wait at {self._home.address} already, and none of them was"
                f" answered in {wait:g} seconds; wait for fewer results at once"
            ) from None
        try:
            yield
        finally:
            self._places.release()

    async def _ask(self, node: str, name: str, question: Question) -> Post:
        replies = await self._listen()
        key = str(next(self._questions))
        future: asyncio.Future[Post] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        try:
            # Waiting for ever is fine: a peer that has gone is noticed by its silence.
            async with asyncio.timeout(None if question.wait is None else question.wait + PATIENCE):
                address = replies.address
                self._send(
                    node,
                    Post(body=question.data, subject=name, correlation=key, reply_to=address),
                )
                return await future
        except TimeoutError:
            raise Unavailable(f"{self._home.address} does not answer") from None
        finally:
            self._waiting.pop(key, None)
            if question.wait != 0 and not (future.done() and not future.cancelled()):
                self._give_up(node, key, replies)

    def _give_up(self, node: str, key: str, replies: Incoming) -> None:
        """The answer to a call that may wait for long is not wanted any more."""
        if replies is self._replies and not replies.why:
            self._send(node, Post(subject=GIVEN_UP, correlation=key, reply_to=replies.address))

    # --- the connection ----------------------------------------------------------------------

    async def _listen(self) -> Incoming:
        """Where answers come, on a connection that is open. Raises Unavailable."""
        if self._replies is not None and not self._replies.why and self._pid == os.getpid():
            return self._replies
        async with self._connecting:
            if self._replies is None or self._replies.why or self._pid != os.getpid():
                if self._connection is not None and self._pid == os.getpid():
                    self._connection.drop()  # a parent's, after a fork, is left alone
                self._pid = os.getpid()
                await self._connect()
            assert self._replies is not None
            return self._replies

    async def _connect(self) -> None:
        self._senders = {}
        self._connection = connection = await connect(self._home)
        connection.on_ended(self._ended)
        try:
            self._replies = await connection.inbox(self._answered, _CREDIT, LARGEST)
        except TimeoutError:
            connection.drop()
            raise Unavailable(f"{self._home.address} does not answer") from None

    def _send(self, node: str, post: Post) -> None:
        sender = self._senders.get(node)
        if sender is None or sender.why:
            assert self._connection is not None
            sender = self._senders[node] = self._connection.sender(node)
        sender.send(encode(post), lambda why: self._refused(post.correlation, why))

    def _refused(self, key: str, why: str) -> None:
        future = self._waiting.get(key)
        if why and future is not None and not future.done():
            future.set_exception(Unavailable(f"{self._home.address}: {why}"))

    def _answered(self, link: Incoming, token: Any, data: bytes) -> None:
        link.answer(token)
        link.more(1)
        try:
            post = decode(data)
        except BadMessage:
            return
        future = self._waiting.get(post.correlation)
        if future is not None and not future.done():
            future.set_result(post)

    def _ended(self, why: str) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Unavailable(f"{self._home.address}: {why}"))


class Stub:
    """A port whose other side is elsewhere: each method is a call of the same name."""

    def __init__(self, port: type, node: str, link: Link, **attributes: Any) -> None:
        self._methods = methods(port)
        self._node = node
        self._link = link
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = self._methods.get(name)
        if method is None:
            raise AttributeError(name)
        return self._calling(name)

    async def close(self) -> None:
        """Free the link."""
        await self._link.close()

    def _calling(self, name: str) -> Callable[..., Any]:
        method = self._methods[name]

        async def call(*args: Any, **kwargs: Any) -> Any:
            question = method.question(*args, **kwargs)
            return method.result(await self._link.call(self._node, name, question))

        def tell(*args: Any, **kwargs: Any) -> None:
            self._link.tell(self._node, name, method.question(*args, **kwargs))

        found: Callable[..., Awaitable[Any] | None] = call if method.answers else tell
        vars(self)[name] = found  # the next time it is found at once
        return found

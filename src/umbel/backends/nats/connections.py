"""A connection of nats-py. It does not reconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from nats import errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from umbel.backends.nats.address import NatsAddress
from umbel.backends.nats.login import Login

T = TypeVar("T")
OnMessage = Callable[[Msg], Awaitable[None]]

_CONNECT_TIMEOUT_SECONDS = 2.0
_CLOSE_TIMEOUT_SECONDS = 1.0
_WRITE_TIMEOUT_SECONDS = 4.0
_API_TIMEOUT_SECONDS = 3.0
_PING_INTERVAL_SECONDS = 5


class OutgoingMessage(NamedTuple):
    """A message to publish."""

    subject: str
    headers: dict[str, str]
    data: bytes


class _Client(NatsClient):
    async def flush(self, timeout: float = _API_TIMEOUT_SECONDS) -> None:
        """Return when the server has processed everything that was published before.

        nats-py writes its ping ahead of the commands that it buffers, so the server's answer to the
        ping says nothing about them. A request keeps its place. No one is subscribed to a new
        inbox, and the server says so at once.
        """
        with suppress(errors.NoRespondersError):
            await self.request(self.new_inbox(), timeout=timeout)


class Connection:
    """One connection. If it is lost, calls that wait on it end immediately.

    nats-py could reconnect, but then it would publish buffered messages after their senders were
    told of a failure.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        """Why the connection cannot be used any more."""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection cannot be used any more."""
        self._client = _Client()
        self.jetstream = self._client.jetstream(timeout=_API_TIMEOUT_SECONDS)
        self._background: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, address: NatsAddress, server: str) -> Connection:
        """Return a new connection. Raise the errors of nats-py and of sockets."""
        connection = cls()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_SECONDS):
                await connection._connect(address, server)
        except BaseException as error:
            # The first error is the cause: nats-py always ends with "no servers".
            cause = connection.error
            connection.mark_lost(errors.ConnectionClosedError())
            if cause is not None and isinstance(error, errors.Error | OSError):
                raise cause from None
            raise
        connection.error = None
        return connection

    async def _connect(self, address: NatsAddress, server: str) -> None:
        context, requires_tls = address.new_ssl_context(), address.requires_tls
        login = Login(address.login, context, requires_tls=requires_tls)
        await self._client.connect(
            [server],
            error_cb=self._on_error,
            closed_cb=self._on_closed,
            name="umbel",
            allow_reconnect=False,
            # With 0, nats-py tries an unreachable server for ever.
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            ping_interval=_PING_INTERVAL_SECONDS,
            flush_timeout=_WRITE_TIMEOUT_SECONDS,
            tls=context,
            **login.arguments,
        )
        login.check_encrypted()

    @property
    def is_open(self) -> bool:
        """Whether calls can succeed."""
        return not (self.lost.done() or self._client.is_closed)

    @property
    def max_payload(self) -> int:
        """Maximum size in bytes of headers and data of a message together."""
        return self._client.max_payload

    @property
    def discovered_servers(self) -> list[str]:
        """The other servers of the cluster that this one has named."""
        return [f"nats://{found.netloc}" for found in self._client.discovered_servers]

    async def call(self, work: Awaitable[T]) -> T:
        """Return the result of a call of nats-py.

        Raises:
            TimeoutError: there was no response. The connection is given up, because another server
                may respond.
            Exception: the error of the call, or of the lost connection.
        """
        task = asyncio.ensure_future(work)
        ends: list[asyncio.Future[Any]] = [task, self.lost]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        except TimeoutError as error:
            self.mark_lost(error)
            raise
        finally:
            task.cancel()
            task.add_done_callback(_retrieve_error)
        raise self.error or errors.ConnectionClosedError()

    async def publish(
        self, messages: Sequence[OutgoingMessage], timeout: float
    ) -> list[BaseException | None]:
        """Publish messages to streams. Return the error of each, or None if it is stored.

        The messages of a stream are published in order.
        """
        outcomes = await self.call(
            asyncio.gather(
                *(
                    self.jetstream.publish(subject, data, timeout=timeout, headers=headers)
                    for subject, headers, data in messages
                ),
                return_exceptions=True,
            )
        )
        return [one if isinstance(one, BaseException) else None for one in outcomes]

    async def publish_unconfirmed(
        self, messages: Sequence[OutgoingMessage], timeout: float
    ) -> None:
        """Publish messages to the current subscribers, if there are any.

        Raises:
            TimeoutError: each message may or may not have arrived. Or the error of the lost
                connection.
        """
        for subject, headers, data in messages:
            await self._client.publish(subject, data, headers=headers)
        await self.call(self._client.flush(timeout))

    async def write(self, subject: str, data: bytes, reply: str = "") -> None:
        """Publish a message and wait for nothing. After a loss it is dropped."""
        with suppress(errors.Error, OSError):
            await self._client.publish(subject, data, reply)

    async def subscribe(self, on_message: OnMessage) -> Subscription:
        """Subscribe to a new inbox. The caller unsubscribes."""
        return await self._client.subscribe(self._client.new_inbox(), cb=on_message)

    def unsubscribe(self, subscription: Subscription, *, is_idle: bool) -> asyncio.Task[None]:
        """End a subscription. Messages that are on their way are still passed to its callback.

        The task is done when the last of them was. It does not raise. If the subscription is idle,
        none is on its way.
        """
        end: Any = subscription.unsubscribe if is_idle else subscription.drain  # not annotated
        return self._run(end())

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that no caller waits for."""
        self._run(work)

    async def close(self) -> None:
        """Close it after the server has read everything that was written, or after a timeout."""
        with suppress(TimeoutError, OSError, errors.Error):
            if self._background and self.is_open:
                await asyncio.wait(self._background, timeout=_CLOSE_TIMEOUT_SECONDS)
            if self.is_open:
                await self.call(self._client.flush(_CLOSE_TIMEOUT_SECONDS))
        self.mark_lost(errors.ConnectionClosedError())
        if self._background:
            await asyncio.wait(self._background, timeout=_CLOSE_TIMEOUT_SECONDS)

    def mark_lost(self, error: Exception) -> None:
        """Close the socket, and end all calls that wait on this connection."""
        self.error = self.error or error
        if not self.lost.done():
            self.lost.set_result(None)
            self._run(self._client.close())

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def run() -> None:
            with suppress(TimeoutError, OSError, errors.Error):
                async with asyncio.timeout(_WRITE_TIMEOUT_SECONDS):
                    await work

        task = asyncio.create_task(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _on_error(self, error: Exception) -> None:
        if not self._client.is_connected:
            self.error = self.error or error
        elif isinstance(error, errors.UnexpectedEOF) or "permissions violation" in str(error):
            self.mark_lost(error)  # there will be no response to what was not permitted

    async def _on_closed(self) -> None:
        self.mark_lost(self._client.last_error or errors.ConnectionClosedError())


def _retrieve_error(task: asyncio.Future[Any]) -> None:
    """Read the error of a call that was given up, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()

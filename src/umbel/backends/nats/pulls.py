"""Pull requests: messages up to the capacity, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import Header, StatusCode

from umbel.backends.nats.connections import Connection
from umbel.backends.nats.jetstream import Stream

_MIN_WAIT_SECONDS = 0.01
"""The server answers a request that does not wait at all from a count that may be outdated, and
keeps the request if another receiver is faster."""
_HEARTBEAT_SECONDS = 0.75
"""A request to a consumer that does not exist is never answered, so the server has to send
heartbeats."""
_MAX_SILENCE_SECONDS = 2.0
_GRACE_SECONDS = 1.0
_BATCH_SECONDS = 1.0
"""Maximum time for the rest of a batch. The server holds it back at max_ack_pending."""
_CANCEL_TIMEOUT_SECONDS = 3.0
_MAX_BATCH_BYTES = 24_000_000
"""A server closes the connection of a client that has about 64 MB left to read."""


class ReceivedMessage(NamedTuple):
    """A message as it arrived."""

    stream: Stream
    token: str
    """The subject for its acknowledgement."""
    headers: Mapping[str, str] | None
    data: bytes


class _Request:
    """The request to one stream."""

    __slots__ = ("is_done", "last_heartbeat", "left", "stream", "subscription", "wanted")

    def __init__(self, stream: Stream, wanted: int, now: float) -> None:
        self.stream = stream
        self.wanted = self.left = wanted
        self.last_heartbeat = now
        self.is_done = False
        self.subscription: Subscription | None = None


class Pull:
    """One request to each of several streams, until one of them has messages.

    Each request ends by itself when its stream is empty, if it has brought messages. The caller
    must call ``finish`` or ``abandon``.

    ``fetch`` of nats-py is not used. It waits for one stream only, its requests stay open on the
    server when it is cancelled, and it drops messages with a header "Status".
    """

    def __init__(self, connection: Connection, wait: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        """Done when there are messages, or when none will arrive."""
        self.deleted: list[Stream] = []
        """Streams that were deleted, or whose consumers were."""
        self._connection = connection
        self._found: list[ReceivedMessage] = []
        self._is_over = False
        """Messages that still arrive are returned to the server."""
        self._batch_timer: asyncio.TimerHandle | None = None
        self._waits = wait > _MIN_WAIT_SECONDS
        self._wait = max(wait, _MIN_WAIT_SECONDS)
        has_heartbeats = self._wait > 2 * _HEARTBEAT_SECONDS
        self._max_silence = _MAX_SILENCE_SECONDS if has_heartbeats else self._wait + _GRACE_SECONDS
        self._requests: list[_Request] = []

    async def send(self, wanted: Mapping[Stream, int]) -> None:
        """Send the requests, with the number of messages that each stream may deliver."""
        max_bytes = max(_MAX_BATCH_BYTES // len(wanted), 2 * self._connection.max_payload)
        now = self._loop.time()
        self._requests = [_Request(stream, many, now) for stream, many in wanted.items()]
        for request in self._requests:
            on_message = partial(self._on_message, request)
            request.subscription = await self._connection.subscribe(on_message)
            body = _request_body(request.wanted, max_bytes, self._wait)
            await self._connection.write(request.stream.next, body, request.subscription.subject)

    @property
    def silent(self) -> list[Stream]:
        """The streams whose heartbeats are overdue."""
        since = self._loop.time() - self._max_silence
        return [
            one.stream for one in self._requests if not one.is_done and one.last_heartbeat < since
        ]

    async def wait(self, stopped: asyncio.Future[None]) -> None:
        """Return when it has ended, when it is stopped, or when a stream is silent."""
        ends = [self._ended, stopped, self._connection.lost]
        while not (self.silent or any(end.done() for end in ends)):
            await asyncio.wait(
                ends, timeout=_HEARTBEAT_SECONDS / 2, return_when=asyncio.FIRST_COMPLETED
            )

    async def finish(self) -> list[ReceivedMessage]:
        """Cancel the open requests and return the messages.

        A caller that has messages does not wait for that: messages that are on their way are
        returned to the server, and arrive with the next request.
        """
        is_done = all(request.is_done for request in self._requests)
        cancelling = self._cancel()
        if not is_done and not (self._found and self._waits):
            ends: list[asyncio.Future[Any]] = [asyncio.gather(*cancelling), self._connection.lost]
            await asyncio.wait(
                ends,
                timeout=_CANCEL_TIMEOUT_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        self._is_over = True
        return self._found

    def abandon(self) -> None:
        """Cancel the requests and return their messages to the server."""
        self._is_over = True
        self._cancel()
        self._connection.run_in_background(self._return_messages())

    async def _return_messages(self) -> None:
        found, self._found = self._found, []
        for message in found:
            await self._connection.write(message.token, Msg.Ack.Nak)

    def _cancel(self) -> list[asyncio.Task[None]]:
        if self._batch_timer is not None:
            self._batch_timer.cancel()
        return [
            self._connection.unsubscribe(one.subscription, is_idle=one.is_done)
            for one in self._requests
            if one.subscription is not None
        ]

    async def _on_message(self, request: _Request, message: Msg) -> None:
        status = JetStreamContext.is_status_msg(message)
        if message.reply and self._is_over:
            # Without an acknowledgement, the server would deliver it only after ack_wait.
            await self._connection.write(message.reply, Msg.Ack.Nak)
        elif message.reply:
            self._found.append(
                ReceivedMessage(request.stream, message.reply, message.headers, message.data)
            )
            request.left -= 1
            if self._batch_timer is None:
                self._batch_timer = self._loop.call_later(_BATCH_SECONDS, self._end)
            if request.left == 0:
                self._mark_done(request)
        elif status == StatusCode.CONTROL_MESSAGE:
            request.last_heartbeat = self._loop.time()
        else:
            reason = (message.headers or {}).get(Header.DESCRIPTION, "")
            if "Deleted" in reason or status == StatusCode.SERVICE_UNAVAILABLE:
                self.deleted.append(request.stream)
            self._mark_done(request)

    def _mark_done(self, request: _Request) -> None:
        request.is_done = True
        unfinished = [one for one in self._requests if not one.is_done]
        is_complete = self._found and not any(one.left < one.wanted for one in unfinished)
        if self.deleted or is_complete or not unfinished:
            self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


def _request_body(many: int, max_bytes: int, wait: float) -> bytes:
    """``no_wait`` with ``expires`` makes a request that waits for the first message only."""
    body = {"batch": many, "max_bytes": max_bytes, "no_wait": True, "expires": int(wait * 1e9)}
    if wait > 2 * _HEARTBEAT_SECONDS:
        body["idle_heartbeat"] = int(_HEARTBEAT_SECONDS * 1e9)
    return msgspec.json.encode(body)

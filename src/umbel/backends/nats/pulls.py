"""Pull requests: messages up to the capacity, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from umbel.backends.nats.connections import Connection
from umbel.backends.nats.jetstream import Stream
from umbel.backends.nats.protocol import negative_acknowledgement, status_of

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

_HEARTBEAT_STATUS = 100
_NO_RESPONDERS_STATUS = 503


class ReceivedMessage(NamedTuple):
    """A message as it arrived."""

    stream: Stream
    token: bytes
    """The subject for its acknowledgement."""
    headers: bytes
    data: bytes


class _Request:
    """The request to one stream."""

    __slots__ = ("is_done", "last_heartbeat", "left", "stream", "wanted")

    def __init__(self, stream: Stream, wanted: int, now: float) -> None:
        self.stream = stream
        self.wanted = self.left = wanted
        self.last_heartbeat = now
        self.is_done = False


class Pull:
    """One request to each of several streams, until one of them has messages.

    Each request ends by itself when its stream is empty, if it has brought messages. The caller
    must call ``finish`` or ``abandon``.
    """

    def __init__(self, connection: Connection, wanted: Mapping[Stream, int], wait: float) -> None:
        self.ended: asyncio.Future[None] = connection.loop.create_future()
        """Done when there are messages, or when none will arrive."""
        self.deleted: list[Stream] = []
        """Streams that were deleted, or whose consumers were."""
        self._connection = connection
        self._found: list[ReceivedMessage] = []
        self._batch_timer: asyncio.TimerHandle | None = None
        self._waits = wait > _MIN_WAIT_SECONDS
        wait = max(wait, _MIN_WAIT_SECONDS)
        has_heartbeats = wait > 2 * _HEARTBEAT_SECONDS
        self._max_silence = _MAX_SILENCE_SECONDS if has_heartbeats else wait + _GRACE_SECONDS
        self._requests = self._send(wanted, wait)

    def _send(self, wanted: Mapping[Stream, int], wait: float) -> dict[int, _Request]:
        requests: dict[int, _Request] = {}
        lines: list[bytes] = []
        max_bytes = max(_MAX_BATCH_BYTES // len(wanted), 2 * self._connection.max_payload)
        for stream, many in wanted.items():
            request = _Request(stream, many, self._connection.loop.time())
            on_delivery = partial(self._on_delivery, request)
            number, inbox = self._connection.subscribe(on_delivery, self._end)
            requests[number] = request
            body = _request_body(many, max_bytes, wait)
            lines.append(
                f"SUB {inbox} {number}\r\nPUB {stream.next} {inbox} {len(body)}\r\n".encode() + body
            )
        self._connection.write(b"\r\n".join([*lines, b""]))
        if self._connection.error is not None:
            self._end()
        return requests

    @property
    def silent(self) -> list[Stream]:
        """The streams whose heartbeats are overdue."""
        since = self._connection.loop.time() - self._max_silence
        return [
            one.stream
            for one in self._requests.values()
            if not one.is_done and one.last_heartbeat < since
        ]

    async def wait(self, stopped: asyncio.Future[None]) -> None:
        """Return when it has ended, when it is stopped, or when a stream is silent."""
        while not (self.ended.done() or stopped.done() or self.silent):
            await asyncio.wait(
                [self.ended, stopped],
                timeout=_HEARTBEAT_SECONDS / 2,
                return_when=asyncio.FIRST_COMPLETED,
            )

    async def finish(self) -> list[ReceivedMessage]:
        """Cancel the open requests and return the messages.

        A caller that has messages does not wait for that: messages that are on their way are
        returned to the server, and arrive with the next request.
        """
        is_done = all(request.is_done for request in self._requests.values())
        if is_done or (self._found and self._waits):
            self._connection.write(self._unsubscribe_lines())
        else:
            await self._connection.flush(self._unsubscribe_lines(), _CANCEL_TIMEOUT_SECONDS)
        self._forget()
        return self._found

    def abandon(self) -> None:
        """Cancel the requests and return their messages to the server."""
        returned = [negative_acknowledgement(message.token) for message in self._found]
        self._connection.write(b"".join([self._unsubscribe_lines(), *returned]))
        self._found = []
        self._forget()

    def _unsubscribe_lines(self) -> bytes:
        return b"".join([b"UNSUB %d\r\n" % number for number in self._requests])

    def _forget(self) -> None:
        for number in self._requests:
            self._connection.unsubscribe(number)
        if self._batch_timer is not None:
            self._batch_timer.cancel()

    def _on_delivery(self, request: _Request, reply: bytes, data: bytes, headers: bytes) -> None:
        if reply:
            self._found.append(ReceivedMessage(request.stream, reply, headers, data))
            request.left -= 1
            if self._batch_timer is None:
                self._batch_timer = self._connection.loop.call_later(_BATCH_SECONDS, self._end)
            if request.left == 0:
                self._mark_done(request)
        elif status_of(headers) == _HEARTBEAT_STATUS:
            request.last_heartbeat = self._connection.loop.time()
        else:
            if b"Deleted" in headers or status_of(headers) == _NO_RESPONDERS_STATUS:
                self.deleted.append(request.stream)
            self._mark_done(request)

    def _mark_done(self, request: _Request) -> None:
        request.is_done = True
        unfinished = [one for one in self._requests.values() if not one.is_done]
        is_complete = self._found and not any(one.left < one.wanted for one in unfinished)
        if self.deleted or is_complete or not unfinished:
            self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _request_body(many: int, max_bytes: int, wait: float) -> bytes:
    """``no_wait`` with ``expires`` makes a request that waits for the first message only."""
    body = {"batch": many, "max_bytes": max_bytes, "no_wait": True, "expires": int(wait * 1e9)}
    if wait > 2 * _HEARTBEAT_SECONDS:
        body["idle_heartbeat"] = int(_HEARTBEAT_SECONDS * 1e9)
    return msgspec.json.encode(body)

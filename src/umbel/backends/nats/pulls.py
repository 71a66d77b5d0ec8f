"""Requests for messages, as many as there is room for, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from umbel.backends.nats.connections import Connection, negative_acknowledgement
from umbel.backends.nats.jetstream import Stream
from umbel.backends.nats.outgoing import status

_LEAST = 0.01
"""Seconds that a request waits at the least. A request that must not wait at all is answered from
a count that may be behind, and stays with the server if another receiver is faster."""
_BEAT = 0.75
"""Seconds between signs of life. A request to a consumer that is not there is never answered."""
_SILENCE = 2.0
_GRACE = 1.0
_REST = 1.0
"""Seconds that the rest of a batch may take: the server holds it back at max_ack_pending."""
_RECALL = 3.0
_BYTES = 24_000_000
"""Bytes that a pull brings at the most. A server cuts off whoever has some 64 MB to read still."""


class Message(NamedTuple):
    """One that was received, as it came."""

    stream: Stream
    token: bytes
    """Where to acknowledge it."""
    headers: bytes
    data: bytes


class _Request:
    """What was asked of one stream."""

    __slots__ = ("heard", "left", "over", "stream", "wanted")

    def __init__(self, stream: Stream, wanted: int, now: float) -> None:
        self.stream = stream
        self.wanted = self.left = wanted
        self.heard = now
        self.over = False


class Pull:
    """One request to each of several streams, under way together until one of them has some.

    Each request ends by itself at the stream's end, if it has brought anything; what was not
    brought is there for others. It has to be finished, or abandoned.
    """

    def __init__(self, connection: Connection, wanted: Mapping[Stream, int], wait: float) -> None:
        self.ended: asyncio.Future[None] = connection.loop.create_future()
        """Done when there is something, and when nothing more will come."""
        self.gone: list[Stream] = []
        """The streams that say they, or their consumers, have been deleted."""
        self._connection = connection
        self._found: list[Message] = []
        self._rest: asyncio.TimerHandle | None = None
        self._waits = wait > _LEAST
        wait = max(wait, _LEAST)
        self._patience = _SILENCE if wait > 2 * _BEAT else wait + _GRACE
        self._requests = self._ask(wanted, wait)

    def _ask(self, wanted: Mapping[Stream, int], wait: float) -> dict[int, _Request]:
        asked: dict[int, _Request] = {}
        written: list[bytes] = []
        share = max(_BYTES // len(wanted), 2 * self._connection.max_payload)
        for stream, many in wanted.items():
            request = _Request(stream, many, self._connection.loop.time())
            number, inbox = self._connection.subscribe(partial(self._hear, request), self._end)
            asked[number] = request
            body = _body(many, share, wait)
            written.append(
                f"SUB {inbox} {number}\r\nPUB {stream.next} {inbox} {len(body)}\r\n".encode() + body
            )
        self._connection.write(b"\r\n".join([*written, b""]))
        if self._connection.loss is not None:
            self._end()
        return asked

    @property
    def silent(self) -> list[Stream]:
        """The streams that should have given a sign of life and have not."""
        since = self._connection.loop.time() - self._patience
        return [r.stream for r in self._requests.values() if not r.over and r.heard < since]

    async def wait(self, nudge: asyncio.Future[None]) -> None:
        """Wait until it has ended, is nudged, or a stream is silent."""
        while not (self.ended.done() or nudge.done() or self.silent):
            await asyncio.wait(
                [self.ended, nudge], timeout=_BEAT / 2, return_when=asyncio.FIRST_COMPLETED
            )

    async def finish(self) -> list[Message]:
        """What has come. Requests that are still under way are called back first.

        Whoever has something to do does not wait for that: what crosses the call goes back, and
        comes with the next request.
        """
        over = all(request.over for request in self._requests.values())
        if over or (self._found and self._waits):
            self._connection.write(self._farewell())
        else:
            await self._connection.barrier(self._farewell(), _RECALL)
        self._forget()
        return self._found

    def abandon(self) -> None:
        """Call it back, and send back what it has brought: nobody waits for it any more."""
        back = b"".join([negative_acknowledgement(message.token) for message in self._found])
        self._connection.write(self._farewell() + back)
        self._found = []
        self._forget()

    def _farewell(self) -> bytes:
        return b"".join([b"UNSUB %d\r\n" % number for number in self._requests])

    def _forget(self) -> None:
        for number in self._requests:
            self._connection.unsubscribe(number)
        if self._rest is not None:
            self._rest.cancel()

    def _hear(self, request: _Request, reply: bytes, data: bytes, headers: bytes) -> None:
        if reply:
            self._found.append(Message(request.stream, reply, headers, data))
            request.left -= 1
            if self._rest is None:
                self._rest = self._connection.loop.call_later(_REST, self._end)
            if request.left == 0:
                self._close(request)
        elif status(headers) == 100:
            request.heard = self._connection.loop.time()
        else:
            if b"Deleted" in headers or status(headers) == 503:
                self.gone.append(request.stream)
            self._close(request)

    def _close(self, request: _Request) -> None:
        request.over = True
        unfinished = [r for r in self._requests.values() if not r.over]
        brought = self._found and not any(r.left < r.wanted for r in unfinished)
        if self.gone or brought or not unfinished:
            self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _body(many: int, size: int, wait: float) -> bytes:
    """Up to so many; "no wait" with an expiry is a request that waits for the first only."""
    asked = {"batch": many, "max_bytes": size, "no_wait": True, "expires": int(wait * 1e9)}
    if wait > 2 * _BEAT:
        asked["idle_heartbeat"] = int(_BEAT * 1e9)
    return msgspec.json.encode(asked)

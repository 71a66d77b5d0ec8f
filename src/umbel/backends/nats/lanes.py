"""Lanes on the server: each has a stream and a consumer, made by whoever finds none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from umbel.backends.nats.blocking_connection import at_once
from umbel.backends.nats.connections import Connection
from umbel.backends.nats.jetstream import Stream, make_consumer, make_stream, missing_part
from umbel.backends.nats.raw_connection import Line
from umbel.backends.nats.stream_names import stream_of
from umbel.backends.transport import Lane, Lost, tell
from umbel.messages import random_hex

_SETTLED = 1.0
"""Seconds until something that was deleted is made anew. A server says that a stream is gone, and
takes a new one of that name, while it still removes the files: the new one's, too, then."""


class Lanes:
    """Knows which lanes are there. It looks once in a connection's life, and when told to."""

    def __init__(self, *, namespace: str, replicas: int, ack_wait: float, lost: Lost) -> None:
        self._namespace = namespace
        self._replicas = replicas
        self._ack_wait = ack_wait
        self._lost = lost
        self._streams: dict[Lane, Stream] = {}
        self._lanes: dict[Stream, Lane] = {}
        self._seen: set[Lane] = set()
        self._connection: Connection | None = None
        self._known: set[Lane] = set()
        self._turn = asyncio.Lock()

    def stream(self, lane: Lane) -> Stream:
        """A lane's stream."""
        found = self._streams.get(lane)
        if found is None:
            found = stream_of(self._namespace, lane)
            self._lanes[found] = lane  # first: callers' threads look here as well
            self._streams[lane] = found
        return found

    def lane(self, stream: Stream) -> Lane:
        """The lane of a stream that was asked for before."""
        return self._lanes[stream]

    def forget(self, lane: Lane) -> None:
        """It may have been deleted: look again before it is used again."""
        self._known.discard(lane)

    async def prepare(self, connection: Connection, lanes: Iterable[Lane]) -> None:
        """See to it that all of these are there, and tell of those that were not.

        Raises:
            Refused: the server does not want one.
        """
        if connection is not self._connection:
            self._connection, self._known, self._turn = connection, set(), asyncio.Lock()
        if self._known.issuperset(lanes):
            return
        async with self._turn:  # one looks for all: two that made it would both tell of it
            for lane in lanes:
                if lane not in self._known:
                    await self._make(connection, lane)
                    self._known.add(lane)
                    self._seen.add(lane)

    def make_now(self, line: Line, lane: Lane, lost: Callable[[Lane], object]) -> None:
        """See to it, in a thread that may wait, that a lane is there; ``_make`` says why so."""
        stream = self.stream(lane)
        missing = at_once(missing_part(line, stream))
        if missing is not None and lane in self._seen:
            time.sleep(_SETTLED)
            missing = at_once(missing_part(line, stream))
        if missing == "stream":
            lost(lane)
            signature = _signature(lane)
            at_once(make_stream(line, stream, replicas=self._replicas, description=signature))
        if missing is not None:
            at_once(make_consumer(line, stream, ack_wait=self._ack_wait))
        self._seen.add(lane)

    async def _make(self, connection: Connection, lane: Lane) -> None:
        stream = self.stream(lane)
        missing = await missing_part(connection, stream)
        if missing is not None and lane in self._seen:
            await asyncio.sleep(_SETTLED)
            missing = await missing_part(connection, stream)
        if missing == "stream":
            # Told before it is made: whoever dies or is cancelled here has not made it.
            await tell(self._lost, lane)
            await make_stream(
                connection, stream, replicas=self._replicas, description=_signature(lane)
            )
        if missing is not None:
            await make_consumer(connection, stream, ack_wait=self._ack_wait)


def _signature(lane: Lane) -> str:
    """What tells our stream from one that somebody else makes at the same moment."""
    kind = f", {lane.kind} tasks" if lane.kind else ""
    return f"Umbel, queue {lane.queue[:200]!a}{kind}, made by {random_hex(8)}"

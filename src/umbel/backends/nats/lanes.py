"""The streams of the lanes on the server. Missing ones are reported and then created."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from umbel.backends.nats.connections import Connection
from umbel.backends.nats.jetstream import Stream, create_consumer, create_stream, missing_part
from umbel.backends.nats.stream_names import stream_of
from umbel.backends.transport import Lane, OnLaneMissing, report_missing_lane
from umbel.messages import random_hex

_DELETION_SECONDS = 1.0
"""Wait before a deleted stream is created again. A server reports a stream as deleted, and accepts
a new one of that name, while it still removes the files; then it removes the new one's, too."""


class LaneStreams:
    """Knows which lanes exist. It checks each lane once per connection, and after ``forget``."""

    def __init__(
        self, *, namespace: str, replicas: int, ack_wait: float, on_lane_missing: OnLaneMissing
    ) -> None:
        self._namespace = namespace
        self._replicas = replicas
        self._ack_wait = ack_wait
        self._on_lane_missing = on_lane_missing
        self._streams: dict[Lane, Stream] = {}
        self._lanes: dict[Stream, Lane] = {}
        self._seen: set[Lane] = set()
        """Lanes that existed at some time. If one is missing later, it was deleted."""
        self._connection: Connection | None = None
        self._checked: set[Lane] = set()
        """Lanes that were found over this connection."""
        self._checking = asyncio.Lock()

    def stream(self, lane: Lane) -> Stream:
        """Return the stream of a lane."""
        found = self._streams.get(lane)
        if found is None:
            found = self._streams[lane] = stream_of(self._namespace, lane)
            self._lanes[found] = lane
        return found

    def lane(self, stream: Stream) -> Lane:
        """Return the lane of a stream that ``stream`` has returned."""
        return self._lanes[stream]

    def forget(self, lane: Lane) -> None:
        """Check the lane before its next use: it may have been deleted."""
        self._checked.discard(lane)

    async def prepare(self, connection: Connection, lanes: Iterable[Lane]) -> None:
        """Make sure that these lanes exist. Report and create missing ones.

        Raises:
            APIError: the server refuses.
        """
        if connection is not self._connection:
            self._connection, self._checked, self._checking = connection, set(), asyncio.Lock()
        if self._checked.issuperset(lanes):
            return
        async with self._checking:  # two callers would both report the same lane
            for lane in lanes:
                if lane not in self._checked:
                    await self._create(connection, lane)
                    self._checked.add(lane)
                    self._seen.add(lane)

    async def _create(self, connection: Connection, lane: Lane) -> None:
        """Create what is missing of a lane."""
        stream = self.stream(lane)
        missing = await missing_part(connection, stream)
        if missing is not None and lane in self._seen:
            await asyncio.sleep(_DELETION_SECONDS)
            missing = await missing_part(connection, stream)
        if missing == "stream":
            # Reported before it is created. After a crash in between, the stream is still missing,
            # and the next process reports it.
            await report_missing_lane(self._on_lane_missing, lane)
            await create_stream(
                connection, stream, replicas=self._replicas, description=_description(lane)
            )
        if missing is not None:
            await create_consumer(connection, stream, ack_wait=self._ack_wait)


def _description(lane: Lane) -> str:
    """Return a unique description: see ``create_stream``."""
    kind = f", {lane.kind} tasks" if lane.kind else ""
    return f"Umbel, queue {lane.queue[:200]!a}{kind}, made by {random_hex(8)}"

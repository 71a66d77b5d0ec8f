"""The queues of the lanes on the server. Missing queues are reported and then declared."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from umbel.backends.rabbitmq.connections import Channel, Connection
from umbel.backends.rabbitmq.queue_names import queue_name
from umbel.backends.transport import Lane, OnLaneMissing, report_missing_lane
from umbel.errors import Unavailable
from umbel.messages import KINDS

_CANCELLATION_SECONDS = 0.25
"""Time for the server to cancel all consumers of a deleted queue, with a wide margin."""


class Queues:
    """The queues of one namespace, shared by all connections of a transport."""

    def __init__(self, namespace: str, on_lane_missing: OnLaneMissing) -> None:
        self._namespace = namespace
        self._on_lane_missing = on_lane_missing
        self._names: dict[Lane, str] = {}
        self._seen: set[Lane] = set()
        self._opening = asyncio.Lock()

    def name(self, lane: Lane) -> str:
        """Return the name of a lane's queue on the server."""
        if lane not in self._names:
            self._names[lane] = queue_name(self._namespace, lane)
        return self._names[lane]

    def lanes(self, queue: str) -> list[Lane]:
        """Return all lanes that a queue can have."""
        return [Lane(queue, kind) for kind in KINDS]

    def mark_seen(self, lanes: Iterable[Lane]) -> None:
        """Record that the queues of these lanes exist. If one is missing later, it was deleted."""
        self._seen.update(lanes)

    async def open(self, connection: Connection, lane: Lane) -> Channel:
        """Return a new channel, after making sure that the lane's queue exists.

        Raises:
            Unavailable: try again.
        """
        name = self.name(lane)
        # Sender and receiver may miss the same queue at the same time; only one reports it.
        async with self._opening:
            channel = await connection.channel()
            try:
                if await channel.exists(name):
                    self._seen.add(lane)
                    return channel
                if lane in self._seen:
                    # If the queue is declared again before the server has cancelled a consumer of
                    # the deleted queue, that consumer receives nothing for ever, and its late
                    # acknowledgements remove messages of the new queue.
                    await asyncio.sleep(_CANCELLATION_SECONDS)
                # Reported before it is declared. After a crash in between, the queue is still
                # missing, and the next process reports it.
                await report_missing_lane(self._on_lane_missing, lane)
                channel = await connection.channel()
                await channel.declare(name)
                self._seen.add(lane)
                return channel
            except BaseException:
                channel.close()
                raise

    async def replace(self, connection: Connection, lane: Lane) -> None:
        """Delete a queue that cannot be consumed from. ``open`` then declares it again.

        A queue that has messages or consumers is not deleted. Always raises Unavailable.
        """
        name = self.name(lane)
        channel = await connection.channel()
        try:
            is_deleted = await channel.delete_if_idle(name)
        finally:
            channel.close()
        remedy = "it was deleted" if is_deleted else "delete it"
        raise Unavailable(
            f"the queue {name} exists but cannot be consumed from; {remedy}; then Umbel declares it"
            " again and sends its jobs again"
        )

"""The queues of the lanes on the server: made when they are missing, and told about."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from umbel.backends.rabbitmq.channels import Channel
from umbel.backends.rabbitmq.connections import Connection
from umbel.backends.rabbitmq.queue_names import queue_name
from umbel.backends.transport import Lane, Lost, tell
from umbel.errors import Unavailable
from umbel.messages import KINDS

MOURNING = 0.25
"""Seconds until every consumer of a deleted queue has been told, several times over."""


class Queues:
    """Knows each lane's queue. One of them for all connections of a transport."""

    def __init__(self, namespace: str, lost: Lost) -> None:
        self._namespace = namespace
        self._lost = lost
        self._names: dict[Lane, str] = {}
        self._seen: set[Lane] = set()
        self._making = asyncio.Lock()

    def name(self, lane: Lane) -> str:
        """What a lane's queue is called on the server."""
        if lane not in self._names:
            self._names[lane] = queue_name(self._namespace, lane)
        return self._names[lane]

    def lanes(self, queue: str) -> list[Lane]:
        """All lanes that a queue may have."""
        return [Lane(queue, kind) for kind in KINDS]

    def saw(self, lanes: Iterable[Lane]) -> None:
        """These lanes' queues were there: if one is missing later, somebody has deleted it."""
        self._seen.update(lanes)

    def has_seen(self, lane: Lane) -> bool:
        """Whether a lane's queue was there before."""
        return lane in self._seen

    async def open(self, connection: Connection, lane: Lane) -> Channel:
        """A new channel to a lane whose queue is there for certain. Raises Unavailable."""
        name = self.name(lane)
        # Sender and receiver may miss the same queue at the same time; one of them tells.
        async with self._making:
            channel = await connection.channel()
            try:
                if await channel.finds(name):
                    self._seen.add(lane)
                    return channel
                if lane in self._seen:
                    # A consumer that has not heard of the deletion before there is a queue of
                    # that name again never will. It is pushed nothing, and what it acknowledges
                    # late removes messages of the new queue.
                    await asyncio.sleep(MOURNING)
                # Told before it is made: whoever dies or is cancelled here has not made it.
                await tell(self._lost, lane)
                channel = await connection.channel()
                await channel.declare(name)
                self._seen.add(lane)
                return channel
            except BaseException:
                channel.close()
                raise

    async def replace(self, connection: Connection, lane: Lane) -> None:
        """Delete a queue that nobody can consume from; whoever opens the lane next makes it anew.

        One that holds messages, or has consumers, is left alone. Raises Unavailable.
        """
        name = self.name(lane)
        channel = await connection.channel()
        try:
            deleted = await channel.deletes_if_idle(name)
        finally:
            channel.close()
        done = "it was deleted and is made anew" if deleted else "delete it: it is made anew"
        raise Unavailable(
            f"nobody can consume from the queue {name}, though it exists; {done}, and what was sent"
            " to it is sent again"
        )

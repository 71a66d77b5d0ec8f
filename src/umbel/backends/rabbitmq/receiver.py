"""Receives from the lanes that have capacity, over a connection that never publishes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from umbel.backends.rabbitmq.address import RabbitAddress
from umbel.backends.rabbitmq.connections import Connection, connect
from umbel.backends.rabbitmq.consumer import LaneConsumer, Token
from umbel.backends.rabbitmq.queues import Queues
from umbel.backends.transport import Arrival, Lane
from umbel.errors import Unavailable

_MAX_EMPTY_CHECK_SECONDS = 1.0
"""How long a ``receive`` without a wait tries to find out whether the lanes are empty."""
_EMPTY_CHECK_DELAY = 0.05
_OPEN_RETRY_DELAYS = (0.1, 0.3, 1.0)
"""Seconds between attempts to consume from a queue that another process is declaring."""
_MAX_FAILING_SECONDS = 20.0
"""A queue that exists and cannot be consumed from for longer than this is replaced."""


class Receiver:
    """See ``Transport.receive``. It connects on use, and again after a loss."""

    def __init__(self, address: RabbitAddress, queues: Queues) -> None:
        self._address = address
        self._queues = queues
        self._opening = asyncio.Lock()
        self._connection: Connection | None = None
        self._consumers: dict[Lane, LaneConsumer] = {}
        self._by_generation: dict[int, LaneConsumer] = {}
        """The consumers of the lanes, and replaced ones with unsettled messages."""
        self._failing_since: dict[Lane, float] = {}
        """Since when a queue that exists could not be consumed from."""
        self._changed = asyncio.Event()
        self._is_stopped = False

    async def receive(self, capacity: Mapping[Lane, int], wait: float) -> list[Arrival]:
        """See ``Transport.receive``. If the caller is cancelled, no message is handed out."""
        self._is_stopped = False
        capacity = {lane: many for lane, many in capacity.items() if many > 0}
        until = asyncio.get_running_loop().time() + (wait if wait > 0 else _MAX_EMPTY_CHECK_SECONDS)
        while True:
            self._changed.clear()
            found = await self._request_and_take(capacity)
            if found or self._is_stopped:
                return found
            try:
                async with asyncio.timeout_at(until):
                    if wait > 0:
                        await self._changed.wait()
                    elif await self._are_empty(capacity):
                        return self._take(capacity)
            except TimeoutError:
                return self._take(capacity)

    def stop_waiting(self) -> None:
        """Make a waiting ``receive`` return."""
        self._is_stopped = True
        self._changed.set()

    def accept(self, arrivals: Sequence[Arrival]) -> None:
        """See ``Transport.accept``."""
        for consumer, tags in self._by_consumer(arrivals):
            consumer.accept(tags)

    def release(self, arrivals: Sequence[Arrival]) -> None:
        """See ``Transport.release``."""
        for consumer, tags in self._by_consumer(arrivals):
            consumer.release(tags)

    async def purge(self, queue: str) -> None:
        """Delete the waiting messages of all lanes of a queue, on the server and here."""
        connection = await self._connect()
        for lane in self._queues.lanes(queue):
            channel = await connection.channel()
            try:
                await channel.purge(self._queues.name(lane))
            finally:
                channel.close()
            if lane in self._consumers:
                self._consumers[lane].accept_waiting()

    async def remove(self, queue: str) -> None:
        """Delete the queues of all lanes of a queue."""
        connection = await self._connect()
        for lane in self._queues.lanes(queue):
            channel = await connection.channel()
            try:
                await channel.delete(self._queues.name(lane))
            finally:
                channel.close()

    async def check(self) -> None:
        """Make a request to the server. Raise Unavailable."""
        connection = await self._connect()
        (await connection.channel()).close()

    async def close(self) -> None:
        """Acknowledge accepted messages; the server requeues the others. Twice is fine."""
        connection, self._connection = self._connection, None
        for consumer in self._by_generation.values():
            consumer.acknowledge_accepted()
        self._by_generation.clear()
        self._consumers.clear()
        if connection is not None:
            await connection.close()

    async def _request_and_take(self, capacity: Mapping[Lane, int]) -> list[Arrival]:
        """Request messages up to the capacity, and return those that have been delivered.

        Raise Unavailable only if there are none: a lane that cannot be opened does not hold up
        the messages of others.
        """
        problem: Unavailable | None = None
        for lane, many in capacity.items():
            consumer = self._consumers.get(lane)
            if consumer is not None and consumer.can_serve(many):
                consumer.set_capacity(many)
                continue
            try:
                await self._open_with_retries(lane, many)
            except Unavailable as error:
                problem = error
                if self._connection is None or not self._connection.is_open:
                    break  # the other lanes would wait for the same connection
        found = self._take(capacity)
        if problem is not None and not found:
            raise problem
        return found

    async def _open_with_retries(self, lane: Lane, many: int) -> None:
        """Open a lane. Raise Unavailable.

        If another process is declaring the queue, the server may crash internally over a consumer
        and close the connection. It is ready a moment later.
        """
        for delay in _OPEN_RETRY_DELAYS:
            await self._connect()  # raises at once if the server cannot be reached
            with suppress(Unavailable):
                return await self._open(lane, many)
            await asyncio.sleep(delay)
        return await self._open(lane, many)

    def _take(self, capacity: Mapping[Lane, int]) -> list[Arrival]:
        found: list[Arrival] = []
        for lane, many in capacity.items():
            if lane in self._consumers:
                found += self._consumers[lane].take(many)
        return found

    async def _are_empty(self, capacity: Mapping[Lane, int]) -> bool:
        """Return whether all messages that were confirmed before this call have been delivered.

        If not, return False after a short wait: they are on their way, or a consumer that could
        not tell must be replaced first.
        """
        counts = [await self._consumers[lane].count() for lane in capacity]
        if all(waiting == 0 for waiting in counts):
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(_EMPTY_CHECK_DELAY):
                await self._changed.wait()
        return False

    def _by_consumer(self, arrivals: Sequence[Arrival]) -> list[tuple[LaneConsumer, list[int]]]:
        """Return the tags for each consumer. Messages of closed consumers are delivered again."""
        tags: dict[int, list[int]] = {}
        for arrival in arrivals:
            token: Token = arrival.token
            tags.setdefault(token.generation, []).append(token.tag)
        known = self._by_generation
        return [(known[number], found) for number, found in tags.items() if number in known]

    async def _open(self, lane: Lane, capacity: int) -> None:
        """Start a consumer for a lane. It replaces one that is lost or too small."""
        connection = await self._connect()
        async with self._opening:
            consumer = self._consumers.get(lane)
            if consumer is not None and consumer.can_serve(capacity):
                return
            channel = await self._queues.open(connection, lane)
            if consumer is not None:
                consumer.retire()
            name = self._queues.name(lane)
            notify = self._changed.set
            consumer = LaneConsumer(lane, name, channel, capacity=capacity, notify=notify)
            await self._start(consumer)
            self._by_generation = {n: one for n, one in self._by_generation.items() if one.is_open}
            self._by_generation[consumer.generation] = self._consumers[lane] = consumer

    async def _start(self, consumer: LaneConsumer) -> None:
        """Start a consumer. Raise Unavailable.

        A server that was killed just after it had declared a queue may come back with a queue that
        exists by name only, for ever. Such a queue is replaced.
        """
        now = asyncio.get_running_loop().time()
        try:
            await consumer.start()
        except Unavailable:
            if now - self._failing_since.setdefault(consumer.lane, now) > _MAX_FAILING_SECONDS:
                await self._queues.replace(await self._reconnect(), consumer.lane)
            raise
        self._failing_since.pop(consumer.lane, None)

    async def _connect(self) -> Connection:
        async with self._opening:
            return await self._reconnect()

    async def _reconnect(self) -> Connection:
        """Return the connection, or a new one if it is lost. The caller holds the lock."""
        if self._connection is None or not self._connection.is_open:
            self._connection = await connect(self._address, "receiver")
        return self._connection

"""The consumer of one lane: messages delivered, handed out, accepted and acknowledged.

The server delivers as long as fewer than ``prefetch`` messages are unacknowledged. A message that
was accepted is in the job store, so its acknowledgement can be withheld without risk. The consumer
withholds as many acknowledgements as it takes for the server to deliver no more than the capacity.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from umbel.backends.rabbitmq.connections import Channel
from umbel.backends.rabbitmq.messages import Delivery, to_headers
from umbel.backends.transport import Arrival, Lane
from umbel.errors import Unavailable

_MAX_WAIT_SECONDS = 1.0
"""How long a message may wait here to be taken before it goes back to the server."""
_ACKNOWLEDGE_DELAY = 0.02
_ACKNOWLEDGE_FRACTION = 4
"""Acknowledgements are sent in batches: the server writes each one to disk, and the next message
waits for that. They are sent after the delay, or when they take up a fourth of the capacity."""
_MAX_PREFETCH = 65_535
"""The limit of AMQP."""
_CONSUMER_TAG = "umbel"

_generations = count(1)


class Token(NamedTuple):
    """Identifies a delivery. It is void after its channel is closed."""

    generation: int
    tag: int


class LaneConsumer:
    """A channel with one consumer. A larger capacity takes a new one.

    A channel that consumes from a queue, and after its deletion from a new queue of the same name,
    may receive nothing for ever. ``notify`` is called when there is a message to take, or when the
    lane needs another consumer.
    """

    def __init__(
        self,
        lane: Lane,
        queue: str,
        channel: Channel,
        *,
        capacity: int,
        notify: Callable[[], None],
    ) -> None:
        self.generation = next(_generations)
        self.lane = lane
        self._queue = queue
        self._channel = channel
        self._notify = notify
        self._prefetch = min(capacity, _MAX_PREFETCH)
        self._capacity = capacity
        self._is_retired = False
        self._waiting: deque[Delivery] = deque()
        self._unsettled: dict[int, None] = {}
        """Tags of messages that wait or are handed out, in ascending order."""
        self._withheld: list[int] = []
        """Tags of accepted messages that are not acknowledged yet, in ascending order."""
        self._retire_timer: asyncio.TimerHandle | None = None
        self._acknowledge_timer: asyncio.TimerHandle | None = None
        channel.on_end(lambda _: self.close())

    @property
    def is_open(self) -> bool:
        """Whether its messages can be settled. If not, the server delivers them again."""
        return self._channel.is_open

    async def start(self) -> None:
        """Start to consume. Raise Unavailable."""
        try:
            await self._channel.consume(
                self._queue, tag=_CONSUMER_TAG, prefetch=self._prefetch, deliver=self._on_message
            )
        except BaseException:
            self.close()
            raise

    def can_serve(self, capacity: int) -> bool:
        """Return whether it can deliver that much, or has messages that must be taken first."""
        is_large_enough = min(capacity, _MAX_PREFETCH) <= self._prefetch or bool(self._waiting)
        return self.is_open and not self._is_retired and is_large_enough

    def set_capacity(self, capacity: int) -> None:
        """Let the server deliver about as many messages, and no more."""
        self._capacity = capacity
        surplus = self._surplus()
        if surplus > capacity // _ACKNOWLEDGE_FRACTION:
            self._acknowledge(surplus)
        elif surplus > 0 and self._acknowledge_timer is None:
            loop = asyncio.get_running_loop()
            self._acknowledge_timer = loop.call_later(_ACKNOWLEDGE_DELAY, self._acknowledge_surplus)

    def take(self, capacity: int) -> list[Arrival]:
        """Return messages that have been delivered, up to the capacity."""
        many = min(capacity, len(self._waiting))
        self._capacity = capacity - many
        taken = [self._arrival(self._waiting.popleft()) for _ in range(many)]
        if not self._waiting:
            self._stop_retire_timer()
        return taken

    async def count(self) -> int | None:
        """Return how many messages wait on the server, after all deliveries to this consumer.

        Return None if it is unknown because the consumer was retired or closed meanwhile.
        """
        try:
            return None if self._is_retired else await self._channel.count(self._queue)
        except Unavailable:
            if self._is_retired:
                return None
            raise

    def accept(self, tags: Iterable[int]) -> None:
        """Record that these messages are in the job store."""
        self._withheld += self._settle(tags)
        self._withheld.sort()
        self._close_if_done()

    def release(self, tags: Sequence[int]) -> None:
        """Return these messages to the server.

        The consumer retires first, or the server might deliver them here again.
        """
        if any(tag in self._unsettled for tag in tags):
            self.retire()
            self._requeue(tags)
            self._close_if_done()

    def accept_waiting(self) -> None:
        """Accept the messages that wait here, without handing them out."""
        tags = [one.tag for one in self._waiting]
        self._waiting.clear()
        self.accept(tags)

    def retire(self) -> None:
        """Stop to consume, and return the messages that wait here to the server.

        Messages that were handed out can still be settled. Then the channel is closed.
        """
        self._stop_retire_timer()
        if self.is_open and not self._is_retired:
            self._is_retired = True
            self._channel.cancel(_CONSUMER_TAG)
            # Acknowledgements go first: the server is certain to read them. It defers commands
            # after some dozens, and forgets deferred ones when the channel is closed.
            self._acknowledge(len(self._withheld))
            self._requeue([one.tag for one in self._waiting])
            self._waiting.clear()
            self._close_if_done()
            self._notify()  # the lane needs another consumer

    def acknowledge_accepted(self) -> None:
        """Acknowledge all accepted messages, before the connection is closed."""
        self._stop_retire_timer()
        self._acknowledge(len(self._withheld))

    def close(self) -> None:
        """Close the channel. The server delivers again what was not acknowledged.

        Called also if the channel was lost, or if the server has cancelled the consumer because
        its queue was deleted.
        """
        self._is_retired = True
        self._waiting.clear()
        self._stop_retire_timer()
        self._channel.close()
        self._notify()

    def _on_message(self, delivery: Delivery) -> None:
        self._unsettled[delivery.tag] = None
        self._waiting.append(delivery)
        if self._retire_timer is None:
            # The receiver may have no capacity any more, while another process has.
            loop = asyncio.get_running_loop()
            self._retire_timer = loop.call_later(_MAX_WAIT_SECONDS, self.retire)
        self._notify()

    def _close_if_done(self) -> None:
        if self._is_retired:
            self._acknowledge(len(self._withheld))
            if not self._unsettled:
                self._channel.close()

    def _surplus(self) -> int:
        """Return how many withheld acknowledgements keep the server from using the capacity."""
        handed_out = len(self._unsettled) - len(self._waiting)
        return len(self._withheld) - max(self._prefetch - self._capacity - handed_out, 0)

    def _acknowledge_surplus(self) -> None:
        self._acknowledge_timer = None
        self._acknowledge(self._surplus())

    def _stop_retire_timer(self) -> None:
        if self._retire_timer is not None:
            self._retire_timer.cancel()
            self._retire_timer = None

    def _settle(self, tags: Iterable[int]) -> list[int]:
        """Remove tags from the unsettled ones, and return those that were among them."""
        if not self.is_open:
            return []
        found = [tag for tag in dict.fromkeys(tags) if tag in self._unsettled]
        for tag in found:
            del self._unsettled[tag]
        return found

    def _requeue(self, tags: Iterable[int]) -> None:
        below, others = self._split(sorted(self._settle(tags)))
        if below:
            self._channel.requeue(below[-1], and_lower=True)
        for tag in others:
            self._channel.requeue(tag)

    def _acknowledge(self, many: int) -> None:
        """Acknowledge so many accepted messages, the lowest tags first."""
        if many <= 0 or not self.is_open:
            return
        below, others = self._split(self._withheld[:many])
        self._withheld = self._withheld[many:]
        if below:
            self._channel.acknowledge(below[-1], and_lower=True)
        for tag in others:
            self._channel.acknowledge(tag)

    def _split(self, tags: list[int]) -> tuple[list[int], list[int]]:
        """Return the tags below all unsettled ones, which one command can settle, and the rest."""
        lowest = next(iter(self._unsettled), None)
        below = [tag for tag in tags if lowest is None or tag < lowest]
        return below, tags[len(below) :]

    def _arrival(self, delivery: Delivery) -> Arrival:
        return Arrival(
            lane=self.lane,
            token=Token(self.generation, delivery.tag),
            data=delivery.body,
            id=delivery.id,
            read=partial(to_headers, delivery),
        )

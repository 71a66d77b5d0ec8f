"""One consumer of a lane: what was pushed, what was handed out, and what is acknowledged when.

The server pushes for as long as fewer than ``prefetch`` messages are unacknowledged. A message
that was accepted is in the books and needs no acknowledgement to be safe, so its tag serves as
ballast: as many are kept back as there must be for the server to push no more than there is room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from umbel.backends.rabbitmq.channels import Channel
from umbel.backends.rabbitmq.deliveries import Delivery
from umbel.backends.rabbitmq.messages import ID, to_heading
from umbel.backends.transport import Arrival, Lane
from umbel.errors import Unavailable

_LINGER = 1.0
"""Seconds that a message may wait here for somebody to ask for it."""
_SOON = 0.02
_SHARE = 4
"""Acknowledgements are worth collecting: each is a write of the server's own, and the next message
waits for it. They go after so many seconds, or when they take that share of the room away."""
_MOST = 65_535
"""The largest prefetch that AMQP can say."""
_CONSUMER = "umbel"

_generations = count(1)


class Token(NamedTuple):
    """What a message is acknowledged by: worthless when its channel is gone."""

    generation: int
    tag: int


class Intake:
    """A channel with one consumer, which never changes: there is a new intake for another size.

    A channel that consumes from a queue, and from one of the same name after that was deleted,
    may be pushed nothing for ever. ``stir`` is called when there is something to see.
    """

    def __init__(
        self, lane: Lane, queue: str, channel: Channel, *, room: int, stir: Callable[[], None]
    ) -> None:
        self.generation = next(_generations)
        self.lane = lane
        self._queue = queue
        self._channel = channel
        self._stir = stir
        self._prefetch = min(room, _MOST)
        self._retired = False
        self._waiting: deque[Delivery] = deque()
        self._unaccepted: dict[int, None] = {}  # tags, lowest first: they only grow
        self._ballast: list[int] = []
        self._late: asyncio.TimerHandle | None = None
        self._room = room
        self._soon: asyncio.TimerHandle | None = None
        channel.on_end(self.end)

    @property
    def is_open(self) -> bool:
        """Whether what it gave out can be settled. If not, all of that comes again."""
        return self._channel.is_open

    async def start(self) -> None:
        """Begin to consume. Raises Unavailable."""
        try:
            await self._channel.consume(
                self._queue, name=_CONSUMER, prefetch=self._prefetch, deliver=self._came
            )
        except BaseException:
            self.end()
            raise

    def suits(self, room: int) -> bool:
        """Whether it can bring that much. What waits here is to be taken before it is replaced."""
        large = min(room, _MOST) <= self._prefetch or bool(self._waiting)
        return self.is_open and not self._retired and large

    def ask(self, room: int) -> None:
        """Let the server push about as many as there is room for, and no more."""
        self._room = room
        spare = self._spare()
        if spare > room // _SHARE:
            self._drop_ballast(spare)
        elif spare > 0 and self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(_SOON, self._drop_spare)

    def take(self, room: int) -> list[Arrival]:
        """What has been pushed, as far as there is room."""
        many = min(room, len(self._waiting))
        self._room = room - many
        taken = [self._arrival(self._waiting.popleft()) for _ in range(many)]
        if not self._waiting:
            self._stop_clock()
        return taken

    async def count(self) -> int | None:
        """How many wait on the server, after all that is on its way here has arrived.

        None if it cannot tell, because it retired or came to its end meanwhile.
        """
        try:
            return None if self._retired else await self._channel.count(self._queue)
        except Unavailable:
            if self._retired:
                return None
            raise

    def accept(self, tags: Iterable[int]) -> None:
        """These are in the books."""
        self._ballast += self._settled(tags)
        self._ballast.sort()
        self._leave_if_done()

    def release(self, tags: Sequence[int]) -> None:
        """These go back. It retires first, else the server might push them here again."""
        if any(tag in self._unaccepted for tag in tags):
            self.retire()
            self._give_back(tags)
            self._leave_if_done()

    def forget(self) -> None:
        """Drop what waits here as if it had been accepted."""
        tags = [one.tag for one in self._waiting]
        self._waiting.clear()
        self.accept(tags)

    def retire(self) -> None:
        """Have nothing more pushed; what waits here goes back, for anybody.

        What was handed out can be settled still; then the channel is freed.
        """
        self._stop_clock()
        if self.is_open and not self._retired:
            self._retired = True
            self._channel.cancel(_CONSUMER)
            # First, because it is certain to be read. After some dozens of commands the server
            # puts aside what follows, and forgets that when the channel is closed.
            self._drop_ballast(len(self._ballast))
            self._give_back([one.tag for one in self._waiting])
            self._waiting.clear()
            self._leave_if_done()
            self._stir()  # whoever waits for this lane needs another intake

    def settle(self) -> None:
        """Acknowledge what was accepted, before the end."""
        self._stop_clock()
        self._drop_ballast(len(self._ballast))

    def end(self) -> None:
        """Free the channel at once; what was not acknowledged comes again.

        Also when it was closed, or the server has cancelled the consumer: its queue is gone.
        """
        self._retired = True
        self._waiting.clear()
        self._stop_clock()
        self._channel.close()
        self._stir()

    def _came(self, delivery: Delivery) -> None:
        self._unaccepted[delivery.tag] = None
        self._waiting.append(delivery)
        if self._late is None:
            # Nobody here may have room for it any more, but perhaps somebody elsewhere has.
            self._late = asyncio.get_running_loop().call_later(_LINGER, self.retire)
        self._stir()

    def _leave_if_done(self) -> None:
        if self._retired:
            self._drop_ballast(len(self._ballast))
            if not self._unaccepted:
                self._channel.close()

    def _spare(self) -> int:
        """How much of the ballast keeps the server from pushing what there is room for."""
        handed_out = len(self._unaccepted) - len(self._waiting)
        return len(self._ballast) - max(self._prefetch - self._room - handed_out, 0)

    def _drop_spare(self) -> None:
        self._soon = None
        self._drop_ballast(self._spare())

    def _stop_clock(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _settled(self, tags: Iterable[int]) -> list[int]:
        """Those that were not settled before, and are now."""
        if not self.is_open:
            return []
        found = [tag for tag in dict.fromkeys(tags) if tag in self._unaccepted]
        for tag in found:
            del self._unaccepted[tag]
        return found

    def _give_back(self, tags: Iterable[int]) -> None:
        below, others = self._divided(sorted(self._settled(tags)))
        if below:
            self._channel.give_back(below[-1], and_lower=True)
        for tag in others:
            self._channel.give_back(tag)

    def _drop_ballast(self, many: int) -> None:
        """Acknowledge so many accepted tags, lowest first."""
        if many <= 0 or not self.is_open:
            return
        below, others = self._divided(self._ballast[:many])
        self._ballast = self._ballast[many:]
        if below:
            self._channel.acknowledge(below[-1], and_lower=True)
        for tag in others:
            self._channel.acknowledge(tag)

    def _divided(self, tags: list[int]) -> tuple[list[int], list[int]]:
        """Those that are below all that is not settled, and can be told in one go; the others."""
        first_open = next(iter(self._unaccepted), None)
        below = [tag for tag in tags if first_open is None or tag < first_open]
        return below, tags[len(below) :]

    def _arrival(self, delivery: Delivery) -> Arrival:
        return Arrival(
            lane=self.lane,
            token=Token(self.generation, delivery.tag),
            data=delivery.body,
            id=delivery.glimpse(ID),
            read=partial(to_heading, delivery),
        )

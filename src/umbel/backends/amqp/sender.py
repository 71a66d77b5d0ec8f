"""Sending: a batch is written at once, and all of its dispositions are awaited together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from umbel.backends.amqp.cloudevents import LIMIT, to_message
from umbel.backends.amqp.connections import Connection
from umbel.backends.amqp.dialects import reply_address
from umbel.backends.amqp.echoes import Echo
from umbel.backends.amqp.engine import TOO_LARGE, Outgoing
from umbel.backends.amqp.lanes import LARGEST, Lanes, give_back
from umbel.backends.amqp.reconnecting import Line, agrees, silent
from umbel.backends.transport import Lane, Reply
from umbel.errors import MessageTooLarge, Unavailable
from umbel.messages import Envelope

_TRIES = 3
_PAUSE = 0.05
"""Seconds, longer each time: a queue that somebody else is just making takes messages soon."""
_MOST, _LARGEST = 2000, 4_000_000
"""Messages, and bytes, that may be on their way unanswered."""
_HEADROOM = 65_536
"""Bytes kept for attributes where the broker names a limit for the whole message."""


class Parcel(NamedTuple):
    """A message, and where it goes."""

    lane: Lane
    message: bytes


class Sender:
    """See ``Transport.send``. Connects on use and again after a loss."""

    def __init__(
        self, line: Line, lanes: Lanes, patience: float, limited: Callable[[int], None]
    ) -> None:
        self._line = line
        self._lanes = lanes
        self._patience = patience
        self._limited = limited
        self._limit = LIMIT
        self._turn = asyncio.Lock()
        self._connection: Connection | None = None
        self._outlets: dict[Lane, Outgoing] = {}
        self._echo: Echo | None = None

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        """All are durable when it returns. What is not taken is sent again to a queue that is."""
        for envelope in envelopes:
            if len(envelope.body.data) > self._limit:
                raise self._too_large(f"job {envelope.id} has {len(envelope.body.data):,} bytes")
        parcels = [Parcel(Lane(one.queue, one.kind), to_message(one)) for one in envelopes]
        async with self._turn:  # one after the other: what is watched is watched for one batch
            for window in _windows(parcels):
                await self._deliver(window)

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Hand over each document. An address that is not there is no error."""
        if not replies:
            return
        connection = await self._line.connection()
        dialect = self._lanes.dialect(connection)
        by_address: dict[str, list[bytes]] = {}
        for reply in replies:
            address = reply_address(dialect, reply.asked.address)
            if address is not None:
                message = to_message(reply.document, reply.asked.correlation)
                by_address.setdefault(address, []).append(message)
        await asyncio.gather(*(self._answer(connection, *one) for one in by_address.items()))

    async def _answer(self, connection: Connection, address: str, messages: list[bytes]) -> None:
        aside = connection.aside()
        try:
            link = aside.sender(address)
            if await agrees(connection, link):
                await self._hand_over(connection, [(link, one) for one in messages])
        finally:
            aside.close()

    async def _deliver(self, parcels: Sequence[Parcel]) -> None:
        problem: Unavailable | None = None
        for number in range(_TRIES):
            await asyncio.sleep(_PAUSE * number)
            connection = await self._line.connection()
            try:
                answers = await self._try(connection, parcels)
            except Unavailable as error:
                if connection.is_open:
                    raise
                problem = error  # lost, perhaps together with a queue
                continue
            left = [place for place, answer in enumerate(answers) if answer]
            if not left:
                return
            refusals = [(parcels[at].lane, answers[at]) for at in left]
            problem = await self._examine(connection, refusals)
            parcels = [parcels[at] for at in left]
        assert problem is not None
        raise problem

    async def _try(self, connection: Connection, parcels: Sequence[Parcel]) -> list[str]:
        """What became of each: nothing when it is durable, else why it is not."""
        lanes = dict.fromkeys(parcel.lane for parcel in parcels)
        outlets = {lane: await self._outlet(connection, lane) for lane in lanes}
        for lane, message in parcels:
            if 0 < outlets[lane].limit < len(message):
                raise self._too_large(f"a message for the queue {lane.queue} has {len(message):,}")
        answers = await self._hand_over(
            connection, [(outlets[lane], message) for lane, message in parcels]
        )
        if self._echo is not None:
            # A queue that is deleted takes the session along, whose links watch it. Messages that
            # were accepted and dropped just before can only be told from others by waiting for
            # that, or for a sign of life that is younger than the last disposition.
            await self._echo.hear()
        return answers

    async def _hand_over(
        self, connection: Connection, messages: Sequence[tuple[Outgoing, bytes]]
    ) -> list[str]:
        """What became of each. Raises Unavailable when no answer comes for all one's patience."""
        answers = [""] * len(messages)
        left = len(messages)

        def told(place: int, why: str) -> None:
            nonlocal left
            answers[place] = why
            left -= 1

        def moved_on(since: int) -> bool:
            return left != since

        for place, (link, message) in enumerate(messages):
            link.send(message, partial(told, place))
        while left:
            if not await connection.until(partial(moved_on, left), self._patience):
                raise silent(connection)
        connection.check()
        return answers

    async def _examine(
        self, connection: Connection, refusals: list[tuple[Lane, str]]
    ) -> Unavailable:
        """What to raise if no further try helps. Raises MessageTooLarge."""
        problem = Unavailable(connection.home.address)
        for lane, why in dict.fromkeys(refusals):
            if why.startswith(TOO_LARGE):
                raise self._too_large(f"a message for the queue {lane.queue} is too large ({why})")
            problem = await self._lanes.refused(connection, lane, why)
            self._outlets.pop(lane, None)
        return problem

    async def _outlet(self, connection: Connection, lane: Lane) -> Outgoing:
        if connection is not self._connection:
            await self._begin(connection)
        link = self._outlets.get(lane)
        if link is not None and not link.why:
            return link
        if link is not None:
            await self._lanes.refused(connection, lane, link.why)
        await self._lanes.prepare(connection, lane)
        address = self._lanes.address(connection, lane)
        link = connection.sender(address)
        if self._echo is not None:
            await agrees(connection, connection.receiver(address, give_back, 0, LARGEST))
        if not await agrees(connection, link):
            raise await self._lanes.refused(connection, lane, link.why)
        self._lanes.saw(lane)
        if link.limit > 0:
            self._limit = min(self._limit, max(link.limit - _HEADROOM, link.limit // 2))
            self._limited(self._limit)
        self._outlets[lane] = link
        return link

    async def _begin(self, connection: Connection) -> None:
        self._connection, self._outlets, self._echo = None, {}, None
        dialect = self._lanes.dialect(connection)
        if dialect.early:
            echo = Echo(connection, dialect, self._lanes.echo())
            await echo.open()
            self._echo = echo
        self._connection = connection

    def _too_large(self, what: str) -> MessageTooLarge:
        return MessageTooLarge(
            f"{what}; the broker takes {self._limit:,}. Pass a reference (a path, a key, a URL)"
            " instead of the data"
        )


def _windows(parcels: Sequence[Parcel]) -> Iterator[list[Parcel]]:
    """The parcels, as many at a time as may be on their way."""
    window: list[Parcel] = []
    size = 0
    for parcel in parcels:
        if window and (len(window) == _MOST or size + len(parcel.message) > _LARGEST):
            yield window
            window, size = [], 0
        window.append(parcel)
        size += len(parcel.message)
    if window:
        yield window

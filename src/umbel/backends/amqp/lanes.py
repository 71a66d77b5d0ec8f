"""Lanes on the broker: each has a queue, made by whoever finds none, where that can be done."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from umbel.backends.amqp.address import Home
from umbel.backends.amqp.connections import Connection
from umbel.backends.amqp.dialects import Dialect, dialect_of
from umbel.backends.amqp.engine import MISSING, RELEASED, Incoming
from umbel.backends.amqp.queue_names import queue_name
from umbel.backends.amqp.reconnecting import agrees
from umbel.backends.transport import Lane, Lost, tell
from umbel.errors import Unavailable
from umbel.messages import KINDS, random_hex

_MOURNING = 0.25
"""Seconds until everybody who received from a deleted queue has been told, several times over."""
LARGEST = 512 * 1024 * 1024
"""Bytes of a message that others may have sent: no broker takes more."""


class Disturbed(Unavailable):
    """The broker gave up what it was asked for: perhaps somebody is just making that queue."""


class Lanes:
    """Knows each lane's queue. One of them for all connections of a transport."""

    def __init__(self, home: Home, namespace: str, lost: Lost) -> None:
        self._prefix = home.prefix
        self._namespace = namespace
        self._lost = lost
        self._names: dict[Lane, str] = {}
        self._dialects: WeakKeyDictionary[Connection, Dialect] = WeakKeyDictionary()
        self._there: WeakKeyDictionary[Connection, set[Lane]] = WeakKeyDictionary()
        self._seen: set[Lane] = set()
        self._missing: set[Lane] = set()
        self._making = asyncio.Lock()

    def name(self, lane: Lane) -> str:
        """What a lane's queue is called on the broker."""
        if lane not in self._names:
            self._names[lane] = queue_name(self._namespace, lane)
        return self._names[lane]

    def lanes(self, queue: str) -> list[Lane]:
        """All lanes that a queue may have."""
        return [Lane(queue, kind) for kind in KINDS]

    def dialect(self, connection: Connection) -> Dialect:
        """How this broker is spoken to."""
        if connection not in self._dialects:
            self._dialects[connection] = dialect_of(*connection.product, self._prefix)
        return self._dialects[connection]

    def address(self, connection: Connection, lane: Lane) -> str:
        """Where a lane's queue is."""
        return self.dialect(connection).use + self.name(lane)

    def echo(self) -> str:
        """A name of this namespace that nobody else has."""
        return queue_name(self._namespace, Lane(f"echo-{random_hex(8)}", ""))

    def saw(self, lane: Lane) -> None:
        """The broker has agreed to a link with this lane: it is there."""
        self._seen.add(lane)
        self._missing.discard(lane)

    async def refused(self, connection: Connection, lane: Lane, why: str) -> Unavailable:
        """The broker gave up a link, or would not have one. What to raise if that is the end."""
        self._there.get(connection, set()).discard(lane)
        address = connection.home.address
        if not why.startswith(MISSING):
            return Disturbed(f"{address}, queue {self.name(lane)}: {why}")
        if self.dialect(connection).make is None and lane not in self._missing:
            await tell(self._lost, lane)
            self._missing.add(lane)
        return Unavailable(
            f"{address} has no queue {self.name(lane)} ({why}); make it there, or let the broker"
            " make queues by itself"
        )

    async def prepare(self, connection: Connection, lane: Lane) -> None:
        """See to it that a lane is there, and tell if it was not. Looks once on a connection.

        Raises:
            Unavailable: the connection was lost, or the broker does not want it.
        """
        dialect = self.dialect(connection)
        there = self._there.setdefault(connection, set())
        if dialect.make is None or lane in there:
            return
        # Sender and receiver may miss the same queue at the same time; one of them tells.
        async with self._making:
            if not await finds(connection, dialect.use + self.name(lane)):
                if lane in self._seen:
                    # Whoever received from it and has not heard of the deletion before there is
                    # a queue of that name again may never hear of it, and be sent nothing.
                    await asyncio.sleep(_MOURNING)
                # Told before it is made: whoever dies or is cancelled here has not made it.
                await tell(self._lost, lane)
                await _make(connection, dialect.make + self.name(lane))
            there.add(lane)
            self._seen.add(lane)


async def finds(connection: Connection, address: str) -> bool:
    """Whether there is something to receive from. Raises Unavailable."""
    aside = connection.aside()
    try:
        link = aside.receiver(address, give_back, LARGEST)
        if await agrees(connection, link):
            return True
        if link.why.startswith(MISSING):
            return False
        raise Disturbed(f"{connection.home.address}, {address}: {link.why}")
    finally:
        aside.close()


async def _make(connection: Connection, address: str) -> None:
    aside = connection.aside()
    try:
        link = aside.sender(address, durable=True)
        if not await agrees(connection, link):
            raise Disturbed(f"{connection.home.address} does not make {address}: {link.why}")
    finally:
        aside.close()


def give_back(link: Incoming, token: Any, data: bytes) -> None:
    """For whoever wants to receive nothing."""
    link.answer(token, RELEASED)

"""A question that is always answered, for brokers that do not say when they have said all."""

from __future__ import annotations

from umbel.backends.amqp.connections import Connection
from umbel.backends.amqp.dialects import Dialect
from umbel.backends.amqp.lanes import LARGEST, give_back
from umbel.backends.amqp.reconnecting import ANSWER, agrees, silent
from umbel.errors import Unavailable


class Echo:
    """Credit for an empty queue of our own, given and taken back: each time there is an answer.

    It comes after everything that the broker has done in the session before it was asked.
    """

    def __init__(self, connection: Connection, dialect: Dialect, name: str) -> None:
        assert dialect.make is not None
        self._connection = connection
        self._owner = connection.sender(dialect.make + name)  # not durable: gone with its session
        self._link = connection.receiver(dialect.use + name, give_back, 0, LARGEST)
        self._before = -1
        """How often there had been an answer when it was asked last."""

    async def open(self) -> None:
        """Raises Unavailable."""
        for part in (self._owner, self._link):
            if not await agrees(self._connection, part):
                raise Unavailable(f"{self._connection.home.address}: {part.why}")

    async def hear(self) -> None:
        """Ask, and wait for the answer. Raises Unavailable."""
        await self._wait()  # for an answer that somebody who asked before has not waited for
        self._before = self._link.flows
        if self._link.credit:
            self._connection.take_back([self._link])
        else:
            self._link.more(1)
        await self._wait()

    async def _wait(self) -> None:
        if not await self._connection.until(lambda: self._link.flows != self._before, ANSWER):
            raise silent(self._connection)

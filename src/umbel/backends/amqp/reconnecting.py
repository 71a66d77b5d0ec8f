"""A connection that is made on use, and again after a loss."""

from __future__ import annotations

import asyncio

from umbel.backends.amqp.address import Home
from umbel.backends.amqp.connections import Connection, connect
from umbel.backends.amqp.engine import Aside, Incoming, Outgoing
from umbel.errors import Unavailable

ANSWER = 5.0
"""Seconds that the broker has for an answer."""


class Line:
    """Whoever asks gets the living connection, or waits for a new one."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None

    @property
    def living(self) -> Connection | None:
        """The connection, if there is one."""
        connection = self._connection
        return connection if connection is not None and connection.is_open else None

    async def connection(self) -> Connection:
        """The connection. Raises Unavailable."""
        async with self._connecting:
            if self.living is None:
                lost, self._connection = self._connection, None
                if lost is not None:
                    lost.drop()
                self._connection = await _reached(self._home)
            assert self._connection is not None
            return self._connection

    async def close(self) -> None:
        """Say goodbye. Twice is fine."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def _reached(home: Home) -> Connection:
    try:
        return await connect(home)
    except Unavailable as error:
        raise Unavailable(
            f"{error}; check host, port, user and password, and that AMQP 1.0 is spoken there"
            " (RabbitMQ before version 4: rabbitmq-plugins enable rabbitmq_amqp1_0)"
        ) from None


async def agrees(connection: Connection, part: Outgoing | Incoming | Aside) -> bool:
    """Whether the broker agrees to a link or a session; ``part.why`` says why not.

    Raises:
        Unavailable: the connection was lost, or the broker does not answer.
    """
    if not await connection.until(lambda: part.opened or part.why, ANSWER):
        raise silent(connection)
    connection.check()
    return part.opened and not part.why


def silent(connection: Connection) -> Unavailable:
    """What to raise when no answer comes. The connection is given up: another one may do."""
    why = "did not answer in time; check that it runs"
    connection.drop(f"it {why}")
    return Unavailable(f"{connection.home.address} {why}")

"""A connection that is made on first use, and again after a loss."""

from __future__ import annotations

import asyncio

from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.amqp.connections import Connection, connect
from umbel.backends.amqp.engine import ReceivingLink, SendingLink, Session
from umbel.errors import Unavailable

ANSWER_TIMEOUT_SECONDS = 5.0
"""How long the broker may take to answer."""


class Reconnector:
    """Gives all callers the same open connection, and makes a new one if that is lost."""

    def __init__(self, address: AmqpAddress) -> None:
        self._address = address
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None

    @property
    def current(self) -> Connection | None:
        """The connection if it is open, otherwise None."""
        connection = self._connection
        return connection if connection is not None and connection.is_open else None

    async def connection(self) -> Connection:
        """Return an open connection. Raises Unavailable."""
        async with self._lock:
            if self.current is None:
                lost, self._connection = self._connection, None
                if lost is not None:
                    lost.abort()
                self._connection = await _connect(self._address)
            assert self._connection is not None
            return self._connection

    async def close(self) -> None:
        """Close the connection. Closing twice is allowed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def _connect(address: AmqpAddress) -> Connection:
    try:
        return await connect(address)
    except Unavailable as error:
        raise Unavailable(
            f"{error}; check host, port, user and password, and that the server supports AMQP 1.0"
            " (RabbitMQ before version 4: rabbitmq-plugins enable rabbitmq_amqp1_0)"
        ) from None


async def wait_until_open(
    connection: Connection, part: SendingLink | ReceivingLink | Session
) -> bool:
    """Return whether the broker accepts a link or a session; if not, see ``part.close_reason``.

    Raises:
        Unavailable: the connection was lost, or the broker does not answer.
    """
    if not await connection.wait_until(
        lambda: part.is_open or part.close_reason, ANSWER_TIMEOUT_SECONDS
    ):
        raise abort_unresponsive(connection)
    connection.check()
    return part.is_open and not part.close_reason


def abort_unresponsive(connection: Connection) -> Unavailable:
    """Abort a connection on which no answer came, so that the next call makes another.

    Returns the error to raise.
    """
    reason = "did not answer in time; check that it is running"
    connection.abort(f"it {reason}")
    return Unavailable(f"{connection.address.label} {reason}")

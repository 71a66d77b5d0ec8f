"""A round trip that ends after everything that the broker did before it, for RabbitMQ 3."""

from __future__ import annotations

from umbel.backends.amqp.connections import Connection
from umbel.backends.amqp.dialects import Dialect
from umbel.backends.amqp.lanes import MAX_MESSAGE_BYTES, release_message
from umbel.backends.amqp.reconnecting import (
    ANSWER_TIMEOUT_SECONDS,
    abort_unresponsive,
    wait_until_open,
)
from umbel.errors import Unavailable


class Barrier:
    """Gives credit to a link of an empty queue of its own, or takes it back.

    The broker answers each change of credit with a flow frame. That answer comes after everything
    that the broker did in the session before it was asked.
    """

    def __init__(self, connection: Connection, dialect: Dialect, name: str) -> None:
        assert dialect.create_prefix is not None
        self._connection = connection
        # The queue is not durable, and goes away with this link's session.
        self._creator = connection.open_sender(dialect.create_prefix + name)
        self._link = connection.open_receiver(
            dialect.prefix + name, release_message, 0, MAX_MESSAGE_BYTES
        )
        self._flow_count_before = -1
        """The link's number of flow frames when the last round trip began."""

    async def open(self) -> None:
        """Create the queue. Raises Unavailable."""
        for link in (self._creator, self._link):
            if not await wait_until_open(self._connection, link):
                raise Unavailable(f"{self._connection.address.label}: {link.close_reason}")

    async def wait(self) -> None:
        """Wait until the broker has answered. Raises Unavailable."""
        await self._wait_for_flow()  # the answer to an earlier call that was cancelled
        self._flow_count_before = self._link.flow_count
        if self._link.credit:
            self._connection.revoke_credit([self._link])
        else:
            self._link.add_credit(1)
        await self._wait_for_flow()

    async def _wait_for_flow(self) -> None:
        if not await self._connection.wait_until(
            lambda: self._link.flow_count != self._flow_count_before, ANSWER_TIMEOUT_SECONDS
        ):
            raise abort_unresponsive(self._connection)

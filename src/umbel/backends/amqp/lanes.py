"""The queues of lanes on the broker. A queue that is missing is created where that is possible."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.amqp.connections import Connection
from umbel.backends.amqp.dialects import Dialect, detect_dialect
from umbel.backends.amqp.engine import MISSING, RELEASED, ReceivingLink
from umbel.backends.amqp.queue_names import queue_name
from umbel.backends.amqp.reconnecting import wait_until_open
from umbel.backends.transport import Lane, OnLaneMissing, report_missing_lane
from umbel.errors import Unavailable
from umbel.messages import KINDS, random_hex

_DELETION_NOTICE_SECONDS = 0.25
"""Several times as long as a broker needs to notify all receivers of a deleted queue."""
MAX_MESSAGE_BYTES = 512 * 1024 * 1024
"""The size of a message from any sender: no broker accepts more."""


class LinkFailed(Unavailable):
    """The broker closed a link or a session, perhaps because the queue is just being created."""


class LaneQueues:
    """Names, finds and creates the queue of each lane. A transport's connections share one."""

    def __init__(
        self, address: AmqpAddress, namespace: str, on_lane_missing: OnLaneMissing
    ) -> None:
        self._prefix = address.prefix
        self._namespace = namespace
        self._on_lane_missing = on_lane_missing
        self._names: dict[Lane, str] = {}
        self._dialects: WeakKeyDictionary[Connection, Dialect] = WeakKeyDictionary()
        self._checked: WeakKeyDictionary[Connection, set[Lane]] = WeakKeyDictionary()
        self._seen: set[Lane] = set()
        self._missing: set[Lane] = set()
        self._create_lock = asyncio.Lock()

    def name(self, lane: Lane) -> str:
        """Return the name of a lane's queue on the broker."""
        if lane not in self._names:
            self._names[lane] = queue_name(self._namespace, lane)
        return self._names[lane]

    def lanes(self, queue: str) -> list[Lane]:
        """Return all lanes that a queue may have."""
        return [Lane(queue, kind) for kind in KINDS]

    def dialect(self, connection: Connection) -> Dialect:
        """Return the dialect of the broker at the other end."""
        if connection not in self._dialects:
            self._dialects[connection] = detect_dialect(*connection.product, self._prefix)
        return self._dialects[connection]

    def address(self, connection: Connection, lane: Lane) -> str:
        """Return the AMQP address of a lane's queue."""
        return self.dialect(connection).prefix + self.name(lane)

    def barrier_name(self) -> str:
        """Return a queue name in this namespace that no other process uses."""
        return queue_name(self._namespace, Lane(f"echo-{random_hex(8)}", ""))

    def record_found(self, lane: Lane) -> None:
        """Record that a lane's queue exists: the broker has accepted a link to it."""
        self._seen.add(lane)
        self._missing.discard(lane)

    async def record_refusal(self, connection: Connection, lane: Lane, reason: str) -> Unavailable:
        """Record that the broker closed or refused a link to a lane's queue.

        Returns the error to raise if the caller does not try again.
        """
        self._checked.get(connection, set()).discard(lane)
        label = connection.address.label
        if not reason.startswith(MISSING):
            return LinkFailed(f"{label}, queue {self.name(lane)}: {reason}")
        if self.dialect(connection).create_prefix is None and lane not in self._missing:
            await report_missing_lane(self._on_lane_missing, lane)
            self._missing.add(lane)
        return Unavailable(
            f"{label} has no queue {self.name(lane)} ({reason}); create it there, or let the broker"
            " create queues by itself"
        )

    async def ensure_queue(self, connection: Connection, lane: Lane) -> None:
        """Create a lane's queue if it is missing, and report the loss. Checks once per connection.

        Raises:
            Unavailable: the connection was lost, or the broker refuses.
        """
        dialect = self.dialect(connection)
        checked = self._checked.setdefault(connection, set())
        if dialect.create_prefix is None or lane in checked:
            return
        # The sender and the receiver may miss the same queue at the same time; one reports it.
        async with self._create_lock:
            if not await queue_exists(connection, dialect.prefix + self.name(lane)):
                if lane in self._seen:
                    # A receiver that has not been notified of the deletion when a queue of that
                    # name exists again may never be notified, and would get no messages.
                    await asyncio.sleep(_DELETION_NOTICE_SECONDS)
                # Reported before it is created: a process that dies in between leaves it missing,
                # and the next one reports it.
                await report_missing_lane(self._on_lane_missing, lane)
                await _create_queue(connection, dialect.create_prefix + self.name(lane))
            checked.add(lane)
            self._seen.add(lane)


async def queue_exists(connection: Connection, address: str) -> bool:
    """Return whether there is a queue at this address. Raises Unavailable."""
    session = connection.open_session()
    try:
        link = session.open_receiver(address, release_message, MAX_MESSAGE_BYTES)
        if await wait_until_open(connection, link):
            return True
        if link.close_reason.startswith(MISSING):
            return False
        raise LinkFailed(f"{connection.address.label}, {address}: {link.close_reason}")
    finally:
        session.close()


async def _create_queue(connection: Connection, address: str) -> None:
    session = connection.open_session()
    try:
        link = session.open_sender(address, durable=True)
        if not await wait_until_open(connection, link):
            raise LinkFailed(
                f"{connection.address.label} does not create {address}: {link.close_reason}"
            )
    finally:
        session.close()


def release_message(link: ReceivingLink, token: Any, data: bytes) -> None:
    """Give a message back: the callback of a link that is not meant to receive any."""
    link.settle(token, RELEASED)

"""Receive messages: credit for what the caller has capacity for; unused credit is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

from umbel.backends.amqp.barrier import Barrier
from umbel.backends.amqp.cloudevents import to_arrival
from umbel.backends.amqp.connections import Connection
from umbel.backends.amqp.engine import ACCEPTED, RELEASED, ReceivingLink
from umbel.backends.amqp.lanes import MAX_MESSAGE_BYTES, LaneQueues, LinkFailed, queue_exists
from umbel.backends.amqp.reconnecting import (
    ANSWER_TIMEOUT_SECONDS,
    Reconnector,
    abort_unresponsive,
    wait_until_open,
)
from umbel.backends.transport import Arrival, Lane
from umbel.errors import Unavailable

_OPEN_RETRY_DELAYS_SECONDS = (0.1, 0.3, 1.0)
"""Waits between attempts to receive from a queue that another process is just creating."""
_PURGE_BATCH = 1000
"""Messages that are dropped at a time."""

_link_ids = count(1)


class Token(NamedTuple):
    """Identifies a received message. It is worthless once its link is closed."""

    link_id: int
    number: int


class LaneReceiver:
    """The link of one lane.

    A message that arrives while no call receives, or beyond its capacity, is released at once.
    """

    def __init__(self, lane: Lane, connection: Connection, address: str) -> None:
        self.link_id = next(_link_ids)
        self.lane = lane
        self.waiting: list[tuple[int, bytes]] = []
        self._capacity = 0
        self._numbers = count()
        self._unsettled: dict[int, Any] = {}
        self.link = connection.open_receiver(address, self._on_message, 0, MAX_MESSAGE_BYTES)

    @property
    def is_full(self) -> bool:
        """Whether as many messages have arrived as the caller has capacity for."""
        return len(self.waiting) >= self._capacity

    def request(self, capacity: int) -> None:
        """Give credit up to the capacity, for messages that are there now or come later."""
        self._capacity = capacity
        self.link.add_credit(capacity - len(self.waiting) - self.link.credit)

    def drain(self, capacity: int) -> None:
        """Give credit up to the capacity, for messages that are there now."""
        self._capacity = capacity
        self.link.drain(max(capacity - len(self.waiting) - self.link.credit, 0))

    def take(self) -> list[Arrival]:
        """Return the messages that have arrived, and accept no more."""
        self._capacity = 0
        taken, self.waiting = self.waiting, []
        return [to_arrival(self.lane, Token(self.link_id, number), data) for number, data in taken]

    def settle(self, number: int, state: int) -> None:
        """Report the outcome of a message to the broker. Settling twice is allowed."""
        delivery = self._unsettled.pop(number, None)
        if delivery is not None:
            self.link.settle(delivery, state)

    def release_all(self) -> None:
        """Release what has arrived and what is under way: the receiving call was cancelled."""
        self._capacity = 0
        taken, self.waiting = self.waiting, []
        for number, _ in taken:
            self.settle(number, RELEASED)

    def _on_message(self, link: ReceivingLink, delivery: Any, data: bytes) -> None:
        if len(self.waiting) >= self._capacity:
            link.settle(delivery, RELEASED)
            return
        number = next(self._numbers)
        self._unsettled[number] = delivery
        self.waiting.append((number, data))


class Receiver:
    """See ``Transport.receive``. Connects on first use and again after a loss."""

    def __init__(self, reconnector: Reconnector, lanes: LaneQueues) -> None:
        self._reconnector = reconnector
        self._lanes = lanes
        self._lock = asyncio.Lock()
        self._stop_requested = asyncio.Event()
        self._connection: Connection | None = None
        self._barrier: Barrier | None = None
        self._serving: dict[Lane, LaneReceiver] = {}
        self._by_link_id: dict[int, LaneReceiver] = {}
        self._may_retry_opening = True
        """Whether a lane that cannot be opened is tried again: not if the last retries failed."""

    async def receive(self, capacity: Mapping[Lane, int], wait: float) -> list[Arrival]:
        """Return up to so many messages of each lane. A cancelled call keeps none."""
        async with self._lock:
            self._stop_requested.clear()
            loop = asyncio.get_running_loop()
            until = loop.time() + wait
            capacity = {lane: limit for lane, limit in capacity.items() if limit > 0}
            while capacity:
                found = await self._receive_once(capacity, until)
                if found or self._stop_requested.is_set() or loop.time() >= until:
                    return found
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._stop_requested.wait()
            return []

    def stop_waiting(self) -> None:
        """Make a ``receive`` that waits return."""
        self._stop_requested.set()
        if (connection := self._reconnector.current) is not None:
            connection.wake_waiters()

    def settle(self, arrivals: Sequence[Arrival], state: int) -> None:
        """Report outcomes to the broker, which redelivers messages of a closed link anyway."""
        for arrival in arrivals:
            token: Token = arrival.token
            receiver = self._by_link_id.get(token.link_id)
            if receiver is not None:
                receiver.settle(token.number, state)

    async def purge(self, queue: str) -> None:
        """Drop the messages in all lanes of a queue, by receiving them."""
        self.stop_waiting()
        async with self._lock:
            connection = await self._reconnector.connection()
            for lane in self._lanes.lanes(queue):
                if await queue_exists(connection, self._lanes.address(connection, lane)):
                    while found := await self._receive_once({lane: _PURGE_BATCH}, 0.0):
                        self.settle(found, ACCEPTED)

    async def check(self) -> None:
        """Raise Unavailable if the broker does not answer."""
        connection = await self._reconnector.connection()
        session = connection.open_session()
        try:
            if not await wait_until_open(connection, session):
                raise Unavailable(f"{connection.address.label}: {session.close_reason}")
        finally:
            session.close()

    async def _receive_once(self, capacity: Mapping[Lane, int], until: float) -> list[Arrival]:
        """Return the messages that are there; if there are none, wait for the first.

        Raises:
            Unavailable: the broker does not answer, or no lane could be opened.
        """
        connection, receivers, problem = await self._open_with_retries(capacity)
        try:
            await self._collect(connection, receivers)
            left = until - asyncio.get_running_loop().time()
            if left > 0 and problem is None and not any(one.waiting for one in receivers):
                await self._wait(connection, receivers, left)
        except Unavailable:
            if connection.is_open or asyncio.get_running_loop().time() >= until:
                raise
            return []  # lost, perhaps with a deleted queue: the caller tries another connection
        except BaseException:
            connection.revoke_credit(one.link for one in receivers)
            for receiver in receivers:
                receiver.release_all()
            raise
        found = [arrival for receiver in receivers for arrival in receiver.take()]
        if problem is not None and not found:
            raise problem
        return found

    async def _wait(
        self, connection: Connection, receivers: Mapping[LaneReceiver, int], left: float
    ) -> None:
        """Wait until a message has arrived, ``stop_waiting`` is called, or the time is over."""
        for receiver, limit in receivers.items():
            receiver.request(limit)
        await connection.wait_until(
            lambda: (
                self._stop_requested.is_set()
                or any(one.waiting or one.link.close_reason for one in receivers)
            ),
            left,
        )
        if self._barrier is None:
            for receiver in receivers:
                receiver.link.drain(0)
        else:
            connection.revoke_credit(one.link for one in receivers)
        await self._finish(connection, receivers)

    async def _collect(self, connection: Connection, receivers: Mapping[LaneReceiver, int]) -> None:
        """Receive what is in the queues now."""
        if self._barrier is None:
            for receiver, limit in receivers.items():
                receiver.drain(limit)
        else:
            for receiver, limit in receivers.items():
                receiver.request(limit)
            connection.flush()
            connection.revoke_credit(one.link for one in receivers)
        await self._finish(connection, receivers)

    async def _finish(self, connection: Connection, receivers: Mapping[LaneReceiver, int]) -> None:
        """Wait until every message for which there was credit has arrived."""
        if self._barrier is not None:
            if not all(one.is_full for one in receivers):
                await self._barrier.wait()  # now the queues have sent the messages ...
                await self._barrier.wait()  # ... and now they have arrived
        elif not await connection.wait_until(
            lambda: all(one.link.close_reason or one.link.is_drained for one in receivers),
            ANSWER_TIMEOUT_SECONDS,
        ):
            raise abort_unresponsive(connection)

    async def _open_with_retries(
        self, capacity: Mapping[Lane, int]
    ) -> tuple[Connection, dict[LaneReceiver, int], Unavailable | None]:
        """Open a receiver for each lane.

        While another process creates a queue, the broker may end the session or the connection
        that asks for it. A moment later the queue exists.
        """
        for delay in _OPEN_RETRY_DELAYS_SECONDS if self._may_retry_opening else ():
            connection = await self._reconnector.connection()
            try:
                receivers, problem = await self._open(connection, capacity)
            except Unavailable:
                if connection.is_open:
                    raise
            else:
                if not isinstance(problem, LinkFailed):
                    return connection, receivers, problem
            await asyncio.sleep(delay)
        connection = await self._reconnector.connection()
        receivers, problem = await self._open(connection, capacity)
        self._may_retry_opening = problem is None
        return connection, receivers, problem

    async def _open(
        self, connection: Connection, capacity: Mapping[Lane, int]
    ) -> tuple[dict[LaneReceiver, int], Unavailable | None]:
        """Return a receiver for each lane that can be opened, and the last error of the others."""
        if connection is not self._connection:
            await self._use(connection)
        found: dict[LaneReceiver, int] = {}
        problem: Unavailable | None = None
        for lane, limit in capacity.items():
            receiver = self._serving.get(lane)
            if receiver is not None and receiver.link.close_reason:
                await self._lanes.record_refusal(connection, lane, receiver.link.close_reason)
                receiver = None
            try:
                found[receiver or await self._open_lane(connection, lane)] = limit
            except Unavailable as error:
                if not connection.is_open:
                    raise
                problem = error
        return found, problem

    async def _open_lane(self, connection: Connection, lane: Lane) -> LaneReceiver:
        await self._lanes.ensure_queue(connection, lane)
        receiver = LaneReceiver(lane, connection, self._lanes.address(connection, lane))
        if not await wait_until_open(connection, receiver.link):
            raise await self._lanes.record_refusal(connection, lane, receiver.link.close_reason)
        self._lanes.record_found(lane)
        self._by_link_id = {
            link_id: one for link_id, one in self._by_link_id.items() if not one.link.close_reason
        }
        self._by_link_id[receiver.link_id] = self._serving[lane] = receiver
        return receiver

    async def _use(self, connection: Connection) -> None:
        """Start to use a new connection."""
        self._connection, self._serving, self._by_link_id, self._barrier = None, {}, {}, None
        dialect = self._lanes.dialect(connection)
        if dialect.is_rabbitmq_3:
            barrier = Barrier(connection, dialect, self._lanes.barrier_name())
            await barrier.open()
            self._barrier = barrier
        self._connection = connection

"""Send messages: a batch is written at once, and all its dispositions are awaited together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from umbel.backends.amqp.barrier import Barrier
from umbel.backends.amqp.cloudevents import DEFAULT_MAX_BODY_BYTES, to_message
from umbel.backends.amqp.connections import Connection
from umbel.backends.amqp.dialects import reply_address
from umbel.backends.amqp.engine import TOO_LARGE, SendingLink
from umbel.backends.amqp.lanes import MAX_MESSAGE_BYTES, LaneQueues, release_message
from umbel.backends.amqp.reconnecting import Reconnector, abort_unresponsive, wait_until_open
from umbel.backends.transport import Lane, Reply
from umbel.errors import MessageTooLarge, Unavailable
from umbel.messages import Envelope

_MAX_ATTEMPTS = 3
_RETRY_DELAY_SECONDS = 0.05
"""The wait grows by this much with each attempt: a queue that is just being created exists soon."""
_MAX_UNSETTLED_MESSAGES, _MAX_UNSETTLED_BYTES = 2000, 4_000_000
"""How much may be sent before the broker has to answer."""
_ATTRIBUTE_BYTES = 65_536
"""Bytes kept for attributes where the broker's limit is for the whole message."""


class LaneMessage(NamedTuple):
    """An encoded message and its lane."""

    lane: Lane
    message: bytes


class Sender:
    """See ``Transport.send``. Connects on first use and again after a loss.

    ``on_limit`` is called with the largest body in bytes when the broker's limit becomes known.
    """

    def __init__(
        self,
        reconnector: Reconnector,
        lanes: LaneQueues,
        timeout: float,
        on_limit: Callable[[int], None],
    ) -> None:
        self._reconnector = reconnector
        self._lanes = lanes
        self._timeout = timeout
        self._on_limit = on_limit
        self._max_body_bytes = DEFAULT_MAX_BODY_BYTES
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        self._links: dict[Lane, SendingLink] = {}
        self._barrier: Barrier | None = None

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        """Send a batch. All are durable when it returns; refused messages are sent again."""
        for envelope in envelopes:
            if len(envelope.body.data) > self._max_body_bytes:
                raise self._too_large(f"job {envelope.id} has {len(envelope.body.data):,} bytes")
        messages = [LaneMessage(Lane(one.queue, one.kind), to_message(one)) for one in envelopes]
        async with self._lock:  # one batch at a time: the barrier covers a single batch
            for window in _split_into_windows(messages):
                await self._deliver(window)

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Send each document to its address. An address that does not exist is no error."""
        if not replies:
            return
        connection = await self._reconnector.connection()
        dialect = self._lanes.dialect(connection)
        by_address: dict[str, list[bytes]] = {}
        for reply in replies:
            address = reply_address(dialect, reply.asked.address)
            if address is not None:
                message = to_message(reply.document, reply.asked.correlation)
                by_address.setdefault(address, []).append(message)
        await asyncio.gather(*(self._reply_to(connection, *one) for one in by_address.items()))

    async def _reply_to(self, connection: Connection, address: str, messages: list[bytes]) -> None:
        session = connection.open_session()
        try:
            link = session.open_sender(address)
            if await wait_until_open(connection, link):
                await self._send_all(connection, [(link, one) for one in messages])
        finally:
            session.close()

    async def _deliver(self, messages: Sequence[LaneMessage]) -> None:
        problem: Unavailable | None = None
        for attempt in range(_MAX_ATTEMPTS):
            await asyncio.sleep(_RETRY_DELAY_SECONDS * attempt)
            connection = await self._reconnector.connection()
            try:
                outcomes = await self._try(connection, messages)
            except Unavailable as error:
                if connection.is_open:
                    raise
                problem = error  # lost, perhaps with a deleted queue
                continue
            refused = [index for index, outcome in enumerate(outcomes) if outcome]
            if not refused:
                return
            refusals = [(messages[index].lane, outcomes[index]) for index in refused]
            problem = await self._handle_refusals(connection, refusals)
            messages = [messages[index] for index in refused]
        assert problem is not None
        raise problem

    async def _try(self, connection: Connection, messages: Sequence[LaneMessage]) -> list[str]:
        """Return the outcome of each message: empty if it is durable, otherwise the reason."""
        lanes = dict.fromkeys(message.lane for message in messages)
        links = {lane: await self._open_link(connection, lane) for lane in lanes}
        for lane, message in messages:
            if 0 < links[lane].max_message_bytes < len(message):
                raise self._too_large(
                    f"a message for the queue {lane.queue} has {len(message):,} bytes"
                )
        outcomes = await self._send_all(
            connection, [(links[lane], message) for lane, message in messages]
        )
        if self._barrier is not None:
            # When a queue is deleted, the broker ends the session that has a receiver on it.
            # Messages that it accepted and dropped just before look like any others. Therefore wait
            # for the end of the session, or for an answer that is newer than the last disposition.
            await self._barrier.wait()
        return outcomes

    async def _send_all(
        self, connection: Connection, messages: Sequence[tuple[SendingLink, bytes]]
    ) -> list[str]:
        """Return the outcome of each message.

        Raises:
            Unavailable: no further disposition came within the timeout.
        """
        outcomes = [""] * len(messages)
        left = len(messages)

        def on_outcome(index: int, reason: str) -> None:
            nonlocal left
            outcomes[index] = reason
            left -= 1

        def has_changed(before: int) -> bool:
            return left != before

        for index, (link, message) in enumerate(messages):
            link.send(message, partial(on_outcome, index))
        while left:
            if not await connection.wait_until(partial(has_changed, left), self._timeout):
                raise abort_unresponsive(connection)
        connection.check()
        return outcomes

    async def _handle_refusals(
        self, connection: Connection, refusals: list[tuple[Lane, str]]
    ) -> Unavailable:
        """Return the error to raise after the last attempt. Raises MessageTooLarge."""
        problem = Unavailable(connection.address.label)
        for lane, reason in dict.fromkeys(refusals):
            if reason.startswith(TOO_LARGE):
                raise self._too_large(
                    f"a message for the queue {lane.queue} is too large ({reason})"
                )
            problem = await self._lanes.record_refusal(connection, lane, reason)
            self._links.pop(lane, None)
        return problem

    async def _open_link(self, connection: Connection, lane: Lane) -> SendingLink:
        if connection is not self._connection:
            await self._use(connection)
        link = self._links.get(lane)
        if link is not None and not link.close_reason:
            return link
        if link is not None:
            await self._lanes.record_refusal(connection, lane, link.close_reason)
        await self._lanes.ensure_queue(connection, lane)
        address = self._lanes.address(connection, lane)
        link = connection.open_sender(address)
        if self._barrier is not None:
            receiver = connection.open_receiver(address, release_message, 0, MAX_MESSAGE_BYTES)
            await wait_until_open(connection, receiver)
        if not await wait_until_open(connection, link):
            raise await self._lanes.record_refusal(connection, lane, link.close_reason)
        self._lanes.record_found(lane)
        if link.max_message_bytes > 0:
            limit = max(link.max_message_bytes - _ATTRIBUTE_BYTES, link.max_message_bytes // 2)
            self._max_body_bytes = min(self._max_body_bytes, limit)
            self._on_limit(self._max_body_bytes)
        self._links[lane] = link
        return link

    async def _use(self, connection: Connection) -> None:
        """Start to use a new connection."""
        self._connection, self._links, self._barrier = None, {}, None
        dialect = self._lanes.dialect(connection)
        if dialect.is_rabbitmq_3:
            barrier = Barrier(connection, dialect, self._lanes.barrier_name())
            await barrier.open()
            self._barrier = barrier
        self._connection = connection

    def _too_large(self, problem: str) -> MessageTooLarge:
        return MessageTooLarge(
            f"{problem}; the broker takes {self._max_body_bytes:,}. Pass a reference (a path, a"
            " key, a URL) instead of the data"
        )


def _split_into_windows(messages: Sequence[LaneMessage]) -> Iterator[list[LaneMessage]]:
    """Yield the messages, as many at a time as may be unsettled."""
    window: list[LaneMessage] = []
    size = 0
    for message in messages:
        if window and (
            len(window) == _MAX_UNSETTLED_MESSAGES
            or size + len(message.message) > _MAX_UNSETTLED_BYTES
        ):
            yield window
            window, size = [], 0
        window.append(message)
        size += len(message.message)
    if window:
        yield window

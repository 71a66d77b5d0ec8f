"""Sends envelopes. A batch is written at once, and its confirmations are awaited together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nats import errors
from nats.js.errors import NoStreamResponseError

from umbel.backends.nats.connections import OutgoingMessage
from umbel.backends.nats.errors import translate_errors
from umbel.backends.nats.headers import size_of, write
from umbel.backends.nats.lanes import LaneStreams
from umbel.backends.nats.reconnecting import Reconnector
from umbel.backends.transport import Lane
from umbel.errors import MessageTooLarge, Unavailable
from umbel.messages import Envelope, random_hex

DEFAULT_MAX_BODY_BYTES = 1_000_000
"""The limit until a server has told its own: that of a server with the default configuration."""
_HEADERS_BYTES = 48_576
"""Reserved for headers. Of the default payload of 1 MiB, the million above remains."""
_WINDOW_TIMEOUT_SECONDS = 10.0
_CONFIRM_TIMEOUT_SECONDS = 4.0
_MAX_ATTEMPTS = 3
_MAX_UNCONFIRMED_MESSAGES, _MAX_UNCONFIRMED_BYTES = 2000, 4_000_000
"""The size of a window. The timeouts apply to each window, because a large batch over a slow
network takes long."""


def max_body_bytes(max_payload: int) -> int:
    """Return the limit of a body, for a server with that limit of headers and data together."""
    return max(max_payload - _HEADERS_BYTES, max_payload // 2)


class LaneMessage(NamedTuple):
    """A message and its lane."""

    lane: Lane
    message: OutgoingMessage


class Sender:
    """See ``Transport.send``."""

    def __init__(self, reconnector: Reconnector, streams: LaneStreams) -> None:
        self._reconnector = reconnector
        self._streams = streams

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        """See ``Transport.send``."""
        # The server drops a message whose id it has seen. Only the repetitions below, after a lost
        # response, may be dropped: a job that is retried or recalled is sent again in another
        # call. So an id consists of the job's id and the call's.
        send_id = random_hex(8)
        with translate_errors(self._reconnector.address.label):
            max_payload = (await self._reconnector.connection()).max_payload
            messages = _to_messages(envelopes, self._streams, send_id, max_payload)
            for window in _split_windows(messages):
                async with asyncio.timeout(_WINDOW_TIMEOUT_SECONDS):
                    await self._send(window)

    async def _send(self, messages: Sequence[LaneMessage]) -> None:
        error: Exception | None = None
        for _ in range(_MAX_ATTEMPTS):
            connection = await self._reconnector.connection()
            try:
                await self._streams.prepare(connection, {one.lane for one in messages})
                outcomes = await connection.publish(
                    [one.message for one in messages], _CONFIRM_TIMEOUT_SECONDS
                )
            except (errors.Error, OSError) as problem:
                if connection.is_open:
                    raise
                error = problem
                continue
            messages, error = self._unconfirmed(messages, outcomes), None
            if not messages:
                return
            if any(isinstance(outcome, TimeoutError) for outcome in outcomes):
                connection.mark_lost(TimeoutError("no confirmation came in time"))
        raise error or Unavailable(
            f"{self._reconnector.address.label} did not confirm {len(messages):,} messages; check"
            " that the server is not overloaded and, in a cluster, that most of its servers run"
        )

    def _unconfirmed(
        self, messages: Sequence[LaneMessage], outcomes: Sequence[BaseException | None]
    ) -> list[LaneMessage]:
        """Return the messages to send again. Missing streams are created before that."""
        again: list[LaneMessage] = []
        for one, outcome in zip(messages, outcomes, strict=True):
            match outcome:
                case None:
                    pass
                case NoStreamResponseError():
                    self._streams.forget(one.lane)
                    again.append(one)
                case TimeoutError() | errors.ConnectionClosedError():
                    again.append(one)
                case ValueError() | TypeError() | LookupError() | AttributeError():
                    # Another subscriber of the subject responded first.
                    raise Unavailable(
                        f"{self._reconnector.address.label}: the response is not JetStream's;"
                        " choose another namespace"
                    ) from outcome
                case _:
                    raise outcome
        return again


def _to_messages(
    envelopes: Sequence[Envelope], streams: LaneStreams, send_id: str, max_payload: int
) -> list[LaneMessage]:
    """Return the messages of envelopes. Raise MessageTooLarge."""
    return [_to_message(envelope, streams, send_id, max_payload) for envelope in envelopes]


def _to_message(
    envelope: Envelope, streams: LaneStreams, send_id: str, max_payload: int
) -> LaneMessage:
    lane = Lane(envelope.queue, envelope.kind)
    headers, data = write(envelope, send_id), envelope.body.data
    limit = max_body_bytes(max_payload)
    size = size_of(headers)
    if len(data) > limit or size + len(data) > max_payload:
        raise MessageTooLarge(
            f"job {envelope.id} has {len(data):,} bytes and {size:,} of headers; the"
            f" server takes {limit:,}, and {max_payload:,} with the headers: pass a reference"
            " instead of the data, or raise the server's max_payload"
        )
    return LaneMessage(lane, OutgoingMessage(streams.stream(lane).subject, headers, data))


def _split_windows(messages: Sequence[LaneMessage]) -> Iterator[list[LaneMessage]]:
    """Yield as many messages at a time as may be unconfirmed."""
    window: list[LaneMessage] = []
    size = 0
    for one in messages:
        is_full = len(window) == _MAX_UNCONFIRMED_MESSAGES
        if window and (is_full or size + len(one.message.data) > _MAX_UNCONFIRMED_BYTES):
            yield window
            window, size = [], 0
        window.append(one)
        size += len(one.message.data)
    yield window

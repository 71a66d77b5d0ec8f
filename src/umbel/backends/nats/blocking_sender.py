"""Sends envelopes in a caller's own thread, over a separate connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from umbel.backends.nats.address import NatsAddress
from umbel.backends.nats.blocking_connection import BlockingConnection
from umbel.backends.nats.jetstream import check_stored
from umbel.backends.nats.lanes import LaneStreams
from umbel.backends.nats.raw_connection import RawConnection
from umbel.backends.nats.sender import (
    CONFIRM_TIMEOUT_SECONDS,
    MAX_ATTEMPTS,
    LaneMessage,
    split_windows,
    to_messages,
    unconfirmed_error,
)
from umbel.backends.transport import Lane, OnLaneMissingBlocking
from umbel.messages import Envelope, random_hex


class BlockingSender:
    """See ``BlockingTransport.send_blocking``."""

    def __init__(self, address: NatsAddress, streams: LaneStreams) -> None:
        self._address = address
        self._streams = streams
        self._connection = BlockingConnection(address)

    def send(
        self,
        envelopes: Sequence[Envelope],
        timeout: float,
        on_lane_missing: OnLaneMissingBlocking,
        on_written: Callable[[], object],
    ) -> int:
        """Return when all messages are durable. Missing streams are created.

        Return the server's maximum size of headers and data together.
        """
        until = time.monotonic() + timeout
        send_id = random_hex(8)
        with self._connection.using(until) as connection:
            messages = to_messages(envelopes, self._streams, send_id, connection.max_payload)
            for window in split_windows(messages):
                self._send(connection, window, until, on_lane_missing, on_written)
            return connection.max_payload

    def close(self) -> None:
        """Close the connection. Twice is fine."""
        self._connection.close()

    def _send(
        self,
        connection: RawConnection,
        messages: list[LaneMessage],
        until: float,
        on_lane_missing: OnLaneMissingBlocking,
        on_written: Callable[[], object],
    ) -> None:
        def report_missing(lane: Lane) -> None:
            on_lane_missing(lane, until - time.monotonic())

        for _ in range(MAX_ATTEMPTS):
            connection.until = min(until, time.monotonic() + CONFIRM_TIMEOUT_SECONDS)
            connection.publish([one.message for one in messages])
            on_written()
            connection.until = min(until, time.monotonic() + CONFIRM_TIMEOUT_SECONDS)
            responses = connection.responses()
            if None in responses:
                raise unconfirmed_error(self._address.label, responses.count(None))
            unsent: list[LaneMessage] = []
            for one, response in zip(messages, responses, strict=True):
                if response is not None and response.is_missing:
                    unsent.append(one)
                elif response is not None:
                    check_stored(response.data)
            if not unsent:
                return
            for lane in dict.fromkeys(one.lane for one in unsent):
                self._streams.create_blocking(connection, lane, report_missing)
            messages = unsent
        raise unconfirmed_error(self._address.label, len(messages))

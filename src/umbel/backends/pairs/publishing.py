"""Publishing to a pair: the transport gets the message and the job store records the job.

A job goes to the store alone if the transport cannot be reached, or if the store has to decide
first: the job is part of a transaction, has a unique key, passes gates or is not due. The relay
sends it later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import cast

from umbel.backends.broker import JobStore, Published
from umbel.backends.pairs.multi_transport import MultiTransport
from umbel.backends.pairs.relay import Relay
from umbel.backends.pairs.silent_transports import SilentTransports
from umbel.backends.transport import BlockingTransport, Lane, Transport
from umbel.clock import Clock
from umbel.errors import MessageTooLarge, Unavailable
from umbel.messages import Envelope, is_inbox
from umbel.messages.wire import attributes

_MAX_HEADER_BYTES = 32_768
"""Headers up to this size fit beside the largest body on every transport."""


class PairPublisher:
    """Publishes to a transport and a job store, from the event loop or in the caller's thread."""

    def __init__(
        self, transport: Transport, job_store: JobStore, relay: Relay, clock: Clock
    ) -> None:
        self._transport = transport
        self._job_store = job_store
        self._relay = relay
        self._clock = clock
        self._silent = SilentTransports(clock)
        self._sending: set[asyncio.Task[None]] = set()
        self._used_lanes: set[Lane] = set()
        """Lanes to which a blocking send has succeeded. The first message of a lane is recorded
        after it was sent: creating a lane marks all jobs recorded for it as unsent."""

    async def publish(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """Publish within ``timeout`` seconds, even if the transport does not answer."""
        if not all(map(_can_send_first, envelopes)) or not await self._send(envelopes, timeout):
            return await self._job_store.publish(envelopes)
        with suppress(Unavailable):
            await self._relay.mark_lanes_unsent()
            return await self._job_store.record_sent(envelopes)
        return _published(envelopes)

    def publish_blocking(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """Publish in the caller's thread. Requires a transport and a store that are ``blocking``.

        The store records the jobs while the transport's server stores the messages, so the caller
        waits for both at once. If the process dies before the server has a message, the store has a
        job without one; it is sent again when its lane is found silent.
        """
        began = self._clock.monotonic()
        seconds = self._silent.allowed_seconds([self._transport], timeout)
        if not seconds or not all(map(_can_send_first, envelopes)):
            return self._job_store.publish_blocking(envelopes, timeout)
        lanes = {Lane(envelope.queue, envelope.kind) for envelope in envelopes}
        record = _RecordSent(self._job_store, envelopes, began + timeout, self._clock)

        def on_lane_missing(lane: Lane, seconds: float) -> None:
            self._job_store.mark_lanes_unsent_blocking([lane], seconds)

        on_written = record if lanes <= self._used_lanes else _do_nothing
        transport = cast(BlockingTransport, self._transport)
        try:
            transport.send_blocking(envelopes, seconds, on_lane_missing, on_written)
        except Unavailable:
            self._silent.record_failure([self._transport], self._clock.monotonic() - began)
            if record.is_done:  # the jobs may be recorded as sent, even if the store did not answer
                ids = [envelope.id for envelope in envelopes]
                self._job_store.mark_unsent_blocking(ids, record.seconds_left())
            if record.published:
                return record.published
            return self._job_store.publish_blocking(envelopes, record.seconds_left())
        self._used_lanes |= lanes
        self._silent.record_answer([self._transport])
        record()
        return record.published or _published(envelopes)

    def check_size(self, envelope: Envelope) -> None:
        """Refuse a message that could not be sent later. Raises MessageTooLarge, BadMessage."""
        limit = self._transport.max_body_bytes
        size, headers = len(envelope.body.data), _size(envelope.headers)
        if size + max(headers - _MAX_HEADER_BYTES, 0) > limit:
            raise MessageTooLarge(
                f"arguments of {envelope.subject} are {size:,} bytes, with {headers:,} of"
                f" headers; the broker carries {limit:,}. Store the data elsewhere and pass a"
                " reference"
            )
        if envelope.expires is not None or envelope.not_before is not None:
            attributes(envelope)

    async def close(self) -> None:
        """Cancel sends that are in progress. Closing twice is fine."""
        for sending in [*self._sending]:
            sending.cancel()
            await asyncio.wait([sending])

    async def _send(self, envelopes: Sequence[Envelope], timeout: float) -> bool:
        """Send messages; return whether the transport confirmed them in its share of the time.

        A send that takes longer continues until the transport gives up its connection. The store
        has the job by then, and a second message of a job is harmless.
        """
        transports = self._transports(envelopes)
        seconds = self._silent.allowed_seconds(transports, timeout)
        if not seconds:
            return False
        began = self._clock.monotonic()
        sending = asyncio.create_task(self._transport.send(envelopes), name="umbel-send")
        self._sending.add(sending)
        sending.add_done_callback(self._end_sending)
        try:
            await asyncio.wait([sending], timeout=seconds)
        except BaseException:
            sending.cancel()
            raise
        try:
            if sending.done():
                sending.result()
                self._silent.record_answer(transports)
                return True
        except Unavailable:
            pass
        self._silent.record_failure(transports, self._clock.monotonic() - began)
        return False

    def _end_sending(self, sending: asyncio.Task[None]) -> None:
        self._sending.discard(sending)
        if not sending.cancelled():
            sending.exception()  # the caller may not have waited for it

    def _transports(self, envelopes: Sequence[Envelope]) -> Collection[Transport]:
        if isinstance(self._transport, MultiTransport):
            return self._transport.transports_of({envelope.queue for envelope in envelopes})
        return [self._transport]


class _RecordSent:
    """Records jobs as sent, at most once and within the caller's time."""

    def __init__(
        self, job_store: JobStore, envelopes: Sequence[Envelope], until: float, clock: Clock
    ) -> None:
        self._job_store = job_store
        self._envelopes = envelopes
        self._until = until
        self._clock = clock
        self.is_done = False
        self.published: list[Published] = []
        """The store's answer; empty if it did not answer."""

    def __call__(self) -> None:
        if not self.is_done:
            self.is_done = True
            with suppress(Unavailable):
                self.published = self._job_store.record_sent_blocking(
                    self._envelopes, self.seconds_left()
                )

    def seconds_left(self) -> float:
        return self._until - self._clock.monotonic()


def _do_nothing() -> None:
    pass


def _published(envelopes: Sequence[Envelope]) -> list[Published]:
    """Return the result if only the transport has the messages. Their receivers record them."""
    return [Published(envelope.id) for envelope in envelopes]


def _can_send_first(envelope: Envelope) -> bool:
    """Return whether the transport may have the message before the store has the job.

    Not if the job has a unique key, passes gates, or has a delay that the store's clock measures.
    """
    times = (envelope.not_before, envelope.delay, envelope.expires_in)
    is_gated = bool(envelope.gates) or is_inbox(envelope.queue)
    return times == (None, None, None) and envelope.unique is None and not is_gated


def _size(headers: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in headers.items())

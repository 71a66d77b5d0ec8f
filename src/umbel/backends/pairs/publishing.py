"""Publishing to a pair: the transport gets the message and the job store records the job.

A job goes to the store alone if the transport cannot be reached, or if the store has to decide
first: the job is part of a transaction, has a unique key, passes gates or is not due. The relay
sends it later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from umbel.backends.broker import JobStore, Published
from umbel.backends.pairs.multi_transport import MultiTransport
from umbel.backends.pairs.relay import Relay
from umbel.backends.pairs.silent_transports import SilentTransports
from umbel.backends.transport import Transport
from umbel.clock import Clock
from umbel.errors import MessageTooLarge, Unavailable
from umbel.messages import Envelope, is_inbox
from umbel.messages.wire import attributes

_MAX_HEADER_BYTES = 32_768
"""Headers up to this size fit beside the largest body on every transport."""


class PairPublisher:
    """Publishes to a transport and a job store."""

    def __init__(
        self, transport: Transport, job_store: JobStore, relay: Relay, clock: Clock
    ) -> None:
        self._transport = transport
        self._job_store = job_store
        self._relay = relay
        self._clock = clock
        self._silent = SilentTransports(clock)
        self._sending: set[asyncio.Task[None]] = set()

    async def publish(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """Publish within ``timeout`` seconds, even if the transport does not answer."""
        if not all(map(_can_send_first, envelopes)) or not await self._send(envelopes, timeout):
            return await self._job_store.publish(envelopes)
        with suppress(Unavailable):
            await self._relay.mark_lanes_unsent()
            return await self._job_store.record_sent(envelopes)
        return _published(envelopes)

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

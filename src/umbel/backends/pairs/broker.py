"""A broker out of two: a transport carries the messages, a ledger keeps the books.

Publishing hands a message to the transport and notes it; when the transport is out of reach, or
the job is part of a transaction, must be unique or is not due, the books alone have it until a
relay sends it. Receiving is not having: a worker has a job when the books say so, and then the
message is acknowledged, however long the job will run. A worker that dies, a retry, a resumed
queue: the job is queued in the books and the relay sends it anew. So a message may be lost, doubled
or late without a promise being broken, and the server sees no long-unacknowledged deliveries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from msgspec.structs import replace

from umbel.backends.broker import Capabilities, Demand, Depth, JobStore, Published
from umbel.backends.pairs.blocking_publish import BlockingPair
from umbel.backends.pairs.claiming import Taking
from umbel.backends.pairs.multi_transport import MultiTransport
from umbel.backends.pairs.prefetch_buffer import admit
from umbel.backends.pairs.receiver import Reception
from umbel.backends.pairs.relay import Relay
from umbel.backends.pairs.silent_transports import Silence
from umbel.backends.replies import Answers, Find
from umbel.backends.transport import Arrival, Lane, OpenTransport, Transport
from umbel.clock import Clock
from umbel.errors import MessageTooLarge, Unavailable
from umbel.messages import KINDS, Delivery, Envelope, Lease, Settlement, is_inbox
from umbel.messages.wire import attributes
from umbel.telemetry import Telemetry

_TIMEOUT_SECONDS = 20.0
"""Time for publishing where the caller gives none."""
_HEADERS = 32_768
"""Bytes of headers that every transport carries beside the largest body."""

_OTHERS_FIRST_SECONDS = 0.05
"""How long a worker leaves a message of a task that it does not want to others."""


def carried(keeps: Capabilities) -> Capabilities:
    """What a ledger can do when a transport carries its messages, in an event loop."""
    return replace(keeps, direct=False, priority=False, notify=True, forgets=False)


class PairBroker:
    """See ``brokers.port.Broker`` for what each method promises.

    ``find`` is where the records are: from there a sender is answered that asks again.
    """

    def __init__(
        self,
        carry: OpenTransport,
        ledger: JobStore,
        *,
        namespace: str,
        clock: Clock,
        find: Find,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._transport = carry(lambda lane: self._relay.lost(lane))
        self._direct = BlockingPair.of(self._transport, ledger, clock)
        direct = self._direct is not None
        self.capabilities = replace(carried(ledger.capabilities), direct=direct)
        self._ledger = ledger
        self._clock = clock
        self._answers = Answers(self._transport.reply, find, namespace=namespace, clock=clock)
        self._reception = Reception(self._transport, ledger, namespace=namespace, clock=clock)
        self._taking = Taking(
            self._transport,
            ledger,
            self._answers,
            namespace=namespace,
            clock=clock,
            is_expected=self._reception.is_expected,
            settle=self.settle,
        )
        self._relay = Relay(
            self._transport,
            ledger,
            bury=self._taking.bury,
            sent=self._reception.used,
            telemetry=telemetry or Telemetry(),
        )
        self._silence = Silence(clock)
        self._sending: set[asyncio.Task[None]] = set()
        self._nudges = 0

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        if not envelopes:
            return []
        if within is not None:
            self._measure(envelopes)
            return await self._ledger.publish(envelopes, within)
        return await self.publish_timed(envelopes, _TIMEOUT_SECONDS)

    async def publish_timed(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        self._measure(envelopes)
        at_once = all(map(self._can_go_at_once, envelopes))
        if not at_once or not await self._send(envelopes, timeout):
            return await self._ledger.publish(envelopes)
        with suppress(Unavailable):
            await self._relay.recall()
            return await self._ledger.note(envelopes)
        # Durable all the same: whoever receives the messages will note them.
        return [Published(envelope.id) for envelope in envelopes]

    async def _send(self, envelopes: Sequence[Envelope], timeout: float) -> bool:
        """Hand them to the transport. False: it has not confirmed them in its part of the time.

        A send that takes longer goes on until the transport gives up on its connection by itself.
        The same job is in the store then, and a second message of a job is harmless.
        """
        transports = self._transports(envelopes)
        seconds = self._silence.seconds(transports, timeout)
        if not seconds:
            return False
        began = self._clock.monotonic()
        sending = asyncio.create_task(self._transport.send(envelopes), name="umbel-send")
        self._sending.add(sending)
        sending.add_done_callback(self._sent)
        try:
            await asyncio.wait([sending], timeout=seconds)
        except BaseException:
            sending.cancel()
            raise
        try:
            if sending.done():
                sending.result()
                self._silence.answered(transports)
                return True
        except Unavailable:
            pass
        self._silence.failed(transports, self._clock.monotonic() - began)
        return False

    def _sent(self, sending: asyncio.Task[None]) -> None:
        self._sending.discard(sending)
        if not sending.cancelled():
            sending.exception()  # perhaps the caller has not waited for it

    def _transports(self, envelopes: Sequence[Envelope]) -> Collection[Transport]:
        if isinstance(self._transport, MultiTransport):
            return self._transport.ways({envelope.queue for envelope in envelopes})
        return [self._transport]

    def publish_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """``publish`` in the caller's own thread, where both can do that: see ``capabilities``."""
        self._measure(envelopes)
        pair = cast(BlockingPair, self._direct)
        if not all(map(self._can_go_at_once, envelopes)):
            return pair.ledger.publish_now(envelopes, timeout)
        return pair.publish(envelopes, timeout)

    def publish_within(self, envelopes: Sequence[Envelope], connection: Any) -> list[Published]:
        """Into the books, as part of the caller's transaction; the relay sends it afterwards."""
        self._measure(envelopes)
        return self._ledger.publish_within(envelopes, connection)

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        until, nudges = self._clock.monotonic() + wait, self._nudges
        self._relay.serve(queues, owner)
        await self._reception.see_inboxes(queues)
        async with self._reception.turn:
            if wait > 0:
                return await self._fetch_until(queues, demand, owner, until, nudges)
            await self._reception.clear()
            return await self._fetch_all(queues, demand, owner)

    async def _fetch_until(
        self, queues: Sequence[str], demand: Demand, owner: str, until: float, nudges: int
    ) -> list[Delivery]:
        """What comes first, unless a nudge came since there were so many."""
        silent = True
        await self._reception.make_way(queues, demand, until)
        while nudges == self._nudges and self._clock.monotonic() < until:
            handed, arrivals = await self._reception.next(queues, demand, owner, until)
            if handed:
                self._answers.remember(handed)
                return handed
            if not arrivals:  # nudged, or the time is over
                break
            silent = False
            arrivals = await self._let_others_first(arrivals, demand)
            if taken := await self._taking.take(arrivals, owner):
                return taken
        if silent and demand.io and demand.cpu and self._clock.monotonic() >= until:
            # With room for everything we have heard nothing for the whole time. If the books say
            # that something was sent, the server has lost it: somebody purged a queue there.
            await self._ledger.recall([Lane(queue, kind) for queue in queues for kind in KINDS])
        return []

    async def _let_others_first(self, arrivals: list[Arrival], demand: Demand) -> list[Arrival]:
        """The messages to take now. Those of tasks that this worker does not want wait a moment.

        Several relays may send one job, so another worker may have a copy of its message. It would
        always be too late if this one took the job, only to give it back.
        """
        if not demand.without:
            return arrivals
        unwanted = {id(one) for one in arrivals if self._taking.task_of(one) in demand.without}
        if len(unwanted) < len(arrivals):
            self._reception.hall.hold([one for one in arrivals if id(one) in unwanted])
            return [one for one in arrivals if id(one) not in unwanted]
        try:
            await asyncio.sleep(_OTHERS_FIRST_SECONDS)
        except BaseException:
            self._reception.hall.hold(arrivals)
            raise
        return arrivals

    async def _fetch_all(self, queues: Sequence[str], demand: Demand, owner: str) -> list[Delivery]:
        """Everything that is there, unsent or on its way: nobody will come back for it soon."""
        await self._relay.send_all(queues, owner)
        found: list[Delivery] = []
        while demand and (arrivals := await self._reception.receive(queues, demand, 0.0)):
            taken = await self._taking.take(arrivals, owner)
            demand = admit([one.envelope.kind for one in taken], demand)[1]
            found += taken
        return found

    def nudge(self) -> None:
        self._nudges += 1
        self._reception.nudge()

    async def sort(self, queues: Sequence[str], kinds: Mapping[str, str]) -> int:
        return await self._ledger.sort(queues, kinds)

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        lost = await self._ledger.extend(owner, held, older_than)
        self._answers.forget(lost)
        return lost

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        # A record always stays for a while: it tells a late repetition of the message apart.
        refused = await self._ledger.settle([replace(one, keep=True) for one in settlements])
        self._answers.settled(settlements, refused)
        return refused

    async def recover(self) -> list[str]:
        return await self._ledger.recover()

    async def depths(self) -> list[Depth]:
        return await self._ledger.depths()

    async def waiting(
        self, queues: Sequence[str], kinds: Sequence[str], without: Sequence[str] = ()
    ) -> bool:
        return await self._ledger.waiting(queues, kinds, without)

    async def purge(self, queue: str) -> int:
        await self._transport.purge(queue)
        return await self._ledger.purge(queue)

    async def move(self, source: str, target: str) -> int:
        return await self._ledger.move(source, target)

    async def check(self) -> None:
        await self._ledger.check()
        await self._transport.check()

    async def close(self) -> None:
        for sending in [*self._sending]:
            sending.cancel()
            await asyncio.wait([sending])
        await self._relay.close()
        await self._reception.close()
        await self._answers.close()
        await self._transport.close()
        await self._ledger.close()

    # --- publishing --------------------------------------------------------------------------

    def _measure(self, envelopes: Sequence[Envelope]) -> None:
        """Refuse now what the relay could not send later. Raises MessageTooLarge, BadMessage."""
        limit = self._transport.limit
        for envelope in envelopes:
            if not self._is_relayed(envelope):
                continue
            size, headers = len(envelope.body.data), _size(envelope.headers)
            if size + max(headers - _HEADERS, 0) > limit:
                raise MessageTooLarge(
                    f"arguments of {envelope.subject} are {size:,} bytes, with {headers:,} of"
                    f" headers; the broker carries {limit:,}. Store the data elsewhere and pass a"
                    " reference"
                )
            if envelope.expires is not None or envelope.not_before is not None:
                attributes(envelope)

    def _is_relayed(self, envelope: Envelope) -> bool:
        """Whether a transport carries its queue."""
        return True

    def _can_go_at_once(self, envelope: Envelope) -> bool:
        """Whether the books have no say in it: nothing to be unique with, nothing to wait for, no
        seconds that their clock has to count."""
        times = (envelope.not_before, envelope.delay, envelope.expires_in)
        gated = bool(envelope.gates) or is_inbox(envelope.queue)
        return times == (None, None, None) and envelope.unique is None and not gated


def _size(headers: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in headers.items())

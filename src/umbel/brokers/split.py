"""A broker out of two: a transport carries the messages, a ledger keeps the books.

Publishing hands a message to the transport and notes it; when the transport is out of reach, or
the job is part of a transaction, must be unique or is not due, the books alone have it until a
relay sends it. Receiving is not having: a worker has a job when the books say so, and then the
message is acknowledged, however long the job will run. A worker that dies, a retry, a resumed
queue: the job is queued in the books and the relay sends it anew. So a message may be lost, doubled
or late without a promise being broken, and the server sees no long-unacknowledged deliveries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from msgspec.structs import replace

from umbel.brokers.answers import Answers, Find
from umbel.brokers.direct import DirectPair
from umbel.brokers.hall import admit
from umbel.brokers.port import Capabilities, Demand, Depth, Ledger, Published
from umbel.brokers.reception import Reception
from umbel.brokers.relay import Relay
from umbel.brokers.taking import Taking
from umbel.brokers.transport import Carry, Lane
from umbel.clock import Clock
from umbel.errors import MessageTooLarge, Unavailable
from umbel.messages import KINDS, Delivery, Envelope, Lease, Settlement, is_inbox


def carried(keeps: Capabilities) -> Capabilities:
    """What a ledger can do when a transport carries its messages, in an event loop."""
    return replace(keeps, direct=False, priority=False, notify=True, forgets=False)


class SplitBroker:
    """See ``brokers.port.Broker`` for what each method promises.

    ``find`` is where the records are: from there a sender is answered that asks again.
    """

    def __init__(
        self, carry: Carry, ledger: Ledger, *, namespace: str, clock: Clock, find: Find
    ) -> None:
        self._transport = carry(lambda lane: self._relay.lost(lane))
        self._direct = DirectPair.of(self._transport, ledger, clock)
        direct = self._direct is not None
        self.capabilities = replace(carried(ledger.capabilities), direct=direct)
        self._ledger = ledger
        self._clock = clock
        self._answers = Answers(self._transport.reply, find, namespace=namespace, clock=clock)
        self._reception = Reception(self._transport, ledger, namespace=namespace, clock=clock)
        self._relay = Relay(
            self._transport,
            ledger,
            namespace=namespace,
            can_carry=self._can_carry,
            sent=self._reception.used,
        )
        self._taking = Taking(
            self._transport,
            ledger,
            self._answers,
            namespace=namespace,
            clock=clock,
            is_expected=self._reception.is_expected,
            settle=self.settle,
        )
        self._nudges = 0

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        if not envelopes:
            return []
        self._measure(envelopes)
        if within is not None or not all(map(self._can_go_at_once, envelopes)):
            return await self._ledger.publish(envelopes, within)
        try:
            await self._transport.send(envelopes)
        except Unavailable:
            return await self._ledger.publish(envelopes)
        with suppress(Unavailable):
            await self._relay.recall()
            return await self._ledger.note(envelopes)
        # Durable all the same: whoever receives the messages will note them.
        return [Published(envelope.id) for envelope in envelopes]

    def publish_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """``publish`` in the caller's own thread, where both can do that: see ``capabilities``."""
        self._measure(envelopes)
        pair = cast(DirectPair, self._direct)
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
        self._relay.serve(queues)
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
            if taken := await self._taking.take(arrivals, owner):
                return taken
        if silent and demand.io and demand.cpu and self._clock.monotonic() >= until:
            # With room for everything we have heard nothing for the whole time. If the books say
            # that something was sent, the server has lost it: somebody purged a queue there.
            await self._ledger.recall([Lane(queue, kind) for queue in queues for kind in KINDS])
        return []

    async def _fetch_all(self, queues: Sequence[str], demand: Demand, owner: str) -> list[Delivery]:
        """Everything that is there, unsent or on its way: nobody will come back for it soon."""
        await self._relay.send_all(queues)
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

    async def waiting(self, queues: Sequence[str], kinds: Sequence[str]) -> bool:
        return await self._ledger.waiting(queues, kinds)

    async def purge(self, queue: str) -> int:
        await self._transport.purge(queue)
        return await self._ledger.purge(queue)

    async def move(self, source: str, target: str) -> int:
        return await self._ledger.move(source, target)

    async def check(self) -> None:
        await self._ledger.check()
        await self._transport.check()

    async def close(self) -> None:
        await self._relay.close()
        await self._reception.close()
        await self._answers.close()
        await self._transport.close()
        await self._ledger.close()

    # --- publishing --------------------------------------------------------------------------

    def _measure(self, envelopes: Sequence[Envelope]) -> None:
        """Refuse now what the relay could not send later. Raises MessageTooLarge."""
        for envelope in envelopes:
            if not self._can_carry(envelope):
                raise MessageTooLarge(
                    f"arguments of {envelope.subject} are {len(envelope.body.data):,} bytes, the"
                    f" broker carries {self._transport.limit:,}; store the data elsewhere and pass"
                    " a reference"
                )

    def _can_carry(self, envelope: Envelope) -> bool:
        return len(envelope.body.data) <= self._transport.limit

    def _can_go_at_once(self, envelope: Envelope) -> bool:
        """Whether the books have no say in it: nothing to be unique with, nothing to wait for."""
        due = envelope.not_before is None or envelope.not_before <= self._clock.now()
        gated = bool(envelope.gates) or is_inbox(envelope.queue)
        return due and envelope.unique is None and not gated

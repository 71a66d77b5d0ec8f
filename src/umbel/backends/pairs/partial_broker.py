"""A broker of which some queues are carried elsewhere: the others stay in the books themselves.

A ledger is a broker, too. What nobody carries is published there and fetched from there, and never
relayed; the rest is as with any ``PairBroker``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from umbel.backends.broker import Demand, Published
from umbel.backends.pairs.broker import PairBroker
from umbel.backends.pairs.multi_transport import MultiTransport
from umbel.backends.pairs.prefetch_buffer import admit
from umbel.backends.transport import Arrival
from umbel.errors import Unavailable
from umbel.messages import Delivery, Envelope


class PartialPairBroker(PairBroker):
    """See ``brokers.port.Broker`` for what each method promises.

    Its transport is a ``MultiTransport`` that does not carry every queue.
    """

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        if all(self._is_carried(envelope.queue) for envelope in envelopes):
            return await super().publish(envelopes, within)
        self._measure(envelopes)
        return await self._ledger.publish(envelopes, within)

    async def publish_timed(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        if all(self._is_carried(envelope.queue) for envelope in envelopes):
            return await super().publish_timed(envelopes, timeout)
        return await self.publish(envelopes)

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        carried = [queue for queue in queues if self._is_carried(queue)]
        own = [queue for queue in queues if not self._is_carried(queue)]
        if not own:
            return await super().fetch(queues, demand, owner, wait)
        if not carried:
            return await self._ledger.fetch(queues, demand, owner, wait)
        nudges = self._nudges
        self._relay.serve(carried, owner)
        await self._reception.see_inboxes(carried)
        async with self._reception.turn:
            await self._reception.clear()
            if wait > 0:
                return await self._fetch_first(own, carried, demand, owner, wait, nudges)
            found = await self._ledger.fetch(own, demand, owner, 0.0)
            left = admit([one.envelope.kind for one in found], demand)[1]
            with suppress(Unavailable):  # of the broker elsewhere: this one answers
                found += await self._fetch_all(carried, left, owner)
            return found

    def nudge(self) -> None:
        super().nudge()
        self._ledger.nudge()

    async def _fetch_first(
        self,
        own: Sequence[str],
        carried: Sequence[str],
        demand: Demand,
        owner: str,
        wait: float,
        nudges: int,
    ) -> list[Delivery]:
        """What comes first from either side, and what the other has by then.

        It waits for nothing if a nudge came since there were so many.
        """
        here = asyncio.create_task(self._ledger.fetch(own, demand, owner, wait))
        there = asyncio.create_task(self._reception.receive(carried, demand, wait))
        try:
            await asyncio.sleep(0)
            if nudges != self._nudges:  # before both had begun
                self._ledger.nudge()
                self._transport.nudge()
            await asyncio.wait([here, there], return_when=asyncio.FIRST_COMPLETED)
            if there.done() and there.exception() is None:
                self._ledger.nudge()
            await asyncio.wait([here])  # a broker that is out of reach keeps nobody from this one
            self._transport.nudge()
            await asyncio.wait([there])
            found = here.result()
        except BaseException:
            here.cancel()
            there.cancel()
            await asyncio.wait([here, there])
            await self._reception.hall.release(_arrivals(there))
            raise
        arrivals = _arrivals(there)
        left = admit([one.envelope.kind for one in found], demand)[1]
        places = {*admit([one.lane.kind for one in arrivals], left)[0]}
        self._reception.hall.hold([a for at, a in enumerate(arrivals) if at not in places])
        if places:
            fitting = [arrival for at, arrival in enumerate(arrivals) if at in places]
            with suppress(Unavailable):  # what was claimed here must not be lost with it
                found += await self._taking.take(fitting, owner)
        return found

    def _is_relayed(self, envelope: Envelope) -> bool:
        return self._is_carried(envelope.queue)

    def _is_carried(self, queue: str) -> bool:
        return isinstance(self._transport, MultiTransport) and self._transport.carries(queue)


def _arrivals(received: asyncio.Task[list[Arrival]]) -> list[Arrival]:
    """What a receive has brought; nothing when its broker is out of reach."""
    failed = received.cancelled() or isinstance(received.exception(), Unavailable)
    return [] if failed else received.result()

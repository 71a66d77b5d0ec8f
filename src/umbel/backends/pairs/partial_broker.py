"""A pair whose transport carries some queues only. The other queues stay in the store.

A job store is a broker, too. Jobs of queues that no transport carries are published and fetched
there and never sent. All other queues work as with any ``PairBroker``.
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
    """See ``Broker`` for what each method guarantees.

    Its transport is a ``MultiTransport`` that does not carry every queue.
    """

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        if all(self._is_carried(envelope.queue) for envelope in envelopes):
            return await super().publish(envelopes, within)
        self._check_sizes(envelopes)
        return await self._job_store.publish(envelopes, within)

    async def publish_with_timeout(
        self, envelopes: Sequence[Envelope], timeout: float
    ) -> list[Published]:
        if all(self._is_carried(envelope.queue) for envelope in envelopes):
            return await super().publish_with_timeout(envelopes, timeout)
        return await self.publish(envelopes)

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        carried = [queue for queue in queues if self._is_carried(queue)]
        stored = [queue for queue in queues if not self._is_carried(queue)]
        if not stored:
            return await super().fetch(queues, demand, owner, wait)
        if not carried:
            return await self._job_store.fetch(queues, demand, owner, wait)
        stops = self._stops
        self._relay.serve(carried, owner)
        await self._buffer.check_inboxes(carried)
        async with self._buffer.lock:
            if wait > 0:
                return await self._fetch_first(stored, carried, demand, owner, wait, stops)
            found = await self._job_store.fetch(stored, demand, owner, 0.0)
            left = admit([one.envelope.kind for one in found], demand)[1]
            with suppress(Unavailable):  # of the transport: the store has answered
                found += await self._fetch_all(carried, left, owner)
            return found

    def stop_waiting(self) -> None:
        super().stop_waiting()
        self._job_store.stop_waiting()

    async def _fetch_first(
        self,
        stored: Sequence[str],
        carried: Sequence[str],
        demand: Demand,
        owner: str,
        wait: float,
        stops: int,
    ) -> list[Delivery]:
        """Return the first jobs from either side, and those that the other side has by then.

        It does not wait if ``_stops`` is no longer ``stops``.
        """
        fetching = asyncio.create_task(self._job_store.fetch(stored, demand, owner, wait))
        receiving = asyncio.create_task(self._buffer.receive(carried, demand, wait))
        try:
            await asyncio.sleep(0)
            if stops != self._stops:  # stop_waiting was called before both had begun
                self._job_store.stop_waiting()
                self._transport.stop_waiting()
            await asyncio.wait([fetching, receiving], return_when=asyncio.FIRST_COMPLETED)
            if receiving.done() and receiving.exception() is None:
                self._job_store.stop_waiting()
            await asyncio.wait([fetching])  # an unreachable transport must not end this wait
            self._transport.stop_waiting()
            await asyncio.wait([receiving])
            found = fetching.result()
        except BaseException:
            fetching.cancel()
            receiving.cancel()
            await asyncio.wait([fetching, receiving])
            await self._buffer.release(_arrivals(receiving))
            raise
        arrivals = _arrivals(receiving)
        left = admit([one.envelope.kind for one in found], demand)[1]
        places = {*admit([one.lane.kind for one in arrivals], left)[0]}
        self._buffer.hold([a for at, a in enumerate(arrivals) if at not in places])
        if places:
            fitting = [arrival for at, arrival in enumerate(arrivals) if at in places]
            with suppress(Unavailable):  # the jobs that the store has given must not be lost
                found += await self._claimer.claim(fitting, owner)
        return found

    def _is_carried(self, queue: str) -> bool:
        return isinstance(self._transport, MultiTransport) and self._transport.carries(queue)


def _arrivals(receiving: asyncio.Task[list[Arrival]]) -> list[Arrival]:
    """Return the messages of a receive; none if it was cancelled or the broker is unreachable."""
    has_failed = receiving.cancelled() or isinstance(receiving.exception(), Unavailable)
    return [] if has_failed else receiving.result()

"""A broker made of a transport, which carries messages, and a job store, which records jobs.

Publishing sends a message and records the job; see ``publishing``. Receiving a message does not
yet give a worker the job: the worker claims it in the store, and then the message is acknowledged,
regardless of how long the job will run. If a worker dies, a job is retried or a queue is resumed,
the job is queued in the store and the relay sends a new message. Therefore messages may be lost,
duplicated or late without breaking a guarantee, and the transport's server never sees deliveries
that stay unacknowledged for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from umbel.backends.broker import Capabilities, Demand, Depth, JobStore, Published
from umbel.backends.pairs.claiming import Claimer
from umbel.backends.pairs.prefetch_buffer import PrefetchBuffer, admit
from umbel.backends.pairs.publishing import PairPublisher
from umbel.backends.pairs.relay import Relay
from umbel.backends.replies import Find, ReplySender
from umbel.backends.transport import Arrival, Lane, OpenTransport
from umbel.clock import Clock
from umbel.messages import KINDS, Delivery, Envelope, Lease, Settlement
from umbel.telemetry import Telemetry

_PUBLISH_SECONDS = 20.0
"""Time for a publish if the caller gives none."""
_OTHERS_FIRST_SECONDS = 0.05
"""How long a worker leaves a message of a task that it does not want to other workers."""


def capabilities_of_pair(store: Capabilities) -> Capabilities:
    """Return what a job store can do when a transport sends for it."""
    return replace(store, blocking=False, timed=True, priority=False, notify=True, forgets=False)


class PairBroker:
    """See ``Broker`` for what each method guarantees.

    ``find`` reads the record of a job, to reply to a sender that asks again and to report it.
    """

    def __init__(
        self,
        open_transport: OpenTransport,
        job_store: JobStore,
        *,
        namespace: str,
        clock: Clock,
        find: Find,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._transport = open_transport(lambda lane: self._relay.on_lane_missing(lane))
        self.capabilities = capabilities_of_pair(job_store.capabilities)
        self._job_store = job_store
        self._clock = clock
        self._replies = ReplySender(self._transport.reply, find, namespace=namespace, clock=clock)
        self._buffer = PrefetchBuffer(self._transport, job_store)
        self._claimer = Claimer(
            self._transport,
            job_store,
            self._replies,
            namespace=namespace,
            clock=clock,
            find=find,
            telemetry=telemetry or Telemetry(),
            settle=self.settle,
        )
        self._relay = Relay(
            self._transport,
            job_store,
            bury=self._claimer.bury,
            on_sent=self._buffer.mark_used,
            telemetry=telemetry or Telemetry(),
        )
        self._publisher = PairPublisher(self._transport, job_store, self._relay, clock)
        self._stops = 0
        """How often ``stop_waiting`` was called."""

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        if not envelopes:
            return []
        if within is not None:
            self._check_sizes(envelopes)
            return await self._job_store.publish(envelopes, within)
        return await self.publish_with_timeout(envelopes, _PUBLISH_SECONDS)

    async def publish_with_timeout(
        self, envelopes: Sequence[Envelope], timeout: float
    ) -> list[Published]:
        self._check_sizes(envelopes)
        return await self._publisher.publish(envelopes, timeout)

    def publish_within(self, envelopes: Sequence[Envelope], connection: Any) -> list[Published]:
        """The store records the job in the caller's transaction; the relay sends it afterwards."""
        self._check_sizes(envelopes)
        return self._job_store.publish_within(envelopes, connection)

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        until, stops = self._clock.monotonic() + wait, self._stops
        self._relay.serve(queues, owner)
        await self._buffer.check_inboxes(queues)
        async with self._buffer.lock:
            if wait > 0:
                return await self._fetch_until(queues, demand, owner, until, stops)
            return await self._fetch_all(queues, demand, owner)

    async def _fetch_until(
        self, queues: Sequence[str], demand: Demand, owner: str, until: float, stops: int
    ) -> list[Delivery]:
        """Return the first jobs that arrive, unless ``_stops`` is no longer ``stops``."""
        is_silent = True
        while stops == self._stops and (left := until - self._clock.monotonic()) > 0:
            arrivals = await self._buffer.receive(queues, demand, left)
            if not arrivals:  # the time is over, or the transport was told to stop waiting
                break
            is_silent = False
            arrivals = await self._let_others_first(arrivals, demand)
            if claimed := await self._claimer.claim(arrivals, owner):
                return claimed
        if is_silent and demand.capacity("") and self._clock.monotonic() >= until:
            # No message came in the whole time, although there was capacity for every kind. If the
            # store has sent jobs, the server has lost them: a queue was purged there.
            lanes = [Lane(queue, kind) for queue in queues for kind in KINDS]
            await self._job_store.mark_lanes_unsent(lanes)
        return []

    async def _let_others_first(self, arrivals: list[Arrival], demand: Demand) -> list[Arrival]:
        """Return the messages to claim now. Those of tasks in ``demand.without`` wait briefly.

        Several relays may send the same job, so another worker may have a copy of its message. If
        this worker claimed the job only to give it back, the other worker would always be too late.
        """
        if not demand.without:
            return arrivals
        unwanted = {id(one) for one in arrivals if self._claimer.task_of(one) in demand.without}
        if len(unwanted) < len(arrivals):
            self._buffer.hold([one for one in arrivals if id(one) in unwanted])
            return [one for one in arrivals if id(one) not in unwanted]
        try:
            await asyncio.sleep(_OTHERS_FIRST_SECONDS)
        except BaseException:
            self._buffer.hold(arrivals)
            raise
        return arrivals

    async def _fetch_all(self, queues: Sequence[str], demand: Demand, owner: str) -> list[Delivery]:
        """Return all jobs that are there, unsent or sent: the caller may not fetch again soon."""
        await self._relay.send_all(queues, owner)
        found: list[Delivery] = []
        while demand and (arrivals := await self._buffer.receive(queues, demand, 0.0)):
            claimed = await self._claimer.claim(arrivals, owner)
            demand = admit([one.envelope.kind for one in claimed], demand)[1]
            found += claimed
        return found

    def stop_waiting(self) -> None:
        self._stops += 1
        self._transport.stop_waiting()

    async def assign_kinds(self, queues: Sequence[str], kinds: Mapping[str, str]) -> int:
        return await self._job_store.assign_kinds(queues, kinds)

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        lost = await self._job_store.extend(owner, held, older_than)
        self._replies.forget(lost)
        return lost

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        # A record is always kept for a while: with it, a late duplicate of the message is known.
        refused = await self._job_store.settle([replace(one, keep=True) for one in settlements])
        self._replies.reply(settlements, refused)
        return refused

    async def recover(self) -> list[str]:
        return await self._job_store.recover()

    async def expire(self, limit: int) -> list[str]:
        return await self._job_store.expire(limit)

    async def depths(self) -> list[Depth]:
        return await self._job_store.depths()

    async def has_waiting_jobs(
        self, queues: Sequence[str], kinds: Sequence[str], without: Sequence[str] = ()
    ) -> bool:
        return await self._job_store.has_waiting_jobs(queues, kinds, without)

    async def purge(self, queue: str) -> int:
        await self._transport.purge(queue)
        return await self._job_store.purge(queue)

    async def move(self, source: str, target: str) -> int:
        return await self._job_store.move(source, target)

    async def check(self) -> None:
        await self._job_store.check()
        await self._transport.check()

    async def close(self) -> None:
        await self._publisher.close()
        await self._relay.close()
        await self._claimer.close()
        await self._buffer.close()
        await self._replies.close()
        await self._transport.close()
        await self._job_store.close()

    def _check_sizes(self, envelopes: Sequence[Envelope]) -> None:
        """Raise MessageTooLarge or BadMessage for a message that the relay could not send."""
        for envelope in envelopes:
            if self._is_carried(envelope.queue):
                self._publisher.check_size(envelope)

    def _is_carried(self, queue: str) -> bool:
        """Return whether a transport carries the messages of this queue."""
        return True

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
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from msgspec.structs import replace

from umbel.brokers.port import Capabilities, Demand, Depth, Ledger, Published
from umbel.brokers.transport import Arrival, Carry, Lane
from umbel.clock import Clock
from umbel.errors import BadMessage, MessageTooLarge, UmbelError, Unavailable
from umbel.messages import (
    Attempt,
    Body,
    Delivery,
    Envelope,
    Lease,
    Rejected,
    Settlement,
)
from umbel.messages.wire import read_message
from umbel.resilience import Backoff

_BATCH = 500
_PATIENCE = 5.0
_MOMENT = 1.0
"""Seconds that a message may be held that could not start yet."""
_AGAIN = Backoff(first=0.2, factor=2.0, cap=5.0)
_PLAIN_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
UNREADABLE = "(unreadable)"
"""The task of a record that stands for a message nobody could read."""


class SplitBroker:
    """See ``brokers.port.Broker`` for what each method promises."""

    def __init__(self, carry: Carry, ledger: Ledger, *, namespace: str, clock: Clock) -> None:
        keeps = ledger.capabilities
        self.capabilities: Capabilities = replace(
            keeps, direct=False, priority=False, notify=True, forgets=False
        )
        self._transport = carry(self._lost_queue)
        self._ledger = ledger
        self._namespace = namespace
        self._clock = clock
        self._lost: set[str] = set()
        """Queues whose messages are gone: what was sent there has to be sent again."""
        self._turn = asyncio.Lock()
        self._aside: list[Arrival] = []
        """Received beyond a demand that covers several lanes."""
        self._patience: asyncio.TimerHandle | None = None
        self._giving_back: asyncio.Task[None] | None = None
        self._relay: asyncio.Task[None] | None = None
        self._relayed: tuple[str, ...] = ()
        self._ended: list[asyncio.Task[None]] = []

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
            await self._recall()
            return await self._ledger.note(envelopes)
        # Durable all the same: whoever receives the messages will note them.
        return [Published(envelope.id) for envelope in envelopes]

    def publish_within(self, envelopes: Sequence[Envelope], connection: Any) -> list[Published]:
        """Into the books, as part of the caller's transaction; the relay sends it afterwards."""
        self._measure(envelopes)
        return self._ledger.publish_within(envelopes, connection)

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        self._start_relay(tuple(queues))
        until = self._clock.monotonic() + wait
        # One at a time: a transport counts what one receiver has room for.
        async with self._turn:
            if wait <= 0:
                return await self._fetch_all(queues, demand, owner)
            return await self._fetch_until(queues, demand, owner, until)

    async def _fetch_until(
        self, queues: Sequence[str], demand: Demand, owner: str, until: float
    ) -> list[Delivery]:
        while (left := until - self._clock.monotonic()) > 0:
            arrivals = await self._receive(queues, demand, left)
            deliveries = await self._take(arrivals, owner) if arrivals else []
            if deliveries or not arrivals:  # none at all: nudged, or the time is over
                return deliveries
        return []

    async def _fetch_all(self, queues: Sequence[str], demand: Demand, owner: str) -> list[Delivery]:
        """Everything that is there, unsent or on its way: nobody will come back for it soon."""
        while await self._relay_once(queues, 0.0):
            pass
        found: list[Delivery] = []
        while demand and (arrivals := await self._receive(queues, demand, 0.0)):
            taken = await self._take(arrivals, owner)
            demand = _admit([one.envelope.kind for one in taken], demand)[1]
            found += taken
        return found

    def nudge(self) -> None:
        self._transport.nudge()

    async def sort(self, queues: Sequence[str], kinds: Mapping[str, str]) -> int:
        return await self._ledger.sort(queues, kinds)

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        return await self._ledger.extend(owner, held, older_than)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        # A record always stays for a while: it tells a late repetition of the message apart.
        return await self._ledger.settle([replace(one, keep=True) for one in settlements])

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
        if self._patience is not None:
            self._patience.cancel()
        tasks = [task for task in (self._relay, self._giving_back, *self._ended) if task]
        self._relay = self._giving_back = None
        self._ended.clear()
        for task in tasks:
            task.cancel()
            await asyncio.wait([task])
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
        return due and envelope.unique is None

    # --- the relay ---------------------------------------------------------------------------

    def _start_relay(self, queues: tuple[str, ...]) -> None:
        if self._relay is not None and not self._relay.done() and self._relayed == queues:
            return
        if self._relay is not None:
            self._relay.cancel()
            self._ended.append(self._relay)
        self._relayed = queues
        self._relay = asyncio.create_task(self._keep_relaying(queues), name="umbel-relay")

    async def _keep_relaying(self, queues: tuple[str, ...]) -> None:
        tries = 0
        while True:
            try:
                await self._relay_once(queues, _PATIENCE)
                tries = 0
            except UmbelError:
                tries += 1
                await asyncio.sleep(_AGAIN.delay(tries, self._namespace))

    def _lost_queue(self, queue: str) -> None:
        self._lost.add(queue)

    async def _recall(self) -> None:
        if self._lost:
            queues = [*self._lost]
            await self._ledger.recall(queues)
            self._lost.difference_update(queues)

    async def _relay_once(self, queues: Sequence[str], wait: float) -> bool:
        """Send what is unsent; whether there was something."""
        await self._recall()
        found = await self._ledger.unsent(queues, _BATCH, wait)
        # One that somebody put into the books by hand may be too large: it stays there.
        fitting = [one for one in found if self._can_carry(one)]
        if fitting:
            await self._transport.send(fitting)
            await self._ledger.sent([one.id for one in fitting])
        elif found:
            await asyncio.sleep(min(wait, _MOMENT))
        return bool(fitting)

    # --- receiving ---------------------------------------------------------------------------

    async def _receive(self, queues: Sequence[str], demand: Demand, wait: float) -> list[Arrival]:
        """Messages that could start now. A demand covers all queues; a transport counts lanes."""
        arrivals = [one for one in self._aside if one.lane.queue in queues]
        if not _admit([one.lane.kind for one in arrivals], demand)[0]:
            came = await self._transport.receive(_room(queues, demand), wait)
            places = {queue: place for place, queue in enumerate(queues)}
            arrivals += sorted(came, key=lambda one: places[one.lane.queue])
        kept, _ = _admit([one.lane.kind for one in arrivals], demand)
        others = [one for one in self._aside if one.lane.queue not in queues]
        self._set_aside(others + [one for at, one in enumerate(arrivals) if at not in {*kept}])
        return [arrivals[place] for place in kept]

    def _set_aside(self, arrivals: list[Arrival]) -> None:
        """Hold what came beyond the demand: for a moment, then it goes back."""
        self._aside = arrivals
        if arrivals and self._patience is None:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(_MOMENT, self._give_back)

    def _give_back(self) -> None:
        self._patience = None
        arrivals, self._aside = self._aside, []
        if arrivals:
            self._giving_back = asyncio.create_task(self._release(arrivals))

    async def _release(self, arrivals: Sequence[Arrival]) -> None:
        with suppress(Unavailable):  # then they go back with their connection
            await self._transport.release(arrivals)

    async def _take(self, arrivals: Sequence[Arrival], owner: str) -> list[Delivery]:
        """What the books give for these messages, which are acknowledged then."""
        by_id = {self._id(one): one for one in arrivals}
        queues = {job: one.lane.queue for job, one in by_id.items()}
        try:
            taken = await self._ledger.take(queues, owner)
            deliveries = taken.deliveries
            if taken.unknown:
                strangers = {job: by_id[job] for job in taken.unknown}
                deliveries += await self._adopt(strangers, owner)
        except BaseException:
            await self._transport.release(arrivals)
            raise
        await self._transport.accept(arrivals)
        return deliveries

    def _id(self, arrival: Arrival) -> str:
        """A message's id; for one that has none, an id that the same bytes would have again."""
        job = arrival.attributes.get("id")
        if isinstance(job, str) and _PLAIN_ID.fullmatch(job):
            return job
        try:
            return self._read(arrival).id
        except BadMessage:
            return str(uuid5(NAMESPACE_OID, f"{self._namespace}:{arrival.data.hex()}"))

    def _read(self, arrival: Arrival) -> Envelope:
        found = read_message(arrival.attributes, arrival.content_type, arrival.data)
        return replace(found, namespace=self._namespace, queue=arrival.lane.queue)

    async def _adopt(self, strangers: Mapping[str, Arrival], owner: str) -> list[Delivery]:
        """Note messages that somebody else sent, and take them. What is no job is buried."""
        envelopes: list[Envelope] = []
        problems: dict[str, str] = {}
        for job, arrival in strangers.items():
            try:
                envelopes.append(self._read(arrival))
            except BadMessage as error:
                envelopes.append(self._unreadable(job, arrival))
                problems[job] = str(error)
        await self._ledger.note(envelopes)
        queues = {job: arrival.lane.queue for job, arrival in strangers.items()}
        taken = (await self._ledger.take(queues, owner)).deliveries
        bad = [self._bury(one, problems[one.id]) for one in taken if one.id in problems]
        if bad:
            await self._ledger.settle(bad)
        return [one for one in taken if one.id not in problems]

    def _unreadable(self, job: str, arrival: Arrival) -> Envelope:
        return Envelope(
            id=job,
            subject=UNREADABLE,
            body=Body(arrival.content_type or "application/octet-stream", arrival.data),
            namespace=self._namespace,
            queue=arrival.lane.queue,
            kind=arrival.lane.kind,
        )

    def _bury(self, delivery: Delivery, problem: str) -> Settlement:
        now = self._clock.now()
        story = Attempt(delivery.attempt, "", now, now, "rejected", reason=problem)
        return Settlement(lease=delivery.lease, outcome=Rejected(problem), attempt=story)


def _room(queues: Sequence[str], demand: Demand) -> dict[Lane, int]:
    """How much of each lane could start. What nobody knows the kind of may need either room."""
    room = {"": min(demand.io, demand.cpu), "io": demand.io, "cpu": demand.cpu}
    return {Lane(q, kind): many for q in queues for kind, many in room.items() if many > 0}


def _admit(kinds: Sequence[str], demand: Demand) -> tuple[list[int], Demand]:
    """The places of those that fit, in their order, and the demand that is left."""
    left, places = {"io": demand.io, "cpu": demand.cpu}, []
    for place, kind in enumerate(kinds):
        needed = (kind,) if kind else ("io", "cpu")
        if all(left[one] > 0 for one in needed):
            places.append(place)
            for one in needed:
                left[one] -= 1
    return places, Demand(left["io"], left["cpu"])

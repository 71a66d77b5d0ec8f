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
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from msgspec.structs import replace

from umbel.brokers.answers import Answers, Find
from umbel.brokers.direct import DirectPair
from umbel.brokers.hall import MOMENT, Hall, admit
from umbel.brokers.mapped import MappedTransport
from umbel.brokers.port import Capabilities, Demand, Depth, Ledger, Published, StandbyLedger
from umbel.brokers.strangers import TAKEN, burial, id_of, read, stand_in
from umbel.brokers.transport import Arrival, Carry, Lane
from umbel.clock import Clock
from umbel.errors import BadMessage, DuplicateJob, MessageTooLarge, UmbelError, Unavailable
from umbel.messages import KINDS, Delivery, Envelope, Lease, Settlement, is_inbox
from umbel.messages.documents import asked_by
from umbel.resilience import Backoff

_BATCH = 500
_FEW = 4
"""With more messages than that at once, their publishers have noted most of them."""
_PATIENCE = 5.0
_STEPS = 3
"""Rounds of the event loop in which what is here already is received."""
_REMEMBERED = 100
"""Jobs that the books gave, whose messages are expected: more than come late at a time."""
_SOON = 0.005
_MANY = 20
"""Messages that come late are seen to when none came for so many seconds, or there are so many."""
_AGAIN = Backoff(first=0.2, factor=2.0, cap=5.0)


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
        self._transport = carry(self._lost_lane)
        self._direct = DirectPair.of(self._transport, ledger, clock)
        direct = self._direct is not None
        self.capabilities = replace(carried(ledger.capabilities), direct=direct)
        self._ledger = ledger
        self._giver = ledger if isinstance(ledger, StandbyLedger) else None
        self._namespace = namespace
        self._clock = clock
        self._answers = Answers(self._transport.reply, find, namespace=namespace, clock=clock)
        self._lost: set[Lane] = set()
        """Lanes whose messages are gone: what was sent there has to be sent again."""
        self._recalling: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._hall = Hall(self._transport)
        self._relay: asyncio.Task[None] | None = None
        self._relayed: tuple[str, ...] = ()
        self._ended: list[asyncio.Task[None]] = []
        self._inboxes: dict[str, bool] = {}
        """Workers' own queues, and whether anything was ever sent there: few are used, and a queue
        elsewhere costs its server something."""
        self._winding_up: asyncio.Task[None] | None = None
        """Ends the receiving of a fetch that the books were faster for."""
        self._over = asyncio.Event()
        """Ends the receiving that goes on, whatever it is doing."""
        self._handed: deque[str] = deque(maxlen=_REMEMBERED)
        """Jobs that the books gave without a message: theirs come later."""
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
            await self._recall()
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
        self._start_relay(tuple(queues))
        await self._see_inboxes(queues)
        # One at a time: a transport counts what one receiver has room for.
        async with self._in_turn():
            if wait <= 0:
                return await self._fetch_all(queues, demand, owner)
            return await self._fetch_until(queues, demand, owner, until, nudges)

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """Nobody else receives, and who did before has come to its end."""
        async with self._turn:
            if self._winding_up is not None:
                await asyncio.wait([self._winding_up])  # also if this one is given up meanwhile
            yield

    async def _fetch_until(
        self, queues: Sequence[str], demand: Demand, owner: str, until: float, nudges: int
    ) -> list[Delivery]:
        """What comes first, unless a nudge came since there were so many."""
        came = False
        while nudges == self._nudges and (left := until - self._clock.monotonic()) > 0:
            deliveries, arrived = await self._fetch_next(queues, demand, owner, left)
            came = came or arrived
            if deliveries:
                return deliveries
            if not arrived:  # nudged, or the time is over
                break
        if not came and demand.io and demand.cpu and self._clock.monotonic() >= until:
            # With room for everything we have heard nothing for the whole time. If the books say
            # that something was sent, the server has lost it: somebody purged a queue there.
            await self._ledger.recall([Lane(queue, kind) for queue in queues for kind in KINDS])
        return []

    async def _fetch_next(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> tuple[list[Delivery], bool]:
        """What comes next, and whether there was a message. Who waits stands by at the books."""
        self._over.clear()
        there = asyncio.create_task(self._receive_new(queues, demand, wait))
        try:
            handed = await self._stand_by(there, queues, demand, owner, wait)
            if handed:
                self._answers.remember(handed)
                self._handed += [one.id for one in handed]
                self._winding_up = asyncio.create_task(self._wind_up(there))
                return handed, False
            arrivals = await there
        except BaseException:
            there.cancel()
            await self._wind_up(there)
            raise
        return await self._take(arrivals, owner) if arrivals else [], bool(arrivals)

    async def _stand_by(
        self,
        there: asyncio.Task[list[Arrival]],
        queues: Sequence[str],
        demand: Demand,
        owner: str,
        wait: float,
    ) -> list[Delivery]:
        """Be given a job by the books, until a message comes."""
        if self._giver is None or not demand.fits_any:
            return []
        for _ in range(_STEPS):
            await asyncio.sleep(0)
            if there.done():
                return []
        return await self._giver.stand_by(queues, owner, wait, there)

    async def _receive_new(
        self, queues: Sequence[str], demand: Demand, wait: float
    ) -> list[Arrival]:
        """Receive until it is over, or something new has come.

        The message of a job that the books have handed over is late, and a repetition as a rule:
        nobody stops standing by for it. It waits for others, but not for long.
        """
        until = self._clock.monotonic() + wait
        most = min(_MANY, demand.io, demand.cpu)
        found: list[Arrival] = []
        while not self._over.is_set() and (left := until - self._clock.monotonic()) > 0:
            room = replace(demand, io=demand.io - len(found), cpu=demand.cpu - len(found))
            try:
                came = await self._receive(queues, room, min(left, _SOON) if found else left)
            except BaseException:
                self._hall.hold(found)
                raise
            found += came
            if not came or len(found) >= most or not self._are_late(came):
                break
        return found

    def _are_late(self, arrivals: Sequence[Arrival]) -> bool:
        """Whether these are messages of what was handed over here of late, and nothing else."""
        return all(id_of(one, self._namespace) in self._handed for one in arrivals)

    async def _wind_up(self, there: asyncio.Task[list[Arrival]]) -> None:
        """Receive no more. What has come all the same waits for the next fetch, for a moment."""
        self._over.set()
        self._transport.nudge()
        try:
            await asyncio.wait([there])
        except BaseException:
            there.cancel()
            await asyncio.wait([there])
            raise
        if not there.cancelled() and there.exception() is None:
            self._hall.hold(there.result())

    async def _fetch_all(self, queues: Sequence[str], demand: Demand, owner: str) -> list[Delivery]:
        """Everything that is there, unsent or on its way: nobody will come back for it soon."""
        await self._relay_all(queues)
        found: list[Delivery] = []
        while demand and (arrivals := await self._receive(queues, demand, 0.0)):
            taken = await self._take(arrivals, owner)
            demand = admit([one.envelope.kind for one in taken], demand)[1]
            found += taken
        return found

    def nudge(self) -> None:
        self._nudges += 1
        self._over.set()
        self._transport.nudge()

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
        several = (self._relay, self._winding_up, *self._ended, *self._recalling)
        tasks = [task for task in several if task]
        self._relay = None
        self._ended.clear()
        for task in tasks:
            task.cancel()
            await asyncio.wait([task])
        await self._hall.close()
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

    # --- the relay ---------------------------------------------------------------------------

    def _start_relay(self, queues: tuple[str, ...]) -> None:
        if self._relay is not None and not self._relay.done() and {*queues} <= {*self._relayed}:
            return
        if self._relay is not None:
            self._relay.cancel()
            self._ended.append(self._relay)
        # Those who fetch here in turns have each a queue of their own: all of them are relayed to.
        self._relayed = tuple(dict.fromkeys([*queues, *self._relayed]))
        self._relay = asyncio.create_task(self._keep_relaying(self._relayed), name="umbel-relay")

    async def _keep_relaying(self, queues: tuple[str, ...]) -> None:
        async with asyncio.TaskGroup() as relays:
            for some in self._apart(queues):
                relays.create_task(self._keep_relaying_to_one(some), name="umbel-relay")

    async def _keep_relaying_to_one(self, queues: tuple[str, ...]) -> None:
        tries = 0
        while True:
            try:
                await self._relay_once(queues, _PATIENCE)
                tries = 0
            except UmbelError:
                tries += 1
                await asyncio.sleep(_AGAIN.delay(tries, self._namespace))

    async def _relay_all(self, queues: Sequence[str]) -> None:
        """Send all that is unsent. Raises Unavailable when none of the brokers takes anything."""
        groups, failures = self._apart(queues), list[Unavailable]()
        for some in groups:
            try:
                while await self._relay_once(some, 0.0):
                    pass
            except Unavailable as error:
                failures.append(error)
        if failures and len(failures) == len(groups):
            raise failures[0]

    def _apart(self, queues: Sequence[str]) -> list[tuple[str, ...]]:
        """Queues in groups of one broker each: one that is down keeps no other's jobs here."""
        if isinstance(self._transport, MappedTransport):
            return self._transport.apart(queues)
        return [tuple(queues)]

    def _lost_lane(self, lane: Lane) -> asyncio.Task[None]:
        """Recall at once. A lane is made when that is done: until then anybody sees it missing."""
        recalling = asyncio.create_task(self._recall(lane))
        self._recalling.add(recalling)
        recalling.add_done_callback(self._recalled)
        return recalling

    def _recalled(self, recalling: asyncio.Task[None]) -> None:
        self._recalling.discard(recalling)
        if not recalling.cancelled():
            recalling.exception()  # whoever waits has it, and the relay tries again

    async def _recall(self, *lanes: Lane) -> None:
        lost = {*lanes, *self._lost}
        if lost:
            self._lost -= lost
            try:
                await self._ledger.recall([*lost])
            except BaseException:
                self._lost |= lost
                raise

    async def _relay_once(self, queues: Sequence[str], wait: float) -> bool:
        """Send what is unsent; whether there was something."""
        await self._recall()
        found = await self._ledger.unsent(queues, _BATCH, wait)
        # One that somebody put into the books by hand may be too large: it stays there.
        fitting = [one for one in found if self._can_carry(one)]
        if fitting:
            await self._transport.send(fitting)
            await self._ledger.sent([one.id for one in fitting])
            self._use_inboxes({one.queue for one in fitting})
        elif found:
            await asyncio.sleep(min(wait, MOMENT))
        return bool(fitting)

    async def _see_inboxes(self, queues: Sequence[str]) -> None:
        for queue in queues:
            if is_inbox(queue) and queue not in self._inboxes:
                self._inboxes[queue] = await self._ledger.waiting([queue], ("io", "cpu"))

    def _use_inboxes(self, queues: set[str]) -> None:
        """From now on they are received from; whoever waits without them looks again."""
        unused = {queue for queue in queues if not self._inboxes.get(queue, True)}
        if unused:
            self._inboxes |= dict.fromkeys(unused, True)
            self._transport.nudge()

    # --- receiving ---------------------------------------------------------------------------

    async def _receive(self, queues: Sequence[str], demand: Demand, wait: float) -> list[Arrival]:
        """Messages that could start now."""
        unused = frozenset(queue for queue, used in self._inboxes.items() if not used)
        return await self._hall.receive(queues, demand, wait, unused)

    async def _take(self, arrivals: Sequence[Arrival], owner: str) -> list[Delivery]:
        """What the books give for these messages, which are acknowledged then."""
        by_id = {id_of(one, self._namespace): one for one in arrivals}
        queues = {job: one.lane.queue for job, one in by_id.items()}
        try:
            taken = await self._ledger.take(queues, owner, self._fresh(by_id))
            deliveries = taken.deliveries
            if taken.unknown:
                strangers = {job: by_id[job] for job in taken.unknown}
                deliveries += await self._adopt(strangers, owner)
        except BaseException:
            await self._transport.release(arrivals)
            raise
        await self._transport.accept(arrivals)
        self._answers.remember(deliveries)
        if len(deliveries) < len(by_id):
            known = by_id.keys() - {one.id for one in deliveries} - {*taken.unknown}
            self._answer_again({job: by_id[job] for job in known})
        return deliveries

    def _fresh(self, arrivals: Mapping[str, Arrival]) -> list[Envelope]:
        """Messages so new that their publisher cannot have noted them: spares asking twice."""
        fresh: list[Envelope] = []
        since = self._clock.now() - MOMENT
        few = {} if len(arrivals) > _FEW else arrivals
        for job in (one for one in few if one not in self._handed):
            with suppress(BadMessage):
                found = read(arrivals[job], self._namespace, job)
                if found.created > since and found.unique is None:
                    fresh.append(found)
        return fresh

    def _answer_again(self, repeated: Mapping[str, Arrival]) -> None:
        """Messages of jobs that are in the books, and in somebody's hands or at their end."""
        for job, arrival in repeated.items():
            with suppress(BadMessage):
                asked = asked_by(job, read(arrival, self._namespace, job).headers)
                if asked is not None:
                    self._answers.asked_again(job, asked)

    async def _adopt(self, strangers: Mapping[str, Arrival], owner: str) -> list[Delivery]:
        """Note messages that somebody else sent, and take them. What is no job is buried."""
        envelopes: list[Envelope] = []
        problems: dict[str, str] = {}
        for job, arrival in strangers.items():
            try:
                envelopes.append(read(arrival, self._namespace, job))
            except BadMessage as error:
                envelopes.append(stand_in(arrival, self._namespace, job))
                problems[job] = str(error)
        problems |= await self._note(envelopes)
        queues = {job: arrival.lane.queue for job, arrival in strangers.items()}
        taken = (await self._ledger.take(queues, owner)).deliveries
        bad = [one for one in taken if one.id in problems]
        if bad:
            self._answers.remember(bad)
            now = self._clock.now()
            await self.settle([burial(one, problems[one.id], now) for one in bad])
        return [one for one in taken if one.id not in problems]

    async def _note(self, envelopes: Sequence[Envelope]) -> dict[str, str]:
        """Into the books; those that would have been refused, and why."""
        refused: dict[str, str] = {}
        for keyed in [one for one in envelopes if one.unique is not None]:
            try:
                await self._ledger.publish([keyed])
            except DuplicateJob:
                refused[keyed.id] = TAKEN
        plain = [one for one in envelopes if one.unique is None or one.id in refused]
        if plain:
            await self._ledger.note([replace(one, unique=None) for one in plain])
        return refused

"""What a broker promises, method by method, also when a process dies in the middle.

Every method takes a batch and costs one round trip, however large the batch. A method that
raises ``Unavailable`` may or may not have happened; each says why repeating it is safe.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from umbel.messages import Delivery, Envelope, Lease, Settlement, State


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter can do. Suites and rooms ask this, never an adapter's name."""

    transactional: bool = False
    """``publish(within=...)`` joins the caller's own transaction."""
    direct: bool = False
    """It is a ``BlockingBroker``: it publishes without an event loop."""
    records: bool = False
    """Publishing and settling also write the records of the store at the same address."""
    delay: bool = False
    priority: bool = False
    unique: bool = False
    notify: bool = False
    """A waiting ``fetch`` is woken by push rather than by its next look."""
    move: bool = False
    forgets: bool = False
    """A success that is not to be kept leaves nothing behind."""


class Demand(msgspec.Struct, frozen=True):
    """How many deliveries of each kind could start this very moment."""

    io: int = 0
    cpu: int = 0
    without: tuple[str, ...] = ()
    """Tasks that could not, for reasons of the worker's own. A broker spares it what it can."""

    def __bool__(self) -> bool:
        return self.io > 0 or self.cpu > 0

    @property
    def fits_any(self) -> bool:
        """Whether there is room for a job, whatever its kind and task."""
        return self.io > 0 and self.cpu > 0 and not self.without


class Published(msgspec.Struct, frozen=True):
    """What became of one envelope: its own id, or the id of the job that was there before."""

    id: str
    existing: bool = False
    handed: bool = False
    """Whether somebody who stood by has it already."""


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """How many live jobs a queue holds in one state."""

    queue: str
    state: State
    jobs: int
    age: float
    """Seconds since the oldest of them was published, by the store's clock."""


class Broker(Protocol):
    """Moves envelopes from publishers to whoever fetches them."""

    capabilities: Capabilities

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        """Make all envelopes durable, or none.

        When it returns they survive the death of every process here; with ``within`` they are
        part of the caller's transaction instead and share its fate. An id that is known already,
        live or finished, is not published again, so repeating after an error is safe. ``within``
        is a connection of async code; sync code uses ``publish_within``.

        Raises:
            DuplicateJob: a live job holds the unique key and the envelope says to raise.
            Unavailable: not confirmed.
        """

    def publish_within(self, envelopes: Sequence[Envelope], connection: Any) -> list[Published]:
        """``publish`` in the caller's thread, inside the transaction of the caller's connection.

        Never commits or rolls back. Only for brokers that are ``transactional``.
        """

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        """Claim what could start now; wait up to ``wait`` seconds when there is nothing.

        Each delivery is under a lease of ``owner``, an incarnation that is enlisted, with a
        fencing number above every earlier one of that job. Nothing is ever in two hands. If the
        answer is lost, ``extend`` gives back what the owner does not know it holds.

        Raises:
            LeaseLost: the owner is not enlisted (any more). Unavailable: try again.
        """

    def nudge(self) -> None:
        """Make a ``fetch`` that waits in this event loop return now, with what it has: nothing."""

    async def sort(self, queues: Sequence[str], kinds: Mapping[str, str]) -> int:
        """Give queued jobs of unknown kind the kind of their task, for the tasks named here.

        A sender outside Python does not know whether a task is a coroutine or a thread; a worker
        that has the task does. Returns how many. Safe to repeat.
        """

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        """Say what the owner holds; learn which of it is lost.

        Jobs claimed by the owner more than ``older_than`` seconds ago that are not in ``held``
        were never received: they go back to their queue, no attempt counted. Safe to repeat.
        """

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        """Record all outcomes, publish their follow-ups and acknowledge, in one transaction.

        Returns the leases that were refused because they are no longer held: nothing of such a
        settlement has happened. Safe to repeat: what was settled before is then refused.

        Raises:
            Unavailable: all of it happened or nothing.
        """

    async def recover(self) -> list[str]:
        """Put back the jobs of owners that are no longer enlisted; count the death against each.

        ``resilience.judge`` says which of an owner's jobs is to blame, and how far apart suspects
        come back. A job is buried when it was to blame for ``max_deaths`` deaths, or died at all
        and may only once, or when it is to blame and its lease has lapsed ``MAX_LAPSES`` times. The
        death of an incarnation whose process has reported that it is alive (``Registry.enlist``)
        is taken back at once and counted as a lapse. Returns the ids concerned. Safe to repeat, and
        to run from several processes at once.
        """

    async def depths(self) -> list[Depth]:
        """How many live jobs each queue holds, by state."""

    async def waiting(
        self, queues: Sequence[str], kinds: Sequence[str], without: Sequence[str] = ()
    ) -> bool:
        """Whether a fetch of these would find something now, apart from jobs of some tasks."""

    async def purge(self, queue: str) -> int:
        """Cancel everything in a queue that does not run. Returns how many."""

    async def move(self, source: str, target: str) -> int:
        """Put everything in ``source`` that does not run into ``target``. Returns how many."""

    async def check(self) -> None:
        """Answer, or raise Unavailable or SchemaError with what is wrong."""

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""


class BlockingBroker(Broker, Protocol):
    """A broker that is ``direct``."""

    def publish_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """``publish`` in the caller's own thread; blocks, but not for longer than ``timeout``.

        Safe from any thread.
        """


@runtime_checkable
class TimedBroker(Protocol):
    """A broker of two servers. It divides a caller's time between them."""

    async def publish_timed(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """``publish`` within that many seconds, also if one of the two does not answer."""


class Taken(msgspec.Struct, frozen=True):
    """What became of jobs that a transport delivered."""

    deliveries: list[Delivery]
    unknown: list[str]
    """Ids the books do not have. Note these, and take them then."""


class JobStore(Broker, Protocol):
    """A broker that can keep the books while another one, a ``Transport``, carries its messages.

    The books are the truth: who claims, settles or cancels does it here, under the same promises.
    A job in them is queued until it was handed to the transport, then sent; others see no
    difference. Whatever puts a job back into its queue makes it one that has to be sent again.
    """

    async def note(self, envelopes: Sequence[Envelope]) -> list[Published]:
        """``publish`` of what a transport carries already. A known id changes nothing.

        Raises:
            Unavailable: not noted; whoever receives the message will make up for it.
        """

    async def unsent(self, queues: Sequence[str], limit: int, wait: float) -> list[Envelope]:
        """The first jobs to hand to a transport, in their order; waits when there are none.

        What is paused stays here. Nothing is locked: two may send the same job, which is harmless.
        """

    async def sent(self, jobs: Sequence[str]) -> None:
        """A transport has them, as they were when ``unsent`` of this ledger last gave them.

        Changes nothing of those that were taken, held back, recalled or moved since: there may be
        no message of them any more. They are given once more, and sent once more.
        """

    async def take(
        self, jobs: Mapping[str, str], owner: str, unnoted: Sequence[Envelope] = ()
    ) -> Taken:
        """``fetch`` of the very jobs that a transport delivered: ids, and from which queue.

        Those in ``unnoted`` are noted first, in the same step. None of them has a unique key.

        One that runs, has ended, or was moved to another queue is not given: its message was a
        repetition. One that is paused is not given either, and has to be sent again. So the
        message of everything but the unknown may be acknowledged when this has returned.

        Raises:
            LeaseLost: the owner is not enlisted (any more). Unavailable: try again.
        """

    async def recall(self, lanes: Sequence[tuple[str, str]]) -> int:
        """The transport has lost what was sent there, to a queue for a kind: send it again."""


@runtime_checkable
class StandbyJobStore(Protocol):
    """A ledger that gives a job to somebody who waits while it is noted."""

    async def stand_by(
        self, queues: Sequence[str], owner: str, wait: float, other: Future[Any]
    ) -> list[Delivery]:
        """Be given the first job that is noted in one of these queues from now on, of any kind.

        It is held as if it had been fetched. Others may be given it instead, and nothing is given
        like that while something comes before it or is paused. Its message comes, too, and is a
        repetition then. Waits up to ``wait`` seconds, and no longer than for ``other``.

        Raises:
            LeaseLost: the owner is not enlisted (any more). Unavailable: try again.
        """

"""The role that moves jobs from publishers to workers.

Each method states what holds after a crash. Every method takes a batch and costs one round trip,
regardless of the size of the batch. If a method raises ``Unavailable``, its effect may or may not
have happened; each method says why repeating it is safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from umbel.messages import DEFAULT_KINDS, Delivery, Envelope, Lease, Settlement, State


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter can do. This is the only way to ask; no caller checks an adapter's type."""

    transactional: bool = False
    """``publish(within=...)`` and ``publish_within`` join the caller's transaction."""
    blocking: bool = False
    """It publishes, or a transport sends, in the caller's own thread without an event loop."""
    blocking_records: bool = False
    """The records at the same address are ``BlockingRecords``."""
    timed: bool = False
    """It is a ``TimedBroker``."""
    records: bool = False
    """Publishing and settling also write the records of the store at the same address."""
    delay: bool = False
    priority: bool = False
    unique: bool = False
    notify: bool = False
    """A waiting ``fetch`` is woken by a notification and does not depend on polling."""
    move: bool = False
    forgets: bool = False
    """A job that succeeded leaves no record if its settlement says not to keep one."""


class Demand(msgspec.Struct, frozen=True):
    """How many jobs of each kind the worker could start immediately."""

    free: dict[str, int] = {}
    """How many of each kind, by its name."""
    without: tuple[str, ...] = ()
    """Tasks whose jobs the worker cannot start now. A broker avoids them where it can."""

    @classmethod
    def of(cls, **free: int) -> Demand:
        """Return a demand for so many of each kind."""
        return cls(free)

    def __bool__(self) -> bool:
        return any(many > 0 for many in self.free.values())

    def capacity(self, kind: str) -> int:
        """Return how many jobs of a kind could start.

        A sender that does not know the task may mean any default kind, so a job of unknown kind
        needs capacity of each of them.
        """
        if kind:
            return self.free.get(kind, 0)
        return min(self.free.get(one, 0) for one in DEFAULT_KINDS)

    def after(self, kinds: Iterable[str]) -> Demand:
        """Return what is left when jobs of these kinds have started."""
        left = dict(self.free)
        for kind in kinds:
            for one in needed(kind):
                left[one] = left.get(one, 0) - 1
        return Demand(left, self.without)

    @property
    def fits_any(self) -> bool:
        """Whether the worker has capacity for a job of any default kind and any task."""
        return self.capacity("") > 0 and not self.without


def needed(kind: str) -> tuple[str, ...]:
    """Return the kinds of which a job takes one unit of capacity each."""
    return (kind,) if kind else DEFAULT_KINDS


class Published(msgspec.Struct, frozen=True):
    """The result of publishing one envelope: its own id, or the id of the job that exists."""

    id: str
    existing: bool = False


def unique_key_taken(key: str | None, holder: str) -> str:
    """Return why a message was recorded as cancelled instead of published."""
    return f"the unique key {key!r} is held by job {holder}"


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """How many live jobs a queue holds in one state."""

    queue: str
    state: State
    jobs: int
    age: float
    """Seconds since the oldest of them was published, by the store's clock."""


class Broker(Protocol):
    """Moves jobs from publishers to the workers that fetch them."""

    capabilities: Capabilities

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        """Make all envelopes durable, or none of them.

        When it returns, they survive the death of every process that takes part. With ``within``,
        they are part of the caller's transaction instead and are committed or rolled back with it;
        ``within`` is a connection of async code (sync code uses ``publish_within``). An id that
        exists already, live or finished, is not published again, so repeating the call after an
        error is safe.

        Raises:
            DuplicateJob: a live job holds the unique key, and the envelope says to raise.
            Unavailable: the publish is not confirmed.
        """

    def publish_within(self, envelopes: Sequence[Envelope], connection: Any) -> list[Published]:
        """``publish`` in the caller's thread, inside the transaction of the caller's connection.

        Never commits or rolls back. Only for brokers that are ``transactional``.
        """

    def publish_blocking(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """``publish`` in the caller's own thread. Blocks for at most ``timeout`` seconds.

        Any thread may call it. Only for brokers that are ``blocking``.
        """

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        """Claim jobs that can start now. If there are none, wait up to ``wait`` seconds.

        Each delivery is under a lease of ``owner``, which is a registered incarnation. Its fencing
        number is higher than every earlier one of that job. Two owners never hold the same job. If
        the answer is lost, ``extend`` puts back the jobs that the owner does not know of.

        Raises:
            LeaseLost: the owner is not registered, or no longer.
            Unavailable: the caller should try again.
        """

    def stop_waiting(self) -> None:
        """Make a ``fetch`` that waits in this event loop return immediately with an empty list."""

    async def assign_kinds(self, queues: Sequence[str], kinds: Mapping[str, str]) -> int:
        """Set the kind of queued jobs whose kind is unknown, from a mapping of task to kind.

        A sender outside Python does not know whether a task is a coroutine or a thread; a worker
        that has the task does. Returns the number of jobs changed. Safe to repeat.
        """

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        """Report which leases the owner holds; return those of them that are lost.

        Jobs that the owner claimed more than ``older_than`` seconds ago and that are not in
        ``held`` were never received. They go back to their queue and no attempt is counted. Safe
        to repeat.
        """

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        """Record outcomes, publish their follow-ups and acknowledge, all in one transaction.

        Joins of which an ended job is a part count it in the same transaction. A growth takes the
        place of its job in these joins. If the job's cancellation was requested, it does not: a job
        that succeeded is then recorded as cancelled. A follow-up whose unique key is taken becomes
        a cancelled record that names the holder.

        Returns the leases that were refused because they are no longer held; such a settlement has
        no effect at all. Safe to repeat: a settlement that was recorded before is then refused.

        Raises:
            Unavailable: either all of it happened or none of it.
        """

    async def recover(self) -> list[str]:
        """Put back the jobs of owners that are no longer registered, and count their deaths.

        ``resilience.judge`` decides which of an owner's jobs is blamed for the death, and over
        which time suspects are spread when they come back. A job is buried if it was blamed for
        ``max_deaths`` deaths, if it died at all and may run only once, or if it is blamed and its
        lease has lapsed ``MAX_LAPSES`` times. If the process of the incarnation has reported that
        it is alive (``Registry.register``), its death is taken back and counted as a lapse.

        Returns the ids of the jobs concerned. Safe to repeat, and to run in several processes at
        once.
        """

    async def expire(self, limit: int) -> list[str]:
        """End jobs that do not run and whose expiry has passed, by the store's clock.

        Returns their ids, at most ``limit``. Safe to repeat, and to run in several processes at
        once. A job that no worker serves, or that is paused, therefore expires in time.
        """

    async def depths(self) -> list[Depth]:
        """Return how many live jobs each queue holds, by state."""

    async def has_waiting_jobs(
        self, queues: Sequence[str], kinds: Sequence[str], without: Sequence[str] = ()
    ) -> bool:
        """Return whether a fetch would find a job now that is not of a task in ``without``."""

    async def purge(self, queue: str) -> int:
        """Cancel all jobs in a queue that are not running. Returns how many."""

    async def move(self, source: str, target: str) -> int:
        """Move all jobs in ``source`` that are not running to ``target``. Returns how many."""

    async def check(self) -> None:
        """Return if the broker answers. Raise Unavailable or SchemaError with the problem."""

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""


class TimedBroker(Broker, Protocol):
    """A broker of two servers that divides a caller's time between them."""

    async def publish_with_timeout(
        self, envelopes: Sequence[Envelope], timeout: float
    ) -> list[Published]:
        """``publish`` within ``timeout`` seconds, even if one of the servers does not answer."""


class Claimed(msgspec.Struct, frozen=True):
    """The result of claiming the jobs of messages that a transport delivered."""

    deliveries: list[Delivery]
    unknown: list[str]
    """Ids of jobs that are not in the store. The caller records them and claims again."""


class JobStore(Broker, Protocol):
    """A broker that can record jobs and leases while a ``Transport`` carries the messages.

    The store decides: claims, settlements and cancellations happen here, with the same guarantees.
    A job in the store is *queued* until the transport has its message, and *sent* from then on;
    readers of records see both as queued. Every change that puts a job back into its queue makes
    it unsent again.
    """

    async def record_sent(self, envelopes: Sequence[Envelope]) -> list[Published]:
        """``publish`` jobs whose messages a transport has already. A known id changes nothing.

        Raises:
            Unavailable: the jobs may not be recorded; the receiver of a message then records it.
        """

    async def find_unsent(self, queues: Sequence[str], limit: int, wait: float) -> list[Envelope]:
        """Return the first jobs to send, in order. Waits up to ``wait`` seconds if there are none.

        Paused jobs are left out. Nothing is locked: two processes may send the same job, which is
        harmless.
        """

    async def mark_sent(self, jobs: Sequence[str]) -> None:
        """Record that a transport has these jobs as ``find_unsent`` of this store returned them.

        Jobs that were claimed, paused, marked unsent or moved since then stay unsent, because there
        may be no message of them any more. They are returned and sent once more.
        """

    async def claim(
        self, jobs: Mapping[str, str], owner: str, unrecorded: Sequence[Envelope] = ()
    ) -> Claimed:
        """Claim the jobs whose messages a transport delivered: a mapping of id to queue.

        Jobs in ``unrecorded`` are recorded first, in the same step. None of them may have a unique
        key. The deliveries have the same guarantees as those of ``fetch``.

        A job that is running, has ended or was moved to another queue is not claimed: its message
        was a duplicate. A paused job is not claimed either and becomes unsent. When the call has
        returned, the messages of all jobs except the unknown ones may be acknowledged.

        Raises:
            LeaseLost: the owner is not registered, or no longer.
            Unavailable: the caller should try again.
        """

    async def mark_lanes_unsent(self, lanes: Sequence[tuple[str, str]]) -> int:
        """Make all sent jobs of these lanes unsent, because the transport lost their messages.

        A lane is a queue and a kind. Returns how many jobs changed. Safe to repeat.
        """

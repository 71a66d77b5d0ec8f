"""The broker on Redis: each operation is one script, which is one atomic step on the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from umbel.backends.broker import Capabilities, Demand, Depth, Published, needed
from umbel.backends.notifier import WakeUpListener
from umbel.backends.redis.database import Database
from umbel.backends.redis.inbox import Inbox
from umbel.backends.redis.job_rows import Row, handed_delivery, read_delivery
from umbel.backends.redis.list_watch import ListWatch
from umbel.backends.redis.listener import Listener
from umbel.backends.redis.publications import publication_error
from umbel.backends.redis.publishing import PUBLISH_SCRIPTS, publish_call, read_published
from umbel.backends.redis.replies import push_replies
from umbel.backends.redis.scripts import pack, root_of, scripts
from umbel.backends.redis.settling import recover_arguments, settle_arguments
from umbel.backends.redis.values import optional_float, text
from umbel.backends.replies import Find, ReplySender
from umbel.clock import Clock
from umbel.errors import ConfigurationError, LeaseLost, Unavailable, UnknownJob
from umbel.messages import (
    Delivery,
    Envelope,
    Expired,
    Finish,
    Lease,
    Record,
    Settlement,
    State,
    disposition,
)

_YIELD_SECONDS = 0.001
"""Delay of a worker that was too late after its last wake-up: not all should claim at once."""
_SHARED_FILES = {
    "settling": ("publications.lua",),
    "inbox": (),
    "claiming": ("lanes.lua", "standby.lua", "route_gates.lua", "granting.lua"),
    "queues": ("lanes.lua",),
    "job_store": ("lanes.lua", "standby.lua", "route_gates.lua", "granting.lua"),
}
LUA = PUBLISH_SCRIPTS | {
    name: script
    for file, shared in _SHARED_FILES.items()
    for name, script in scripts(f"{file}.lua", *shared).items()
}


def _expiry_reason() -> str:
    """Return why a job ended that expired."""
    end = disposition(Expired())
    assert isinstance(end, Finish)
    return end.reason


async def _unknown(job: str) -> Record:
    raise UnknownJob(job)


class RedisBroker:
    """See ``umbel.backends.broker.Broker`` for what each method guarantees.

    Other programs push CloudEvents to its inbox. ``find`` returns the record of a job; a sender
    that sends an event again gets its reply from there.
    """

    capabilities = Capabilities(
        blocking=True,
        blocking_records=True,
        records=True,
        delay=True,
        priority=True,
        unique=True,
        notify=True,
        move=True,
        forgets=True,
    )

    def __init__(
        self,
        database: Database,
        *,
        namespace: str,
        clock: Clock,
        safety_poll: float = 5.0,
        find: Find = _unknown,
    ) -> None:
        self._database = database
        self._namespace = namespace
        self._root = root_of(namespace)
        self._clock = clock
        self._safety_poll = safety_poll
        self._stops = 0
        """How many times ``stop_waiting`` was called."""
        self._was_late = False
        """Whether other workers had claimed the job of the last wake-up."""
        self._wake_ups: set[WakeUpListener] = set()
        common: Any = {"namespace": namespace, "clock": clock}
        self._replies = ReplySender(partial(push_replies, database), find, **common)
        self._inbox = Inbox(self._run, self._replies, **common)
        self._inbox_watch = ListWatch(
            database.address.connect, f"{self._root}:inbox", self._notify_all
        )

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        if within is not None:
            return self.publish_within(envelopes, within)
        if not envelopes:
            return []
        script, arguments = publish_call(envelopes)
        answer = await self._database.run(script, self._root, *arguments)
        return read_published(envelopes, answer)

    def publish_blocking(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        if not envelopes:
            return []
        script, arguments = publish_call(envelopes)
        answer = self._database.blocking.run(script, self._root, arguments, timeout)
        return read_published(envelopes, answer)

    def publish_within(self, envelopes: Sequence[Envelope], connection: Any) -> list[Published]:
        """Raise ConfigurationError: Redis cannot take part in a caller's transaction."""
        raise ConfigurationError(
            f"connection={type(connection).__name__}: Redis cannot join a transaction; publish"
            " after the commit, or use PostgreSQL or SQLite as the broker"
        )

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        until = self._clock.monotonic() + wait
        stops, was_notified = self._stops, False
        with self._listening(queues) as (wake_up, ticket):
            standby = None if wait <= 0 else ""
            while stops == self._stops:
                wake_up.clear()
                if wait > 0 and demand.fits_any:
                    standby = ticket if self._is_subscribed() else ""
                deliveries, more, due, inbox = await self._claim(queues, demand, owner, standby)
                if was_notified or deliveries:
                    self._was_late = not deliveries
                if inbox:
                    more = await self._adopt() or more
                if deliveries:
                    self._replies.remember(deliveries)
                    return deliveries
                if more:
                    continue
                left = until - self._clock.monotonic()
                if left <= 0:
                    break
                if not inbox:  # otherwise adopting has failed: try again later, not at once
                    self._inbox_watch.request()
                was_notified = await self._sleep(wake_up, left, due)
                if handed := self._take_handed(ticket, owner):
                    self._replies.remember(handed)
                    return handed
                if was_notified and self._was_late and stops == self._stops:
                    await asyncio.sleep(_YIELD_SECONDS)
            handed = await self._end_standby(owner, standby) if standby else []
            self._replies.remember(handed)
            return handed

    def stop_waiting(self) -> None:
        self._stops += 1
        self._notify_all()

    def _notify_all(self) -> None:
        for wake_up in self._wake_ups:
            wake_up.notify("")

    async def assign_kinds(self, queues: Sequence[str], kinds: Mapping[str, str]) -> int:
        changed, cursor = 0, [1, 0]
        while cursor:  # in portions: a lane may be long
            arguments = pack([*queues], dict(kinds), *cursor)
            found, *cursor = await self._run("assign_kinds", arguments)
            changed += found
        return changed

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        leases = [part for lease in held for part in (lease.job, lease.fence)]
        indexes = await self._run("extend", pack(owner, float(older_than), leases))
        lost = [held[index] for index in indexes]
        self._replies.forget(lost)
        return lost

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        if not settlements:
            return []
        indexes = await self._run("settle", settle_arguments(settlements))
        if error := publication_error(indexes):
            raise error
        refused = [settlements[index].lease for index in indexes]
        self._replies.reply(settlements, refused)
        return refused

    async def recover(self) -> list[str]:
        orphans: list[Row] = await self._run("orphans")
        if not orphans:
            return []
        # If another process recovers them between the two steps, their leases are gone.
        arguments = recover_arguments(orphans, self._clock.now())
        return [text(job) for job in await self._run("recover", arguments)]

    async def expire(self, limit: int) -> list[str]:
        ended: list[str] = []
        more = 1
        while more and len(ended) < limit:  # in portions: many jobs may expire at once
            arguments = pack(limit - len(ended), _expiry_reason())
            more, *some = await self._run("expire", arguments)
            ended += map(text, some)
        return ended

    async def depths(self) -> list[Depth]:
        rows: list[Row] = await self._run("depths")
        return [
            Depth(
                queue=text(queue),
                state=State(text(state)),
                jobs=jobs,
                age=optional_float(age) or 0.0,
            )
            for queue, state, jobs, age in rows
        ]

    async def has_waiting_jobs(
        self, queues: Sequence[str], kinds: Sequence[str], without: Sequence[str] = ()
    ) -> bool:
        lanes = ["", *kinds] if {*needed("")} <= {*kinds} else [*kinds]
        arguments = pack([*queues], lanes, [*without])
        return bool(await self._run("has_waiting_jobs", arguments))

    async def purge(self, queue: str) -> int:
        purged = 0
        while found := await self._run("purge", pack(queue)):
            purged += found
        return purged

    async def move(self, source: str, target: str) -> int:
        moved, moved_since_start, skipped = 0, 0, 0
        while source != target:
            found, skipped, more = await self._run("move", pack(source, target, skipped))
            moved, moved_since_start = moved + found, moved_since_start + found
            if not more and not moved_since_start:
                break
            if not more:  # skipped jobs may have gone meanwhile, so others may have been missed
                moved_since_start, skipped = 0, 0
        return moved

    async def check(self) -> None:
        await self._database.execute("PING")

    async def close(self) -> None:
        await self._inbox_watch.close()
        await self._replies.close()
        await self._database.close()

    async def _claim(
        self, queues: Sequence[str], demand: Demand, owner: str, ticket: str | None
    ) -> tuple[list[Delivery], bool, float | None, int]:
        """Claim jobs, or begin standby if there are none; see standby.py.

        Return the deliveries, whether to claim again at once, the seconds until a job is due, and
        the number of events to adopt. Without a ticket (an empty one), the incarnation is only
        notified of jobs; with None, it does not wait.
        """
        tickets = self._listener.tickets
        received = tickets.last_received(owner)
        wanted = (demand.free, [*queues], [*demand.without])
        standby = (tickets.token, received, ticket is not None, ticket or "")
        answer = await self._run("claim", pack(owner, *wanted, *standby))
        if not answer[0]:
            raise LeaseLost(f"incarnation {owner} is not registered")
        tickets.forget(owner, received)
        _, more, due, rows, inbox, claimed = answer
        found = [read_delivery(row, self._namespace, owner, claimed) for row in rows]
        return found, bool(more), optional_float(due), inbox

    async def _adopt(self) -> bool:
        """Make jobs of pushed events. An error must not lose the jobs that were claimed before."""
        with suppress(Unavailable):
            return await self._inbox.adopt()
        return False

    def _take_handed(self, ticket: str, owner: str) -> list[Delivery]:
        """Return the job that was handed to this incarnation during standby, if there is one."""
        job = self._listener.tickets.take(ticket, owner)
        if not job:
            return []
        return [handed_delivery(job, self._namespace, owner)]

    async def _end_standby(self, owner: str, ticket: str) -> list[Delivery]:
        """End standby. Return a job that was handed over and not received, if there is one."""
        tickets = self._listener.tickets
        arguments = pack(owner, tickets.token, tickets.last_received(owner), ticket)
        claimed, *rows = await self._run("end_standby", arguments) or [None]
        return [read_delivery(row, self._namespace, owner, claimed) for row in rows]

    @property
    def _listener(self) -> Listener:
        return self._database.listener(self._root)

    def _is_subscribed(self) -> bool:
        """Return whether wake-ups arrive. If not, the broker must poll."""
        return self._listener.is_subscribed(self._root)

    @contextmanager
    def _listening(self, queues: Sequence[str]) -> Iterator[tuple[WakeUpListener, str]]:
        """Yield a listener for wake-ups of these queues, and a ticket for standby."""
        root, listener = self._root, self._listener
        ticket = listener.tickets.open()
        topics = [f"{kind}:{root}:{queue}" for queue in queues for kind in "rs"]
        with listener.notifier.listen([*topics, f"c:{root}", ticket]) as wake_up:
            self._wake_ups.add(wake_up)
            try:
                yield wake_up, ticket
            finally:
                self._wake_ups.discard(wake_up)
                listener.tickets.close(ticket)

    async def _sleep(self, wake_up: WakeUpListener, left: float, due: float | None) -> bool:
        """Wait for a wake-up, a due job or the next poll. Return whether it was a wake-up."""
        poll = self._safety_poll if self._is_subscribed() else self._database.address.poll
        until_due = left if due is None else max(due, 0.001)
        return await wake_up.wait(min(left, until_due, poll))

    async def _run(self, name: str, packed: bytes = b"\x90") -> Any:
        return await self._database.run(LUA[name], self._root, packed)

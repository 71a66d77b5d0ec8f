"""Claims, settlements and the rest as scripts on one server. Every one is one step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from umbel.backends.broker import Capabilities, Demand, Depth, Published
from umbel.backends.notifier import WakeUpListener
from umbel.backends.redis.database import Database
from umbel.backends.redis.inbox import Inbox
from umbel.backends.redis.job_rows import Row, delivery, handed
from umbel.backends.redis.list_watch import Doorbell
from umbel.backends.redis.listener import Listener
from umbel.backends.redis.publishing import PUBLISHING, publish_step, published
from umbel.backends.redis.replies import hand_out
from umbel.backends.redis.scripts import pack, root_of, scripts
from umbel.backends.redis.settling import recover_arguments, settle_arguments
from umbel.backends.redis.values import moment, text
from umbel.backends.replies import Answers, Find
from umbel.clock import Clock
from umbel.errors import ConfigurationError, LeaseLost, Unavailable, UnknownJob
from umbel.messages import Delivery, Envelope, Lease, Record, Settlement, State

_COURTESY = 0.001
"""Seconds by which who found nothing lets others go first: all at once are in each other's way."""
_SHARED = {
    "settling": (),
    "inbox": (),
    "claiming": ("lanes.lua", "standby.lua", "sending.lua", "granting.lua"),
    "queues": ("lanes.lua",),
    "job_store": ("lanes.lua", "standby.lua", "sending.lua", "granting.lua"),
}
LUA = PUBLISHING | {
    name: script
    for file, shared in _SHARED.items()
    for name, script in scripts(f"{file}.lua", *shared).items()
}


async def _unknown(job: str) -> Record:
    raise UnknownJob(job)


class RedisBroker:
    """See ``brokers.port.Broker`` for what each method promises.

    Other programs push CloudEvents to its inbox; ``find`` is where the records are, from which a
    sender is answered that asks again.
    """

    capabilities = Capabilities(
        direct=True,
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
        self._nudges = 0
        self._late = False
        """Whether others were faster when it was last called: then they may go first again."""
        self._ears: set[WakeUpListener] = set()
        common: Any = {"namespace": namespace, "clock": clock}
        self._answers = Answers(partial(hand_out, database), find, **common)
        self._inbox = Inbox(self._run, self._answers, **common)
        self._doorbell = Doorbell(database.home.connect, f"{self._root}:inbox", self._ring)

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        if within is not None:
            return self.publish_within(envelopes, within)
        if not envelopes:
            return []
        script, arguments = publish_step(envelopes)
        answer = await self._database.run(script, self._root, *arguments)
        return published(envelopes, answer)

    def publish_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        if not envelopes:
            return []
        script, arguments = publish_step(envelopes)
        answer = self._database.direct.run(script, self._root, arguments, timeout)
        return published(envelopes, answer)

    def publish_within(self, envelopes: Sequence[Envelope], connection: Any) -> list[Published]:
        """Redis has no part in a caller's transaction. Raises ConfigurationError."""
        raise ConfigurationError(
            f"connection={type(connection).__name__}: Redis cannot join a transaction; publish"
            " after the commit, or use PostgreSQL or SQLite as the broker"
        )

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        until = self._clock.monotonic() + wait
        nudges, called = self._nudges, False
        with self._listening(queues) as (ear, ticket):
            by = None if wait <= 0 else ""
            while nudges == self._nudges:
                ear.clear()
                if wait > 0 and demand.fits_any:
                    by = ticket if self._hears() else ""
                deliveries, more, due, inbox = await self._claim(queues, demand, owner, by)
                if called or deliveries:
                    self._late = not deliveries
                if inbox:
                    more = await self._adopt() or more
                if deliveries:
                    self._answers.remember(deliveries)
                    return deliveries
                if more:
                    continue
                left = until - self._clock.monotonic()
                if left <= 0:
                    break
                if not inbox:  # else they could not be adopted: look later, not at once
                    self._doorbell.listen()
                called = await self._sleep(ear, left, due)
                if handed := self._handed(ticket, owner):
                    self._answers.remember(handed)
                    return handed
                if called and self._late and nudges == self._nudges:
                    await asyncio.sleep(_COURTESY)
            left_over = await self._stand_down(owner, by) if by else []
            self._answers.remember(left_over)
            return left_over

    def nudge(self) -> None:
        self._nudges += 1
        self._ring()

    def _ring(self) -> None:
        for ear in self._ears:
            ear.ring("")

    async def sort(self, queues: Sequence[str], kinds: Mapping[str, str]) -> int:
        done, at = 0, [1, 0]
        while at:  # in portions: a lane may be long
            found, *at = await self._run("sort", pack([*queues], dict(kinds), *at))
            done += found
        return done

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        leases = [part for lease in held for part in (lease.job, lease.fence)]
        places = await self._run("extend", pack(owner, float(older_than), leases))
        lost = [held[place] for place in places]
        self._answers.forget(lost)
        return lost

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        if not settlements:
            return []
        places = await self._run("settle", settle_arguments(settlements))
        refused = [settlements[place].lease for place in places]
        self._answers.settled(settlements, refused)
        return refused

    async def recover(self) -> list[str]:
        orphans: list[Row] = await self._run("orphans")
        if not orphans:
            return []
        # Between the two steps somebody else may recover them: then their lease is gone.
        arguments = recover_arguments(orphans, self._clock.now())
        return [text(job) for job in await self._run("recover", arguments)]

    async def depths(self) -> list[Depth]:
        rows: list[Row] = await self._run("depths")
        return [
            Depth(queue=text(q), state=State(text(s)), jobs=n, age=moment(o) or 0.0)
            for q, s, n, o in rows
        ]

    async def waiting(
        self, queues: Sequence[str], kinds: Sequence[str], without: Sequence[str] = ()
    ) -> bool:
        # A job of unknown kind starts only where both kinds have room.
        lanes = ["", *kinds] if {"io", "cpu"} <= set(kinds) else [*kinds]
        asked = pack([*queues], lanes, [*without])
        return bool(await self._run("waiting", asked))

    async def purge(self, queue: str) -> int:
        purged = 0
        while found := await self._run("purge", pack(queue)):
            purged += found
        return purged

    async def move(self, source: str, target: str) -> int:
        moved, fresh, passed = 0, 0, 0
        while source != target:
            found, passed, more = await self._run("move", pack(source, target, passed))
            moved, fresh = moved + found, fresh + found
            if not more and not fresh:
                break
            if not more:  # who was passed over may have gone meanwhile, and others with them
                fresh, passed = 0, 0
        return moved

    async def check(self) -> None:
        await self._database.ask("PING")

    async def close(self) -> None:
        await self._doorbell.close()
        await self._answers.close()
        await self._database.close()

    async def _claim(
        self, queues: Sequence[str], demand: Demand, owner: str, ticket: str | None
    ) -> tuple[list[Delivery], bool, float | None, int]:
        """Deliveries, whether to look again at once, seconds until one is due, events to adopt.

        Who finds nothing stands by, unless it does not wait: with a ticket it can be handed a job.
        """
        hands = self._listener.hands
        heard = hands.heard(owner)
        asked = (demand.io, demand.cpu, [*queues], [*demand.without])
        standing = (hands.token, heard, ticket is not None, ticket or "")
        answer = await self._run("claim", pack(owner, *asked, *standing))
        if not answer[0]:
            raise LeaseLost(f"incarnation {owner} is not enlisted")
        hands.forget(owner, heard)
        _, more, due, rows, inbox, claimed = answer
        found = [delivery(row, self._namespace, owner, claimed) for row in rows]
        return found, bool(more), moment(due), inbox

    async def _adopt(self) -> bool:
        """Make jobs of what others have pushed. Nothing that was claimed is lost over it."""
        with suppress(Unavailable):
            return await self._inbox.adopt()
        return False

    def _handed(self, ticket: str, owner: str) -> list[Delivery]:
        """What somebody has handed to this incarnation since it stands by; nothing, or one."""
        job = self._listener.hands.take(ticket, owner)
        if not job:
            return []
        return [handed(job, self._namespace, owner)]

    async def _stand_down(self, owner: str, ticket: str) -> list[Delivery]:
        """Stand by no more. Gives what was handed over in the last moment."""
        hands = self._listener.hands
        asked = pack(owner, hands.token, hands.heard(owner), ticket)
        claimed, *rows = await self._run("stand_down", asked) or [None]
        return [delivery(row, self._namespace, owner, claimed) for row in rows]

    @property
    def _listener(self) -> Listener:
        return self._database.listener(self._root)

    def _hears(self) -> bool:
        """Whether silence means that nothing happened."""
        return self._listener.hears(self._root)

    @contextmanager
    def _listening(self, queues: Sequence[str]) -> Iterator[tuple[WakeUpListener, str]]:
        """An ear for everything that may bring work to these queues, and a ticket to stand by."""
        root, listener = self._root, self._listener
        ticket = listener.hands.open()
        topics = [f"{kind}:{root}:{queue}" for queue in queues for kind in "rs"]
        with listener.bell.listen([*topics, f"c:{root}", ticket]) as ear:
            self._ears.add(ear)
            try:
                yield ear, ticket
            finally:
                self._ears.discard(ear)
                listener.hands.close(ticket)

    async def _sleep(self, ear: WakeUpListener, left: float, due: float | None) -> bool:
        """Until a hint comes, something falls due, or it is time for a look anyway.

        Whether it was a hint.
        """
        poll = self._safety_poll if self._hears() else self._database.home.poll
        until_due = left if due is None else max(due, 0.001)
        return await ear.wait(min(left, until_due, poll))

    async def _run(self, name: str, packed: bytes = b"\x90") -> Any:
        return await self._database.run(LUA[name], self._root, packed)

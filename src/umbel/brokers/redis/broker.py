"""Claims, settlements and the rest as scripts on one server. Every one is one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from umbel.brokers.port import Capabilities, Demand, Depth, Published
from umbel.brokers.redis.publishing import publish_arguments, published
from umbel.brokers.redis.rows import Row, delivery
from umbel.brokers.redis.settling import recover_arguments, settle_arguments
from umbel.clock import Clock
from umbel.drivers.bell import Ear
from umbel.drivers.redis import Database, moment, pack, root_of, scripts, text
from umbel.errors import ConfigurationError, LeaseLost
from umbel.messages import Delivery, Envelope, Lease, Settlement, State

LUA = {
    name: script
    for file in ("publishing", "claiming", "settling", "queues", "ledger")
    for name, script in scripts("umbel.brokers.redis", f"{file}.lua", "lanes.lua").items()
}


class RedisBroker:
    """See ``brokers.port.Broker`` for what each method promises."""

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
        self, database: Database, *, namespace: str, clock: Clock, safety_poll: float = 5.0
    ) -> None:
        self._database = database
        self._namespace = namespace
        self._root = root_of(namespace)
        self._clock = clock
        self._safety_poll = safety_poll
        self._nudges = 0
        self._ears: set[Ear] = set()

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        if within is not None:
            return self.publish_within(envelopes, within)
        if not envelopes:
            return []
        arguments = publish_arguments(envelopes, self._clock.now())
        return published(envelopes, await self._run("publish", arguments))

    def publish_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        if not envelopes:
            return []
        arguments = publish_arguments(envelopes, self._clock.now())
        answer = self._database.direct.run(LUA["publish"], self._root, arguments, timeout)
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
        nudges = self._nudges
        with self._listening(queues) as ear:
            while nudges == self._nudges:
                ear.clear()
                deliveries, more, due = await self._claim(queues, demand, owner)
                if deliveries:
                    return deliveries
                if more:
                    continue
                left = until - self._clock.monotonic()
                if left <= 0:
                    return []
                await self._sleep(ear, left, due)
        return []

    def nudge(self) -> None:
        self._nudges += 1
        for ear in self._ears:
            ear.ring("")

    async def sort(self, queues: Sequence[str], kinds: Mapping[str, str]) -> int:
        done, at = 0, [1, 0]
        while at:  # in portions: a lane may be long
            found, *at = await self._run("sort", pack([*queues], dict(kinds), *at))
            done += found
        return done

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        before = self._clock.now() - older_than
        leases = [part for lease in held for part in (lease.job, lease.fence)]
        lost = await self._run("extend", pack(owner, before, leases))
        return [held[place] for place in lost]

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        if not settlements:
            return []
        refused = await self._run("settle", settle_arguments(settlements, self._clock.now()))
        return [settlements[place].lease for place in refused]

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
            Depth(queue=text(q), state=State(text(s)), jobs=n, oldest=moment(o) or 0.0)
            for q, s, n, o in rows
        ]

    async def waiting(self, queues: Sequence[str], kinds: Sequence[str]) -> bool:
        # A job of unknown kind starts only where both kinds have room.
        lanes = ["", *kinds] if {"io", "cpu"} <= set(kinds) else [*kinds]
        return bool(await self._run("waiting", pack(self._clock.now(), [*queues], lanes)))

    async def purge(self, queue: str) -> int:
        purged = 0
        while found := await self._run("purge", pack(self._clock.now(), queue)):
            purged += found
        return purged

    async def move(self, source: str, target: str) -> int:
        moved = 0
        while source != target and (found := await self._run("move", pack(source, target))):
            moved += found
        return moved

    async def check(self) -> None:
        await self._database.ask("PING")

    async def close(self) -> None:
        await self._database.close()

    async def _claim(
        self, queues: Sequence[str], demand: Demand, owner: str
    ) -> tuple[list[Delivery], bool, float | None]:
        """Deliveries, whether to look again at once, and when something falls due."""
        now = self._clock.now()
        arguments = pack(now, owner, demand.io, demand.cpu, [*queues])
        answer = await self._run("claim", arguments)
        if not answer[0]:
            raise LeaseLost(f"incarnation {owner} is not enlisted")
        _, more, due, rows = answer
        found = [delivery(row, self._namespace, owner, now) for row in rows]
        return found, bool(more), moment(due)

    @contextmanager
    def _listening(self, queues: Sequence[str]) -> Iterator[Ear]:
        """An ear for everything that may bring work to these queues."""
        root = self._root
        topics = [f"{kind}:{root}:{queue}" for queue in queues for kind in "rs"]
        listener = self._database.listener(root)
        with listener.bell.listen([*topics, f"c:{root}"]) as ear:
            self._ears.add(ear)
            try:
                yield ear
            finally:
                self._ears.discard(ear)

    async def _sleep(self, ear: Ear, left: float, due: float | None) -> None:
        """Until a hint comes, something falls due, or it is time for a look anyway."""
        hears = self._database.listener(self._root).hears(self._root)
        poll = self._safety_poll if hears else self._database.home.poll
        until_due = left if due is None else max(due - self._clock.now(), 0.001)
        await ear.wait(min(left, until_due, poll))

    async def _run(self, name: str, packed: bytes = b"\x90") -> Any:
        return await self._database.run(LUA[name], self._root, packed)

"""Duties that any worker does for all: end lives that stand still, put back work, release routes,
prune records, lift the pauses of a deployment that nobody looks after any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from umbel.backends import Broker, Deployments, Member, Records, Registry, Routes
from umbel.clock import Clock
from umbel.errors import Unavailable
from umbel.messages import random_hex
from umbel.telemetry import Telemetry, events

_SWEEP_EVERY = 3
_LATE = 2.0
"""A look that comes after so many intervals is late."""
_PRUNE_EVERY = 60.0
_ALL = 2**31 - 1


class DeadWorkerReaper:
    """Watches the hearts of all workers by its own monotonic clock.

    A life is over when its beat has been seen to stand still for that worker's whole lease. The
    holder stops itself earlier, counted from before its last beat, so it is never overtaken. A
    watcher that could not look has seen nothing: after an outage all have a whole lease to beat.
    An answer that comes late, because this process or the store was frozen, counts as if it had
    come after one interval.
    """

    def __init__(
        self,
        registry: Registry,
        broker: Broker,
        routes: Routes,
        *,
        clock: Clock,
        telemetry: Telemetry,
        every: float = float("inf"),
        idle: float | None = None,
    ) -> None:
        """``every``: seconds between two looks."""
        self._registry = registry
        self._every = every
        self._routes = routes
        self._idle = idle
        self._broker = broker
        self._clock = clock
        self._telemetry = telemetry
        self._seen: dict[str, tuple[int, float]] = {}
        self._shared: set[str] = set()
        self._looks = 0
        self._looked = clock.monotonic()

    async def look(self) -> list[str]:
        """One round. Returns the ids of jobs that were put back or buried."""
        asked, ended = self._clock.monotonic(), False
        try:
            members = await self._registry.members()
        except Unavailable:
            self._seen = {}
            raise
        # A beat may have come while the question was on its way: it is seen now, not before.
        now = self._clock.monotonic()
        self._forget_lost_time(now)
        seen: dict[str, tuple[int, float]] = {}
        for member in members:
            entry = member.entry
            beat, since = self._seen.get(entry.incarnation, (-1, now))
            seen[entry.incarnation] = (member.beat, since if beat == member.beat else now)
            if beat == member.beat and asked - since > entry.lease:
                await self._end(entry.incarnation, member.beat, entry.name)
                ended = True
        self._tell_shared_names(members)
        self._seen = seen
        self._looks += 1
        # Now and then also without a death: another watcher may have died between its two steps,
        # and a claim may have been on its way while its owner was ended.
        if not ended and self._looks % _SWEEP_EVERY != 1:
            return []
        for route in await self._routes.sweep(self._idle):
            self._telemetry.emit(
                events.RouteReleased(key=route.key, index=route.index, reason=route.why)
            )
        recovered = await self._broker.recover()
        if recovered:
            self._telemetry.emit(events.JobsRecovered(jobs=len(recovered)))
        return recovered

    def _forget_lost_time(self, now: float) -> None:
        """Do not count the time since the last look against anybody, if it was too long."""
        gap, self._looked = now - self._looked, now
        if gap > _LATE * self._every:
            lost = gap - self._every
            self._seen = {life: (beat, since + lost) for life, (beat, since) in self._seen.items()}

    def _tell_shared_names(self, members: Sequence[Member]) -> None:
        """Two lives under one name that both still beat. One alone may be about to lapse."""
        beating = Counter(
            member.entry.name
            for member in members
            if self._seen.get(member.entry.incarnation, (member.beat, 0))[0] != member.beat
        )
        for name in {name for name, lives in beating.items() if lives > 1} - self._shared:
            self._shared.add(name)
            self._telemetry.emit(events.NameShared(worker=name))

    def living(self) -> int:
        """How many workers there were at the last look."""
        return len(self._seen)

    async def _end(self, incarnation: str, beat: int, name: str) -> None:
        if await self._registry.remove(incarnation, beat):
            self._telemetry.emit(events.WorkerLost(worker=name, incarnation=incarnation))


class Pruner:
    """Keeps the history within its age and count.

    To find where a long history is to end is work, and it is enough if one of all who are there
    does it in a minute. So the more there are, the more seldom each looks; some more than others.
    """

    def __init__(
        self,
        records: Records,
        *,
        age: float,
        keep: int,
        clock: Clock,
        telemetry: Telemetry,
        crowd: Callable[[], int] = lambda: 1,
    ) -> None:
        self._records = records
        self._age = age
        self._keep = keep
        self._clock = clock
        self._telemetry = telemetry
        self._crowd = crowd
        self._leisure = int(random_hex(2), 16) / 2**16
        self._looked = clock.monotonic() - _PRUNE_EVERY

    async def look(self) -> None:
        """Forget all that is to be forgotten, when it is time."""
        now = self._clock.monotonic()
        others = max(self._crowd() - 1, 0)
        if now - self._looked < _PRUNE_EVERY * (1 + 2 * others * self._leisure):
            return
        pruned = await self._records.prune(older_than=self._age, keep=self._keep, limit=_ALL)
        self._looked = now
        if pruned:
            self._telemetry.emit(events.RecordsPruned(records=pruned))


class DeploymentReaper:
    """Ends a deployment whose command was killed while it waited."""

    def __init__(self, deployments: Deployments, *, telemetry: Telemetry) -> None:
        self._deployments = deployments
        self._telemetry = telemetry

    async def look(self) -> None:
        """One round."""
        gone = await self._deployments.lapse()
        if gone is not None:
            self._telemetry.emit(
                events.DeploymentLapsed(who=gone.who, host=gone.host, seconds=gone.stood)
            )

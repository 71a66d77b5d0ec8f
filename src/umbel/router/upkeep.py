"""Periodic duties that any worker does for all: remove dead workers, put back their jobs, release
routes, end expired jobs, advance joins, prune records, and end deployments that were abandoned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from umbel.backends import (
    Broker,
    Coordination,
    Joins,
    Records,
    RegisteredWorker,
    Registry,
    Routes,
)
from umbel.clock import Clock
from umbel.control import Deployments
from umbel.errors import UmbelError, Unavailable
from umbel.messages import random_hex
from umbel.telemetry import Telemetry, events

_ROUNDS_PER_RECOVERY = 3
"""Recovery also runs once in this many rounds without a death."""
_LATE_INTERVALS = 2.0
"""A round is late if it comes after this many intervals."""
_WATCHERS = 5
"""How many workers watch the others at a time, on average."""
_WATCH_ROUNDS = 12
"""Rounds for which a worker watches or, of few workers, rests: several leases."""
_PRUNE_INTERVAL = 60.0
_GROUP_BATCH = 100
_NO_LIMIT = 2**31 - 1
_SWEEP_BATCH = 1_000


def one_worker() -> int:
    """Return the number of workers where only one is known."""
    return 1


class SharedInterval:
    """Spreads a duty over all workers: together they do it about once per interval.

    So the more workers there are, the less often each one does it, after a random time that is
    chosen again each time: with fixed times, some groups of workers would always be slow.
    """

    def __init__(
        self, seconds: float, clock: Clock, worker_count: Callable[[], int] = one_worker
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._worker_count = worker_count
        self._random_share = _random_share()
        self._last = float("-inf")

    def is_due(self) -> bool:
        """Return whether it is this worker's turn."""
        others = max(self._worker_count() - 1, 0)
        wait = self._seconds * (1 + 2 * others * self._random_share)
        return self._clock.monotonic() - self._last >= wait

    def record_done(self) -> None:
        """Start the next interval."""
        self._last, self._random_share = self._clock.monotonic(), _random_share()


def _random_share() -> float:
    """Return a number from 0 to 1."""
    return int(random_hex(2), 16) / 2**16


class DeadWorkerReaper:
    """Watches the heartbeats of all workers by its own monotonic clock.

    A worker is dead if no new heartbeat was seen for its whole lease. The worker stops itself
    earlier, because it counts from before its last heartbeat, so its jobs are never claimed while
    it runs them. After an outage of the store, every worker has a whole lease again. A round that
    comes late, because this process or the store was frozen, counts as one interval.

    Of many workers, only some watch at a time, chosen at random for several leases, so that the
    cost for the store does not grow with the square of their number. After each rest, a worker
    reads how many there are, and watches if one of them sent no heartbeat meanwhile: all others
    that watched may have died at once. A router always watches: the workers behind it do not.
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
        always_watches: bool = False,
    ) -> None:
        """``every`` is the interval between two rounds in seconds."""
        self._registry = registry
        self._every = every
        self._routes = routes
        self._idle = idle
        self._broker = broker
        self._clock = clock
        self._telemetry = telemetry
        self._seen: dict[str, tuple[int, float]] = {}
        self._shared: set[str] = set()
        self._worker_count = 0
        self._always_watches = always_watches
        self._watching_rounds, self._resting_rounds = _WATCH_ROUNDS, 0
        self._before_rest: dict[str, int] = {}
        self._rounds = 0
        self._last_round = clock.monotonic()

    async def run_once(self) -> list[str]:
        """Do one round. Return the ids of jobs that were put back or buried."""
        if self._resting_rounds:
            self._resting_rounds -= 1
            return []
        asked, ended = self._clock.monotonic(), False
        try:
            workers = await self._registry.workers()
        except Unavailable:
            self._seen = {}
            raise
        # A heartbeat may have come while the query was in progress: it is seen now, not before.
        now = self._clock.monotonic()
        self._discount_lost_time(now)
        seen: dict[str, tuple[int, float]] = {}
        for worker in workers:
            entry = worker.entry
            beat, since = self._seen.get(entry.incarnation, (-1, now))
            seen[entry.incarnation] = (
                worker.heartbeats,
                since if beat == worker.heartbeats else now,
            )
            if beat == worker.heartbeats and asked - since > entry.lease:
                await self._remove(entry.incarnation, worker.heartbeats, entry.name)
                ended = True
        self._report_shared_names(workers)
        self._seen, self._worker_count = seen, len(workers)
        self._watch_or_rest(workers)
        self._rounds += 1
        # Sometimes also without a death: another reaper may have died between its two steps, and a
        # claim may have been in progress while its owner was removed.
        rounds = _ROUNDS_PER_RECOVERY * max(1, min(self._worker_count, _WATCHERS))
        if not ended and self._rounds % rounds != 1:
            return []
        for route in await self._routes.sweep(self._idle):
            self._telemetry.emit(
                events.RouteReleased(key=route.key, index=route.index, reason=route.why)
            )
        recovered = await self._broker.recover()
        if recovered:
            self._telemetry.emit(events.JobsRecovered(jobs=len(recovered)))
        return recovered

    def _watch_or_rest(self, workers: Sequence[RegisteredWorker]) -> None:
        """At the end of a watch, and after a rest, decide what this worker does next."""
        self._watching_rounds -= 1
        if self._watching_rounds > 0 or self._always_watches:
            return
        # The more workers there are, the longer each one rests: it reads all of them afterwards.
        rest = max(_WATCH_ROUNDS, len(workers) // _WATCHERS)
        is_chosen = _random_share() * len(workers) * _WATCH_ROUNDS < _WATCHERS * rest
        before = self._before_rest
        if is_chosen or any(before.get(w.entry.incarnation) == w.heartbeats for w in workers):
            self._watching_rounds, self._before_rest = _WATCH_ROUNDS, {}
        else:
            self._resting_rounds = rest
            self._before_rest = {w.entry.incarnation: w.heartbeats for w in workers}
            self._seen = {}  # the next watch begins with what it reads then

    def _discount_lost_time(self, now: float) -> None:
        """If this round is late, do not count the lost time against any worker."""
        gap, self._last_round = now - self._last_round, now
        if gap > _LATE_INTERVALS * self._every:
            lost = gap - self._every
            self._seen = {one: (beat, since + lost) for one, (beat, since) in self._seen.items()}

    def _report_shared_names(self, workers: Sequence[RegisteredWorker]) -> None:
        """Report names that several workers use, if more than one of them sends heartbeats."""
        beating = Counter(
            worker.entry.name
            for worker in workers
            if self._seen.get(worker.entry.incarnation, (worker.heartbeats, 0))[0]
            != worker.heartbeats
        )
        for name in {name for name, count in beating.items() if count > 1} - self._shared:
            self._shared.add(name)
            self._telemetry.emit(events.WorkerNameShared(worker=name))

    def count_workers(self) -> int:
        """Return how many workers there were in the last round."""
        return self._worker_count

    async def _remove(self, incarnation: str, beat: int, name: str) -> None:
        if await self._registry.remove(incarnation, beat):
            self._telemetry.emit(events.WorkerLost(worker=name, incarnation=incarnation))


class Pruner:
    """Deletes records beyond their maximum age and number.

    Finding the end of a long history takes time, and one prune per minute by all workers together
    is enough. Records of a graph are kept while it has joins, so the joins of a graph are removed
    when its root is to be deleted.
    """

    def __init__(
        self,
        records: Records,
        joins: Joins,
        *,
        age: float,
        keep: int,
        clock: Clock,
        telemetry: Telemetry,
        worker_count: Callable[[], int] = one_worker,
    ) -> None:
        self._records = records
        self._joins = joins
        self._last_live = ""
        """The last group that could not be removed, after which to continue."""
        self._age = age
        self._keep = keep
        self._telemetry = telemetry
        self._interval = SharedInterval(_PRUNE_INTERVAL, clock, worker_count)

    async def run_once(self) -> None:
        """Prune if it is time."""
        if not self._interval.is_due():
            return
        while await self._drop_groups():
            pass
        pruned = await self._records.prune(older_than=self._age, keep=self._keep, limit=_NO_LIMIT)
        self._interval.record_done()
        if pruned:
            self._telemetry.emit(events.RecordsPruned(records=pruned))

    async def _drop_groups(self) -> bool:
        """Remove the joins of a batch of groups. Return whether to continue immediately.

        A group of which a job is live, although its root has ended, stays. The next round begins
        after it, so that many of these neither stop the others nor take much time in each round.
        """
        groups = await self._records.prunable_groups(
            older_than=self._age, keep=self._keep, after=self._last_live, limit=_GROUP_BATCH
        )
        live = [group for group in groups if not await self._joins.drop(group)]
        is_last = len(groups) < _GROUP_BATCH
        self._last_live = "" if is_last else live[-1] if live else self._last_live
        return not is_last and 2 * len(live) <= len(groups)


class DeploymentReaper:
    """Ends a deployment whose command died while it waited."""

    def __init__(
        self, deployments: Deployments, *, interval: SharedInterval, telemetry: Telemetry
    ) -> None:
        self._deployments = deployments
        self._interval = interval
        self._telemetry = telemetry

    async def run_once(self) -> None:
        """End a lapsed deployment, if there is one and it is time."""
        if not self._interval.is_due():
            return
        self._interval.record_done()
        gone = await self._deployments.end_lapsed()
        if gone is not None:
            self._telemetry.emit(
                events.DeploymentExpired(who=gone.who, host=gone.host, seconds=gone.stood)
            )


class StoreSweeper:
    """Ends jobs that have expired, advances joins, and deletes lapsed entries.

    What an ending job completes is done in the same step. Left for this are long cascades, work of
    processes that died, and what only time changes.
    """

    def __init__(
        self,
        broker: Broker,
        joins: Joins,
        coordination: Coordination,
        *,
        interval: SharedInterval,
        tidy_interval: SharedInterval,
        telemetry: Telemetry,
    ) -> None:
        """``tidy_interval`` is for what no job waits for."""
        self._broker = broker
        self._joins = joins
        self._coordination = coordination
        self._duties = (
            (interval, (self._expire, self._advance)),
            (tidy_interval, (self._abandon, self._forget_lapsed)),
        )
        self._telemetry = telemetry

    async def run_once(self) -> None:
        """Do what is due."""
        first_error: UmbelError | None = None
        for interval, duties in self._duties:
            if not interval.is_due():
                continue
            interval.record_done()
            for duty in duties:
                try:
                    await duty()
                except UmbelError as error:  # the other duties must not wait for this one
                    first_error = first_error or error
        if first_error is not None:
            raise first_error

    async def _expire(self) -> None:
        expired = 0
        while found := await self._broker.expire(_SWEEP_BATCH):
            expired += len(found)
        if expired:
            self._telemetry.emit(events.JobsExpired(jobs=expired))

    async def _advance(self) -> None:
        while await self._joins.advance():
            pass

    async def _abandon(self) -> None:
        for join in await self._joins.sweep():
            self._telemetry.emit(events.JoinAbandoned(join=join))

    async def _forget_lapsed(self) -> None:
        await self._coordination.sweep(_SWEEP_BATCH)

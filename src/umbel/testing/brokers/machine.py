"""A Hypothesis state machine: after any sequence of calls, an adapter and the model agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import wraps
from typing import Any, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from umbel.backends import Demand, JobFilter
from umbel.control import Scope
from umbel.errors import DuplicateJob, LeaseLost
from umbel.messages import (
    JSON,
    Body,
    Cancelled,
    Delivery,
    Envelope,
    Expired,
    Failed,
    Interrupted,
    Outcome,
    Record,
    Rejected,
    Retry,
    Settlement,
    Snoozed,
    State,
    Succeeded,
    fresh_id,
)
from umbel.testing.actions import FAILURE, FAR, RESULT, kill, settlement, worker
from umbel.testing.backend import DEADLINE, Adapters, OpenAdapters
from umbel.testing.brokers.model import Job, KeyTaken, Model
from umbel.testing.clock import FakeClock
from umbel.testing.state_machines import run_machine

T = TypeVar("T")

QUEUES = ("slow", "fast")
TASKS = ("tests.add", "tests.mail")
LATER = 60.0
"""A delay that the machine's clock can reach; a day if the server's clock is used."""

which = st.integers(0, 30)
"""Chooses one of several values; 0 is the latest."""
sides = st.integers(0, 1)
queue_names = st.sampled_from(QUEUES)
some_queues = st.sampled_from((QUEUES, QUEUES[::-1], QUEUES[:1], QUEUES[1:]))
scopes: st.SearchStrategy[tuple[Scope, str]] = st.sampled_from(
    (("task", "tests.add"), ("task", "tests.mail"), ("queue", "fast"), ("all", ""))
)
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(
    (
        Succeeded(RESULT),
        Failed(FAILURE),
        Retry(FAILURE, 0.0),
        Retry(FAILURE, LATER),
        Retry(FAILURE, 0.0, "section"),
        Snoozed(LATER),
        Interrupted("stopping"),
        Cancelled("not wanted"),
        Rejected("unknown"),
        Expired(),
    )
)
specs = st.fixed_dictionaries(
    {
        "queue": queue_names,
        "subject": st.sampled_from(TASKS),
        "kind": st.sampled_from(("io", "io", "io", "cpu", "")),
        "priority": st.integers(-1, 1),
        "later": st.booleans(),
        "unique": st.sampled_from((None, None, "red", "blue")),
        "on_conflict": st.sampled_from(("raise", "return", "replace")),
        "max_deaths": st.integers(1, 3),
    }
)
ends = st.tuples(which, outcomes, st.booleans(), st.booleans())


R = TypeVar("R", bound=Callable[..., None])


def only_if(condition: Callable[[Any], object]) -> Callable[[R], R]:
    """Do nothing in a rule unless the condition holds.

    Which job a fetch returns is up to the adapter, so this must not decide which rules can be
    drawn, as a precondition does: Hypothesis repeats sequences and expects the same choices.
    """

    def decorate(function: R) -> R:
        @wraps(function)
        def guarded(self: Any, **drawn: Any) -> None:
            if condition(self):
                function(self, **drawn)

        return cast(R, guarded)

    return decorate


class BrokerMachine(RuleBasedStateMachine):
    """Adapters of two processes on the same data, with several workers and one model."""

    def __init__(self, backends: OpenAdapters) -> None:
        super().__init__()
        self.model = Model()
        self.deliveries: list[Delivery] = []
        self.published: list[Envelope] = []
        self.owners: list[str] = []
        self._runner = asyncio.Runner()
        self._open = AsyncExitStack()
        self.sides = self._run(self._enter(backends))
        self.clock = self.sides[0].clock
        if isinstance(self.clock, FakeClock):
            self.clock.stop()

    async def _enter(self, backends: OpenAdapters) -> list[Adapters]:
        first = await self._open.enter_async_context(backends())
        return [first, await self._open.enter_async_context(first.another())]

    def teardown(self) -> None:
        """Close all adapters, also after a failure."""
        self._run(self._open.aclose())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(DEADLINE):
                return await work

        return self._runner.run(bounded())

    @property
    def delay(self) -> float:
        """Return how long "later" is."""
        return LATER if isinstance(self.clock, FakeClock) else FAR

    def _made(self, spec: dict[str, Any]) -> Envelope:
        now = self.clock.now()
        fields = {name: value for name, value in spec.items() if name != "later"}
        return Envelope(
            id=fresh_id(),
            body=Body(JSON, b"{}"),
            namespace=self.sides[0].namespace,
            created=now,
            not_before=now + self.delay if spec["later"] else None,
            **fields,
        )

    def _delayed(self, outcome: Outcome) -> Outcome:
        """Return the outcome with this machine's delay."""
        if isinstance(outcome, Retry) and outcome.delay:
            return Retry(outcome.failure, self.delay, outcome.section)
        return Snoozed(self.delay) if isinstance(outcome, Snoozed) else outcome

    def _ids(self, picks: list[int]) -> list[str]:
        return list({_pick(self.published, pick).id: None for pick in picks})

    # --- publishing -------------------------------------------------------------------------

    @initialize(batch=st.lists(specs, min_size=1, max_size=6))
    def two_workers_start_and_find_work(self, batch: list[dict[str, Any]]) -> None:
        self.register(0)
        self.register(1)
        self._publish([self._made(spec) for spec in batch], 0)

    @rule(batch=st.lists(specs, min_size=1, max_size=4), side=sides)
    def publish(self, batch: list[dict[str, Any]], side: int) -> None:
        self._publish([self._made(spec) for spec in batch], side)

    @precondition(lambda self: self.published)
    @rule(pick=which, spec=specs, side=sides)
    def publish_a_known_id(self, pick: int, spec: dict[str, Any], side: int) -> None:
        self._publish([_pick(self.published, pick), self._made(spec)], side)

    def _publish(self, batch: list[Envelope], side: int) -> None:
        try:
            expected = self.model.publish(batch, self.clock.now())
        except KeyTaken:
            expected = None
        try:
            answer = self._run(self.sides[side].broker.publish(batch))
        except DuplicateJob:
            assert expected is None, "the adapter saw a unique key taken and the model did not"
            return
        assert [(one.id, one.existing) for one in answer] == expected
        self.published += [one for one in batch if one.id in self.model.jobs]

    # --- workers ----------------------------------------------------------------------------

    @rule(side=sides)
    def register(self, side: int) -> None:
        entry = worker(f"worker{len(self.owners)}")
        self._run(self.sides[side].registry.register(entry))
        self.owners.append(entry.incarnation)
        self.model.alive.add(entry.incarnation)

    @precondition(lambda self: self.model.alive)
    @rule(pick=which, side=sides, leaves=st.booleans())
    def a_worker_is_gone(self, pick: int, side: int, leaves: bool) -> None:
        owner = self._living(pick)
        registry = self.sides[side].registry
        if leaves:
            self._run(registry.unregister(owner))
        else:
            beats = {m.entry.incarnation: m.heartbeats for m in self._run(registry.workers())}
            assert not self._run(registry.remove(owner, beats[owner] + 1))
            assert self._run(registry.remove(owner, beats[owner]))
        self.model.alive.discard(owner)

    @rule(pick=which, side=sides)
    @only_if(lambda self: self.held())
    def a_worker_dies_at_work(self, pick: int, side: int) -> None:
        owner = _pick(self.held(), pick).lease.owner
        self._run(kill(self.sides[side], owner))
        self.model.alive.discard(owner)
        self.recover(side)
        self.register(side)

    @rule(side=sides)
    def recover(self, side: int) -> None:
        expected = self.model.recover(self.clock.now())
        assert sorted(self._run(self.sides[side].broker.recover())) == sorted(expected)

    # --- fetching, extending, settling ------------------------------------------------------

    @rule(pick=which, queues=some_queues, io=st.integers(0, 3), cpu=st.integers(0, 3), side=sides)
    def fetch(self, pick: int, queues: tuple[str, ...], io: int, cpu: int, side: int) -> None:
        self._fetch(_pick(self.owners, pick % 4), queues, Demand.of(io=io, cpu=cpu), side)

    @precondition(lambda self: self.model.alive)
    @rule(pick=which, side=sides)
    def fetch_plenty(self, pick: int, side: int) -> None:
        self._fetch(self._living(pick), QUEUES, Demand.of(io=3, cpu=3), side)

    def _living(self, pick: int) -> str:
        found: str = _pick(sorted(self.model.alive, key=self.owners.index), pick)
        return found

    def _fetch(self, owner: str, queues: Sequence[str], demand: Demand, side: int) -> None:
        try:
            got = self._run(self.sides[side].broker.fetch(queues, demand, owner, 0))
        except LeaseLost:
            assert owner not in self.model.alive
            return
        if owner not in self.model.alive:
            assert got == [], "a worker that is not enlisted was given work"
        else:
            self.model.claim(owner, queues, demand, got, self.clock.now())
            self.deliveries += got

    @rule(
        pick=which,
        keeps=st.just([True] * 99) | st.lists(st.booleans(), max_size=8),
        recent=st.booleans(),
        stale=st.lists(which, max_size=2),
        side=sides,
    )
    @only_if(lambda self: self.held())
    def extend(
        self, pick: int, keeps: list[bool], recent: bool, stale: list[int], side: int
    ) -> None:
        owner = _pick(self.held(), pick).lease.owner
        if isinstance(self.clock, FakeClock):
            self.clock.advance(1)
        mine = [d.lease for d in self.deliveries if d.lease.owner == owner]
        current = [lease for lease in mine if self.model.holds(lease)]
        held = [lease for lease, keep in zip(current, keeps, strict=False) if keep]
        held += [lease for lease in mine if not self.model.holds(lease)][: len(stale)]
        older_than = FAR if recent else 0.0
        lost = self._run(self.sides[side].broker.extend(owner, held, older_than))
        assert lost == [lease for lease in held if not self.model.holds(lease)]
        now = self.clock.now()
        self.model.give_back(owner, held, now - older_than, now)

    @rule(batch=st.lists(ends, min_size=1, max_size=3), side=sides)
    @only_if(lambda self: self.deliveries)
    def settle(self, batch: list[tuple[int, Outcome, bool, bool]], side: int) -> None:
        chosen = {_pick(self.deliveries, end[0]).id: end for end in batch}
        self._settle([self._settlement(self.deliveries, *end) for end in chosen.values()], side)

    @rule(end=ends, side=sides)
    @only_if(lambda self: self.held())
    def settle_what_is_held(self, end: tuple[int, Outcome, bool, bool], side: int) -> None:
        self._settle([self._settlement(self.held(), *end)], side)

    @rule(pick=which, side=sides)
    @only_if(lambda self: self.held())
    def interrupt(self, pick: int, side: int) -> None:
        self._settle([settlement(_pick(self.held(), pick), Interrupted("stopping"))], side)

    def held(self) -> list[Delivery]:
        """Deliveries with the current lease of their job."""
        return [d for d in self.deliveries if self.model.holds(d.lease)]

    def _settle(self, settlements: list[Settlement], side: int) -> None:
        refused = self._run(self.sides[side].broker.settle(settlements))
        for one in settlements:
            accepted = one.lease not in refused
            holds = self.model.holds(one.lease)
            assert holds is None or accepted == holds, f"{one.lease}: accepted is {accepted}"
            if accepted:
                self.model.settle(one, self.clock.now())
                self.published += one.follow_ups

    @rule(pick=which, outcome=outcomes, side=sides)
    @only_if(lambda self: self.overtaken())
    def settle_late(self, pick: int, outcome: Outcome, side: int) -> None:
        """Settle under a lost lease: a worker, maybe the same one, has claimed the job again."""
        late = settlement(_pick(self.overtaken(), pick), self._delayed(outcome))
        assert self._run(self.sides[side].broker.settle([late])) == [late.lease]

    def overtaken(self) -> list[Delivery]:
        """Deliveries whose job runs under a later lease."""
        runs = {job.id: job.fence for job in self.model.live() if job.state is State.RUNNING}
        return [d for d in self.deliveries if d.lease.fence < runs.get(d.id, 0)]

    def _settlement(
        self, known: list[Delivery], pick: int, outcome: Outcome, keep: bool, follows: bool
    ) -> Settlement:
        follow_ups = (self._made(PLAIN),) if follows else ()
        ended = self._delayed(outcome)
        return settlement(_pick(known, pick), ended, keep=keep, follow_ups=follow_ups)

    @rule()
    def time_passes(self) -> None:
        if isinstance(self.clock, FakeClock):
            self.clock.advance(LATER * 0.75)

    # --- operators --------------------------------------------------------------------------

    @precondition(lambda self: self.published)
    @rule(picks=st.lists(which, min_size=1, max_size=3), side=sides)
    def cancel(self, picks: list[int], side: int) -> None:
        jobs = [*self._ids(picks), fresh_id()]
        answer = self._run(self.sides[side].control.cancel(jobs, "not wanted"))
        assert answer == self.model.cancel(jobs, "not wanted")

    @rule(what=scopes, side=sides)
    def pause_or_resume(self, what: tuple[Scope, str], side: int) -> None:
        pauses = self.sides[side].pauses
        if self.model.pauses:  # only one pause at a time, otherwise nothing would ever run
            scope, name = self.model.pauses.pop()
            self._run(pauses.resume(scope, name))
        else:
            self._run(pauses.pause(*what, "by the machine"))
            self.model.pauses.add(what)
        if self.model.alive:
            self._fetch(self._living(0), QUEUES, Demand.of(io=3, cpu=3), side)

    @rule(queue=queue_names, moves=st.booleans(), side=sides)
    def clear_a_queue(self, queue: str, moves: bool, side: int) -> None:
        broker, idle = self.sides[side].broker, self.model.idle(queue)
        if moves and broker.capabilities.move:
            target = QUEUES[QUEUES[0] == queue]
            assert self._run(broker.move(queue, target)) == len(idle)
            for job in idle:
                job.queue = target
        elif not moves:
            assert self._run(broker.purge(queue)) == len(idle)
            for job in idle:
                job.end(State.CANCELLED)

    @precondition(lambda self: self.published)
    @rule(picks=st.lists(which, min_size=1, max_size=3), side=sides)
    def replay(self, picks: list[int], side: int) -> None:
        jobs = self._ids(picks)
        records = self.sides[side].records
        answer = self._run(records.replay(jobs))
        for job in jobs:
            known = self.model.jobs.get(job)
            if known is None or known.state is State.SUCCEEDED or not known.state.finished:
                assert job not in answer
            elif self.model.holder(known.unique) is None:
                assert job in answer
            if job in answer:
                self.model.replay(job, self._run(records.find(job)).unique)

    @rule(side=sides)
    def prune(self, side: int) -> None:
        pruned = self._run(self.sides[side].records.prune(older_than=0, keep=1000, limit=1000))
        assert pruned == self.model.forget(State.BURIED)

    # --- invariants --------------------------------------------------------

    @invariant()
    def every_job_is_known_once_and_is_where_the_model_has_it(self) -> None:
        found = self._run(self.sides[0].records.search(JobFilter(limit=1000)))
        assert sorted(record.id for record in found) == sorted(self.model.jobs)
        for record in found:
            _compare(record, self.model.jobs[record.id], self.clock.now())

    @invariant()
    def depths_are_what_the_model_counts(self) -> None:
        counted: dict[tuple[str, bool], int] = {}
        for depth in self._run(self.sides[1].broker.depths()):
            key = (depth.queue, depth.state is State.RUNNING)
            counted[key] = counted.get(key, 0) + depth.jobs
        expected: dict[tuple[str, bool], int] = {}
        for job in self.model.live():
            key = (job.queue, job.state is State.RUNNING)
            expected[key] = expected.get(key, 0) + 1
        assert counted == expected

    @invariant()
    def wishes_to_stop_are_told_to_those_who_run_the_job(self) -> None:
        runs = {job.id: job.wish for job in self.model.live() if job.state is State.RUNNING}
        found = self._run(self.sides[1].control.cancellations(list(runs)))
        assert found == {job: wish for job, wish in runs.items() if wish is not None}


PLAIN: dict[str, Any] = {
    "queue": "fast",
    "subject": "tests.add",
    "kind": "io",
    "later": False,
}


class MachineSuite:
    """Runs the machine over an adapter. Inherit it beside a ``backend`` fixture."""

    examples = 40
    steps = 40

    def test_any_sequence_of_calls_leaves_the_adapter_where_the_model_is(
        self, backend: OpenAdapters
    ) -> None:
        run_machine(BrokerMachine, backend, examples=self.examples, steps=self.steps)


def _pick(known: Any, pick: int) -> Any:
    """Return one of the values, counted from the latest."""
    return known[-1 - pick % len(known)]


def _compare(record: Record, job: Job, now: float) -> None:
    waits = record.state in (State.QUEUED, State.SCHEDULED)
    # Between its due time and the next fetch, a job may have either state.
    same = waits and job.perhaps_startable(now)
    assert same or record.state is job.state, f"{record.state} is not {job.state} of {job}"
    assert (record.attempt, record.deaths) == (job.attempt, job.deaths)
    assert (record.queue, record.task, record.priority) == (job.queue, job.task, job.priority)
    assert [attempt.ended for attempt in record.attempts] == job.story
    assert (record.result is not None) == (record.state is State.SUCCEEDED)

"""A model of a broker and its store, in plain Python over dictionaries.

The model is independent of the adapters: it does not even use ``messages.disposition``. Where the
ports allow several answers, it accepts the adapter's.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from umbel.backends import Demand
from umbel.control import Scope
from umbel.messages import (
    Cancelled,
    Delivery,
    Envelope,
    Expired,
    Failed,
    Interrupted,
    Lease,
    Outcome,
    Parked,
    Rejected,
    Retry,
    Settlement,
    Snoozed,
    State,
    Succeeded,
)

SLACK = 5.0
"""Tolerance for the difference between the server's clock and the machine's."""


@dataclass(kw_only=True)
class Job:
    """A job in the model."""

    id: str
    task: str
    queue: str
    kind: str
    priority: int
    max_deaths: int
    due: float | None
    gates: tuple[str, ...] = ()
    unique: str | None
    state: State
    perhaps: float | None = None
    """It may be due from this time on, and is due from ``due`` on. Suspects return in between."""
    attempt: int = 1
    deaths: int = 0
    blame: int = 0
    fence: int = 0
    owner: str | None = None
    claimed: float = 0.0
    wish: str | None = None
    """The reason why it was asked to stop."""
    sections: dict[str, int] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)

    def startable(self, now: float) -> bool:
        """Whether it is waiting and due."""
        waits = self.state in (State.QUEUED, State.SCHEDULED)
        return waits and (self.due is None or self.due <= now)

    def perhaps_startable(self, now: float) -> bool:
        """Whether it is waiting and may be due."""
        waits = self.state in (State.QUEUED, State.SCHEDULED)
        return self.startable(now) or (waits and self.perhaps is not None and self.perhaps <= now)

    def held_under(self, lease: Lease) -> bool:
        """Return whether this is the job's current lease."""
        return self.state is State.RUNNING and (self.owner, self.fence) == (
            lease.owner,
            lease.fence,
        )

    def back(self, now: float, delay: float = 0.0) -> None:
        """Put it back into its queue, now or later."""
        self.owner, self.perhaps = None, None
        self.due = now + delay if delay > 0 else None
        self.state = State.SCHEDULED if delay > 0 else State.QUEUED

    def end(self, state: State) -> None:
        """Make it final."""
        self.owner, self.state = None, state


class KeyTaken(Exception):
    """The model's DuplicateJob."""


class Model:
    """The state of one namespace."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.alive: set[str] = set()
        self.pauses: set[tuple[Scope, str]] = set()

    def publish(self, envelopes: Sequence[Envelope], now: float) -> list[tuple[str, bool]]:
        """Return ids and whether each existed before. Raises KeyTaken and publishes nothing."""
        before = copy.deepcopy(self.jobs)
        try:
            return [self._publish(envelope, now) for envelope in envelopes]
        except KeyTaken:
            self.jobs = before
            raise

    def _publish(self, envelope: Envelope, now: float) -> tuple[str, bool]:
        if envelope.id in self.jobs:
            return envelope.id, True
        holder = self.holder(envelope.unique)
        if holder is not None:
            if envelope.on_conflict == "return":
                return holder.id, True
            if envelope.on_conflict == "raise" or holder.state is State.RUNNING:
                raise KeyTaken(holder.id)
            holder.end(State.CANCELLED)
        later = envelope.not_before is not None and envelope.not_before > now
        self.jobs[envelope.id] = Job(
            id=envelope.id,
            task=envelope.subject,
            queue=envelope.queue,
            kind=envelope.kind,
            priority=envelope.priority,
            max_deaths=envelope.max_deaths,
            due=envelope.not_before,
            unique=envelope.unique,
            state=State.SCHEDULED if later else State.QUEUED,
        )
        return envelope.id, False

    def holder(self, key: str | None) -> Job | None:
        """Return the live job that holds a unique key."""
        if key is None:
            return None
        return next((j for j in self.live() if j.unique == key), None)

    def live(self) -> list[Job]:
        """Return the jobs that are not final."""
        return [job for job in self.jobs.values() if not job.state.finished]

    def _paused(self, job: Job) -> bool:
        stops: set[tuple[Scope, str]] = {("all", ""), ("queue", job.queue), ("task", job.task)}
        return bool(stops & self.pauses)

    def candidates(self, queues: Collection[str], now: float) -> list[Job]:
        """Return the jobs that a fetch of these queues may take."""
        return [
            job
            for job in self.live()
            if job.perhaps_startable(now) and job.queue in queues and not self._paused(job)
        ]

    def claim(
        self, owner: str, queues: Sequence[str], demand: Demand, got: list[Delivery], now: float
    ) -> None:
        """Check which jobs a fetch took, then claim them in the model too."""
        candidates = {job.id: job for job in self.candidates(queues, now)}
        taken = [candidates.pop(delivery.id, None) for delivery in got]
        for delivery, job in zip(got, taken, strict=True):
            assert job is not None, f"{delivery.id} may not be fetched: {self.jobs[delivery.id]}"
            self._hand_over(job, delivery, owner, now)
        jobs = [job for job in taken if job is not None]
        left = [job for job in candidates.values() if job.startable(now)]
        _check_room(demand, jobs, left)
        _check_priority(jobs, left)

    def _hand_over(self, job: Job, delivery: Delivery, owner: str, now: float) -> None:
        assert delivery.lease.owner == owner
        assert delivery.lease.fence > job.fence, "a claim did not raise the fence"
        seen = (delivery.attempt, delivery.deaths, delivery.sections)
        assert seen == (job.attempt, job.deaths, job.sections)
        job.state, job.owner, job.fence = State.RUNNING, owner, delivery.lease.fence
        job.claimed = now

    def holds(self, lease: Lease) -> bool | None:
        """Return whether a lease is current. None: unknown until its dead owner is recovered."""
        job = self.jobs.get(lease.job)
        if job is None or not job.held_under(lease):
            return False
        return True if lease.owner in self.alive else None

    def settle(self, settlement: Settlement, now: float) -> None:
        """Apply an accepted settlement."""
        job = self.jobs[settlement.lease.job]
        job.story.append(settlement.attempt.ended)
        if isinstance(settlement.outcome, Succeeded) and not settlement.keep:
            del self.jobs[job.id]
        else:
            _apply(job, settlement.outcome, now)
        self.publish(settlement.follow_ups, now)

    def give_back(self, owner: str, held: Sequence[Lease], before: float, now: float) -> None:
        """Release claims that their owner does not know of, if they are old enough."""
        known = {(lease.job, lease.fence) for lease in held}
        for job in self.live():
            mine = job.state is State.RUNNING and job.owner == owner
            if mine and (job.id, job.fence) not in known and job.claimed < before:
                job.back(now)

    def recover(self, now: float) -> list[str]:
        """Recover the jobs of dead workers."""
        orphans = [
            job for job in self.live() if job.state is State.RUNNING and job.owner not in self.alive
        ]
        for owner in {job.owner for job in orphans}:
            self._mourn([job for job in orphans if job.owner == owner], now)
        return [job.id for job in orphans]

    def _mourn(self, jobs: list[Job], now: float) -> None:
        """Recover all jobs of one dead worker."""
        suspects = [job for job in jobs if job.deaths >= 2]
        for group in (jobs, suspects):
            if len(group) == 1:
                group[0].blame += 1
                break
        for job in jobs:
            job.deaths += 1
            job.story.append("lost")
        apart = [job for job in jobs if job.deaths >= 2]
        for job in jobs:
            job.back(now)
            if job.max_deaths == 1 or job.blame >= job.max_deaths:
                job.end(State.BURIED)
            elif job in apart and len(apart) > 1:
                job.perhaps = now
                job.due = now + 0.25 * 2 ** (job.deaths - 2) * (len(apart) - 1) + SLACK

    def cancel(self, jobs: Sequence[str], reason: str) -> dict[str, State]:
        """Return what ``control.cancel`` must answer."""
        known = [self.jobs[job] for job in jobs if job in self.jobs]
        for job in known:
            if job.state is State.RUNNING:
                job.wish = job.wish or reason
            elif not job.state.finished:
                job.end(State.CANCELLED)
        return {job.id: job.state for job in known}

    def idle(self, queue: str) -> list[Job]:
        """Return the waiting jobs of a queue."""
        return [j for j in self.live() if j.queue == queue and j.state is not State.RUNNING]

    def replay(self, job: str, unique: str | None) -> None:
        """Apply a replay."""
        one = self.jobs[job]
        one.state, one.due, one.attempt, one.deaths = State.QUEUED, None, 1, 0
        one.perhaps, one.blame = None, 0
        one.wish, one.sections, one.unique = None, {}, unique

    def forget(self, state_to_keep: State) -> int:
        """Return finished jobs except those in one state."""
        gone = [j.id for j in self.jobs.values() if j.state.finished and j.state != state_to_keep]
        for job in gone:
            del self.jobs[job]
        return len(gone)


def _apply(job: Job, outcome: Outcome, now: float) -> None:
    match outcome:
        case Succeeded():
            job.end(State.SUCCEEDED)
        case Failed() | Rejected():
            job.end(State.BURIED)
        case Cancelled():
            job.end(State.CANCELLED)
        case Expired():
            job.end(State.EXPIRED)
        case Retry(_, delay, None):
            job.attempt += 1
            job.back(now, delay)
        case Retry(_, delay, section):
            assert section is not None
            job.sections[section] = job.sections.get(section, 0) + 1
            job.back(now, delay)
        case Snoozed(delay):
            job.back(now, delay)
        case Interrupted(_, delay):
            job.back(now, delay)
        case Parked(gates):
            job.gates = gates
            job.back(now)
        case _:
            assert_never(outcome)


def _check_room(demand: Demand, taken: list[Job], left: list[Job]) -> None:
    """Check that a fetch took no more jobs than demanded, and left none that it could take."""
    unknown = sum(job.kind == "" for job in taken)
    free = {
        "io": demand.capacity("io") - unknown - sum(job.kind == "io" for job in taken),
        "cpu": demand.capacity("cpu") - unknown - sum(job.kind == "cpu" for job in taken),
    }
    assert min(free.values()) >= 0, f"more was claimed than could start: {free}"
    free[""] = min(free.values())
    missed = [job for job in left if free[job.kind] > 0]
    assert not missed, f"there was room for {missed}"


def _check_priority(taken: list[Job], left: list[Job]) -> None:
    for kind in ("", "io", "cpu"):
        for queue in {job.queue for job in taken}:
            lowest = [j.priority for j in taken if (j.queue, j.kind) == (queue, kind)]
            passed = [j.priority for j in left if (j.queue, j.kind) == (queue, kind)]
            assert not lowest or not passed or min(lowest) >= max(passed), (
                "a lower priority was claimed first"
            )

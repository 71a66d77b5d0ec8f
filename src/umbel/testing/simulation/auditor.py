"""Checks every change of the database and every run of a job against the promises."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from umbel.messages import Envelope, Finish, Lease, Requeue, Settlement, disposition
from umbel.messages.columns import read_slots
from umbel.resilience import MAX_LAPSES
from umbel.tasks import Run
from umbel.testing.simulation.database import PortCall
from umbel.testing.simulation.loop import Timeline
from umbel.testing.simulation.snapshot import JobRow, RecordRow, Snapshot
from umbel.testing.simulation.trace import Trace

_WAKE_UP_SHARE = 0.5
"""Share of a lease within which a process that was frozen must notice that it lost it."""

Row = JobRow | RecordRow | None


class Actor(Protocol):
    """A caller of the database, as the auditor sees it."""

    name: str

    @property
    def gone(self) -> bool:
        """Whether it has ended."""

    @property
    def last_frozen(self) -> float:
        """When it was last frozen: now if it is frozen, otherwise when it woke up."""


class Running:
    """One run of a job, from its start to its end."""

    __slots__ = ("actor", "lease", "lost_at", "run")

    def __init__(self, actor: Actor, run: Run) -> None:
        self.actor = actor
        self.run = run
        self.lease: Lease = run.lease
        self.lost_at: float | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop. What it does after that is not checked."""
        return self.run.stop_reason is not None


class Auditor:
    """Keeps its own records of what happened, and reports what contradicts them."""

    def __init__(self, timeline: Timeline, trace: Trace, lease: float) -> None:
        self.violations: list[str] = []
        self.seen: dict[str, Envelope] = {}
        """The messages that the publisher was asked to publish."""
        self.capacity: dict[str, int] = {}
        """The capacity of each gate; 1 if it is not listed."""
        self._timeline = timeline
        self._trace = trace
        self._lease = lease
        self._last_heartbeat: dict[str, float] = {}
        self._paused: dict[tuple[str, str], int] = {}
        self._cancelled: set[str] = set()
        self._left: set[str] = set()
        self._deaths: dict[str, dict[str, bool]] = defaultdict(dict)
        """Counted deaths by incarnation: the jobs, and whether each was blamed."""
        self._alive: set[str] = set()
        """Incarnations whose process has reported that it was still running."""
        self._started: set[tuple[str, int]] = set()
        self._finished: dict[str, int] = defaultdict(int)
        self.running: list[Running] = []
        self._rules: dict[str, Callable[[Actor, PortCall, str, Row, Row, Snapshot], str]] = {
            "publish": self._publish,
            "fetch": self._fetch,
            "settle": self._settle,
            "extend": self._extend,
            "recover": self._recover,
            "cancel": self._cancel,
            "replay": self._replay,
            "register": self._register,
        }

    def report_violation(self, what: str) -> None:
        """Record a broken promise."""
        self._trace.add("auditor", "WRONG", what)
        self.violations.append(self._trace.named(what))

    # --- steps of the database -----------------------------------------------------------------

    def check(self, actor: Actor, port_call: PortCall, before: Snapshot, after: Snapshot) -> None:
        """Check what one call has changed against what it may change."""
        if before.jobs is not after.jobs:
            self._check_jobs(actor, port_call, before, after)
        if before.workers is not after.workers:
            self._check_workers(actor, port_call, before, after)
        if before.pauses != after.pauses:
            self._record_pauses(before, after)
        self._check_zombies(after)

    def _check_jobs(
        self, actor: Actor, port_call: PortCall, before: Snapshot, after: Snapshot
    ) -> None:
        rule = self._rules.get(port_call.name)
        taken = 0
        for job in {**before.jobs, **before.records, **after.jobs, **after.records}:
            old: Row = before.jobs.get(job) or before.records.get(job)
            new: Row = after.jobs.get(job) or after.records.get(job)
            if job in after.jobs and job in after.records:
                self.report_violation(f"{job} is live and finished at once")
            if old == new:
                continue
            self._trace_change(actor, port_call, job, old, new)
            if new is None:
                self.report_violation(
                    f"{job} is lost: {port_call.name} removed it without a record"
                )
                continue
            taken += new.state == "running" and old is not None and old.state != "running"
            why = rule(actor, port_call, job, old, new, before) if rule else "has no business there"
            if why:
                self.report_violation(f"{port_call.name} by {actor.name} of {job}: {why}")
        if port_call.name == "fetch" and taken > sum(port_call.args[1].free.values()):
            self.report_violation(f"a fetch for {port_call.args[1]} took {taken} jobs")
        if port_call.name == "recover":
            self._check_blame(before, after)
        if port_call.name == "register":
            self._check_reported(port_call, after)
        self._check_gates(after)

    def _check_gates(self, snapshot: Snapshot) -> None:
        """Check that no gate exceeds its capacity and no pool member has two holders."""
        held: Counter[str] = Counter()
        for job, row in snapshot.jobs.items():
            for slot in read_slots(row.slots):
                held[slot.gate] += 1
                held[f"{slot.gate} {slot.member}"] += slot.member != ""
                if row.state == "scheduled":
                    self.report_violation(f"{job} is put off and holds {slot.gate}")
        for gate, many in held.items():
            if many > self.capacity.get(gate, 1):
                self.report_violation(f"{gate} is held by {many}")

    def _trace_change(
        self, actor: Actor, port_call: PortCall, job: str, old: Row, new: Row
    ) -> None:
        parts = [port_call.name, job, f"{old.state if old else 'nothing'} ->"]
        parts += [f"{new.state} fence {new.fence} deaths {new.deaths}" if new else "nothing"]
        self._trace.add(actor.name, *parts)

    def _publish(
        self, actor: Actor, port_call: PortCall, job: str, old: Row, new: Row, before: Snapshot
    ) -> str:
        fresh = old is None and isinstance(new, JobRow) and new.fence == 0 and new.attempt == 1
        return "" if fresh and job in self.seen else "publishing only adds what is new"

    def _fetch(
        self, actor: Actor, port_call: PortCall, job: str, old: Row, new: Row, before: Snapshot
    ) -> str:
        if not isinstance(old, JobRow) or not isinstance(new, JobRow):
            return "a fetch takes live jobs only"
        if new.state in ("queued", "waiting") and old.state in ("scheduled", "waiting"):
            onwards = old == new._replace(state=old.state, slots=old.slots)
            return "" if onwards else "it was only to go on towards its queue"
        owner = port_call.args[2]
        if old.state == "running":
            return f"it was in the hands of {old.owner}"
        if new.owner != owner or owner not in before.workers:
            return f"taken for {new.owner}, which is not registered"
        if new.fence != old.fence + 1 or (new.attempt, new.deaths) != (old.attempt, old.deaths):
            return f"the fence went from {old.fence} to {new.fence}"
        paused = self._pause_over(old.task, old.queue, before)
        return f"{paused} is paused" if paused else ""

    def _settle(
        self, actor: Actor, port_call: PortCall, job: str, old: Row, new: Row, before: Snapshot
    ) -> str:
        settlements: Sequence[Settlement] = port_call.args[0]
        named = [s for s in settlements if s.lease.job == job]
        if not isinstance(old, JobRow) or old.state != "running":
            return "it was not running"
        held = [s for s in named if (s.lease.owner, s.lease.fence) == (old.owner, old.fence)]
        if not held:
            return f"an outcome under an old lease counted; fence {old.fence} holds"
        end = disposition(held[0].outcome)
        if isinstance(end, Finish):
            self._finished[job] += 1
            right = isinstance(new, RecordRow) and new.state == end.state.value
            return "" if right and new and new.attempt == old.attempt else "its record says other"
        return self._put_back(old, new, end)

    def _put_back(self, old: JobRow, new: Row, end: Requeue) -> str:
        if not isinstance(new, JobRow) or new.owner is not None:
            return "it was to go back to its queue"
        if new.slots is not None:
            return f"it still holds {new.slots}"
        if new.deaths != old.deaths or new.attempt != old.attempt + end.costs_attempt:
            return f"attempt {old.attempt} became {new.attempt}, deaths {new.deaths}"
        return ""

    def _extend(
        self, actor: Actor, port_call: PortCall, job: str, old: Row, new: Row, before: Snapshot
    ) -> str:
        owner, held = port_call.args[0], port_call.args[1]
        if not isinstance(old, JobRow) or old.owner != owner:
            return "it belongs to another worker"
        if any(lease.job == job and lease.fence == old.fence for lease in held):
            return "it was said to be held, and put back"
        if self._runs(Lease(job, owner, old.fence)):
            return "it runs, and was put back"
        return self._put_back(old, new, Requeue())

    def _runs(self, lease: Lease) -> bool:
        return any(one.lease == lease and not one.is_stopping for one in self.running)

    def _recover(
        self, actor: Actor, port_call: PortCall, job: str, old: Row, new: Row, before: Snapshot
    ) -> str:
        if not isinstance(old, JobRow) or old.state != "running":
            return "it was not running"
        if old.owner in before.workers:
            return "its owner lives"
        if old.owner in self._left:
            return "its owner left in good order, and a death is counted"
        counted = old.owner not in self._alive
        if new is None or new.deaths != old.deaths + counted or new.attempt != old.attempt:
            return f"deaths went from {old.deaths} to {new and new.deaths}"
        if isinstance(new, JobRow) and new.lapses != old.lapses + (not counted):
            return f"lapses went from {old.lapses} to {new.lapses}"
        return (
            ""
            if new.state in ("waiting", "queued", "scheduled", "buried")
            else f"it became {new.state}"
        )

    def _check_blame(self, before: Snapshot, after: Snapshot) -> None:
        """Check that jobs are buried if and only if they were blamed often enough."""
        dead: dict[str, list[tuple[str, JobRow]]] = defaultdict(list)
        for job, row in before.jobs.items():
            if row.owner is not None and row.owner not in before.workers:
                dead[row.owner].append((job, row))
        for owner, group in dead.items():
            suspects = [job for job, row in group if row.deaths + row.lapses >= 2]
            for job, row in group:
                suspected = len(group) == 1 or suspects == [job]
                blamed = suspected and owner not in self._alive
                lapsed = suspected and row.lapses >= MAX_LAPSES
                if owner not in self._alive:
                    self._deaths[owner][job] = blamed
                blame, buried = row.blame + blamed, job in after.records
                if buried != (blame >= row.max_deaths or row.max_deaths == 1 or lapsed):
                    self.report_violation(f"{job} was blamed {blame} times, buried: {buried}")
                elif buried:
                    self._finished[job] += 1

    def _register(
        self, actor: Actor, port_call: PortCall, job: str, old: Row, new: Row, before: Snapshot
    ) -> str:
        """Registering with former incarnations removes their counted deaths, and nothing else."""
        former = [life for life in port_call.args[0].former if job in self._deaths.get(life, {})]
        if not former or old is None or new is None:
            return "no death of it is to be taken back"
        if new.deaths != max(old.deaths - len(former), 0):
            return f"deaths went from {old.deaths} to {new.deaths} for {len(former)}"
        if isinstance(old, JobRow):
            fewer = old._replace(deaths=new.deaths, lapses=old.lapses + len(former))
            same = isinstance(new, JobRow) and new == fewer._replace(blame=new.blame)
            return "" if same else "more has changed than its deaths"
        blamed = any(self._deaths[life][job] for life in former)
        rises = bool(old.poison) and blamed and self.seen[job].max_deaths > 1
        if rises:
            self._finished[job] -= 1
        if rises != isinstance(new, JobRow):
            return f"it was {old.state} and became {new.state}"
        return "" if new.fence == old.fence else "its fence fell back"

    def _check_reported(self, port_call: PortCall, after: Snapshot) -> None:
        """Check that jobs whose counted death was removed still exist."""
        for life in port_call.args[0].former:
            self._alive.add(life)
            for job in self._deaths.pop(life, {}):
                if job not in after.jobs and job not in after.records:
                    self.report_violation(f"{job} is lost: it was taken back from {life}")

    def _cancel(
        self, actor: Actor, port_call: PortCall, job: str, old: Row, new: Row, before: Snapshot
    ) -> str:
        if job not in port_call.args[0] or not isinstance(old, JobRow):
            return "it was not asked for"
        if old.state == "running":
            return "" if new == old._replace(cancelled=1) else "a running job is only asked to stop"
        self._finished[job] += 1
        return "" if isinstance(new, RecordRow) and new.state == "cancelled" else "not cancelled"

    def _replay(
        self, actor: Actor, port_call: PortCall, job: str, old: Row, new: Row, before: Snapshot
    ) -> str:
        if not isinstance(old, RecordRow) or old.state == "succeeded":
            return "only what is finished without a result runs again"
        self._finished[job] -= 1
        self._cancelled.discard(job)
        return "" if isinstance(new, JobRow) and new.fence == old.fence else "its fence fell back"

    # --- workers and pauses ----------------------------------------------------------------------

    def _check_workers(
        self, actor: Actor, port_call: PortCall, before: Snapshot, after: Snapshot
    ) -> None:
        now = self._timeline.now
        for life, (beat, epoch) in after.workers.items():
            if before.workers.get(life, (-1, -1))[0] != beat:
                self._last_heartbeat[life] = now
                self._trace.add(
                    actor.name, "heartbeat" if beat else "registers", life, f"epoch {epoch}"
                )
        for life in before.workers.keys() - after.workers.keys():
            self._trace.add(actor.name, "ends life", port_call.name, life)
            if port_call.name == "unregister" and port_call.args[0] == life:
                self._left.add(life)
            elif port_call.name != "remove" or port_call.args[0] != life:
                self.report_violation(f"{port_call.name} by {actor.name} ended the life {life}")
            elif now - self._last_heartbeat[life] <= self._lease:
                silent = now - self._last_heartbeat[life]
                self.report_violation(f"{life} was ended after {silent:.3f} s without a beat")

    def _record_pauses(self, before: Snapshot, after: Snapshot) -> None:
        for pause in after.pauses:
            if pause not in before.pauses:
                self._paused[pause] = after.epoch
        for pause in before.pauses:
            if pause not in after.pauses:
                del self._paused[pause]
        self._trace.add("operator", "paused", after.pauses, "epoch", after.epoch)

    def _pause_over(self, task: str, queue: str, snapshot: Snapshot, until: int = 1 << 60) -> str:
        for pause in snapshot.pauses:
            covers = pause in (("all", ""), ("queue", queue), ("task", task))
            if covers and self._paused.get(pause, 0) <= until:
                return " ".join(pause).strip()
        return ""

    # --- runs ----------------------------------------------------------------------------------

    def dispatched(self, actor: Actor, life: str, job: str, snapshot: Snapshot) -> None:
        """Check that a worker may start a job now."""
        confirmed = snapshot.workers.get(life, (0, 0))[1]
        envelope = self.seen[job]
        paused = self._pause_over(envelope.subject, envelope.queue, snapshot, confirmed)
        if paused:
            self.report_violation(
                f"{actor.name} starts {job} and has confirmed that {paused} is paused"
            )

    def started(self, actor: Actor, run: Run, snapshot: Snapshot) -> Running:
        """Record that a job's run has started."""
        new = Running(actor, run)
        job, fence = run.lease.job, run.lease.fence
        self._trace.add(actor.name, "run", job, f"fence {fence}")
        if (job, fence) in self._started:
            self.report_violation(f"{job} started twice under fence {fence}")
        self._started.add((job, fence))
        for other in self.running:
            if other.lease.job == job:
                self._check_overlap(*sorted((other, new), key=lambda one: one.lease.fence))
        self.dispatched(actor, run.lease.owner, job, snapshot)
        if job in self._cancelled and not self._excused(new):
            self.report_violation(f"{job} starts after it was confirmed as cancelled")
        self.running.append(new)
        if not self._holds(new.lease, snapshot):
            new.lost_at = self._timeline.now
        return new

    def ended(self, one: Running, how: str) -> None:
        """Record that a job's run has ended."""
        if one in self.running:
            self.running.remove(one)
            self._trace.add(one.actor.name, "end", one.lease.job, f"fence {one.lease.fence}", how)

    def gone(self, actor: Actor) -> None:
        """Record that a process has ended, with all its runs."""
        self.running = [one for one in self.running if one.actor is not actor]

    def _check_overlap(self, older: Running, newer: Running) -> None:
        if not older.is_stopping and not self._excused(older):
            self.report_violation(
                f"{older.lease.job} runs under fence {newer.lease.fence} in {newer.actor.name}"
                f" while {older.actor.name} believes in fence {older.lease.fence}"
            )

    def _excused(self, one: Running) -> bool:
        """Return whether the process was frozen recently: it needs some time to stop its runs."""
        return self._timeline.now - one.actor.last_frozen < self._lease * _WAKE_UP_SHARE

    def _check_zombies(self, snapshot: Snapshot) -> None:
        now, patience = self._timeline.now, self._lease * _WAKE_UP_SHARE
        for one in self.running:
            if self._holds(one.lease, snapshot):
                one.lost_at = None
            elif one.lost_at is None:
                one.lost_at = now
            elif not one.is_stopping and now - max(one.lost_at, one.actor.last_frozen) > patience:
                self.report_violation(f"{one.actor.name} still runs {one.lease.job}, which it lost")

    def _holds(self, lease: Lease, snapshot: Snapshot) -> bool:
        row = snapshot.jobs.get(lease.job)
        return row is not None and (row.owner, row.fence) == (lease.owner, lease.fence)

    # --- what was promised to callers ----------------------------------------------------------

    def published(self, job: str, snapshot: Snapshot) -> None:
        """Check that a job that was confirmed as published exists."""
        if job not in snapshot.jobs and job not in snapshot.records:
            self.report_violation(f"{job} was confirmed as published and is not there")

    def cancelled(self, job: str, snapshot: Snapshot) -> None:
        """Record that a job was confirmed as cancelled."""
        if job in snapshot.records and snapshot.records[job].state == "cancelled":
            self._cancelled.add(job)

    def finish(self, snapshot: Snapshot, attempt_outcomes: dict[str, list[str]]) -> None:
        """Check that at the end every job is final, once, and its record agrees."""
        for job, row in snapshot.jobs.items():
            self.report_violation(f"{job} never finished: {row}")
        for job, record in snapshot.records.items():
            if self._finished[job] != 1:
                self.report_violation(f"{job} became final {self._finished[job]} times")
            succeeded = attempt_outcomes.get(job, []).count("succeeded")
            if succeeded != (record.state == "succeeded"):
                self.report_violation(
                    f"{job} is {record.state}, its attempts: {attempt_outcomes.get(job)}"
                )

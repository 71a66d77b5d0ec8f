"""Holds every step against the promises: what may change, by whom, and who may run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from umbel.messages import Again, Envelope, Finish, Lease, Settlement, disposition
from umbel.messages.columns import read_slots
from umbel.resilience import MAX_LAPSES
from umbel.tasks import Run
from umbel.testing.simulation.database import Intent
from umbel.testing.simulation.loop import Timeline
from umbel.testing.simulation.picture import JobRow, Picture, RecordRow
from umbel.testing.simulation.trace import Trace

_WAKING = 0.5
"""Share of a lease that a process which was frozen gets to find out that it lost its life."""

Row = JobRow | RecordRow | None


class Actor(Protocol):
    """Whoever calls the database, as far as the auditor cares."""

    name: str

    @property
    def gone(self) -> bool:
        """Whether it has ended."""

    @property
    def frozen_lately(self) -> float:
        """When it last could not act: now while it is frozen, else when it woke."""


class Running:
    """One run of a job, from its first line to its last."""

    __slots__ = ("actor", "lease", "lost_at", "run")

    def __init__(self, actor: Actor, run: Run) -> None:
        self.actor = actor
        self.run = run
        self.lease: Lease = run.lease
        self.lost_at: float | None = None

    @property
    def told(self) -> bool:
        """Whether it was told to stop: what it does from then on is its own affair."""
        return self.run.stop_reason is not None


class Auditor:
    """Keeps its own small books, and finds what contradicts them."""

    def __init__(self, timeline: Timeline, trace: Trace, lease: float) -> None:
        self.violations: list[str] = []
        self.seen: dict[str, Envelope] = {}
        """What was asked to be published."""
        self.capacity: dict[str, int] = {}
        """How many may hold a gate; one, where nothing is said."""
        self._timeline = timeline
        self._trace = trace
        self._lease = lease
        self._beaten: dict[str, float] = {}
        self._paused: dict[tuple[str, str], int] = {}
        self._cancelled: set[str] = set()
        self._left: set[str] = set()
        self._deaths: dict[str, dict[str, bool]] = defaultdict(dict)
        """Deaths that were counted, by incarnation: of which jobs, and whether they were blamed."""
        self._alive: set[str] = set()
        """Incarnations whose process has reported that it was alive after them."""
        self._started: set[tuple[str, int]] = set()
        self._finished: dict[str, int] = defaultdict(int)
        self.running: list[Running] = []
        self._rules: dict[str, Callable[[Actor, Intent, str, Row, Row, Picture], str]] = {
            "publish": self._publish,
            "fetch": self._fetch,
            "settle": self._settle,
            "extend": self._extend,
            "recover": self._recover,
            "cancel": self._cancel,
            "replay": self._replay,
            "enlist": self._enlist,
        }

    def wrong(self, what: str) -> None:
        """Note a broken promise."""
        self._trace.add("auditor", "WRONG", what)
        self.violations.append(self._trace.named(what))

    # --- steps of the database -----------------------------------------------------------------

    def check(self, actor: Actor, intent: Intent, before: Picture, after: Picture) -> None:
        """Hold what one call has changed against what it may change."""
        if before.jobs is not after.jobs:
            self._check_jobs(actor, intent, before, after)
        if before.workers is not after.workers:
            self._check_lives(actor, intent, before, after)
        if before.pauses != after.pauses:
            self._note_pauses(before, after)
        self._check_zombies(after)

    def _check_jobs(self, actor: Actor, intent: Intent, before: Picture, after: Picture) -> None:
        rule = self._rules.get(intent.name)
        taken = 0
        for job in {**before.jobs, **before.records, **after.jobs, **after.records}:
            old: Row = before.jobs.get(job) or before.records.get(job)
            new: Row = after.jobs.get(job) or after.records.get(job)
            if job in after.jobs and job in after.records:
                self.wrong(f"{job} is live and finished at once")
            if old == new:
                continue
            self._tell_change(actor, intent, job, old, new)
            if new is None:
                self.wrong(f"{job} is lost: {intent.name} removed it without a record")
                continue
            taken += new.state == "running" and old is not None and old.state != "running"
            why = rule(actor, intent, job, old, new, before) if rule else "has no business there"
            if why:
                self.wrong(f"{intent.name} by {actor.name} of {job}: {why}")
        if intent.name == "fetch" and taken > intent.args[1].io + intent.args[1].cpu:
            self.wrong(f"a fetch for {intent.args[1]} took {taken} jobs")
        if intent.name == "recover":
            self._check_blame(before, after)
        if intent.name == "enlist":
            self._check_reported(intent, after)
        self._check_gates(after)

    def _check_gates(self, picture: Picture) -> None:
        """No gate has admitted more than it may, and no member is in two hands."""
        held: Counter[str] = Counter()
        for job, row in picture.jobs.items():
            for slot in read_slots(row.slots):
                held[slot.gate] += 1
                held[f"{slot.gate} {slot.member}"] += slot.member != ""
                if row.state == "scheduled":
                    self.wrong(f"{job} is put off and holds {slot.gate}")
        for gate, many in held.items():
            if many > self.capacity.get(gate, 1):
                self.wrong(f"{gate} is held by {many}")

    def _tell_change(self, actor: Actor, intent: Intent, job: str, old: Row, new: Row) -> None:
        told = [intent.name, job, f"{old.state if old else 'nothing'} ->"]
        told += [f"{new.state} fence {new.fence} deaths {new.deaths}" if new else "nothing"]
        self._trace.add(actor.name, *told)

    def _publish(
        self, actor: Actor, intent: Intent, job: str, old: Row, new: Row, before: Picture
    ) -> str:
        fresh = old is None and isinstance(new, JobRow) and new.fence == 0 and new.attempt == 1
        return "" if fresh and job in self.seen else "publishing only adds what is new"

    def _fetch(
        self, actor: Actor, intent: Intent, job: str, old: Row, new: Row, before: Picture
    ) -> str:
        if not isinstance(old, JobRow) or not isinstance(new, JobRow):
            return "a fetch takes live jobs only"
        if new.state in ("queued", "waiting") and old.state in ("scheduled", "waiting"):
            onwards = old == new._replace(state=old.state, slots=old.slots)
            return "" if onwards else "it was only to go on towards its queue"
        owner = intent.args[2]
        if old.state == "running":
            return f"it was in the hands of {old.owner}"
        if new.owner != owner or owner not in before.workers:
            return f"taken for {new.owner}, who is not enlisted"
        if new.fence != old.fence + 1 or (new.attempt, new.deaths) != (old.attempt, old.deaths):
            return f"the fence went from {old.fence} to {new.fence}"
        paused = self._pause_over(old.task, old.queue, before)
        return f"{paused} is paused" if paused else ""

    def _settle(
        self, actor: Actor, intent: Intent, job: str, old: Row, new: Row, before: Picture
    ) -> str:
        settlements: Sequence[Settlement] = intent.args[0]
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

    def _put_back(self, old: JobRow, new: Row, end: Again) -> str:
        if not isinstance(new, JobRow) or new.owner is not None:
            return "it was to go back to its queue"
        if new.slots is not None:
            return f"it still holds {new.slots}"
        if new.deaths != old.deaths or new.attempt != old.attempt + end.costs_attempt:
            return f"attempt {old.attempt} became {new.attempt}, deaths {new.deaths}"
        return ""

    def _extend(
        self, actor: Actor, intent: Intent, job: str, old: Row, new: Row, before: Picture
    ) -> str:
        owner, held = intent.args[0], intent.args[1]
        if not isinstance(old, JobRow) or old.owner != owner:
            return "it belongs to somebody else"
        if any(lease.job == job and lease.fence == old.fence for lease in held):
            return "it was said to be held, and put back"
        if self._runs(Lease(job, owner, old.fence)):
            return "it runs, and was put back"
        return self._put_back(old, new, Again())

    def _runs(self, lease: Lease) -> bool:
        return any(one.lease == lease and not one.told for one in self.running)

    def _recover(
        self, actor: Actor, intent: Intent, job: str, old: Row, new: Row, before: Picture
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

    def _check_blame(self, before: Picture, after: Picture) -> None:
        """Buried as poison only when blamed often enough: worked out here once more."""
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
                    self.wrong(f"{job} was blamed {blame} times, buried: {buried}")
                elif buried:
                    self._finished[job] += 1

    def _enlist(
        self, actor: Actor, intent: Intent, job: str, old: Row, new: Row, before: Picture
    ) -> str:
        """A process that was alive takes back what was counted as its death, and nothing else."""
        former = [life for life in intent.args[0].former if job in self._deaths.get(life, {})]
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

    def _check_reported(self, intent: Intent, after: Picture) -> None:
        """What was counted as the death of a process that is alive is counted no more."""
        for life in intent.args[0].former:
            self._alive.add(life)
            for job in self._deaths.pop(life, {}):
                if job not in after.jobs and job not in after.records:
                    self.wrong(f"{job} is lost: it was taken back from {life}")

    def _cancel(
        self, actor: Actor, intent: Intent, job: str, old: Row, new: Row, before: Picture
    ) -> str:
        if job not in intent.args[0] or not isinstance(old, JobRow):
            return "nobody asked for that"
        if old.state == "running":
            return "" if new == old._replace(cancelled=1) else "a running job is only asked to stop"
        self._finished[job] += 1
        return "" if isinstance(new, RecordRow) and new.state == "cancelled" else "not cancelled"

    def _replay(
        self, actor: Actor, intent: Intent, job: str, old: Row, new: Row, before: Picture
    ) -> str:
        if not isinstance(old, RecordRow) or old.state == "succeeded":
            return "only what is finished without a result runs again"
        self._finished[job] -= 1
        self._cancelled.discard(job)
        return "" if isinstance(new, JobRow) and new.fence == old.fence else "its fence fell back"

    # --- lives and pauses ----------------------------------------------------------------------

    def _check_lives(self, actor: Actor, intent: Intent, before: Picture, after: Picture) -> None:
        now = self._timeline.now
        for life, (beat, epoch) in after.workers.items():
            if before.workers.get(life, (-1, -1))[0] != beat:
                self._beaten[life] = now
                self._trace.add(actor.name, "beats" if beat else "enlists", life, f"epoch {epoch}")
        for life in before.workers.keys() - after.workers.keys():
            self._trace.add(actor.name, "ends life", intent.name, life)
            if intent.name == "leave" and intent.args[0] == life:
                self._left.add(life)
            elif intent.name != "remove" or intent.args[0] != life:
                self.wrong(f"{intent.name} by {actor.name} ended the life {life}")
            elif now - self._beaten[life] <= self._lease:
                silent = now - self._beaten[life]
                self.wrong(f"{life} was ended after {silent:.3f} s without a beat")

    def _note_pauses(self, before: Picture, after: Picture) -> None:
        for pause in after.pauses:
            if pause not in before.pauses:
                self._paused[pause] = after.epoch
        for pause in before.pauses:
            if pause not in after.pauses:
                del self._paused[pause]
        self._trace.add("operator", "paused", after.pauses, "epoch", after.epoch)

    def _pause_over(self, task: str, queue: str, picture: Picture, until: int = 1 << 60) -> str:
        for pause in picture.pauses:
            covers = pause in (("all", ""), ("queue", queue), ("task", task))
            if covers and self._paused.get(pause, 0) <= until:
                return " ".join(pause).strip()
        return ""

    # --- runs ----------------------------------------------------------------------------------

    def dispatched(self, actor: Actor, life: str, job: str, picture: Picture) -> None:
        """A worker is about to start a job."""
        confirmed = picture.workers.get(life, (0, 0))[1]
        envelope = self.seen[job]
        paused = self._pause_over(envelope.subject, envelope.queue, picture, confirmed)
        if paused:
            self.wrong(f"{actor.name} starts {job} and has confirmed that {paused} is paused")

    def started(self, actor: Actor, run: Run, picture: Picture) -> Running:
        """A job's first line."""
        new = Running(actor, run)
        job, fence = run.lease.job, run.lease.fence
        self._trace.add(actor.name, "run", job, f"fence {fence}")
        if (job, fence) in self._started:
            self.wrong(f"{job} started twice under fence {fence}")
        self._started.add((job, fence))
        for other in self.running:
            if other.lease.job == job:
                self._check_overlap(*sorted((other, new), key=lambda one: one.lease.fence))
        self.dispatched(actor, run.lease.owner, job, picture)
        if job in self._cancelled and not self._excused(new):
            self.wrong(f"{job} starts after it was confirmed as cancelled")
        self.running.append(new)
        if not self._holds(new.lease, picture):
            new.lost_at = self._timeline.now
        return new

    def ended(self, one: Running, how: str) -> None:
        """A job's last line."""
        if one in self.running:
            self.running.remove(one)
            self._trace.add(one.actor.name, "end", one.lease.job, f"fence {one.lease.fence}", how)

    def gone(self, actor: Actor) -> None:
        """A process has ended, with all that ran in it."""
        self.running = [one for one in self.running if one.actor is not actor]

    def _check_overlap(self, older: Running, newer: Running) -> None:
        if not older.told and not self._excused(older):
            self.wrong(
                f"{older.lease.job} runs under fence {newer.lease.fence} in {newer.actor.name}"
                f" while {older.actor.name} believes in fence {older.lease.fence}"
            )

    def _excused(self, one: Running) -> bool:
        """A process that cannot act cannot stop itself; when it wakes it has a moment to."""
        return self._timeline.now - one.actor.frozen_lately < self._lease * _WAKING

    def _check_zombies(self, picture: Picture) -> None:
        now, patience = self._timeline.now, self._lease * _WAKING
        for one in self.running:
            if self._holds(one.lease, picture):
                one.lost_at = None
            elif one.lost_at is None:
                one.lost_at = now
            elif not one.told and now - max(one.lost_at, one.actor.frozen_lately) > patience:
                self.wrong(f"{one.actor.name} still runs {one.lease.job}, which it lost")

    def _holds(self, lease: Lease, picture: Picture) -> bool:
        row = picture.jobs.get(lease.job)
        return row is not None and (row.owner, row.fence) == (lease.owner, lease.fence)

    # --- what was promised to callers ----------------------------------------------------------

    def published(self, job: str, picture: Picture) -> None:
        """The publisher was told that the job is durable."""
        if job not in picture.jobs and job not in picture.records:
            self.wrong(f"{job} was confirmed as published and is not there")

    def cancelled(self, job: str, picture: Picture) -> None:
        """The operator was told that the job will not run."""
        if job in picture.records and picture.records[job].state == "cancelled":
            self._cancelled.add(job)

    def finish(self, picture: Picture, stories: dict[str, list[str]]) -> None:
        """At the end everything is final, once, and its record says so."""
        for job, row in picture.jobs.items():
            self.wrong(f"{job} never finished: {row}")
        for job, record in picture.records.items():
            if self._finished[job] != 1:
                self.wrong(f"{job} became final {self._finished[job]} times")
            succeeded = stories.get(job, []).count("succeeded")
            if succeeded != (record.state == "succeeded"):
                self.wrong(f"{job} is {record.state}, its story: {stories.get(job)}")

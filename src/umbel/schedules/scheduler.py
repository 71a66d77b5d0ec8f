"""The scheduler: of several, one is the leader and publishes the ticks that are due.

The leader publishes all ticks of a moment and advances their schedules in one commit. The commit
checks that it still leads and that no schedule was changed meanwhile, so a leader that was frozen
or replaced has no effect. The id of a tick is derived from its schedule and nominal time: even two
leaders could not publish a tick twice. All times are the store's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

import anyio
from msgspec.structs import replace

from umbel.backends import Entry, JobFilter, Put, Roles, json_value
from umbel.clock import Clock
from umbel.control import Election
from umbel.control.elections import ELECTIONS
from umbel.errors import UmbelError
from umbel.messages import Envelope, State
from umbel.schedules.catalog import (
    CODE,
    LIVE,
    RETIRE_SECONDS,
    SCHEDULES,
    STATES,
    VERSION,
    Catalog,
    Schedule,
    is_fresh,
    read_catalog,
    read_states,
)
from umbel.schedules.declarations import RENEW_SECONDS, Declarations, Declared
from umbel.schedules.due import GRACE_SECONDS, Decision, ScheduleState, decide
from umbel.schedules.ticks import queue_rule, tick
from umbel.tasks.hooks import Hooks, PublishedTick
from umbel.telemetry import Telemetry, events

LEASE_SECONDS = 5.0
"""After a leader has died, another takes over within this time."""
MAX_QUEUED = 100
"""How many ticks of a schedule with ``overlap="queue"`` may wait."""
_RENEWALS_PER_LEASE = 3
_IDLE_SECONDS = 60.0
"""Maximum time between checks while there are no schedules."""
_PER_COMMIT = 500
"""How many schedules, and about how many ticks, one commit advances."""
_SKIPS_REPORTED = 3
_OTHER_CANCELLATIONS = 100
"""Among so many cancelled jobs more than were published, skipped ticks are searched for."""
_ELECTION = "scheduler"


class _Due(NamedTuple):
    schedule: Schedule
    decision: Decision
    ticks: tuple[Envelope, ...]


class _Outdated(Exception):
    """Another leader was elected, or a schedule was changed: everything has to be read again."""


class Scheduler:
    """A service. Every process that may schedule runs one."""

    name = "scheduler"

    def __init__(
        self,
        roles: Roles,
        declared: Sequence[Declared] = (),
        *,
        namespace: str,
        candidate: str,
        may_lead: bool = True,
        clock: Clock,
        telemetry: Telemetry,
        hooks: Hooks | None = None,
        lease: float = LEASE_SECONDS,
    ) -> None:
        self._hooks = hooks
        self._roles = roles
        self._coordination = roles.coordination
        self._namespace = namespace
        self._candidate = candidate
        self._may_lead = may_lead
        self._clock = clock
        self._telemetry = telemetry
        self._lease = lease
        self._declarations = Declarations(
            roles.coordination, declared, clock=clock, telemetry=telemetry
        )
        self._reported: set[tuple[str, str]] = set()
        """Unreadable entries that were reported, with their errors."""
        self._undeclared: dict[str, float] = {}
        """Declarations that no worker makes any more, and since when this leader knows it."""
        self._election = Election(roles.coordination, _ELECTION, candidate, seconds=lease)
        self._campaigned = float("-inf")
        self._term: Mapping[str, int] = {}
        """What the commits of this leader check; empty while it does not lead."""
        self._forget()

    def _forget(self) -> None:
        self._catalog: Catalog | None = None
        self._markers: tuple[tuple[str, int, bool], ...] = ()
        self._states: dict[str, ScheduleState] | None = None
        self._unchecked: set[str] = set()
        """Schedules whose next time must be computed, because they may have been changed."""
        self._queue_rules: set[str] = set()

    async def run(self, working: Callable[[], None]) -> None:
        """Publish ticks until cancelled."""
        self._forget()
        try:
            while True:
                wait, sections = await self.run_once()
                working()
                if sections:
                    await self._coordination.changed(sections, wait)
                else:
                    await anyio.sleep(wait)
        finally:
            with anyio.move_on_after(1, shield=True), suppress(UmbelError):
                await self._election.resign()
                self._term = {}

    async def run_once(self) -> tuple[float, dict[str, int]]:
        """Do what is due now; return for how long to wait, and for changes of which sections."""
        await self._declarations.renew()
        if not self._may_lead:
            return RENEW_SECONDS, {}
        catalog = await self._read_catalog()
        watched = {SCHEDULES: catalog.revision}
        if not catalog.schedules:
            return (RENEW_SECONDS if len(self._declarations) else _IDLE_SECONDS), watched
        revision = await self._find_leader()
        if revision is not None:
            return RENEW_SECONDS, watched | {ELECTIONS: revision}
        try:
            return await self._lead(catalog), watched
        except _Outdated:
            self._forget()
            self._campaigned = float("-inf")  # the lease may be lost
            return 0.0, {}

    async def _find_leader(self) -> int | None:
        """Return None if this process leads; else the revision at which another one did."""
        now = self._clock.monotonic()
        leads = bool(self._term)
        if leads and now - self._campaigned < self._lease / _RENEWALS_PER_LEASE:
            return None
        if not leads:
            page = await self._coordination.read(ELECTIONS + _ELECTION)
            if any(entry.key == ELECTIONS + _ELECTION for entry in page.entries):
                return page.revision
        if not await self._election.campaign():
            self._term = {}
            return 0  # it has changed since
        self._campaigned = now
        if self._election.checks != self._term:
            self._term = self._election.checks
            self._states = None
            self._undeclared = {}
            self._telemetry.emit(events.SchedulerElected(scheduler=self._candidate))
        return None

    # --- reading -----------------------------------------------------------------------------

    async def _read_catalog(self) -> Catalog:
        """Return the schedules. They are read again if they, or the declaring workers, changed."""
        page = await self._coordination.read(LIVE)
        markers = tuple(map(_marker, page.entries))
        catalog = self._catalog
        if (
            catalog is None
            or page.more
            or (catalog.revision, self._markers) != (page.revision, markers)
        ):
            known = None if catalog is None else catalog.schedules.keys()
            catalog = self._catalog = await read_catalog(self._coordination)
            self._markers = markers
            if catalog.schedules.keys() != known:
                self._states = None  # a removed schedule may have been added again
            self._unchecked = {*catalog.schedules}
            self._report_unreadable(catalog)
        else:
            catalog = self._catalog = replace(catalog, now=page.now)
        return catalog

    def _report_unreadable(self, catalog: Catalog) -> None:
        for key, error in catalog.unreadable.items():
            if (key, error) not in self._reported:
                self._reported.add((key, error))
                name = key.removeprefix(SCHEDULES)
                self._telemetry.emit(events.ScheduleFailed(schedule=name, error=error))

    # --- leading -----------------------------------------------------------------------------

    async def _lead(self, catalog: Catalog) -> float:
        """Publish what is due; return the seconds until the next duty."""
        read_at = self._clock.monotonic()
        if self._states is None:
            self._states = await read_states(self._coordination)
            self._unchecked = {*catalog.schedules}
        await self._retire(catalog)
        due = [
            await self._prepare(schedule, decision, catalog.now)
            for schedule, decision in self._find_due(catalog, self._states)
        ]
        for portion in _portions(due):
            await self._publish(portion, catalog)
        await self._report_skips([one for one in due if one.ticks])
        self._unchecked = set()
        waits = [self._lease / _RENEWALS_PER_LEASE]
        following = [
            state.next
            for name, state in self._states.items()
            if state.next is not None and _can_fire(catalog.schedules.get(name))
        ]
        if following:
            waits.append(min(following) - catalog.now - (self._clock.monotonic() - read_at))
        return max(0.0, min(waits))

    def _find_due(
        self, catalog: Catalog, states: Mapping[str, ScheduleState]
    ) -> Iterator[tuple[Schedule, Decision]]:
        """Yield the schedules that have a due tick, or whose state has to be stored."""
        for name, schedule in catalog.schedules.items():
            state = states.get(name)
            is_due = state is not None and _is_due(state, catalog.now)
            if not _can_fire(schedule) or not (is_due or name in self._unchecked):
                continue
            decision = decide(
                state,
                schedule.plan,
                schedule.find_next,
                now=catalog.now,
                since=schedule.since,
                resumed=schedule.override.resumed,
            )
            if is_due or decision.state != state:
                yield schedule, decision

    async def _prepare(self, schedule: Schedule, decision: Decision, now: float) -> _Due:
        nominals = decision.publish
        if schedule.plan.overlap == "queue" and nominals:
            room = await self._find_room(schedule.name)
            if room < len(nominals):
                full = len(nominals) - room
                self._telemetry.emit(events.ScheduleOverlaps(schedule=schedule.name, ticks=full))
                state = replace(decision.state, skipped=decision.state.skipped + full)
                decision = replace(decision, state=state, publish=nominals[:room])
        ticks = tuple(
            tick(
                schedule.name,
                schedule.definition,
                schedule.plan,
                nominal,
                namespace=self._namespace,
                now=now,
            )
            for nominal in decision.publish
        )
        return _Due(schedule, decision, ticks)

    async def _find_room(self, name: str) -> int:
        """Return how many more ticks may wait for the one that runs."""
        rule = queue_rule(name)
        if name not in self._queue_rules:
            await self._roles.gates.declare([rule])
            self._queue_rules.add(name)
        waiting = [gate.waiting for gate in await self._roles.gates.gates(rule.name)]
        return max(0, MAX_QUEUED - sum(waiting))

    async def _publish(self, due: Sequence[_Due], catalog: Catalog) -> None:
        assert self._states is not None
        puts = [Put(STATES + one.schedule.name, json_value(one.decision.state)) for one in due]
        ticks = [envelope for one in due for envelope in one.ticks]
        checks = {**self._term, VERSION: catalog.version}
        if await self._coordination.commit(checks, puts, publish=ticks) is None:
            raise _Outdated
        self._states.update((one.schedule.name, one.decision.state) for one in due)
        for one in due:
            self._report(one, catalog.now)
        if self._hooks is not None and self._hooks.ticks:
            await self._call_hooks(due, self._hooks)

    async def _call_hooks(self, due: Sequence[_Due], hooks: Hooks) -> None:
        """Call the hooks for all ticks at once: one that hangs must not make other ticks late."""
        ticks = (
            PublishedTick(
                schedule=one.schedule.name,
                nominal=datetime.fromtimestamp(nominal, UTC),
                job=envelope.id,
            )
            for one in due
            for nominal, envelope in zip(one.decision.publish, one.ticks, strict=True)
        )
        limit = self._lease / 10
        await asyncio.gather(*(hooks.call("on_tick", tick, limit=limit) for tick in ticks))

    def _report(self, due: _Due, now: float) -> None:
        name, decision = due.schedule.name, due.decision
        if decision.set_back:
            self._telemetry.emit(
                events.ScheduleSetBack(schedule=name, seconds=round(decision.set_back, 1))
            )
        if decision.missed:
            self._telemetry.emit(
                events.TicksMissed(
                    schedule=name,
                    missed=decision.missed,
                    exact=decision.is_exact,
                    published=len(decision.publish),
                )
            )
        if self._telemetry.is_needed(events.TickPublished):
            for nominal, envelope in zip(decision.publish, due.ticks, strict=True):
                late = round(max(0.0, now - nominal), 3)
                self._telemetry.emit(
                    events.TickPublished(
                        schedule=name, job=envelope.id, task=envelope.subject, late=late
                    )
                )

    # --- overlapping ticks -------------------------------------------------------------------

    async def _report_skips(self, due: Sequence[_Due]) -> None:
        """Count the ticks that were skipped because the job before them has not ended."""
        watched = [one for one in due if one.ticks[0].unique is not None]
        if not watched:
            return
        assert self._states is not None
        limit = sum(len(one.ticks) for one in watched) + _OTHER_CANCELLATIONS
        cancelled = {
            record.id
            for record in await self._roles.records.search(
                JobFilter(states=(State.CANCELLED,), limit=limit)
            )
        }
        for one in watched:
            name = one.schedule.name
            state = self._states[name]
            skipped = [envelope.id in cancelled for envelope in one.ticks]
            in_row = 0 if not all(skipped) else state.skips_in_row + len(skipped)
            # Stored with the next tick. A new leader may report a little later.
            self._states[name] = replace(
                state, skipped=state.skipped + sum(skipped), skips_in_row=in_row
            )
            if in_row >= _SKIPS_REPORTED > state.skips_in_row:
                self._telemetry.emit(events.ScheduleOverlaps(schedule=name, ticks=in_row))

    # --- retired schedules -------------------------------------------------------------------

    async def _retire(self, catalog: Catalog) -> None:
        """Delete declarations that no worker has made for long. Their states are kept."""
        now = self._clock.monotonic()
        self._undeclared = {key: self._undeclared.get(key, now) for key in catalog.undeclared}
        gone = [key for key, since in self._undeclared.items() if now - since > RETIRE_SECONDS]
        if not gone:
            return
        checks = {**self._term, VERSION: catalog.version}
        keys = gone[:_PER_COMMIT]
        if await self._coordination.commit(checks, [Put(VERSION)], deletes=keys) is not None:
            for name in sorted({key.removeprefix(CODE).rpartition("/")[0] for key in keys}):
                self._telemetry.emit(events.ScheduleRetired(schedule=name))
        raise _Outdated


def _marker(entry: Entry) -> tuple[str, int, bool]:
    return entry.key, entry.revision, is_fresh(entry)


def _can_fire(schedule: Schedule | None) -> bool:
    return schedule is not None and not schedule.is_paused and not schedule.is_retired


def _is_due(state: ScheduleState, now: float) -> bool:
    """Whether a tick is due, or the store's clock was set back."""
    return (state.next is not None and state.next <= now) or state.cursor > now + GRACE_SECONDS


def _portions(due: Sequence[_Due]) -> Iterator[list[_Due]]:
    """Divide what is due into commits. The ticks of a schedule stay together."""
    portion: list[_Due] = []
    size = 0
    for one in due:
        if portion and (len(portion) >= _PER_COMMIT or size + len(one.ticks) > _PER_COMMIT):
            yield portion
            portion, size = [], 0
        portion.append(one)
        size += len(one.ticks)
    if portion:
        yield portion

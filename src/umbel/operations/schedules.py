"""Schedules for operators: what they are, when they fire, and changes of them.

A change is an entry of its own. It wins over the declaration in the code, field by field, until it
is reset. Every change also writes ``VERSION``, which the leader checks when it publishes, so it
applies to all times after its commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice, repeat
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from umbel.backends import Put, Roles, json_value
from umbel.errors import ConfigurationError, NotAllowed, UnknownJob, UnknownSchedule
from umbel.messages import NODE_HEADER, Envelope, State, read_node
from umbel.schedules import (
    Definition,
    Override,
    Plan,
    Schedule,
    Timing,
    check_name,
    read_catalog,
    read_states,
)
from umbel.schedules.catalog import ADDED, EDITS, STATES, VERSION, Catalog
from umbel.schedules.due import ScheduleState, timing_key
from umbel.schedules.ticks import manual_tick, queue_rule, tick_id

Condition = Literal["active", "paused", "retired", "ended"]
_NO_STATE = ScheduleState(cursor=0)


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule for display. Times are in seconds since 1970."""

    name: str
    state: Condition
    """``ended``: it has no next time. ``retired``: no running worker declares it."""
    origin: Literal["code", "operator"]
    task: str
    """The name of the task, or of the canvas or workflow."""
    kind: Literal["task", "canvas", "workflow"]
    plan: Plan
    """What is in force."""
    defined: Plan
    """What the code, or the operator who added it, says."""
    changes: dict[str, Any]
    """What an operator has changed, until it is reset."""
    changed_by: str = ""
    reason: str = ""
    """Why it is paused."""
    next: int | None = None
    last: int | None = None
    """The nominal time of the last job."""
    published: int = 0
    missed: int = 0
    skipped: int = 0
    now: float
    """The store's time."""


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """A tick of a schedule that was published, or several that were missed."""

    nominal: int
    missed: int = 0
    """How many were missed up to this time; 0 if this one was published."""
    job: str | None = None
    state: State | None = None
    """The state of the job; None if its record was deleted."""
    reason: str = ""
    late: float | None = None
    """Seconds from the tick until its job was published; None if the record was deleted."""


class ScheduleOperations:
    """The part of ``Operations`` for schedules. Belongs to one event loop."""

    def __init__(self, roles: Roles, *, namespace: str) -> None:
        self._roles = roles
        self._coordination = roles.coordination
        self._namespace = namespace

    # --- reading -----------------------------------------------------------------------------

    async def all(self) -> list[ScheduleView]:
        """Return all schedules by name, also the retired ones whose declaration still exists."""
        catalog, states = await self._read()
        return [
            _view(one, states.get(name), catalog.now) for name, one in catalog.schedules.items()
        ]

    async def show(self, name: str) -> ScheduleView:
        """Return one schedule. Raises UnknownSchedule."""
        catalog, states = await self._read()
        return _view(_find(catalog, name), states.get(name), catalog.now)

    async def next_times(self, name: str, count: int) -> list[int]:
        """Return the next times, without jitter. Raises UnknownSchedule."""
        catalog, states = await self._read()
        schedule = _find(catalog, name)
        following = _view(schedule, states.get(name), catalog.now).next
        if schedule.is_paused:
            following = schedule.find_next(int(catalog.now))
        return [*islice(_times(schedule, following), count)]

    async def upcoming(self, count: int) -> list[tuple[int, ScheduleView]]:
        """Return the next times of all active schedules, without jitter, the earliest first."""
        catalog, states = await self._read()
        views = {
            name: _view(one, states.get(name), catalog.now)
            for name, one in catalog.schedules.items()
        }
        times = (
            zip(_times(catalog.schedules[name], view.next), repeat(name))
            for name, view in views.items()
        )
        return [(at, views[name]) for at, name in islice(merge(*times), count)]

    async def history(self, name: str) -> list[HistoryLine]:
        """Return the last ticks, newest first, also of a retired schedule. Raises UnknownSchedule.

        Ticks that operators have triggered are not included.
        """
        catalog, states = await self._read()
        if name not in states:
            _find(catalog, name)
        lines = states.get(name, _NO_STATE).history
        return [await self._line(name, one.nominal, one.missed) for one in lines]

    async def _line(self, name: str, nominal: int, missed: int) -> HistoryLine:
        if missed:
            return HistoryLine(nominal=nominal, missed=missed)
        job = tick_id(self._namespace, name, nominal)
        try:
            record = await self._roles.records.find(job)
        except UnknownJob:
            return HistoryLine(nominal=nominal, job=job)
        late = max(0.0, record.created - nominal)
        return HistoryLine(
            nominal=nominal, job=job, state=record.state, reason=record.reason, late=late
        )

    async def _read(self) -> tuple[Catalog, dict[str, ScheduleState]]:
        return await read_catalog(self._coordination), await read_states(self._coordination)

    # --- changing ----------------------------------------------------------------------------

    async def add(self, name: str, plan: Plan, template: Envelope, who: str) -> ScheduleView:
        """Add a schedule that no code declares.

        Raises:
            ConfigurationError: the name is wrong or taken, or it never fires.
        """
        check_name(name)
        if plan.timing.calendar is not None:
            raise ConfigurationError("calendar: a function has to be declared in the code")
        catalog = await read_catalog(self._coordination)
        _check_fires(plan.timing, catalog.now)
        definition = Definition(plan=plan, template=template, since=catalog.now, who=who)
        put = Put(ADDED + check_name(name), definition.encode(name))
        taken = name in catalog.schedules and not catalog.schedules[name].is_retired
        checks = {put.key: 0, VERSION: catalog.version}
        if taken or await self._coordination.commit(checks, [put, Put(VERSION)]) is None:
            raise ConfigurationError(
                f"schedule {name!r} exists already; change it with umbel schedules edit, or give"
                " another name"
            )
        return await self.show(name)

    async def edit(
        self, name: str, changes: Mapping[str, Any], *, reset: bool, who: str
    ) -> ScheduleView:
        """Change fields: ``timing``, ``zone``, ``overlap``, ``catch_up``, ``jitter``.

        With ``reset``, all earlier changes are taken back first; pauses stay.

        Raises:
            UnknownSchedule: there is none. ConfigurationError: a value is wrong.
        """

        def change(schedule: Schedule, now: float) -> Override:
            old = schedule.override
            kept = Override(paused=old.paused, reason=old.reason, resumed=old.resumed)
            override = replace(kept if reset else old, **changes, since=now, who=who)
            timing = override.apply(schedule.definition.plan).timing
            if "zone" in changes and timing.calendar is not None:
                raise ConfigurationError(
                    f"zone of schedule {name!r}: workers call its function {timing.calendar} with"
                    " times in the zone that the code gives; change zone= in the code"
                )
            _check_fires(timing, now)
            return override

        return await self._change(name, change)

    async def pause(self, name: str, reason: str, who: str) -> ScheduleView:
        """Publish no more ticks. Ticks during the pause are not missed. Raises UnknownSchedule."""
        return await self._change(
            name,
            lambda schedule, now: replace(schedule.override, paused=True, reason=reason, who=who),
        )

    async def resume(self, name: str) -> ScheduleView:
        """Publish ticks again, from the next time on. Raises UnknownSchedule."""
        return await self._change(
            name,
            lambda schedule, now: (
                replace(schedule.override, paused=False, reason="", resumed=now)
                if schedule.is_paused
                else schedule.override
            ),
        )

    async def trigger(self, name: str) -> tuple[str, State]:
        """Publish a job of the schedule now, besides its ticks; return its id and its state.

        With ``overlap="skip"``, it is cancelled if the job before it has not ended.

        Raises:
            UnknownSchedule: there is none.
        """
        catalog = await read_catalog(self._coordination)
        one = _find(catalog, name)
        if one.plan.overlap == "queue":
            await self._roles.gates.declare([queue_rule(name)])
        job = manual_tick(
            name, one.definition, one.plan, namespace=self._namespace, now=catalog.now
        )
        await self._coordination.commit({}, publish=[job])
        return job.id, (await self._roles.records.find(job.id)).state

    async def remove(self, name: str) -> None:
        """Delete a schedule that an operator has added, or a retired one, with its history.

        Raises:
            UnknownSchedule: there is none. NotAllowed: the code of a running worker declares it.
        """
        catalog, states = await self._read()
        schedule = catalog.schedules.get(name)
        if schedule is None and name not in states:
            _find(catalog, name)
        if schedule is not None and schedule.origin == "code" and not schedule.is_retired:
            raise NotAllowed(
                f"schedule {name!r} is declared in the code of running workers; remove it there, or"
                " pause it with umbel schedules pause"
            )
        deletes = [ADDED + name, EDITS + name, STATES + name]
        await self._coordination.commit({}, [Put(VERSION)], deletes=deletes)

    async def _change(self, name: str, change: Any) -> ScheduleView:
        """Replace the override of a schedule. Repeated if another change was faster."""
        while True:
            catalog = await read_catalog(self._coordination)
            override = change(_find(catalog, name), catalog.now)
            puts = [Put(EDITS + name, json_value(override)), Put(VERSION)]
            if await self._coordination.commit({VERSION: catalog.version}, puts) is not None:
                return await self.show(name)


def _find(catalog: Catalog, name: str) -> Schedule:
    if name in catalog.schedules:
        return catalog.schedules[name]
    raise UnknownSchedule(f"no schedule {name!r}; {_known(catalog.schedules, name)}")


def _known(names: Sequence[str] | Mapping[str, Any], name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, names, n=3)
    if near:
        return f"did you mean {', '.join(near)}?"
    return "umbel schedules list shows them" if names else "there are no schedules"


def _check_fires(timing: Timing, now: float) -> None:
    timing.check_fires(now)
    if timing.at is not None and timing.at <= now:
        raise ConfigurationError(f"{timing.describe()}: it has passed; give a time in the future")


def _view(schedule: Schedule, state: ScheduleState | None, now: float) -> ScheduleView:
    following = _next_time(schedule, state, now)
    state = state or _NO_STATE
    condition: Condition = "active" if following is not None else "ended"
    if schedule.is_retired:
        condition = "retired"
    elif schedule.is_paused:
        condition = "paused"
    return ScheduleView(
        name=schedule.name,
        state=condition,
        origin=schedule.origin,
        **_subject(schedule.definition.template),
        plan=schedule.plan,
        defined=schedule.definition.plan,
        changes=schedule.override.changes(),
        changed_by=schedule.override.who or schedule.definition.who,
        reason=schedule.override.reason,
        next=following if condition == "active" else None,
        last=next((one.nominal for one in state.history if not one.missed), None),
        published=state.published,
        missed=state.missed,
        skipped=state.skipped,
        now=now,
    )


def _subject(template: Envelope) -> dict[str, Any]:
    """Return what a job of the schedule runs: a task, or the graph that it publishes."""
    spec = read_node(template.headers.get(NODE_HEADER, "{}"))
    kind = "workflow" if spec.workflow else "canvas" if spec.label else "task"
    return {"task": spec.label or template.subject, "kind": kind}


def _times(schedule: Schedule, first: int | None) -> Iterator[int]:
    """Yield the times of a schedule from this one on."""
    while first is not None:
        yield first
        first = schedule.find_next(first)


def _next_time(schedule: Schedule, state: ScheduleState | None, now: float) -> int | None:
    """Return the time that the leader has stored, if it is of the present plan."""
    if (
        state is not None
        and state.timing == timing_key(schedule.plan)
        and state.next is not None
        and state.next > schedule.override.resumed
    ):
        return state.next
    since = max(now, schedule.since) if state is not None else schedule.since
    return schedule.find_next(int(since))

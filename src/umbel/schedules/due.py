"""Which ticks of a schedule are due: pure, with the store's time as an argument.

A tick that is at most ``GRACE_SECONDS`` old is late and always published: a new leader has to find
it. Older ones are missed; the plan's ``catch_up`` says which of them are published nevertheless.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from umbel.backends.coordination import json_value
from umbel.schedules.definitions import Plan

GRACE_SECONDS = 60
MAX_CAUGHT_UP = 100
"""How many missed ticks ``catch_up="all"`` publishes."""
_MAX_LISTED = 1_000
"""Up to so many due times are computed one by one."""
_MAX_HISTORY = 25

NextAfter = Callable[[int], int | None]


class Firing(msgspec.Struct, frozen=True, array_like=True):
    """A line of a schedule's history."""

    nominal: int
    """The time at which it was due; of several missed ticks, the last one."""
    missed: int = 0
    """How many ticks up to this one were missed and not published; 0: this one was published."""


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the leader has done for one schedule, as it is stored."""

    cursor: int
    """All times up to this one are decided."""
    next: int | None = None
    """The next time. The successor of this leader publishes it even if it computes another one,
    because its data of time zones may differ."""
    timing: str = ""
    """Identifies the timing with which ``next`` was computed."""
    since: float = 0.0
    """When the plan with which it was computed was defined or changed last."""
    published: int = 0
    missed: int = 0
    skipped: int = 0
    skips_in_row: int = 0
    history: tuple[Firing, ...] = ()
    """The last firings, newest first."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do for a schedule now."""

    state: ScheduleState
    publish: tuple[int, ...] = ()
    """The nominal times of the ticks to publish."""
    missed: int = 0
    """How many ticks were missed. Of them, those in ``publish`` are caught up."""
    is_exact: bool = True
    """False: at least so many were missed."""
    set_back: float = 0.0
    """By how many seconds the store's clock was set back; 0 if it was not."""


class Times(msgspec.Struct, frozen=True):
    """Due times: the last missed ones, all late ones, and the next one."""

    missed: list[int]
    late: list[int]
    following: int | None
    count: int
    """How many were missed."""
    is_exact: bool


def timing_key(plan: Plan) -> str:
    """Return what identifies the timing of a plan."""
    return hashlib.sha256(json_value(plan.timing)).hexdigest()[:12]


def decide(
    state: ScheduleState | None,
    plan: Plan,
    find_next: NextAfter,
    *,
    now: float,
    since: float,
    resumed: float = 0.0,
) -> Decision:
    """Return what is due, and the state after it.

    ``since`` is when the plan was defined or changed last; ``resumed`` is when the schedule was
    resumed last. A change of the plan never makes a tick due by itself.
    """
    second, key, set_back = int(now), timing_key(plan), 0.0
    state = state or ScheduleState(
        cursor=int(since), next=find_next(int(since)), timing=key, since=since
    )
    if state.cursor > second + GRACE_SECONDS:
        set_back = state.cursor - now
        state = replace(state, cursor=second, next=find_next(second), timing=key)
    first, base = state.next, state.cursor
    if state.timing != key:
        # An older plan that is in force again, after a rollback, applies from now on.
        base = max(base, int(since) if since >= state.since else second)
        if first is None or first > base:
            first = find_next(base)
    elif first is None:  # an application's calendar may know more times by now
        first = find_next(base)
    if resumed and (first is None or first <= resumed):
        base = max(base, int(resumed))
        first = find_next(base)
    times = _due_times(first, second, plan, _after(find_next, base))
    publish, dropped = _choose(times, plan)
    history = [Firing(nominal) for nominal in reversed(publish)]
    if dropped:
        history.append(Firing(times.missed[-1] if times.missed else second, dropped))
    decided = [*times.missed, *times.late]
    return Decision(
        state=replace(
            state,
            cursor=max([base, *decided]),
            next=times.following,
            timing=key,
            since=since,
            published=state.published + len(publish),
            missed=state.missed + dropped,
            history=(*history, *state.history)[:_MAX_HISTORY],
        ),
        publish=tuple(publish),
        missed=times.count,
        is_exact=times.is_exact,
        set_back=set_back,
    )


def _after(find_next: NextAfter, base: int) -> NextAfter:
    """Return a function that never returns a time at or before ``base``.

    The stored next time may be of the plan before a change, and earlier than that change.
    """
    return lambda instant: find_next(max(instant, base))


def _choose(times: Times, plan: Plan) -> tuple[list[int], int]:
    """Return the times to publish, and how many are dropped."""
    if plan.catch_up == "all":
        caught_up = times.missed[-MAX_CAUGHT_UP:]
    elif plan.catch_up == "last" and not times.late:
        caught_up = times.missed[-1:]
    else:
        caught_up = []
    return [*caught_up, *times.late], times.count - len(caught_up)


def _due_times(first: int | None, now: int, plan: Plan, find_next: NextAfter) -> Times:
    if first is None or first > now:
        return Times([], [], first, 0, True)
    boundary, found = now - GRACE_SECONDS, list[int]()
    following: int | None = first
    while following is not None and following <= now and len(found) < _MAX_LISTED:
        found.append(following)
        following = find_next(following)
    missed = [one for one in found if one < boundary]
    if following is None or following > now:
        late = [one for one in found if one >= boundary]
        return Times(missed, late, following, len(missed), True)
    last, late, following = _last_times(first, now, find_next)
    every = plan.timing.every
    if every is not None:
        return Times(last, late, following, -(-(boundary - first) // every), True)
    return Times(last, late, following, max(len(missed), len(last)), False)


def _last_times(
    first: int, now: int, find_next: NextAfter
) -> tuple[list[int], list[int], int | None]:
    """Return the last missed times, the late ones and the next, without computing all of them."""
    boundary, window = now - GRACE_SECONDS, GRACE_SECONDS
    while True:
        window *= 2
        start = max(now - window, first - 1)
        found: list[int] = []
        following = find_next(start)
        while following is not None and following <= now:
            found.append(following)
            following = find_next(following)
        missed = [one for one in found if one < boundary]
        if len(missed) >= MAX_CAUGHT_UP or start < first:
            return missed[-MAX_CAUGHT_UP:], [one for one in found if one >= boundary], following

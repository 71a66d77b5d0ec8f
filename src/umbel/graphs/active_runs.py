"""Limits how many runs of a workflow are active at once. The others wait in the order of start.

One entry of coordination per workflow has the roots of its active runs. Each run that waits has an
entry of its own: together these are the waiting list. The worker that ends a run makes the first
waiting run active, and then ends the node for which that run waits. Its entry is deleted last, so
the next check completes what a worker that died has begun. A run that waits also checks by itself,
at growing intervals. If it is the first, it removes active runs that have ended in another way, or
were deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from umbel.backends import Put, Roles
from umbel.backends.coordination import json_value
from umbel.errors import Unavailable, UnknownJob
from umbel.messages import Delivery, NodeSpec, Outcome, Snoozed, State, Succeeded
from umbel.messages.nodes import NO_VALUE

_SECTION = "runs/"
_ATTEMPTS = 30
_CONFLICT_SECONDS = 0.2
_PAGE = 50
"""How many waiting runs are read at once."""
_FIRST_CHECK_SECONDS = 5.0
_MAX_CHECK_SECONDS = 300.0


class _Waiting(NamedTuple):
    """A run that waits. The waiting list is in the order of keys."""

    key: str
    root: str
    job: str
    """The node that waits for a place."""
    limit: int


class _Runs(NamedTuple):
    """The runs of a workflow, as far as they were read."""

    active: list[str]
    waiting: list[_Waiting]
    revision: int
    """The revision of the entry with the active runs."""
    more: bool
    """Whether more runs wait."""


async def take_place(roles: Roles, delivery: Delivery, spec: NodeSpec, root: str) -> Outcome:
    """Return the outcome of the node that waits until its run may be active."""
    workflow, checks = spec.label, delivery.lease.fence
    key = f"{_prefix(workflow)}line/{delivery.envelope.created:017.6f}/{root}"
    own = _Waiting(key, root, delivery.lease.job, spec.limit)
    runs = await _read(roles, workflow)
    is_free = not runs.waiting and root not in runs.active and len(runs.active) < spec.limit
    if is_free and await _commit(roles, workflow, runs, [*runs.active, root]):
        return await _begin(roles, workflow, root)
    if not await _is_waiting(roles, own, runs, checks):
        await roles.coordination.commit({}, [Put(key, json_value([root, own.job, own.limit]))])
    ended = await _find_ended(roles, workflow, own)
    has_place, is_known = await _let_begin(roles, workflow, ended, own)
    if has_place and (is_known or not ended):
        return await _begin(roles, workflow, root)
    return Snoozed(_CONFLICT_SECONDS if has_place else _seconds_to_next_check(checks, own.job))


async def _begin(roles: Roles, workflow: str, root: str) -> Outcome:
    """Return the outcome of the node of an active run, which may have been cancelled meanwhile."""
    if await _has_ended(roles, root):
        await end_run(roles, workflow, root)
    return Succeeded(NO_VALUE)


async def end_run(roles: Roles, workflow: str, root: str) -> bool:
    """Let the next runs begin after one that has ended.

    Return False if it has to be called again: a worker checks one of them now.
    """
    return (await _let_begin(roles, workflow, {root}))[1]


async def _let_begin(
    roles: Roles, workflow: str, ended: set[str], own: _Waiting | None = None
) -> tuple[bool, bool]:
    """Make runs of the line active while there are places, and end the nodes for which they wait.

    Return whether the run ``own``, which checks now, is active, and whether all others know it.
    """
    for _ in range(_ATTEMPTS):
        runs = await _read(roles, workflow)
        active = [one for one in runs.active if one not in ended]
        begun, gone, is_full = list[_Waiting](), list[str](), False
        for one in runs.waiting:
            if one.root in active:
                begun.append(one)  # an earlier call has not come further
            elif is_full := len(active) >= one.limit:
                break
            elif one.root in ended or await _has_ended(roles, one.job):
                gone.append(one.key)
            else:
                active.append(one.root)
                begun.append(one)
        is_changed = bool(gone) or active != runs.active
        if is_changed and not await _commit(roles, workflow, runs, active, gone):
            continue
        states = [State.SUCCEEDED if one == own else await _wake(roles, one) for one in begun]
        known = [one.key for one, state in zip(begun, states, strict=True) if state.finished]
        if known:
            await roles.coordination.commit({}, deletes=known)
        lost = {
            one.root
            for one, state in zip(begun, states, strict=True)
            if state.finished and state is not State.SUCCEEDED
        }
        ended = ended | lost
        # A run that began to wait meanwhile has found no place, so read again.
        if not lost and (is_full or not is_changed):
            has_place = own is not None and own.root in active
            return has_place, all(state.finished for state in states)
    return False, False


async def _find_ended(roles: Roles, workflow: str, own: _Waiting) -> set[str]:
    """Return the active runs that have ended, if ``own`` is the first that waits, else none."""
    while True:
        runs = await _read(roles, workflow)
        gone = list[str]()
        is_first = False
        for one in runs.waiting:
            if is_first := one == own:
                break
            if one.root not in runs.active:
                if not await _has_ended(roles, one.job):
                    break
                gone.append(one.key)
        if gone:
            await roles.coordination.commit({}, deletes=gone)
        if is_first and len(runs.active) >= own.limit:
            return {one for one in runs.active if await _has_ended(roles, one)}
        if is_first or len(gone) < len(runs.waiting) or not runs.more:
            return set()


async def count_run(roles: Roles, workflow: str, root: str) -> None:
    """Count a run as active, whatever the limit is, because an operator continues it."""
    for _ in range(_ATTEMPTS):
        runs = await _read(roles, workflow)
        if root in runs.active or await _commit(roles, workflow, runs, [*runs.active, root]):
            return
    raise Unavailable(f"active runs of workflow {workflow} change all the time; try again")


async def _read(roles: Roles, workflow: str) -> _Runs:
    page = await roles.coordination.read(_prefix(workflow), limit=_PAGE)
    entries, active, revision = [*page.entries], list[str](), 0
    if entries and entries[0].key == f"{_prefix(workflow)}active":
        entry = entries.pop(0)
        active, revision = msgspec.json.decode(entry.value, type=list[str]), entry.revision
    waiting = [
        _Waiting(one.key, *msgspec.json.decode(one.value, type=tuple[str, str, int]))
        for one in entries
    ]
    return _Runs(active, waiting, revision, page.more)


async def _commit(
    roles: Roles,
    workflow: str,
    runs: _Runs,
    active: Sequence[str],
    gone: Sequence[str] = (),
) -> bool:
    """Store the active runs, unless they have changed meanwhile, and delete these waiting runs."""
    key = f"{_prefix(workflow)}active"
    puts = [Put(key, json_value(active))] if active else []
    deletes = gone if active else [*gone, key]
    return await roles.coordination.commit({key: runs.revision}, puts, deletes) is not None


async def _wake(roles: Roles, one: _Waiting) -> State:
    """End the node that waits for a place. Return its state, which a worker may have changed."""
    if await roles.joins.resolve(one.job, Succeeded(NO_VALUE)):
        return State.SUCCEEDED
    try:
        return (await roles.records.find(one.job)).state
    except UnknownJob:
        return State.CANCELLED


async def _has_ended(roles: Roles, job: str) -> bool:
    try:
        return (await roles.records.find(job)).state.finished
    except UnknownJob:
        return True


async def _is_waiting(roles: Roles, own: _Waiting, runs: _Runs, checks: int) -> bool:
    if not runs.more or checks == 1:
        return own in runs.waiting
    return own in runs.waiting or bool((await roles.coordination.read(own.key, limit=1)).entries)


def _prefix(workflow: str) -> str:
    """Return how keys of a workflow begin. No other workflow's keys do, whatever its name is."""
    return f"{_SECTION}{workflow.replace('%', '%25').replace('/', '%2F')}/"


def _seconds_to_next_check(checks: int, job: str) -> float:
    """Return the seconds until a run checks again. They differ, so not all check at once."""
    seconds = min(_FIRST_CHECK_SECONDS * (1 << min(checks - 1, 20)), _MAX_CHECK_SECONDS)
    return seconds * (0.5 + int(job[-4:], 16) / 0x20000)

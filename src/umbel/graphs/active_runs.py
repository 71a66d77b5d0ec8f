"""Limits how many runs of a workflow are active at once. The others wait in the order of start.

One entry of coordination per workflow has the roots of its active runs. Each run that waits has an
entry of its own in the line behind them. The worker that ends a run makes the first of the line
active, and then ends the node for which that run waits. The entry leaves the line last, so the root
completes that, if its worker dies in between and it runs again. A run that waits looks by itself,
too, at growing intervals. If it is the first of the line, it removes active runs that have ended in
another way, or were deleted.
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
"""How many runs of the line are read at once."""
_FIRST_CHECK_SECONDS = 5.0
_MAX_CHECK_SECONDS = 300.0


class _Waiting(NamedTuple):
    """A run in the line, which is in the order of keys."""

    key: str
    root: str
    job: str
    """The node that waits for a place."""
    limit: int


class _Runs(NamedTuple):
    """The runs of a workflow, as far as they were read."""

    active: list[str]
    line: list[_Waiting]
    revision: int
    """The revision of the entry with the active runs."""
    more: bool
    """Whether the line goes on."""


async def take_place(roles: Roles, delivery: Delivery, spec: NodeSpec, root: str) -> Outcome:
    """Return the outcome of the node that waits until its run may be active."""
    workflow, looks = spec.label, delivery.lease.fence
    key = f"{_prefix(workflow)}line/{delivery.envelope.created:017.6f}/{root}"
    own = _Waiting(key, root, delivery.lease.job, spec.limit)
    for _ in range(_ATTEMPTS):
        runs = await _read(roles, workflow)
        if root in runs.active:
            await roles.coordination.commit({}, deletes=[key])
            return Succeeded(NO_VALUE)
        active, dead = runs.active, list[str]()
        line = [one for one in runs.line if one.root not in active]
        if not runs.more or own < runs.line[-1]:
            line = sorted({*line, own})
        while line and line[0] != own and await _has_ended(roles, line[0].job):
            dead.append(line.pop(0).key)
        is_first = line[:1] == [own]
        if is_first and len(active) >= spec.limit:
            active = [one for one in active if not await _has_ended(roles, one)]
        if is_first and len(active) < spec.limit:
            if not await _commit(roles, workflow, runs, [*active, root], deletes=[*dead, key]):
                continue
            if line[1:] and len(active) + 1 < line[1].limit:  # several had ended in another way
                await end_run(roles, workflow, "")
            return Succeeded(NO_VALUE)
        puts = [] if await _is_in_line(roles, own, runs, looks) else [Put(key, _value(own))]
        # It also writes the active runs again: whoever ends one now has to see this run.
        is_new = puts or dead or active != runs.active
        if not is_new or await _commit(roles, workflow, runs, active, puts, dead):
            return Snoozed(_next_look(looks, own.job))
    return Snoozed(_CONFLICT_SECONDS)


async def end_run(roles: Roles, workflow: str, root: str) -> bool:
    """Let the next runs begin after one that has ended. It may be called again.

    Return False if it has to be called again: a worker looks at one of them now.
    """
    ended = {root}
    for _ in range(_ATTEMPTS):
        runs = await _read(roles, workflow)
        active = [one for one in runs.active if one not in ended]
        begun, gone = list[_Waiting](), list[str]()
        for one in runs.line:
            if one.root in active:
                begun.append(one)  # an earlier call has not come further
            elif len(active) >= one.limit:
                break
            elif one.root in ended or await _has_ended(roles, one.job):
                gone.append(one.key)
            else:
                active.append(one.root)
                begun.append(one)
        is_changed = gone or active != runs.active
        if is_changed and not await _commit(roles, workflow, runs, active, deletes=gone):
            continue
        states = [await _wake(roles, one) for one in begun]
        known = [one.key for one, state in zip(begun, states, strict=True) if state.finished]
        if known:
            await roles.coordination.commit({}, deletes=known)
        lost = {
            one.root
            for one, state in zip(begun, states, strict=True)
            if state.finished and state is not State.SUCCEEDED
        }
        ended |= lost
        if not lost and not (runs.more and len(begun) + len(gone) == len(runs.line)):
            return all(state.finished for state in states)
    return False


async def count_run(roles: Roles, workflow: str, root: str) -> None:
    """Count a run as active, whatever the limit is: an operator lets it go on."""
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
    line = [
        _Waiting(one.key, *msgspec.json.decode(one.value, type=tuple[str, str, int]))
        for one in entries
    ]
    return _Runs(active, line, revision, page.more)


async def _commit(
    roles: Roles,
    workflow: str,
    runs: _Runs,
    active: Sequence[str],
    puts: Sequence[Put] = (),
    deletes: Sequence[str] = (),
) -> bool:
    """Store active runs and a change of the line, unless the active runs have changed meanwhile."""
    key = f"{_prefix(workflow)}active"
    if active:
        puts = [*puts, Put(key, json_value(active))]
    else:
        deletes = [*deletes, key]
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


async def _is_in_line(roles: Roles, own: _Waiting, runs: _Runs, looks: int) -> bool:
    if not runs.more or looks == 1:
        return own in runs.line
    return own in runs.line or bool((await roles.coordination.read(own.key, limit=1)).entries)


def _prefix(workflow: str) -> str:
    """Return how keys of a workflow begin. No other workflow's keys do, whatever its name is."""
    return f"{_SECTION}{workflow.replace('%', '%25').replace('/', '%2F')}/"


def _value(one: _Waiting) -> bytes:
    return json_value([one.root, one.job, one.limit])


def _next_look(looks: int, job: str) -> float:
    """Return the seconds until it looks again: not all runs look at the same time."""
    seconds = min(_FIRST_CHECK_SECONDS * (1 << min(looks - 1, 20)), _MAX_CHECK_SECONDS)
    return seconds * (0.75 + int(job[-4:], 16) / 0x20000)

"""The schedules of a namespace: entries in the section ``schedules/``, merged.

========================================= ======================================================
``schedules/code/<name>/<fingerprint>``   a declaration in code; its revision orders them
``schedules/live/<hash>``                 which declarations the running workers have; under a lease
``schedules/times/<name>/<fingerprint>``  the next times of a calendar that a worker has computed
``schedules/added/<name>``                a schedule that an operator has added
``schedules/edits/<name>``                what an operator has changed
``schedules/version``                     written by every change, so that the leader can check it
``schedule-states/<name>``                what the leader has done; a section of its own
========================================= ======================================================

Of the declarations of running workers, the one that was first seen last is in force. After a
rollback, only the older one is left and is in force again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

import msgspec

from umbel.backends import Coordination, Entry
from umbel.errors import ConfigurationError
from umbel.schedules.definitions import Definition, Override, Plan
from umbel.schedules.due import NextAfter, ScheduleState
from umbel.schedules.timing import next_function

SCHEDULES = "schedules/"
VERSION = SCHEDULES + "version"
CODE = SCHEDULES + "code/"
LIVE = SCHEDULES + "live/"
TIMES = SCHEDULES + "times/"
ADDED = SCHEDULES + "added/"
EDITS = SCHEDULES + "edits/"
STATES = "schedule-states/"

RETIRE_SECONDS = 600.0
"""A schedule that no running worker has declared for so long is retired."""
FRESH_SECONDS = 35.0
"""A declaration that was not renewed for so long is not one of a running worker."""
_MAX_READS = 5

T = TypeVar("T")


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule with an operator's changes."""

    name: str
    definition: Definition
    origin: Literal["code", "operator"]
    override: Override = Override()
    plan: Plan
    """The plan in force."""
    is_retired: bool = False
    """Whether no worker has declared it for ten minutes."""
    times: tuple[int, ...] = ()
    """With a calendar: the times that a worker has computed."""

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused it."""
        return self.override.paused

    @property
    def since(self) -> float:
        """When it was defined or changed last."""
        return max(self.definition.since, self.override.since)

    @property
    def find_next(self) -> NextAfter:
        """The function that returns the first time after an instant."""
        if self.plan.timing.calendar is None:
            return next_function(self.plan.timing)
        times = self.times

        def find(instant: int) -> int | None:
            place = bisect_right(times, instant)
            return times[place] if place < len(times) else None

        return find


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """All schedules at one moment."""

    schedules: Mapping[str, Schedule]
    revision: int
    """The revision of the section, for ``changed``."""
    version: int
    """The revision of the entry ``VERSION``; 0 if it is absent."""
    now: float
    unreadable: Mapping[str, str] = {}
    """Errors of entries that cannot be read, by key."""
    undeclared: frozenset[str] = frozenset()
    """Keys of declarations that no worker has made for ten minutes."""


async def read_all(coordination: Coordination, prefix: str) -> tuple[list[Entry], int, float]:
    """Return all entries of a prefix, its revision, and the store's time."""
    reads = 0
    while True:
        page = await coordination.read(prefix)
        entries, revision, reads = [*page.entries], page.revision, reads + 1
        while page.more:
            page = await coordination.read(prefix, after=page.entries[-1].key)
            entries += page.entries
        if page.revision == revision or reads == _MAX_READS:
            return entries, revision, page.now


async def read_catalog(coordination: Coordination) -> Catalog:
    """Return all schedules."""
    entries, revision, now = await read_all(coordination, SCHEDULES)
    return _Reader(entries).catalog(revision, now)


async def read_states(coordination: Coordination) -> dict[str, ScheduleState]:
    """Return what leaders have done, by the names of schedules. Unreadable states are left out."""
    entries, _, _ = await read_all(coordination, STATES)
    found = ((one.key.removeprefix(STATES), decode(one.value, ScheduleState)) for one in entries)
    return {name: state for name, state in found if not isinstance(state, str)}


def decode(value: bytes, kind: type[T]) -> T | str:
    """Return a value, or the error as text."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigurationError) as error:
        return str(error)


def is_fresh(entry: Entry) -> bool:
    """Whether a running worker has renewed this entry."""
    return entry.left is None or entry.left > RETIRE_SECONDS - FRESH_SECONDS


class _Reader:
    """Sorts entries by kind and merges them."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._unreadable: dict[str, str] = {}
        self._version = 0
        self._code: dict[str, list[Entry]] = {}
        self._live: dict[str, bool] = {}
        """The declarations that workers have made, and whether they run."""
        self._added: dict[str, Definition] = {}
        self._overrides: dict[str, Override] = {}
        self._times: dict[str, tuple[int, ...]] = {}
        for entry in entries:
            self._sort(entry)

    def _sort(self, entry: Entry) -> None:
        key = entry.key
        if key == VERSION:
            self._version = entry.revision
        elif key.startswith(CODE):
            self._code.setdefault(key.removeprefix(CODE).rpartition("/")[0], []).append(entry)
        elif key.startswith(LIVE):
            for one in self._decode(entry, list[str]) or ():
                self._live[one] = self._live.get(one, False) or is_fresh(entry)
        elif key.startswith(ADDED) and (added := self._decode(entry, Definition)):
            self._added[key.removeprefix(ADDED)] = added
        elif key.startswith(EDITS) and (override := self._decode(entry, Override)):
            self._overrides[key.removeprefix(EDITS)] = override
        elif key.startswith(TIMES):
            self._times[key.removeprefix(TIMES)] = self._decode(entry, tuple[int, ...]) or ()

    def _decode(self, entry: Entry, kind: type[T]) -> T | None:
        found = decode(entry.value, kind)
        if isinstance(found, str):
            self._unreadable[entry.key] = found
            return None
        return found

    def catalog(self, revision: int, now: float) -> Catalog:
        names = sorted({*self._code, *self._added})
        found = {name: one for name in names if (one := self._merge(name)) is not None}
        undeclared = {
            entry.key
            for entries in self._code.values()
            for entry in entries
            if entry.key.removeprefix(CODE) not in self._live
        }
        return Catalog(
            schedules=found,
            revision=revision,
            version=self._version,
            now=now,
            unreadable=self._unreadable,
            undeclared=frozenset(undeclared),
        )

    def _merge(self, name: str) -> Schedule | None:
        override = self._overrides.get(name, Override())
        definition, retired = self._added.get(name), False
        times: tuple[int, ...] = ()
        origin: Literal["code", "operator"] = "operator"
        if definition is None:
            origin, entry = "code", max(self._code.get(name, ()), key=self._rank)
            definition = self._decode(entry, Definition)
            declaration = entry.key.removeprefix(CODE)
            retired, times = declaration not in self._live, self._times.get(declaration, ())
        if definition is None:
            return None
        try:
            plan = override.apply(definition.plan)
        except ConfigurationError as error:  # the code has changed since the operator's edit
            self._unreadable[EDITS + name] = str(error)
            plan, override = definition.plan, Override(paused=override.paused)
        return Schedule(
            name=name,
            definition=definition,
            origin=origin,
            override=override,
            plan=plan,
            is_retired=retired,
            times=times,
        )

    def _rank(self, entry: Entry) -> tuple[bool, bool, int]:
        declaration = entry.key.removeprefix(CODE)
        is_live = self._live.get(declaration, False)
        return is_live, declaration in self._live, entry.revision

"""The role that knows which workers live.

A worker is alive as long as its row is there. It beats; whoever watches the beats and sees one
stand still for a whole lease, by the watcher's own monotonic clock, removes the row. So no two
machines' clocks are ever compared, and a jump of the wall clock kills nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec


class WorkerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself when it starts a life."""

    incarnation: str
    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    io: int
    cpu: int
    lease: float
    tasks: tuple[str, ...] = ()
    interruptible: tuple[str, ...] = ()
    """Which of them may be stopped anywhere and run again."""
    code: dict[str, str] = {}
    """What code each of them is made of, see ``tasks.fingerprints``."""
    python: str = ""
    """The version those are comparable within."""
    index: int | None = None
    """Its seat: the one it asks for, or was given."""
    former: tuple[str, ...] = ()
    """Earlier incarnations of this process that it was alive after: see ``Registry.enlist``."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A living worker as others see it."""

    entry: WorkerEntry
    beat: int
    age: float
    """Seconds since it began, by the store's clock."""
    silent: float
    """Seconds since its last beat, by the store's clock. For people: beats tell who is dead."""
    running: int = 0
    epoch: int = 0
    """The control epoch it has confirmed: nothing paused up to then is fetched by it."""
    stopping: bool = False


def read_members(rows: Iterable[Sequence[Any]]) -> list[Member]:
    """Members from rows of ``members``, but for those that no worker wrote."""
    return [
        Member(
            entry=entry,
            beat=beat,
            age=age,
            silent=silent,
            running=running,
            epoch=epoch,
            stopping=bool(stopping),
        )
        for text, beat, age, silent, running, epoch, stopping in rows
        if (entry := _entry(text)) is not None
    ]


def _entry(text: str) -> WorkerEntry | None:
    try:
        return msgspec.json.decode(text, type=WorkerEntry)
    except (ValueError, RecursionError):
        return None


HEARD_LONGER = 3600.0
"""Seconds for which a message is remembered beyond its end: clocks differ."""


class Hearing(StrEnum):
    """What is known of a message to one worker."""

    FIRST = "first"
    """It is heard now, and was not before."""
    AGAIN = "again"
    """This very job was heard before: its worker died, its run failed, it was given back."""
    COPY = "copy"
    """Another job of this id was heard before: somebody sends the message a second time."""
    LATE = "late"
    """It was not heard before, and may not be any more. Nothing is noted."""


class Registry(Protocol):
    """Enlists workers and hears their hearts."""

    async def enlist(self, worker: WorkerEntry) -> int:
        """Begin a life. Durable before the worker claims anything. Safe to repeat.

        ``worker.former`` names incarnations whose leases lapsed while their process was alive. What
        was counted as their death, or will be, is taken back once and counted as a lapse. A job
        that was buried because of such a death is queued again, unless it may die only once. This
        is known for a day.

        Returns its index: the one it asks for, else the one that is kept for its name, else the
        lowest that is free.

        Raises:
            IndexTaken: a living worker of another name has the index.
        """

    async def beat(self, incarnation: str, *, running: int, epoch: int, stopping: bool) -> bool:
        """One heartbeat. False when the worker is not enlisted any more: it has lost its leases."""

    async def members(self) -> list[Member]:
        """All living workers."""

    async def remove(self, incarnation: str, beat: int) -> bool:
        """End a life that stood still at ``beat``. False when it has beaten since."""

    async def leave(self, incarnation: str) -> None:
        """End one's own life, when everything held is settled. Safe to repeat."""

    async def witness(self, messages: Mapping[str, float]) -> dict[str, Hearing]:
        """Note that messages to one worker were heard; was each heard before?

        Each is known by its job's id and comes with the moment until which it may be heard, by
        the store's clock. Durable when it returns: the job is marked as heard, and its id is known
        until that moment at least, whatever becomes of the job. Safe to repeat.
        """

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""

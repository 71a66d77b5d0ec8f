"""The event log of each process: one file per process, one unbuffered append per event."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

CLOCK_OFFSET = "CHAOS_CLOCK_OFFSET"
"""The environment variable that holds the machine's wall time minus its monotonic time."""


def clock_offset() -> float:
    """Return the offset from the environment, or this machine's own."""
    return float(os.environ.get(CLOCK_OFFSET) or time.time() - time.monotonic())


def real_time() -> float:
    """Return the machine's wall time, even in a process whose wall clock is set wrong."""
    return _OFFSET + time.monotonic()


_OFFSET = clock_offset()


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event, as recorded by the process that caused it."""

    at: float
    """The machine's wall time, which all processes and the database share."""
    what: str
    job: str = ""
    fence: int = 0
    owner: str = ""
    pid: int = 0
    clock: float = 0.0
    """The time according to the process's own clock."""
    kind: str = ""
    note: str = ""
    until: float | None = None
    """When the job expires."""
    due: float | None = None
    """When the job may start."""


class EventLog:
    """Appends events. A kill loses no written event, and no event is written in part."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self._folder = folder
        self._name = name
        self._opened: tuple[int, int] | None = None

    def write(
        self,
        what: str,
        *,
        job: str = "",
        fence: int = 0,
        owner: str = "",
        pid: int = 0,
        kind: str = "",
        note: str = "",
        until: float | None = None,
        due: float | None = None,
    ) -> None:
        me = os.getpid()
        if self._opened is None or self._opened[0] != me:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._opened = (me, os.open(self._folder / f"{self._name}{me}.events", flags, 0o600))
        event = Event(
            at=real_time(),
            what=what,
            job=job,
            fence=fence,
            owner=owner,
            pid=pid or me,
            clock=time.time(),
            kind=kind,
            note=note,
            until=until,
            due=due,
        )
        os.write(self._opened[1], msgspec.json.encode(event) + b"\n")


def read(folder: Path, pattern: str = "*.events") -> list[Event]:
    """Return all events of all processes, in the order of the machine's clock."""
    return sorted(_events(folder, pattern), key=lambda event: event.at)


def _events(folder: Path, pattern: str) -> Iterator[Event]:
    for file in folder.glob(pattern):
        for text in file.read_bytes().splitlines(keepends=True):
            if text.endswith(b"\n"):
                yield msgspec.json.decode(text, type=Event)

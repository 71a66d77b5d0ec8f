"""What processes write down of themselves: one file each, one unbuffered append a line."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

CLOCK_OFFSET = "CHAOS_CLOCK_OFFSET"
"""Names the environment variable with the machine's wall time minus its monotonic time."""


def clock_offset() -> float:
    """What this process was told, or the machine's own."""
    return float(os.environ.get(CLOCK_OFFSET) or time.time() - time.monotonic())


def real_time() -> float:
    """The machine's wall time, also in a process whose wall clock is wrong on purpose."""
    return _OFFSET + time.monotonic()


_OFFSET = clock_offset()


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened, as the process saw it that did it."""

    at: float
    """The machine's wall time, which all processes and the database share."""
    what: str
    job: str = ""
    fence: int = 0
    owner: str = ""
    pid: int = 0
    clock: float = 0.0
    """What the process itself believes the time to be."""
    kind: str = ""
    note: str = ""
    until: float | None = None
    """When the job expires."""
    due: float | None = None
    """When the job may start."""


class Diary:
    """Appends lines. A kill loses none that was written, and no line is written in halves."""

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
            self._opened = (me, os.open(self._folder / f"{self._name}{me}.diary", flags, 0o600))
        line = Line(
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
        os.write(self._opened[1], msgspec.json.encode(line) + b"\n")


def read(folder: Path, pattern: str = "*.diary") -> list[Line]:
    """Every line of every process, in the order of the machine's clock."""
    return sorted(_lines(folder, pattern), key=lambda line: line.at)


def _lines(folder: Path, pattern: str) -> Iterator[Line]:
    for file in folder.glob(pattern):
        for text in file.read_bytes().splitlines(keepends=True):
            if text.endswith(b"\n"):
                yield msgspec.json.decode(text, type=Line)

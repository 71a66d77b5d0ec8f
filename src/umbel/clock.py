"""The only module that reads the time. Pure packages take ``now`` as an argument.

Owns: wall-clock time and monotonic time. Called by: the composition root, which passes it on.
Never: sleeps or schedules, or is called at import time.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """``now`` is for people and can jump; ``monotonic`` is for leases and never jumps."""

    def now(self) -> float:
        """Return seconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary point; only differences are meaningful."""


class SystemClock:
    """The clock of the machine."""

    __slots__ = ()

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def iso_time(seconds: float | None) -> str | None:
    """Return ISO 8601 in UTC, for programs; None for a time that no calendar has."""
    if seconds is None:
        return None
    try:
        when = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return when.isoformat(timespec="milliseconds")[:-6] + "Z"

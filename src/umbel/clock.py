"""The only place that reads the time. Rooms that decide things take ``now`` as an argument.

Owns: wall time and monotonic time. Called by: the composition root, which hands it down.
Never: sleeps, schedules, or is imported to be called at module level.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings: ``now`` can jump and is for people; ``monotonic`` never jumps, for leases."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds since some fixed point; only differences mean anything."""


class SystemClock:
    """The machine's own clock."""

    __slots__ = ()

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

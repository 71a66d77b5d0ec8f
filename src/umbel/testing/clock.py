"""Clocks for tests: one that can be moved, and clocks that are wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import cycle
from math import inf
from zlib import crc32


class FakeClock:
    """The machine's clock plus the time by which it was advanced. It can also be stopped.

    It runs by default, because adapters measure real waits with it: a ``fetch`` that waits on a
    stopped clock waits for ever.
    """

    __slots__ = ("_ahead", "_stopped_at")

    def __init__(self) -> None:
        self._ahead = 0.0
        self._stopped_at: tuple[float, float] | None = None

    def now(self) -> float:
        return self._readings()[0] + self._ahead

    def monotonic(self) -> float:
        return self._readings()[1] + self._ahead

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        if seconds < 0:
            raise ValueError(f"seconds={seconds}: time only goes forward")
        self._ahead += seconds

    def stop(self) -> None:
        """Stop the clock. From now on only ``advance`` moves it."""
        self._stopped_at = self._readings()

    def _readings(self) -> tuple[float, float]:
        return self._stopped_at or (time.time(), time.monotonic())


class VirtualClock:
    """The machine's clock plus the time by which it was advanced, as jobs see it.

    Monotonic time is the machine's: moving the clock does not end a wait that is in progress.
    """

    __slots__ = ("_ahead",)

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        return time.time() + self._ahead

    def monotonic(self) -> float:
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        if not 0 <= seconds < inf:
            raise ValueError(f"seconds={seconds}: time only goes forward; give 0 or more")
        self._ahead += seconds


OFFSETS = (-30 * 86_400.0, 86_400.0, -86_400.0, 30 * 86_400.0)
"""Seconds by which the wrong clocks of the suites are ahead of the right one."""


class WrongClock:
    """The machine's clock with a wrong wall time. Monotonic time is correct."""

    __slots__ = ("_ahead",)

    def __init__(self, ahead: float) -> None:
        self._ahead = ahead

    def now(self) -> float:
        return time.time() + self._ahead

    def monotonic(self) -> float:
        return time.monotonic()


def wrong_clocks(test: str) -> Iterator[WrongClock]:
    """Return wrong clocks for the processes of a test whose store has its own clock.

    No two successive clocks are equal. A test of the same name always gets the same clocks.
    """
    first = crc32(test.encode()) % len(OFFSETS)
    return cycle([WrongClock(ahead) for ahead in OFFSETS[first:] + OFFSETS[:first]])

"""Clocks for tests: one that can be moved, and some that are wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import cycle
from zlib import crc32


class FakeClock:
    """Runs like the machine's clock, ahead of it by what it was advanced; or stands still.

    It runs by default, because adapters measure real waits with it: a ``fetch`` that waits on a
    clock that stands still waits for ever.
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
        """Let so much time pass at once."""
        if seconds < 0:
            raise ValueError(f"seconds={seconds}: time only goes forward")
        self._ahead += seconds

    def stop(self) -> None:
        """Stand still from now on, except for ``advance``."""
        self._stopped_at = self._readings()

    def _readings(self) -> tuple[float, float]:
        return self._stopped_at or (time.time(), time.monotonic())


OFFSETS = (-30 * 86_400.0, 86_400.0, -86_400.0, 30 * 86_400.0)
"""Seconds by which the wrong clocks of the suites are ahead of the right one."""


class WrongClock:
    """The machine's clock, wrong by so many seconds. Monotonic time is as it should be."""

    __slots__ = ("_ahead",)

    def __init__(self, ahead: float) -> None:
        self._ahead = ahead

    def now(self) -> float:
        return time.time() + self._ahead

    def monotonic(self) -> float:
        return time.monotonic()


def wrong_clocks(test: str) -> Iterator[WrongClock]:
    """Clocks for the processes of a test whose store has a clock of its own: all of them wrong, and
    no two that follow each other alike. A test of one name always gets the same ones."""
    first = crc32(test.encode()) % len(OFFSETS)
    return cycle([WrongClock(ahead) for ahead in OFFSETS[first:] + OFFSETS[:first]])

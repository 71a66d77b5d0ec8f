"""A clock that tests can move."""

from __future__ import annotations

import time


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

"""Rate limits, as plain numbers that any store can keep."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

SLACK = 0.01
"""A share of the period: the limiter is slower than the requested rate by this much."""
CREDIT = 0.9 * SLACK
"""A share of the period: how much may be made up for after a late check. It is less than the slack,
so no period ever has more than the rate allows."""


class Pace(msgspec.Struct, frozen=True):
    """Several rates at once, each a count and a period in seconds, with bursts of ``burst``.

    The state is ``paces``: for each rate, the time at which the next job is due (GCRA).
    """

    rates: tuple[tuple[int, float], ...]
    burst: int = 1

    def allowed(self, paces: Sequence[float], now: float) -> int:
        """Return how many may start now."""
        return min(self._allowed(*one, now) for one in self._each(paces))

    def spent(self, paces: Sequence[float], now: float, many: int) -> list[float]:
        """Return the paces after ``many`` have started."""
        return [
            _start(rate, pace, now) + many * _step(rate) if many else pace
            for rate, pace in self._each(paces)
        ]

    def next_time(self, paces: Sequence[float]) -> float:
        """Return the time at which the next one may start."""
        return max(pace - (self.burst - 1) * _step(rate) for rate, pace in self._each(paces))

    def _each(self, paces: Sequence[float]) -> list[tuple[tuple[int, float], float]]:
        known = [*paces, *([0.0] * len(self.rates))]
        return list(zip(self.rates, known, strict=False))

    def _allowed(self, rate: tuple[int, float], pace: float, now: float) -> int:
        step = _step(rate)
        ahead = now + (self.burst - 1) * step - _start(rate, pace, now)
        return int(ahead // step) + 1 if ahead >= 0 else 0


def _step(rate: tuple[int, float]) -> float:
    count, period = rate
    return period / count * (1 + SLACK)


def _start(rate: tuple[int, float], pace: float, now: float) -> float:
    return max(pace, now - CREDIT * rate[1])

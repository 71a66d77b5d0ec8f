"""How often something may happen, as plain numbers that any store can keep."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

SLACK = 0.01
"""A share of the period: a pace is slower by this much than what was asked for."""
CREDIT = 0.9 * SLACK
"""A share of the period: so much may be caught up when a look came late. It is less than the slack,
so no period ever sees more than it may, and the rate is kept."""


class Pace(msgspec.Struct, frozen=True):
    """Several rates at once, each so many in so many seconds, and ``burst`` at the same moment.

    All that is to be remembered is ``paces``: for each rate the moment at which it is next in step.
    """

    rates: tuple[tuple[int, float], ...]
    burst: int = 1

    def allowed(self, paces: Sequence[float], now: float) -> int:
        """How many may go now."""
        return min(self._allowed(*one, now) for one in self._each(paces))

    def spent(self, paces: Sequence[float], now: float, many: int) -> list[float]:
        """The paces after so many have gone."""
        return [
            _start(rate, pace, now) + many * _step(rate) if many else pace
            for rate, pace in self._each(paces)
        ]

    def next_time(self, paces: Sequence[float]) -> float:
        """When the next one may go."""
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

"""Whether a series of samples grows: Theil–Sen, and the bound above which it counts as a leak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

_POINTS = 240
_BARS = "▁▂▃▄▅▆▇█"

Point = tuple[float, float]
"""Seconds since the beginning, and the value."""


@dataclass(frozen=True)
class Bound:
    """What counts as a leak of one resource."""

    noise: float
    """Growth that a run without a leak may show by chance, however short it is."""
    an_hour: float
    """Growth per hour that is acceptable."""

    def over(self, hours: float) -> float:
        """The slope an hour above which a run of this length shows a leak."""
        return max(self.an_hour, self.noise / hours)


@dataclass(frozen=True)
class Verdict:
    """The result for one series."""

    first: float
    last: float
    slope: float
    """An hour."""
    bound: float

    @property
    def leaks(self) -> bool:
        return self.slope > self.bound


def judge(points: Sequence[Point], bound: Bound, warm_up: float) -> Verdict:
    """Return the verdict on the samples after the warm-up."""
    steady = [point for point in points if point[0] >= warm_up]
    hours = (steady[-1][0] - steady[0][0]) / 3600
    slope = theil_sen(_thinned(steady)) * 3600
    return Verdict(steady[0][1], steady[-1][1], slope, bound.over(hours))


def theil_sen(points: Sequence[Point]) -> float:
    """Return the median slope of all pairs of points. A spike or sawtooth does not change it."""
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 > x1]
    return median(slopes) if slopes else 0.0


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Few enough points for all pairs of them: medians of neighbours."""
    size = -(-len(points) // _POINTS)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [(median(x for x, _ in group), median(y for _, y in group)) for group in groups]


def spark(values: Sequence[float], width: int = 30) -> str:
    """The series as a row of bars."""
    size = -(-len(values) // width)
    shown = [median(values[at : at + size]) for at in range(0, len(values), size)]
    low, high = min(shown), max(shown)
    step = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join(_BARS[round((value - low) / step)] for value in shown)


def drawing(series: dict[str, Sequence[Point]], verdicts: dict[str, Verdict]) -> str:
    """All series as one SVG, a row each."""
    rows = [
        _row(name, points, verdicts[name], at) for at, (name, points) in enumerate(series.items())
    ]
    height = 60 * len(rows) + 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{height}"'
    return "\n".join([f'{head} font-family="sans-serif" font-size="12">', *rows, "</svg>\n"])


def _row(name: str, points: Sequence[Point], verdict: Verdict, at: int) -> str:
    top, colour = 60 * at + 10, "#c0392b" if verdict.leaks else "#2c7a4b"
    values = [value for _, value in points]
    low, high, end = min(values), max(values), points[-1][0] or 1.0
    scale = (high - low) or 1.0
    line = " ".join(
        f"{230 + 500 * x / end:.1f},{top + 45 - 40 * (y - low) / scale:.1f}" for x, y in points
    )
    said = f"{low:g} to {high:g}, {verdict.slope:+.3g} an hour"
    return (
        f'<text x="8" y="{top + 18}">{name}</text>'
        f'<text x="8" y="{top + 36}" fill="{colour}">{said}</text>'
        f'<polyline points="{line}" fill="none" stroke="{colour}"/>'
    )

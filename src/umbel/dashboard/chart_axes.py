"""The vertical axes of charts: where a value is drawn, and which values are written beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

_MAX_TICKS = 5
_MIN_DISTANCE = 0.13
"""Of two ticks, so that their texts do not overlap."""
_DURATIONS = (
    *((0.001, "1 ms"), (0.01, "10 ms"), (0.1, "100 ms"), (1.0, "1 s"), (10.0, "10 s")),
    *((60.0, "1 min"), (600.0, "10 min"), (3_600.0, "1 h"), (86_400.0, "1 d")),
    *((864_000.0, "10 d"), (8_640_000.0, "100 d")),
)
"""Durations in seconds that people know, each several times as long as the one before."""


class Tick(NamedTuple):
    """A line across the chart with its text."""

    height: float
    text: str


class Axis(NamedTuple):
    """A vertical axis. Heights are from 0, at the bottom, to 1."""

    ticks: tuple[Tick, ...]
    height: Callable[[float], float]
    """Returns where a value is drawn."""


def linear_axis(values: Sequence[float], unit: str) -> Axis:
    """Return an axis from 0 to a round number above all values."""
    top = _round_up(max(values, default=0.0))
    ticks = Tick(0.0, "0"), Tick(1.0, f"{short_number(top)} {unit}".strip())
    return Axis(ticks, lambda value: value / top)


def duration_axis(values: Sequence[float]) -> Axis:
    """Return a logarithmic axis for seconds.

    Zero has no logarithm: values up to the lowest tick are drawn at the bottom, and its text says
    so.
    """
    lowest = min((value for value in values if value > 0), default=0.001)
    last = len(_DURATIONS) - 1
    first = max((n for n in range(last) if _DURATIONS[n][0] <= lowest), default=0)
    highest = max(values, default=1.0)
    end = next((n for n in range(first + 1, last) if _DURATIONS[n][0] >= highest), last)
    bottom, top = (math.log(_DURATIONS[n][0]) for n in (first, end))

    def height(value: float) -> float:
        if value <= _DURATIONS[first][0]:
            return 0.0
        return min(1.0, (math.log(value) - bottom) / (top - bottom))

    step = -(-(end - first) // (_MAX_TICKS - 1))
    ticks = [Tick(height(at), text) for at, text in _DURATIONS[end:first:-step]]
    mark = "≤ " if any(value < _DURATIONS[first][0] for value in values) else ""
    above = (tick for tick in reversed(ticks) if tick.height > _MIN_DISTANCE)
    return Axis((Tick(0.0, mark + _DURATIONS[first][1]), *above), height)


def short_number(value: float) -> str:
    """Return a number in a few characters."""
    if value >= 10_000:
        return f"{value / 1000:,.1f}k"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _round_up(value: float) -> float:
    """Return the next number with one or two digits that people like to read."""
    if value <= 0:
        return 1.0
    power = 1e-6
    while power * 10 <= value:
        power *= 10
    return next(
        power * factor for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if power * factor >= value
    )

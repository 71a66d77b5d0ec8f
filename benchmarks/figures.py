"""The arithmetic: rates, percentiles, medians, and one system against the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

Measures = dict[str, float]
"""What one measurement gave: a figure by its name."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed. Raises ValueError without values."""
    if not values:
        raise ValueError("a percentile needs at least one value")
    ranked = sorted(values)
    return ranked[max(math.ceil(len(ranked) * percent / 100), 1) - 1]


def rate(moments: Sequence[int], skip: int, end: int | None = None) -> float:
    """Events a second from the one after ``skip`` to ``end``, the last one's if not given.

    ``moments`` are in nanoseconds and in order.
    """
    span = (moments[-1] if end is None else end) - moments[skip]
    return (len(moments) - 1 - skip) / max(span / 1e9, 1e-9)


def per_job(before: float | None, after: float | None, jobs: int) -> float | None:
    """How much of something one job took."""
    if before is None or after is None or jobs <= 0:
        return None
    return (after - before) / jobs


def known(measures: Mapping[str, float | None]) -> Measures:
    """Only what could be measured."""
    return {name: value for name, value in measures.items() if value is not None}


def middle(rounds: Iterable[Measures]) -> Measures:
    """The median of each figure over the rounds that have it.

    Of the log the least: it is the whole server's, and whoever else writes adds to it.
    """
    collected: dict[str, list[float]] = {}
    for measures in rounds:
        for name, value in measures.items():
            collected.setdefault(name, []).append(value)
    return {
        name: min(values) if name == "log" else median(values) for name, values in collected.items()
    }


def spread(values: Sequence[float]) -> float:
    """How far apart the rounds are: (largest - smallest) / median."""
    centre = median(values)
    return (max(values) - min(values)) / centre if centre else 0.0


def best(figures: Mapping[str, float], *, high: bool) -> tuple[str, float] | None:
    """Who has the highest (or lowest) figure, and which; None without any."""
    if not figures:
        return None
    name = (max if high else min)(figures, key=lambda key: figures[key])
    return name, figures[name]


def ratio(ours: float, theirs: float) -> float:
    """How many times theirs ours is. Two noughts are equal."""
    if theirs == 0:
        return 1.0 if ours == 0 else math.inf
    return ours / theirs

"""A leak is detected despite noise, and noise is not taken for a leak."""

from __future__ import annotations

import random

from chaos.leak_detection import Bound, Point, drawing, judge, spark, theil_sen

HOUR = 3600.0
BOUND = Bound(noise=6, an_hour=5)


def noisy(slope: float, seconds: float = HOUR) -> list[Point]:
    """Return a linear series with noise, one spike and a sawtooth pattern."""
    pick = random.Random(1)
    values = [
        (at, 50 + slope * at / HOUR + pick.gauss(0, 1) + at % 60 / 30) for at in _times(seconds)
    ]
    return [*values[:-1], (values[-1][0], values[-1][1] + 500)]


def _times(seconds: float) -> list[float]:
    return [float(at) for at in range(0, int(seconds), 10)]


def test_a_straight_line_has_its_slope() -> None:
    assert theil_sen([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == 2.0
    assert theil_sen([(0.0, 1.0)]) == 0.0


def test_noise_and_a_spike_are_no_leak() -> None:
    assert not judge(noisy(0), BOUND, warm_up=600).leaks


def test_slow_growth_under_noise_is_a_leak() -> None:
    verdict = judge(noisy(20), BOUND, warm_up=600)
    assert verdict.leaks
    assert 18 < verdict.slope < 22


def test_growth_before_the_warm_up_is_over_does_not_count() -> None:
    points = [(at, min(at, 600.0)) for at in _times(HOUR)]
    assert not judge(points, BOUND, warm_up=600).leaks
    assert judge(points[:61], BOUND, warm_up=0).leaks


def test_a_short_run_needs_more_than_its_noise_to_be_a_leak() -> None:
    assert BOUND.over(hours=0.01) == 600
    assert BOUND.over(hours=10) == 5


def test_a_series_is_drawn() -> None:
    assert spark([1, 2, 3, 8]) == "▁▂▃█"
    points = noisy(20)
    svg = drawing({"memory": points}, {"memory": judge(points, BOUND, 600)})
    assert svg.count("<polyline") == 1
    assert "#c0392b" in svg

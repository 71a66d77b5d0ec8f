"""Run times of a task, collected from portions of the records."""

from __future__ import annotations

from collections import Counter
from math import ceil

from umbel.backends.records import RunTimes
from umbel.backends.redis.values import optional_float, text

_STEP_FACTOR = 1.02
"""Each step of the histogram of run times is longer by this factor than the step before."""


class RunTimeTally:
    """The run times of one task, collected from portions."""

    def __init__(self) -> None:
        self._runs = 0
        self.long = 0
        self._steps: Counter[int] = Counter()
        self._worst: list[tuple[float, str]] = []

    def add(self, runs: int, long: int, steps: list[int], worst: list[bytes]) -> None:
        self._runs += runs
        self.long += long
        self._steps.update(dict(zip(steps[::2], steps[1::2], strict=True)))
        pairs = zip(worst[::2], worst[1::2], strict=True)
        self._worst += [(optional_float(took) or 0.0, text(job)) for took, job in pairs]

    def summarize(self, task: str, worst: int) -> RunTimes:
        longest = sorted(self._worst, reverse=True)
        return RunTimes(
            task=task,
            runs=self._runs,
            long=self.long,
            p50=self._percentile(50, longest[0][0]),
            p95=self._percentile(95, longest[0][0]),
            worst=longest[0][0],
            jobs=tuple(job for _, job in longest[:worst]),
        )

    def _percentile(self, percent: int, maximum: float) -> float:
        """Return the percentile of the run times, rounded up to a step."""
        left = ceil(self._runs * percent / 100)
        for step in sorted(self._steps):
            left -= self._steps[step]
            if left <= 0:
                return min(_STEP_FACTOR**step, maximum)
        return maximum

"""All random choices of a seed: which faults happen, when, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple, TypeVar

T = TypeVar("T")

CALL_FAULTS = {
    "slow": 0.025,
    "lost": 0.012,
    "refused": 0.008,
    "hang": 0.006,
    "crash before": 0.0025,
    "crash after": 0.004,
}
"""The probability of each fault per call of the database. A seed scales each of them."""

MOMENT_FAULTS = {
    "crash": 1.2,
    "stall": 0.8,
    "block": 0.5,
    "outage": 0.4,
    "cut": 0.9,
    "cut heartbeat": 0.7,
    "jump": 0.6,
    "term": 0.7,
    "hurry": 0.2,
    "pause": 0.8,
    "resume": 0.7,
    "cancel": 0.8,
    "replay": 0.5,
}
"""The average number of each fault per run. A seed scales each of them."""

_SCALES = (0.0, 0.0, 1.0, 1.0, 2.0)


class CallConditions(NamedTuple):
    """The delays of one call of the database, and its fault."""

    there: float
    back: float
    fault: str


IDEAL_CONDITIONS = CallConditions(0.0, 0.0, "")


class SeededRandom:
    """The random numbers of one seed. In a seed some kinds of faults never happen, some often."""

    def __init__(self, seed: int, lease: float) -> None:
        self.random = Random(f"umbel {seed}")
        self.lease = lease
        self.is_calm = True
        self.counts: Counter[str] = Counter()
        chance = self.random.choice
        self.pooled = self.random.random() < 0.3
        self.lossy = chance((0.0, 0.3, 0.9))
        self.quick = chance((0.2, 0.6, 0.8))
        self._latency = chance((0.0, 0.1, 0.4))
        self._late_claims = chance((0.0, 0.05, 0.2))
        self._calls = [(name, rate * chance(_SCALES)) for name, rate in CALL_FAULTS.items()]
        self.moments = {name: rate * chance(_SCALES) for name, rate in MOMENT_FAULTS.items()}
        if self.random.random() < 0.1:  # an operator who pauses and resumes often
            self.moments |= {"pause": 5.0, "resume": 4.0}

    def chance(self, of: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < of

    def between(self, low: float, high: float) -> float:
        """Return a number from a range."""
        return low + (high - low) * self.random.random()

    def choose(self, among: Sequence[T]) -> T:
        """Return one of the values."""
        return among[int(self.random.random() * len(among))]

    def count(self, fault: str) -> None:
        """Count a fault."""
        self.counts[fault] += 1

    def conditions(self) -> CallConditions:
        """Return the conditions of the next call."""
        dice = self.random.random()
        if not self.is_calm:
            for name, rate in self._calls:
                dice -= rate
                if dice < 0:
                    self.count(name)
                    return self._faulty(name)
        if self.random.random() < self._latency:
            return CallConditions(self.between(0, 0.05), self.between(0, 0.05), "")
        return IDEAL_CONDITIONS

    def claim_delay(self) -> float:
        """Return seconds by which to delay the answer to a claim."""
        if self.is_calm or not self.chance(self._late_claims):
            return 0.0
        self.count("late claim")
        return self.between(0.02, 0.9) * self.lease

    def _faulty(self, name: str) -> CallConditions:
        long = self.between(0.05, 2.2) * self.lease
        if name in ("slow", "hang"):
            there_first = self.random.random()
            return CallConditions(long * there_first, long * (1 - there_first), name)
        return CallConditions(self.between(0, 0.2), self.between(0, 0.2), name)

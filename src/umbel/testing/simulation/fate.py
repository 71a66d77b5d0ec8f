"""Everything that a seed decides: what goes wrong, when, and how often."""

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
"""How likely each is at a call of the database, before a seed makes it rarer or more frequent."""

MOMENT_FAULTS = {
    "crash": 1.2,
    "stall": 0.8,
    "block": 0.5,
    "outage": 0.4,
    "cut": 0.9,
    "cut heart": 0.7,
    "jump": 0.6,
    "term": 0.7,
    "hurry": 0.2,
    "pause": 0.8,
    "resume": 0.7,
    "cancel": 0.8,
    "replay": 0.5,
}
"""How many of each a run sees on average, likewise."""

_MOODS = (0.0, 0.0, 1.0, 1.0, 2.0)


class Trip(NamedTuple):
    """How one call of the database fares."""

    there: float
    back: float
    fault: str


SMOOTH = Trip(0.0, 0.0, "")


class Fate:
    """One seed's dice. Each seed has moods: some kinds of fault never happen in it, some often."""

    def __init__(self, seed: int, lease: float) -> None:
        self.random = Random(f"umbel {seed}")
        self.lease = lease
        self.kind = True
        self.counts: Counter[str] = Counter()
        chance = self.random.choice
        self.pooled = self.random.random() < 0.3
        self.lossy = chance((0.0, 0.3, 0.9))
        self.quick = chance((0.2, 0.6, 0.8))
        self._latency = chance((0.0, 0.1, 0.4))
        self._late_claims = chance((0.0, 0.05, 0.2))
        self._calls = [(name, rate * chance(_MOODS)) for name, rate in CALL_FAULTS.items()]
        self.moments = {name: rate * chance(_MOODS) for name, rate in MOMENT_FAULTS.items()}
        if self.random.random() < 0.1:  # an operator who cannot decide
            self.moments |= {"pause": 5.0, "resume": 4.0}

    def chance(self, of: float) -> bool:
        """Whether something of this likelihood happens."""
        return self.random.random() < of

    def between(self, low: float, high: float) -> float:
        """A number from a range."""
        return low + (high - low) * self.random.random()

    def choose(self, among: Sequence[T]) -> T:
        """One of them."""
        return among[int(self.random.random() * len(among))]

    def count(self, fault: str) -> None:
        """Note that it happened."""
        self.counts[fault] += 1

    def trip(self) -> Trip:
        """How the next call fares."""
        dice = self.random.random()
        if not self.kind:
            for name, rate in self._calls:
                dice -= rate
                if dice < 0:
                    self.count(name)
                    return self._faulty(name)
        if self.random.random() < self._latency:
            return Trip(self.between(0, 0.05), self.between(0, 0.05), "")
        return SMOOTH

    def claim_delay(self) -> float:
        """Seconds that the answer to a claim takes longer: much can happen before it is known."""
        if self.kind or not self.chance(self._late_claims):
            return 0.0
        self.count("late claim")
        return self.between(0.02, 0.9) * self.lease

    def _faulty(self, name: str) -> Trip:
        long = self.between(0.05, 2.2) * self.lease
        if name in ("slow", "hang"):
            there_first = self.random.random()
            return Trip(long * there_first, long * (1 - there_first), name)
        return Trip(self.between(0, 0.2), self.between(0, 0.2), name)

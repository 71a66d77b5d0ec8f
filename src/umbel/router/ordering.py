"""The order of queues. A fetch takes all jobs of the first queue, then those of the next.

Strategies use statistics from the records and from the jobs that this worker has run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from umbel.errors import ConfigurationError
from umbel.messages import Delivery, Record, Settlement, is_final

_LAST_RUN_WEIGHT = 0.1
"""The minimum weight of the last run in the statistics of a queue."""
_SATURATED_SHARE = 0.8
"""If this share of a budget is in use, the other kind is preferred."""
_MAX_RUNNING = 100_000


class Experience(msgspec.Struct, frozen=True):
    """Statistics of the jobs of a queue."""

    runs: int = 0
    seconds: float = 0.0
    """The average duration of runs; recent runs count most."""
    kinds: dict[str, float] = {}
    """The share of each kind."""

    def after(self, seconds: float, kind: str) -> Experience:
        """Return the statistics with one more run."""
        weight = max(_LAST_RUN_WEIGHT, 1 / (self.runs + 1))
        return Experience(
            self.runs + 1,
            self.seconds + weight * (seconds - self.seconds),
            {
                one: share + weight * ((one == kind) - share)
                for one, share in {kind: 0.0, **self.kinds}.items()
            },
        )


class Load(msgspec.Struct, frozen=True):
    """The share of a worker's capacity that is in use, from 0 to 1."""

    kinds: dict[str, float] = {}
    """By kind."""


Strategy = Callable[[Sequence[str], Mapping[str, Experience], Load], Sequence[str]]
"""Returns the queues in order, from the queues as configured, their statistics and the load."""


def strategy(order: str | Strategy, weights: Mapping[str, float]) -> Strategy | None:
    """Return the strategy with this name; None if the queues stay as configured.

    Raises:
        ConfigurationError: the name is unknown, or a weight is not a number above 0.
    """
    wrong = [name for name, weight in weights.items() if not 0 < weight < float("inf")]
    if wrong:
        raise ConfigurationError(
            f"weights: {wrong[0]}={weights[wrong[0]]!r}: give a number above 0"
        )
    if callable(order):
        return order
    if order == "weighted":
        return Weighted(weights)
    if order not in _KNOWN:
        known = ", ".join([*_KNOWN, "weighted"])
        raise ConfigurationError(f"order={order!r:.80}: give one of {known}, or a function")
    return _KNOWN[order]


def short_first(
    queues: Sequence[str], known: Mapping[str, Experience], load: Load
) -> Sequence[str]:
    """Order by duration, shortest first. A queue without runs is the first."""
    return sorted(queues, key=lambda queue: known[queue].seconds)


def long_first(queues: Sequence[str], known: Mapping[str, Experience], load: Load) -> Sequence[str]:
    """Order by duration, longest first. A queue without runs is the first."""
    return sorted(queues, key=lambda queue: (known[queue].runs > 0, -known[queue].seconds))


def rare_first(queues: Sequence[str], known: Mapping[str, Experience], load: Load) -> Sequence[str]:
    """Order by number of runs, fewest first."""
    return sorted(queues, key=lambda queue: known[queue].runs)


def saturation(queues: Sequence[str], known: Mapping[str, Experience], load: Load) -> Sequence[str]:
    """Put queues last whose jobs are of kinds for which nearly all capacity is in use."""
    full = {kind for kind, share in load.kinds.items() if share >= _SATURATED_SHARE}

    def unfit(queue: str) -> float:
        return sum(share for kind, share in known[queue].kinds.items() if kind in full)

    return sorted(queues, key=unfit)


class Weighted:
    """Random order, in which each queue is first in proportion to its weight. The default is 1."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._random = random.Random()

    def __call__(
        self, queues: Sequence[str], known: Mapping[str, Experience], load: Load
    ) -> Sequence[str]:
        def draw(queue: str) -> float:
            return -math.pow(self._random.random(), 1 / self._weights.get(queue, 1.0))

        return sorted(queues, key=draw)


_KNOWN: dict[str, Strategy | None] = {
    "strict": None,
    "short-first": short_first,
    "long-first": long_first,
    "rare-first": rare_first,
    "saturation": saturation,
}


class Ordering:
    """Orders queues by a strategy, and updates its statistics from the jobs that run."""

    def __init__(self, queues: Sequence[str], order: Strategy) -> None:
        self._queues = queues
        self._strategy = order
        self._known = dict.fromkeys(queues, Experience())
        self._running: dict[str, tuple[str, str]] = {}

    def learn(self, records: Sequence[Record]) -> None:
        """Add runs of the past, from records that are newest first."""
        for record in reversed(records):
            for attempt in record.attempts:
                self._add_run(record.queue, record.kind, attempt.finished - attempt.started)

    def order(self, load: Load) -> list[str]:
        """Return the queues in order; as configured if the strategy fails or drops a queue."""
        try:
            found = [*self._strategy(self._queues, self._known, load)]
        except Exception:  # noqa: BLE001 - the strategy may be a function of the user
            return [*self._queues]
        return found if sorted(found) == sorted(self._queues) else [*self._queues]

    def record_started(self, deliveries: Sequence[Delivery]) -> None:
        """Record that these jobs have started."""
        if len(self._running) > _MAX_RUNNING:
            self._running.clear()
        for one in deliveries:
            self._running[one.id] = (one.envelope.queue, one.envelope.kind)

    def record_ended(self, settlements: Sequence[Settlement]) -> None:
        """Record the durations of jobs that have ended."""
        for one in settlements:
            queue, kind = self._running.pop(one.lease.job, ("", ""))
            if queue and is_final(one.outcome):
                self._add_run(queue, kind, one.attempt.finished - one.attempt.started)

    def _add_run(self, queue: str, kind: str, seconds: float) -> None:
        if queue in self._known:
            self._known[queue] = self._known[queue].after(max(seconds, 0.0), kind)

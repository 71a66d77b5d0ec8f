"""Which queue comes first. A fetch takes from the first queue what it has, then from the next.

What a strategy goes by is learnt from the records, and from what this worker runs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from umbel.errors import ConfigurationError
from umbel.messages import Delivery, Record, Settlement, is_final

_RECENT = 0.1
"""How much the last run counts in what is known of a queue."""
_NEARLY = 0.8
"""The share of a budget in use from which on the other kind is preferred."""
_REMEMBERED = 100_000


class Experience(msgspec.Struct, frozen=True):
    """What is known of the jobs of a queue."""

    runs: int = 0
    seconds: float = 0.0
    """How long they ran, those of late above all."""
    io: float = 0.5
    """Which share of them were coroutines."""

    def after(self, seconds: float, kind: str) -> Experience:
        """With one run more."""
        weight = max(_RECENT, 1 / (self.runs + 1))
        return Experience(
            self.runs + 1,
            self.seconds + weight * (seconds - self.seconds),
            self.io + weight * ((kind == "io") - self.io),
        )


class Load(msgspec.Struct, frozen=True):
    """Which share of each budget is in use, from 0 to 1."""

    io: float = 0.0
    cpu: float = 0.0


Strategy = Callable[[Sequence[str], Mapping[str, Experience], Load], Sequence[str]]
"""From the queues as they were given, what is known of each and the load, to their order now."""


def strategy(order: str | Strategy, weights: Mapping[str, float]) -> Strategy | None:
    """The strategy of a name; None when the queues stay as they were given.

    Raises:
        ConfigurationError: there is none of that name, or a weight is no number above 0.
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
    """The queue whose jobs take least time first; one that nobody knows before all."""
    return sorted(queues, key=lambda queue: known[queue].seconds)


def long_first(queues: Sequence[str], known: Mapping[str, Experience], load: Load) -> Sequence[str]:
    """The queue whose jobs take most time first; one that nobody knows before all."""
    return sorted(queues, key=lambda queue: (known[queue].runs > 0, -known[queue].seconds))


def rare_first(queues: Sequence[str], known: Mapping[str, Experience], load: Load) -> Sequence[str]:
    """The queue that had the fewest jobs first."""
    return sorted(queues, key=lambda queue: known[queue].runs)


def saturation(queues: Sequence[str], known: Mapping[str, Experience], load: Load) -> Sequence[str]:
    """Coroutines first while threads are nearly all in use, and the reverse."""
    if load.cpu >= _NEARLY > load.io:
        return sorted(queues, key=lambda queue: -known[queue].io)
    if load.io >= _NEARLY > load.cpu:
        return sorted(queues, key=lambda queue: known[queue].io)
    return queues


class Weighted:
    """Each queue is first as often as its weight says; 1 where nothing is said."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._random = random.Random()

    def __call__(
        self, queues: Sequence[str], known: Mapping[str, Experience], load: Load
    ) -> Sequence[str]:
        def lot(queue: str) -> float:
            return -math.pow(self._random.random(), 1 / self._weights.get(queue, 1.0))

        return sorted(queues, key=lot)


_KNOWN: dict[str, Strategy | None] = {
    "strict": None,
    "short-first": short_first,
    "long-first": long_first,
    "rare-first": rare_first,
    "saturation": saturation,
}


class Ordering:
    """Puts queues in order by a strategy, and learns from what ran."""

    def __init__(self, queues: Sequence[str], order: Strategy) -> None:
        self._queues = queues
        self._order = order
        self._known = dict.fromkeys(queues, Experience())
        self._running: dict[str, tuple[str, str]] = {}

    def learn(self, records: Sequence[Record]) -> None:
        """What was before this worker."""
        for record in reversed(records):
            for attempt in record.attempts:
                self._ran(record.queue, record.kind, attempt.finished - attempt.started)

    def now(self, load: Load) -> list[str]:
        """The queues in their order. A strategy that fails or forgets some leaves them as given."""
        try:
            found = [*self._order(self._queues, self._known, load)]
        except Exception:  # noqa: BLE001 - a function of the user's
            return [*self._queues]
        return found if sorted(found) == sorted(self._queues) else [*self._queues]

    def begun(self, deliveries: Sequence[Delivery]) -> None:
        """These run now."""
        if len(self._running) > _REMEMBERED:
            self._running.clear()
        for one in deliveries:
            self._running[one.id] = (one.envelope.queue, one.envelope.kind)

    def ended(self, settlements: Sequence[Settlement]) -> None:
        """These do not run any more."""
        for one in settlements:
            queue, kind = self._running.pop(one.lease.job, ("", ""))
            if queue and is_final(one.outcome):
                self._ran(queue, kind, one.attempt.finished - one.attempt.started)

    def _ran(self, queue: str, kind: str, seconds: float) -> None:
        if queue in self._known:
            self._known[queue] = self._known[queue].after(max(seconds, 0.0), kind)

"""Gates of one worker alone, in memory: those that are declared with ``per="worker"``."""

from __future__ import annotations

from collections import Counter
from typing import Any

from umbel.clock import Clock
from umbel.messages import Lease
from umbel.resilience import Pace
from umbel.tasks import Limit, Rate, Registry, Task
from umbel.tasks.gates import token_of

_AGAIN = 1.0
"""Seconds after which a job comes back that no slot was free for, if it may be this one's again."""


class LocalGates:
    """Counts what runs here. A task that is full is not asked for: its jobs are others' to take."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._clock = clock
        self._limits: dict[str, list[Limit]] = {}
        self._rates: dict[str, list[Rate]] = {}
        for task in registry:
            limits = [one for one in task.declared.limit if one.per == "worker"]
            rates = [one for one in task.declared.rate if one.per == "worker"]
            if rates:
                self._rates[task.name] = rates
            elif limits and not task.declared.rate:
                self._limits[task.name] = limits
        self._held: Counter[tuple[str, int, str]] = Counter()
        self._paces: dict[tuple[str, int, str], list[float]] = {}
        self._slots: dict[Lease, list[tuple[str, int, str]]] = {}

    def __bool__(self) -> bool:
        return bool(self._limits or self._rates)

    def full(self) -> tuple[str, ...]:
        """Tasks of which nothing can start now, whatever its arguments."""
        now = self._clock.monotonic()
        limited = [
            name
            for name, limits in self._limits.items()
            if any(
                one.token is None and self._held[name, place, ""] >= (one.now() or 0)
                for place, one in enumerate(limits)
            )
        ]
        paced = [name for name, rates in self._rates.items() if not self._on_time(name, rates, now)]
        return (*limited, *paced)

    def next_time(self) -> float | None:
        """Seconds until a task may start that has to wait for its rate; None when none has to."""
        now = self._clock.monotonic()
        waits = [
            Pace(((one.count, one.period),), one.burst).next_time(self._paces[key]) - now
            for name, rates in self._rates.items()
            for place, one in enumerate(rates)
            if one.token is None and (key := (name, place, "")) in self._paces
        ]
        return min((wait for wait in waits if wait > 0), default=None)

    def enter(
        self, lease: Lease, task: Task[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> float | None:
        """Take its slots. None when it may start, else seconds after which to try again.

        Raises:
            Exception: what a token's function raises.
        """
        now, wanted = self._clock.monotonic(), list[tuple[str, int, str]]()
        for place, limit in enumerate(self._limits.get(task.name, ())):
            key = (task.name, place, token_of(limit.token, task.parameters, args, kwargs))
            if self._held[key] >= (limit.now() or 0):
                return _AGAIN if limit.token is not None else 0.0
            wanted.append(key)
        spent: dict[tuple[str, int, str], list[float]] = {}
        for place, rate in enumerate(self._rates.get(task.name, ())):
            key = (task.name, place, token_of(rate.token, task.parameters, args, kwargs))
            pace, paces = Pace(((rate.count, rate.period),), rate.burst), self._paces.get(key, [])
            if not pace.allowed(paces, now):
                return max(pace.next_time(paces) - now, 0.0)
            spent[key] = pace.spent(paces, now, 1)
        self._held.update(wanted)
        self._paces |= spent
        if wanted:
            self._slots[lease] = wanted
        return None

    def leave(self, lease: Lease) -> None:
        """It has ended."""
        for key in self._slots.pop(lease, ()):
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]

    def _on_time(self, name: str, rates: list[Rate], now: float) -> bool:
        return all(
            Pace(((one.count, one.period),), one.burst).allowed(
                self._paces.get((name, place, ""), []), now
            )
            for place, one in enumerate(rates)
            if one.token is None
        )

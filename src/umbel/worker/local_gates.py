"""The gates that are declared with ``per="worker"``, in the memory of this worker."""

from __future__ import annotations

from collections import Counter
from typing import Any

from umbel.clock import Clock
from umbel.messages import Lease
from umbel.resilience import Pace
from umbel.tasks import Limit, Rate, Registry, Task
from umbel.tasks.gates import token_of

_TOKEN_RETRY_DELAY = 1.0
"""Seconds until a job is delivered again whose token had no free slot."""


class LocalGates:
    """Counts the runs in this worker. Fetches exclude tasks of which no more may run here."""

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
        """Return the tasks of which no job can start now, whatever its arguments."""
        now = self._clock.monotonic()
        limited = [
            name
            for name, limits in self._limits.items()
            if any(
                one.token is None and self._held[name, number, ""] >= (one.current_capacity() or 0)
                for number, one in enumerate(limits)
            )
        ]
        paced = [
            name for name, rates in self._rates.items() if not self._is_rate_free(name, rates, now)
        ]
        return (*limited, *paced)

    def next_time(self) -> float | None:
        """Return the seconds until a rate allows the next start; None if no task waits for that."""
        now = self._clock.monotonic()
        waits = [
            Pace(((one.count, one.period),), one.burst).next_time(self._paces[key]) - now
            for name, rates in self._rates.items()
            for number, one in enumerate(rates)
            if one.token is None and (key := (name, number, "")) in self._paces
        ]
        return min((wait for wait in waits if wait > 0), default=None)

    def enter(
        self, lease: Lease, task: Task[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> float | None:
        """Take the job's slots. Return None if it may start, else the seconds until the next try.

        Raises:
            Exception: what a token's function raises.
        """
        now, wanted = self._clock.monotonic(), list[tuple[str, int, str]]()
        for number, limit in enumerate(self._limits.get(task.name, ())):
            key = (task.name, number, token_of(limit.token, task.parameters, args, kwargs))
            if self._held[key] >= (limit.current_capacity() or 0):
                return _TOKEN_RETRY_DELAY if limit.token is not None else 0.0
            wanted.append(key)
        spent: dict[tuple[str, int, str], list[float]] = {}
        for number, rate in enumerate(self._rates.get(task.name, ())):
            key = (task.name, number, token_of(rate.token, task.parameters, args, kwargs))
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
        """Free the slots of a job that has ended."""
        for key in self._slots.pop(lease, ()):
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]

    def _is_rate_free(self, name: str, rates: list[Rate], now: float) -> bool:
        return all(
            Pace(((one.count, one.period),), one.burst).allowed(
                self._paces.get((name, number, ""), []), now
            )
            for number, one in enumerate(rates)
            if one.token is None
        )

"""Hands events to whoever subscribed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import get_args

from umbel.telemetry.events import Event, Level

Subscriber = Callable[[Event], None]

_RANKS = {level: rank for rank, level in enumerate(get_args(Level))}


class Telemetry:
    """Passes events on, in the emitting thread. A subscriber that raises harms nobody else."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = subscribers
        self._least = 0 if subscribers else len(_RANKS)

    def subscribe(self, subscriber: Subscriber, least: Level = "debug") -> None:
        """Hear of events from now on; those below the level ``least`` are not needed."""
        self._subscribers = (*self._subscribers, subscriber)
        self._least = min(self._least, _RANKS[least])

    def hears(self, kind: type[Event]) -> bool:
        """Whether anybody needs events of this kind. Asked where building one would cost."""
        return _RANKS[kind.level] >= self._least

    def emit(self, event: Event) -> None:
        """Tell everybody."""
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception as error:  # noqa: BLE001 - telling must never break doing
                sys.stderr.write(f"umbel: telemetry of {type(event).__name__} failed: {error!r}\n")

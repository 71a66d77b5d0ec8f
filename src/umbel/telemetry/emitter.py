"""Hands events to whoever subscribed."""

from __future__ import annotations

import sys
from collections.abc import Callable

from umbel.telemetry.events import Event

Subscriber = Callable[[Event], None]


class Telemetry:
    """Passes events on, in the emitting thread. A subscriber that raises harms nobody else."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = subscribers

    def subscribe(self, subscriber: Subscriber) -> None:
        """Hear of every event from now on."""
        self._subscribers = (*self._subscribers, subscriber)

    def emit(self, event: Event) -> None:
        """Tell everybody."""
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception as error:  # noqa: BLE001 - telling must never break doing
                sys.stderr.write(f"umbel: telemetry of {type(event).__name__} failed: {error!r}\n")

"""Passes events to subscribers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import get_args

import msgspec

from umbel.telemetry.events import Event, Level
from umbel.terminal import write
from umbel.urls import mask_secrets

Subscriber = Callable[[Event], None]

_FIELDS_WITH_URLS = ("error", "traceback", "reason", "why", "stack", "address")
"""Fields that may quote an error, and with it a URL that contains a password."""
_RANKS = {level: rank for rank, level in enumerate(get_args(Level))}


class Telemetry:
    """Calls subscribers in the emitting thread. If one raises, the others are still called."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = subscribers
        self._min_rank = 0 if subscribers else len(_RANKS)

    def subscribe(self, subscriber: Subscriber, min_level: Level = "debug") -> None:
        """Call this with every event from now on. It may be called below ``min_level``, too."""
        self._subscribers = (*self._subscribers, subscriber)
        self._min_rank = min(self._min_rank, _RANKS[min_level])

    def is_needed(self, event_type: type[Event]) -> bool:
        """Return whether a subscriber needs events of this type. Check it before a costly event."""
        return _RANKS[event_type.level] >= self._min_rank

    def emit(self, event: Event) -> None:
        """Pass an event to every subscriber, with the passwords of URLs masked."""
        event = _mask(event)
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception as error:  # noqa: BLE001 - a subscriber must not break the caller
                text = mask_secrets(f"umbel: telemetry of {type(event).__name__} failed: {error!r}")
                write(sys.stderr, text)


def _mask(event: Event) -> Event:
    changed = {
        name: text
        for name in _maskable_fields(type(event))
        if (text := mask_secrets(getattr(event, name))) != getattr(event, name)
    }
    return msgspec.structs.replace(event, **changed) if changed else event


@cache
def _maskable_fields(event_type: type[Event]) -> tuple[str, ...]:
    return tuple(name for name in event_type.__struct_fields__ if name in _FIELDS_WITH_URLS)

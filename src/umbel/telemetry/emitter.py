"""Hands events to whoever subscribed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import get_args

import msgspec

from umbel.telemetry.events import Event, Level
from umbel.terminal import write
from umbel.urls import masked

Subscriber = Callable[[Event], None]

_QUOTING = ("error", "traceback", "reason", "why", "stack", "address")
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
        """Tell everybody. Secrets of URLs in texts of errors are masked before."""
        event = _masked(event)
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception as error:  # noqa: BLE001 - telling must never break doing
                text = masked(f"umbel: telemetry of {type(event).__name__} failed: {error!r}")
                write(sys.stderr, text)


def _masked(event: Event) -> Event:
    changed = {
        name: text
        for name in _texts(type(event))
        if (text := masked(getattr(event, name))) != getattr(event, name)
    }
    return msgspec.structs.replace(event, **changed) if changed else event


@cache
def _texts(kind: type[Event]) -> tuple[str, ...]:
    """The fields of an event that may quote an error."""
    return tuple(name for name in kind.__struct_fields__ if name in _QUOTING)

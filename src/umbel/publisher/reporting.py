"""Reports events in programs that may have no subscriber for them."""

from __future__ import annotations

import logging

import msgspec

from umbel.telemetry import Telemetry, events

_log = logging.getLogger("umbel")


def emit_or_log(telemetry: Telemetry, event: events.Event) -> None:
    """Emit the event if a subscriber needs it; otherwise write it to the program's own log.

    A program that only publishes usually subscribes to nothing, but must learn of lost messages.
    """
    if telemetry.is_needed(type(event)):
        telemetry.emit(event)
    else:
        log_event(event)


def log_event(event: events.Event) -> None:
    """Write the event to the program's own log, as ``umbel``."""
    fields = " ".join(f"{k}={v!r}" for k, v in msgspec.structs.asdict(event).items())
    _log.log(logging.getLevelName(event.level.upper()), "%s %s", event.text, fields)

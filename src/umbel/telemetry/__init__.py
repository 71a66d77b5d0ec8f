"""Owns the list of all telemetry events, and passes them to subscribers.

Called by: every package, with ``telemetry.emit(SomethingHappened(...))``.
Never: renders; observability makes log lines, metrics and live views from these events.
"""

from umbel.telemetry import events
from umbel.telemetry.emitter import Telemetry

__all__ = ["Telemetry", "events"]

"""Owns the catalogue of everything that can happen, and the way to tell of it.

Called by: every room, with ``telemetry.emit(SomethingHappened(...))``.
Never: renders; log lines, metrics and live views are made of these events in observability.
"""

from umbel.telemetry import events
from umbel.telemetry.emitter import Telemetry

__all__ = ["Telemetry", "events"]

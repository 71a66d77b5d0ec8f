"""What two that work as one need of each other to publish without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from umbel.brokers.port import Published
from umbel.brokers.transport import Lane
from umbel.messages import Envelope

LostNow = Callable[[Lane, float], object]
"""Told a lane that is not on the server, and how many seconds there are to note that. It may be
made when this has returned."""


@runtime_checkable
class DirectTransport(Protocol):
    """A transport that can send in the caller's own thread. Safe from any thread."""

    def send_now(self, envelopes: Sequence[Envelope], timeout: float, lost: LostNow) -> None:
        """``Transport.send``; blocks, but not for longer than ``timeout``."""


@runtime_checkable
class DirectLedger(Protocol):
    """A ledger that can be written in the caller's own thread. Safe from any thread."""

    def publish_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """See ``DirectBroker``."""

    def note_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """``Ledger.note``; blocks, but not for longer than ``timeout``."""

    def recall_now(self, lanes: Sequence[tuple[str, str]], timeout: float) -> int:
        """``Ledger.recall``; blocks, but not for much longer than ``timeout``."""

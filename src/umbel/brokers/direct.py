"""Two that work as one, publishing without an event loop, and what they need of each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from umbel.brokers.port import Published
from umbel.brokers.transport import Lane
from umbel.clock import Clock
from umbel.errors import Unavailable
from umbel.messages import Envelope

LostNow = Callable[[Lane, float], object]
"""Told a lane that is not on the server, and how many seconds there are to note that. It may be
made when this has returned."""

Meanwhile = Callable[[], object]
"""What there is to do while the server takes what was written. It is called once for each round of
writing."""


@runtime_checkable
class DirectTransport(Protocol):
    """A transport that can send in the caller's own thread. Safe from any thread."""

    def send_now(
        self, envelopes: Sequence[Envelope], timeout: float, lost: LostNow, meanwhile: Meanwhile
    ) -> None:
        """``Transport.send``; blocks, but not for longer than ``timeout``."""


@runtime_checkable
class DirectLedger(Protocol):
    """A ledger that can be written in the caller's own thread. Safe from any thread."""

    def publish_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """See ``DirectBroker``."""

    def note_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """``Ledger.note``; blocks, but not for longer than ``timeout``."""

    def unsend_now(self, jobs: Sequence[str], timeout: float) -> None:
        """The transport may not have taken what was noted: somebody is to send it.

        Raises:
            Unavailable: it is noted all the same, and perhaps on its way.
        """

    def recall_now(self, lanes: Sequence[tuple[str, str]], timeout: float) -> int:
        """``Ledger.recall``; blocks, but not for much longer than ``timeout``."""


class DirectPair:
    """A transport and its ledger. Safe from any thread.

    The books note a message while the transport's server is taking it, so a caller waits for both
    at once. Should the caller die before the server has it, and the server never get it, then the
    books have a job that nobody carries: it is sent again when its lane is found quiet.
    """

    def __init__(self, transport: DirectTransport, ledger: DirectLedger, clock: Clock) -> None:
        self.ledger = ledger
        self._transport = transport
        self._clock = clock
        self._used: set[Lane] = set()
        """A lane that is not there is made when a message was refused, and what is noted by then
        would be taken for lost: the first message of a lane is noted when it was taken."""

    @classmethod
    def of(cls, transport: object, ledger: object, clock: Clock) -> DirectPair | None:
        """None unless both can."""
        if isinstance(transport, DirectTransport) and isinstance(ledger, DirectLedger):
            return cls(transport, ledger, clock)
        return None

    def publish(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """See ``DirectBroker.publish_now``. The books alone have what cannot be sent."""
        until = self._clock.monotonic() + timeout
        lanes = {Lane(envelope.queue, envelope.kind) for envelope in envelopes}
        tried, noted = False, list[Published]()

        def left() -> float:
            return until - self._clock.monotonic()

        def note() -> None:
            nonlocal tried, noted
            if not tried:
                tried = True
                with suppress(Unavailable):
                    noted = self.ledger.note_now(envelopes, left())

        def recall(lane: Lane, seconds: float) -> None:
            self.ledger.recall_now([lane], seconds)

        meanwhile = note if lanes <= self._used else _nothing
        try:
            self._transport.send_now(envelopes, timeout, recall, meanwhile)
        except Unavailable:
            if tried:  # then they may be in the books as sent, even if those did not answer
                self.ledger.unsend_now([envelope.id for envelope in envelopes], left())
            return noted or self.ledger.publish_now(envelopes, left())
        self._used |= lanes
        note()
        # Durable also if they are not noted: whoever receives the messages will do it.
        return noted or [Published(envelope.id) for envelope in envelopes]


def _nothing() -> None:
    return None

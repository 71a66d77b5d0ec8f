"""Publishing to a pair in the caller's own thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from umbel.backends.blocking import (
    BlockingJobStore,
    BlockingTransport,
    Meanwhile,
    Noted,
    PromptJobStore,
)
from umbel.backends.broker import Published
from umbel.backends.pairs.silent_transports import Silence
from umbel.backends.transport import Lane
from umbel.clock import Clock
from umbel.errors import Unavailable
from umbel.messages import Envelope


class BlockingPair:
    """A transport and its ledger. Safe from any thread.

    The books note a message while the transport's server is taking it, so a caller waits for both
    at once. Should the caller die before the server has it, and the server never get it, then the
    books have a job that nobody carries: it is sent again when its lane is found quiet.
    """

    def __init__(
        self, transport: BlockingTransport, ledger: BlockingJobStore, clock: Clock
    ) -> None:
        self.ledger = ledger
        self._prompt = ledger if isinstance(ledger, PromptJobStore) else None
        self._transport = transport
        self._clock = clock
        self._silence = Silence(clock)
        self._used: set[Lane] = set()
        """A lane that is not there is made when a message was refused, and what is noted by then
        would be taken for lost: the first message of a lane is noted when it was taken."""
        self._is_awaited = False
        """Whether the books had somebody for the last message. For the next it is they then who
        begin: its run waits for them. Else the server does: its confirm takes longer."""

    @classmethod
    def of(cls, transport: object, ledger: object, clock: Clock) -> BlockingPair | None:
        """None unless both can."""
        if isinstance(transport, BlockingTransport) and isinstance(ledger, BlockingJobStore):
            return cls(transport, ledger, clock)
        return None

    def publish(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """See ``BlockingBroker.publish_now``. The books alone have what cannot be sent."""
        began = self._clock.monotonic()
        until = began + timeout
        seconds = self._silence.seconds([self._transport], timeout)
        if not seconds:
            return self.ledger.publish_now(envelopes, timeout)
        lanes = {Lane(envelope.queue, envelope.kind) for envelope in envelopes}

        def left() -> float:
            return until - self._clock.monotonic()

        def recall(lane: Lane, seconds: float) -> None:
            self.ledger.recall_now([lane], seconds)

        prompt = self._prompt if self._is_awaited else None
        with _Note(self.ledger, prompt, envelopes, left) as note:
            meanwhile = note if lanes <= self._used else _NOTHING
            try:
                self._transport.send_now(envelopes, seconds, recall, meanwhile)
            except Unavailable:
                self._silence.failed([self._transport], self._clock.monotonic() - began)
                if note.begun:  # then they may be in the books as sent, even without an answer
                    note.finish()
                    self.ledger.unsend_now([envelope.id for envelope in envelopes], left())
                return note.made or self.ledger.publish_now(envelopes, left())
            self._used |= lanes
            self._silence.answered([self._transport])
            note.finish()
        self._is_awaited = any(one.handed for one in note.made)
        # Durable also if they are not noted: whoever receives the messages will do it.
        return note.made or [Published(envelope.id) for envelope in envelopes]


_NOTHING = Meanwhile()


class _Note(Meanwhile):
    """Of some envelopes in the books: begun, and finished, at most once each.

    It begins where the transport's lock is held: who holds that may have to get at the books, too.
    """

    def __init__(
        self,
        ledger: BlockingJobStore,
        prompt: PromptJobStore | None,
        envelopes: Sequence[Envelope],
        left: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._prompt = prompt
        self._envelopes = envelopes
        self._left = left
        self._asked = ExitStack()
        self._answer: Noted | None = None
        self.begun = False
        self.made: list[Published] = []
        """What the books have answered; nothing if they have not."""

    def __enter__(self) -> _Note:
        return self

    def __exit__(self, *_: object) -> None:
        self._asked.close()

    def begin(self) -> None:
        """Have the books begin, if they are to and need not be waited for."""
        if self._prompt is not None and not self.begun:
            self.begun = True
            with suppress(Unavailable):
                asking = self._prompt.noting(self._envelopes, self._left())
                self._answer = self._asked.enter_context(asking)

    def finish(self) -> None:
        """Have it in the books, or go without that."""
        answer, self._answer = self._answer, None
        with suppress(Unavailable), self._asked:
            if answer is not None:
                self.made = answer()
            elif not self.begun:
                self.begun = True
                self.made = self._ledger.note_now(self._envelopes, self._left())

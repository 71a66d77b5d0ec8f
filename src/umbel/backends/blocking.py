"""Ports of the transports and stores that can publish in the caller's own thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from umbel.backends.broker import Published
from umbel.backends.transport import Lane
from umbel.messages import Envelope

LostNow = Callable[[Lane, float], object]
"""Told a lane that is not on the server, and how many seconds there are to note that. It may be
made when this has returned."""


class Meanwhile:
    """What there is to do while a transport sends. Here it is nothing."""

    def begin(self) -> None:
        """Nothing keeps the messages from being written any more; for each round of writing."""

    def finish(self) -> None:
        """They are written, and no answer has been waited for yet; for each round of writing."""


@runtime_checkable
class BlockingTransport(Protocol):
    """A transport that can send in the caller's own thread. Safe from any thread."""

    def send_now(
        self, envelopes: Sequence[Envelope], timeout: float, lost: LostNow, meanwhile: Meanwhile
    ) -> None:
        """``Transport.send``; blocks, but not for longer than ``timeout``."""


@runtime_checkable
class BlockingJobStore(Protocol):
    """A ledger that can be written in the caller's own thread. Safe from any thread."""

    def publish_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """See ``BlockingBroker``."""

    def note_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """``JobStore.note``; blocks, but not for longer than ``timeout``."""

    def unsend_now(self, jobs: Sequence[str], timeout: float) -> None:
        """The transport may not have taken what was noted: somebody is to send it.

        Raises:
            Unavailable: it is noted all the same, and perhaps on its way.
        """

    def recall_now(self, lanes: Sequence[tuple[str, str]], timeout: float) -> int:
        """``JobStore.recall``; blocks, but not for much longer than ``timeout``."""


Noted = Callable[[], list[Published]]


@runtime_checkable
class PromptJobStore(BlockingJobStore, Protocol):
    """One that can be told of messages without being waited for."""

    def noting(
        self, envelopes: Sequence[Envelope], timeout: float
    ) -> AbstractContextManager[Noted]:
        """``note_now`` in two parts: it is asked when the block begins, and answers, once, when
        that is called. Both raise Unavailable; if the answer is not taken, nobody knows.
        """

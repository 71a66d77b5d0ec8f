"""Between callers and a broker that may be out of reach: a breaker, and a backlog behind it.

While the broker answers, messages go straight through. When it does not, they are kept and the
caller goes on; a thread publishes them, oldest first, as soon as it answers again. As long as
something is kept, new messages queue up behind it: nothing overtakes.

A backlog in memory bridges an outage; it does not hide a broker that was never there. So until the
broker has answered once, what cannot be published is an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from umbel.brokers import Published
from umbel.clock import Clock
from umbel.errors import UmbelError, Unavailable
from umbel.messages import Envelope
from umbel.publisher.backlogs import Backlog, Held
from umbel.publisher.publisher import Send
from umbel.resilience import Breaker, Circuit
from umbel.telemetry import events

Tell = Callable[[events.Event], None]

_BATCH = 500
_PAUSE = 0.1
_SHARE = 0.8
"""Of a caller's time the broker may have so much; the rest is for keeping the message."""


class Forwarder:
    """A ``Send`` that keeps what cannot be sent."""

    def __init__(
        self,
        send: Send,
        backlog: Backlog,
        clock: Clock,
        *,
        deadline: float,
        tell: Tell,
        breaker: Breaker | None = None,
    ) -> None:
        self._send = send
        self._backlog = backlog
        self._clock = clock
        self._deadline = deadline
        self._tell = tell
        self._breaker = breaker or Breaker()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._trusted = backlog.durable
        """Whether to keep messages: always on disk, in memory for a broker that once answered."""
        self._holds = self._is_left_over()
        """Whether something is kept: at first, from an earlier life."""
        if self._holds:
            self._start()

    def send(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """Publish, or keep. Takes no longer than ``timeout``.

        Raises:
            BacklogFull: neither was possible. DuplicateJob and the like: the broker refuses it.
        """
        until = self._clock.monotonic() + _SHARE * timeout
        why: Unavailable | None = None
        while not self._holds and self._allowed():
            left = until - self._clock.monotonic()
            if left <= 0:
                break
            try:
                published = self._send(envelopes, left)
            except Unavailable as error:
                if not self._trusted:
                    raise
                self._failed()
                why = error
                if self._backlog.durable:
                    break
                time.sleep(min(_PAUSE, max(until - self._clock.monotonic(), 0.0)))
            except UmbelError:
                self._succeeded()  # it answered
                raise
            else:
                self._succeeded()
                return published
        self._keep(envelopes, why)
        return [Published(envelope.id) for envelope in envelopes]

    def held(self) -> Held:
        """What is kept."""
        return self._backlog.held()

    def circuit(self) -> Circuit:
        """Whether the broker is tried."""
        return self._breaker.state

    def close(self, timeout: float) -> int:
        """Publish what would be lost, for so long; how many messages are lost all the same."""
        until = self._clock.monotonic() + timeout
        while self._backlog.mortal() and self._clock.monotonic() < until:
            time.sleep(0.01)
        self._closing.set()
        thread = self._thread
        if thread is not None:
            thread.join(max(until - self._clock.monotonic(), 0.1))
        self._backlog.close()
        return self._backlog.mortal()

    def _allowed(self) -> bool:
        with self._lock:
            return self._breaker.allows(self._clock.monotonic())

    def _failed(self) -> None:
        with self._lock:
            self._breaker.failed(self._clock.monotonic())

    def _succeeded(self) -> None:
        with self._lock:
            self._breaker.succeeded()
            self._trusted = True

    # --- what is kept ------------------------------------------------------------------------

    def _is_left_over(self) -> bool:
        try:
            return bool(self._backlog.oldest(1))
        except Unavailable:
            return False

    def _keep(self, envelopes: Sequence[Envelope], why: Unavailable | None) -> None:
        with self._lock:
            # Together with the end of the thread: what is put after its last look starts it anew.
            self._backlog.put(envelopes)
            first, self._holds = not self._holds, True
        if first:
            kind = self._backlog.held().kind
            self._tell(events.BacklogBegun(backlog=kind, error=str(why or "its breaker is open")))
        self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(
                    target=self._forward, name="umbel-forwarder", daemon=True
                )
                self._thread.start()

    def _forward(self) -> None:
        """Publish what is kept until nothing is."""
        while not self._closing.is_set():
            try:
                batch = self._next_batch()
                if batch is None:
                    return
                if not batch or not self._forward_batch(batch):
                    self._closing.wait(_PAUSE)
            except UmbelError:
                self._closing.wait(_PAUSE)

    def _next_batch(self) -> list[Envelope] | None:
        """The oldest; none while others are publishing them. None when nothing is kept."""
        with self._lock:
            batch = self._backlog.oldest(_BATCH)
            if not batch:
                self._holds, self._thread = False, None
        if not batch:
            self._tell(events.BacklogEnded())  # outside the lock: whoever hears it may publish
            return None
        return batch if self._backlog.lead() else []

    def _forward_batch(self, batch: Sequence[Envelope]) -> bool:
        if not self._allowed():
            return False
        try:
            self._send(batch, self._deadline)
        except Unavailable:
            self._failed()
            return False
        except UmbelError as error:
            self._succeeded()
            if len(batch) > 1:  # one of them is refused: find out which
                return all(self._forward_batch([one]) for one in batch)
            (one,) = batch
            self._tell(events.MessageRefused(job=one.id, task=one.subject, error=str(error)))
        self._succeeded()
        self._backlog.remove([one.id for one in batch])
        return True

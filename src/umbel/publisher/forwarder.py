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
from contextlib import suppress

import msgspec

from umbel.backends import Published, reentry
from umbel.backends.backlog import Backlog, Held, UnreadableMessage
from umbel.clock import Clock
from umbel.errors import (
    BadMessage,
    DuplicateJob,
    MessageTooLarge,
    NotEncodable,
    UmbelError,
    Unavailable,
)
from umbel.messages import Envelope
from umbel.publisher.publisher import Send
from umbel.resilience import Backoff, Breaker, Circuit
from umbel.telemetry import events

Tell = Callable[[events.Event], None]

_BATCH = 500
_PAUSE = 0.1
SHARE = 0.8
"""Of a caller's time the broker may have so much; the rest is for keeping the message."""
_REFUSED = (BadMessage, DuplicateJob, MessageTooLarge, NotEncodable)
"""The broker will never take this message. Any other error may pass."""
_AFTER_A_FAILURE = Backoff(first=0.1, factor=2.0, cap=5.0, jitter=0.0)
"""Between tries while the backlog cannot be published for a reason other than an outage."""
_FOR_ONE_MESSAGE = Backoff(first=1.0, factor=2.0, cap=300.0, jitter=0.0)
"""Between tries of a message that alone cannot be published."""


class Postponed(msgspec.Struct, frozen=True):
    """A kept message that failed while others did not."""

    tries: int
    due: float
    """The monotonic time of its next try."""


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
        self._leaving = False
        """Whether this is the last chance: try now, however long the breaker would wait."""
        self._closing = threading.Event()
        self._lost = 0
        """How many messages in memory were reported as lost."""
        self._stirred = threading.Event()
        """The thread has a reason not to wait any longer."""
        self._trusted = backlog.durable
        """Whether to keep messages: always on disk, in memory for a broker that once answered."""
        self._postponed: dict[str, Postponed] = {}
        self._holds = False
        """Whether something is kept that new messages must not overtake."""
        self._find_left_over()

    def send(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """Publish, or keep. Takes no longer than ``timeout``.

        Raises:
            BacklogFull: neither was possible. DuplicateJob and the like: the broker refuses it.
        """
        until = self._clock.monotonic() + SHARE * timeout
        why = "its breaker is open"
        # The breaker is asked last: when it is half open, what it allows must be tried.
        while self._clock.monotonic() < until and self._may_try():
            try:
                return self._try(envelopes, max(until - self._clock.monotonic(), 0.001))
            except Unavailable as error:
                if not self._trusted:
                    raise
                why = str(error)  # not the error: this frame is part of its traceback
                if self._backlog.durable:
                    break
                time.sleep(min(_PAUSE, max(until - self._clock.monotonic(), 0.0)))
        self._keep(envelopes, why)
        if self._closing.is_set():
            self._report_lost()
        return [Published(envelope.id) for envelope in envelopes]

    @property
    def has_backlog(self) -> bool:
        """Whether messages are kept that new ones must not overtake."""
        return self._holds

    @property
    def trusted(self) -> bool:
        """Whether messages may be kept."""
        return self._trusted

    def publish_kept(self, why: str) -> None:
        """See to what another part has put into the backlog."""
        with self._lock:
            first, self._holds = not self._holds, True
        self._begin(why if first else None)

    def held(self) -> Held:
        """What is kept."""
        return self._backlog.held()

    @property
    def holds(self) -> bool:
        """Whether it may hold messages of this process."""
        return self._holds or bool(self._postponed)

    def keeps(self, job: str) -> bool:
        """Whether a message waits here. While the backlog does not answer, it may: True."""
        try:
            return self._backlog.has(job)
        except Unavailable:
            return True

    def circuit(self) -> Circuit:
        """Whether the broker is tried."""
        return self._breaker.state

    def close(self, timeout: float) -> None:
        """Publish what would be lost, for so long. What is lost all the same is reported.

        Messages that are sent later are published at once or kept durably; if neither works, they
        are reported as lost. Closing twice is fine.
        """
        if self._closing.is_set():
            return
        until = self._clock.monotonic() + timeout
        self._leaving = True
        self._stirred.set()
        if self._backlog.mortal():
            self._start()
        while self._backlog.mortal() and self._clock.monotonic() < until:
            if self._thread is None:  # none can be started while the interpreter exits
                with suppress(Exception):
                    self._publish_oldest()
            time.sleep(0.01)
        self._closing.set()
        self._stirred.set()
        thread = self._thread
        if thread is not None:
            thread.join(max(until - self._clock.monotonic(), 0.1))
        self._backlog.close()
        self._report_lost()

    def _report_lost(self) -> None:
        with self._lock:
            lost, self._lost = self._backlog.mortal() - self._lost, self._backlog.mortal()
        if lost > 0:
            self._report(events.BacklogLost(messages=lost))

    def _may_try(self) -> bool:
        """Whether a new message goes to the broker, and not behind others into the backlog."""
        if self._closing.is_set() and not self._backlog.durable:
            return True  # what it holds is lost: there is nothing to wait for
        return not self._holds and self._allowed()

    def _allowed(self) -> bool:
        with self._lock:
            return self._leaving or self._breaker.allows(self._clock.monotonic())

    def _try(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """Send them, and tell the breaker how that went.

        Whatever happens, it is told: one that is half open waits for it, and tries nothing else.
        """
        answered = failed = False
        try:
            published = self._send(envelopes, timeout)
            answered = True
            return published
        except Unavailable:
            failed = True
            raise
        except UmbelError:
            answered = True
            raise
        except OSError as error:
            failed = True
            raise Unavailable(f"the broker cannot be reached: {error}") from error
        except Exception:  # of this process or this message: no reason not to try others
            raise
        except BaseException:
            failed = True
            raise
        finally:
            with self._lock:
                self._trusted = self._trusted or answered
                if not failed:
                    self._breaker.succeeded()
                elif self._trusted:
                    self._breaker.failed(self._clock.monotonic())

    def _report(self, event: events.Event) -> None:
        with suppress(Exception):  # a log that cannot be written must not stop the publishing
            self._tell(event)

    # --- what is kept ------------------------------------------------------------------------

    def _find_left_over(self) -> None:
        """See whether an earlier process left something, and have it published."""
        try:
            self._holds = bool(self._backlog.oldest(1))
        except UnreadableMessage:
            self._holds = True
        except Exception:  # noqa: BLE001 - the thread looks again, and reports it
            self._start()
        if self._holds:
            self._start()

    def _keep(self, envelopes: Sequence[Envelope], why: str) -> None:
        with self._lock:
            # Together with the end of the thread: what is put after its last look starts it anew.
            self._backlog.put(envelopes)
            first, self._holds = not self._holds, True
        self._begin(why if first else None)

    def _begin(self, why: str | None) -> None:
        if why is not None:
            self._report(events.BacklogBegun(backlog=self._backlog.held().kind, error=why))
            self._stirred.set()
        self._start()

    def _start(self) -> None:
        with self._lock:
            if self._closing.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            thread = threading.Thread(target=self._forward, name="umbel-forwarder", daemon=True)
            try:
                thread.start()
                self._thread = thread
                return
            except RuntimeError as error:  # no more threads; the next message tries again
                failure = error
        self._report_failure(failure, 0.0)  # outside the lock: a listener may publish

    def _forward(self) -> None:
        """Publish what is kept until nothing is. No exception ends that."""
        reentry.here.level = 1  # this thread holds locks that a finalizer must not wait for
        failures, pause = 0, 0.0
        while not self._closing.is_set():
            self._stirred.clear()
            try:
                again = self._publish_oldest()
                if again is None:
                    return
                failures, pause = 0, again
            except Exception as error:  # noqa: BLE001 - the outermost loop of this thread
                failures += 1
                pause = _AFTER_A_FAILURE.delay(failures)
                self._report_failure(error, pause)
            if pause and not self._closing.is_set():
                self._stirred.wait(min(pause, _PAUSE) if self._leaving else pause)

    def _report_failure(self, error: Exception, delay: float) -> None:
        service, text = "publishing the backlog", repr(error)
        self._report(events.ServiceFailed(service=service, error=text, delay=round(delay, 2)))

    def _publish_oldest(self) -> float | None:
        """Publish the first batch. Returns the seconds until the next; None: nothing is kept."""
        try:
            batch = self._next_batch()
        except UnreadableMessage as error:
            self._postpone(error.job, "", error)
            return 0.0
        if batch:
            if not self._backlog.lead():  # another process publishes them
                return _PAUSE
            return 0.0 if self._forward_batch(batch) else _PAUSE
        if not self._postponed:
            return None
        due = self._due_again()
        if due and self._backlog.lead():
            self._forward_each(due)
        now = self._clock.monotonic()
        return max(min((one.due for one in self._postponed.values()), default=now) - now, 0.0)

    def _next_batch(self) -> list[Envelope]:
        """The oldest that are not postponed. Without any, new messages go straight through."""
        with self._lock:
            batch = self._backlog.oldest(_BATCH, self._postponed)
            ended, self._holds = self._holds and not batch, bool(batch)
            if not batch and not self._postponed:
                self._thread = None
        if ended:
            self._report(events.BacklogEnded())  # outside the lock: a listener may publish
        return batch

    def _forward_batch(self, batch: Sequence[Envelope]) -> bool:
        """Publish these, all at once if possible. Whether any of them has left the backlog.

        Raises:
            Exception: none could be published, for a reason other than an outage.
        """
        if not self._allowed():
            return False
        try:
            self._try(batch, self._deadline)
        except Unavailable:
            return False
        except Exception as error:
            if len(batch) > 1:
                return self._forward_each(batch)
            if not isinstance(error, _REFUSED):
                raise
            (one,) = batch
            self._report(events.MessageRefused(job=one.id, task=one.subject, error=str(error)))
        self._backlog.remove([one.id for one in batch])
        for one in batch:
            self._postponed.pop(one.id, None)
        return True

    def _forward_each(self, batch: Sequence[Envelope]) -> bool:
        """Publish each of these by itself. One that fails while others do not is postponed.

        Raises:
            Exception: all of them failed, which is no fault of theirs.
        """
        left, failed = False, list[tuple[Envelope, Exception]]()
        for one in batch:
            try:
                if not self._forward_batch([one]):
                    break
                left = True
            except Unavailable:  # the backlog's own
                raise
            except Exception as error:  # noqa: BLE001 - reported for each message, or raised below
                failed.append((one, error))
        if failed and not left and batch[0].id not in self._postponed:
            raise failed[0][1]
        for one, why in failed:
            self._postpone(one.id, one.subject, why)
        return left

    def _postpone(self, job: str, task: str, error: Exception) -> None:
        before = self._postponed.get(job)
        tries = before.tries + 1 if before is not None else 1
        delay = _FOR_ONE_MESSAGE.delay(tries)
        self._postponed[job] = Postponed(tries, self._clock.monotonic() + delay)
        text = str(error) or repr(error)
        self._report(events.MessagePostponed(job=job, task=task, error=text, delay=delay))

    def _due_again(self) -> list[Envelope]:
        """The postponed messages whose time has come. Others that are gone are forgotten."""
        now = self._clock.monotonic()
        later = {job: one for job, one in self._postponed.items() if one.due > now}
        if len(later) == len(self._postponed):
            return []
        due = self._backlog.oldest(_BATCH, later)
        found = {one.id for one in due}
        self._postponed = {
            job: one for job, one in self._postponed.items() if job in later or job in found
        }
        return due

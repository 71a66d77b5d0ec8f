"""Keeps messages in a backlog while the broker is unavailable, and publishes them afterwards.

While the broker answers, messages are sent directly. While it does not, a breaker stops further
tries and the messages are put into the backlog, so that the caller can continue. A thread publishes
them, oldest first, once the broker answers again. As long as the backlog holds messages, new
messages are put behind them, so their order is kept.

A backlog in memory bridges an outage, but must not hide a broker that never existed. Until the
broker has answered once, a message that cannot be published is therefore an error.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from umbel.backends import Published, reentry
from umbel.backends.backlog import Backlog, BacklogStatus, UnreadableMessage
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
from umbel.publisher.reporting import emit_or_log
from umbel.resilience import Backoff, Breaker, Circuit
from umbel.telemetry import Telemetry, events

_MAX_BATCH_MESSAGES = 500
_RETRY_DELAY_SECONDS = 0.1
BROKER_TIME_SHARE = 0.8
"""The part of a caller's time for the broker. The rest is for writing to the backlog."""
_PERMANENT_ERRORS = (BadMessage, DuplicateJob, MessageTooLarge, NotEncodable)
"""The broker will never accept such a message. Any other error may be temporary."""
_FAILURE_BACKOFF = Backoff(first=0.1, factor=2.0, cap=5.0, jitter=0.0)
"""Delays between tries while publishing the backlog fails for a reason other than an outage."""
_MESSAGE_BACKOFF = Backoff(first=1.0, factor=2.0, cap=300.0, jitter=0.0)
"""Delays between tries of a single message that cannot be published while others can."""


class Postponed(msgspec.Struct, frozen=True):
    """A message in the backlog that could not be published while others could."""

    tries: int
    due: float
    """The monotonic time of its next try."""


class Forwarder:
    """A ``Send`` that puts messages into a backlog if it cannot send them."""

    def __init__(
        self,
        send: Send,
        backlog: Backlog,
        clock: Clock,
        *,
        deadline: float,
        telemetry: Telemetry,
        breaker: Breaker | None = None,
    ) -> None:
        self._send = send
        self._backlog = backlog
        self._clock = clock
        self._deadline = deadline
        self._telemetry = telemetry
        self._breaker = breaker or Breaker()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        """Whether ``close`` was called. Then messages are tried even if the breaker is open."""
        self._closed = threading.Event()
        self._reported_lost = 0
        """The number of messages in memory that were reported as lost."""
        self._wake_up = threading.Event()
        """Ends a pause of the thread."""
        self._can_keep = backlog.durable
        """Whether messages may be kept: in memory, only once the broker has answered."""
        self._postponed: dict[str, Postponed] = {}
        self._has_backlog = False
        """Whether the backlog holds messages that new ones must not overtake."""
        self._check_for_leftovers()

    def send(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """Publish the envelopes or put them into the backlog, within ``timeout`` seconds.

        Raises:
            BacklogFull: neither was possible. DuplicateJob and others: the broker rejects them.
        """
        until = self._clock.monotonic() + BROKER_TIME_SHARE * timeout
        why = "its breaker is open"
        # The breaker is asked last: a half-open breaker waits for the result of what it allows.
        while self._clock.monotonic() < until and self._may_skip_backlog():
            try:
                return self._try_send(envelopes, max(until - self._clock.monotonic(), 0.001))
            except Unavailable as error:
                if not self._can_keep or (sys.is_finalizing() and not self._backlog.durable):
                    raise
                why = str(error)  # not the error: this frame is part of its traceback
                if self._backlog.durable:
                    break
                time.sleep(min(_RETRY_DELAY_SECONDS, max(until - self._clock.monotonic(), 0.0)))
        self._put_in_backlog(envelopes, why)
        if self._closed.is_set():
            self._report_lost()
        return [Published(envelope.id) for envelope in envelopes]

    @property
    def has_backlog(self) -> bool:
        """Whether the backlog holds messages that new ones must not overtake."""
        return self._has_backlog

    @property
    def can_keep(self) -> bool:
        """Whether messages may be put into the backlog."""
        return self._can_keep

    def publish_backlog(self, why: str) -> None:
        """Publish messages that another object has put into the backlog, because of ``why``."""
        with self._lock:
            first, self._has_backlog = not self._has_backlog, True
        self._start_publishing(why if first else None)

    def status(self) -> BacklogStatus:
        """Return the number and age of the messages in the backlog."""
        return self._backlog.status()

    @property
    def may_hold_messages(self) -> bool:
        """Whether the backlog may hold messages of this process."""
        return self._has_backlog or bool(self._postponed)

    def may_hold_job(self, job: str) -> bool:
        """Return whether the backlog holds this job. Return True if the backlog does not answer."""
        try:
            return self._backlog.has(job)
        except Unavailable:
            return True

    def circuit(self) -> Circuit:
        """Return the state of the breaker."""
        return self._breaker.state

    def close(self, timeout: float) -> None:
        """Publish what would be lost with the process, within ``timeout``. Report the rest.

        Messages that are sent after that are published directly or put into a durable backlog. If
        neither works, they are reported as lost. A second call does nothing.
        """
        if self._closed.is_set():
            return
        until = self._clock.monotonic() + timeout
        self._is_closing = True
        self._wake_up.set()
        if self._backlog.count_volatile():
            self._start_thread()
        while self._backlog.count_volatile() and self._clock.monotonic() < until:
            if self._thread is None:  # no thread can be started while the interpreter exits
                with suppress(Exception):
                    self._publish_next()
            time.sleep(0.01)
        self._closed.set()
        self._wake_up.set()
        thread = self._thread
        if thread is not None:
            thread.join(max(until - self._clock.monotonic(), 0.1))
        self._backlog.close()
        self._report_lost()

    def _report_lost(self) -> None:
        with self._lock:
            volatile = self._backlog.count_volatile()
            lost, self._reported_lost = volatile - self._reported_lost, volatile
        if lost > 0:
            self._report(events.BacklogLost(messages=lost))

    def _may_skip_backlog(self) -> bool:
        """Return whether to send a new message to the broker instead of the backlog."""
        if self._closed.is_set() and not self._backlog.durable:
            return True  # its messages are lost already, so there is no order to keep
        return not self._has_backlog and self._breaker_allows()

    def _breaker_allows(self) -> bool:
        with self._lock:
            return self._is_closing or self._breaker.allows(self._clock.monotonic())

    def _try_send(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """Send the envelopes and report the result to the breaker.

        The result must be reported whatever happens: until then a half-open breaker allows nothing.
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
        except Exception:  # caused by this process or message: others can still be tried
            raise
        except BaseException:
            failed = True
            raise
        finally:
            with self._lock:
                self._can_keep = self._can_keep or answered
                if not failed:
                    self._breaker.succeeded()
                elif self._can_keep:
                    self._breaker.failed(self._clock.monotonic())

    def _report(self, event: events.Event) -> None:
        with suppress(Exception):  # a log that cannot be written must not stop publishing
            emit_or_log(self._telemetry, event)

    # --- the backlog -------------------------------------------------------------------------

    def _check_for_leftovers(self) -> None:
        """Start publishing if an earlier process left messages in the backlog."""
        try:
            self._has_backlog = bool(self._backlog.oldest(1))
        except UnreadableMessage:
            self._has_backlog = True
        except Exception:  # noqa: BLE001 - the thread tries again, and reports it
            self._start_thread()
        if self._has_backlog:
            self._start_thread()

    def _put_in_backlog(self, envelopes: Sequence[Envelope], why: str) -> None:
        with self._lock:
            # Under the lock under which the thread decides to end: a message that is put after the
            # thread has found the backlog empty starts a new thread.
            self._backlog.put(envelopes)
            first, self._has_backlog = not self._has_backlog, True
        self._start_publishing(why if first else None)

    def _start_publishing(self, why: str | None) -> None:
        if why is not None:
            self._report(events.BacklogStarted(backlog=self._backlog.status().kind, error=why))
            self._wake_up.set()
        self._start_thread()

    def _start_thread(self) -> None:
        with self._lock:
            if self._closed.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            # A finalizer in this thread must not wait for its locks: so it has a level of its own.
            thread = reentry.thread(self._run_thread, name="umbel-forwarder", level=0)
            try:
                thread.start()
                self._thread = thread
                return
            except RuntimeError as error:  # too many threads; the next message tries again
                failure = error
        self._report_failure(failure, 0.0)  # outside the lock: a listener may publish

    def _run_thread(self) -> None:
        """Publish until the backlog is empty. Exceptions are reported and do not end it."""
        failures, pause = 0, 0.0
        while not self._closed.is_set():
            self._wake_up.clear()
            try:
                again = self._publish_next()
                if again is None:
                    return
                failures, pause = 0, again
            except Exception as error:  # noqa: BLE001 - the outermost loop of this thread
                failures += 1
                pause = _FAILURE_BACKOFF.delay(failures)
                self._report_failure(error, pause)
            if pause and not self._closed.is_set():
                self._wake_up.wait(min(pause, _RETRY_DELAY_SECONDS) if self._is_closing else pause)

    def _report_failure(self, error: Exception, delay: float) -> None:
        service, text = "publishing the backlog", repr(error)
        self._report(events.ServiceFailed(service=service, error=text, delay=round(delay, 2)))

    def _publish_next(self) -> float | None:
        """Publish the next batch. Return the seconds until the following one; None: it is empty."""
        try:
            batch = self._next_batch()
        except UnreadableMessage as error:
            self._postpone(error.job, "", error)
            return 0.0
        if batch:
            if not self._backlog.acquire_leadership():  # another process publishes them
                return _RETRY_DELAY_SECONDS
            return 0.0 if self._publish_batch(batch) else _RETRY_DELAY_SECONDS
        if not self._postponed:
            return None
        due = self._load_due()
        if due and self._backlog.acquire_leadership():
            self._publish_one_by_one(due)
        now = self._clock.monotonic()
        return max(min((one.due for one in self._postponed.values()), default=now) - now, 0.0)

    def _next_batch(self) -> list[Envelope]:
        """Return the oldest messages that are not postponed.

        If there are none, new messages are sent directly from now on.
        """
        with self._lock:
            batch = self._backlog.oldest(_MAX_BATCH_MESSAGES, self._postponed)
            ended, self._has_backlog = self._has_backlog and not batch, bool(batch)
            if not batch and not self._postponed:
                self._thread = None
        if ended:
            self._report(events.BacklogEnded())  # outside the lock: a listener may publish
        return batch

    def _publish_batch(self, batch: Sequence[Envelope]) -> bool:
        """Publish the batch, in one transaction if possible.

        Return whether any of the messages has left the backlog.

        Raises:
            Exception: none could be published, for a reason other than an outage.
        """
        if not self._breaker_allows():
            return False
        try:
            self._try_send(batch, self._deadline)
        except Unavailable:
            return False
        except Exception as error:
            if len(batch) > 1:
                return self._publish_one_by_one(batch)
            if not isinstance(error, _PERMANENT_ERRORS):
                raise
            (one,) = batch
            self._report(events.MessageRefused(job=one.id, task=one.subject, error=str(error)))
        self._backlog.remove([one.id for one in batch])
        for one in batch:
            self._postponed.pop(one.id, None)
        return True

    def _publish_one_by_one(self, batch: Sequence[Envelope]) -> bool:
        """Publish each message by itself. A message that fails while others do not is postponed.

        Raises:
            Exception: all of them failed, so the cause is not a single message.
        """
        left, failed = False, list[tuple[Envelope, Exception]]()
        for one in batch:
            try:
                if not self._publish_batch([one]):
                    break
                left = True
            except Unavailable:  # of the backlog, not of the broker
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
        delay = _MESSAGE_BACKOFF.delay(tries)
        self._postponed[job] = Postponed(tries, self._clock.monotonic() + delay)
        text = str(error) or repr(error)
        self._report(events.MessagePostponed(job=job, task=task, error=text, delay=delay))

    def _load_due(self) -> list[Envelope]:
        """Return the postponed messages that are due. Forget those that are no longer there."""
        now = self._clock.monotonic()
        later = {job: one for job, one in self._postponed.items() if one.due > now}
        if len(later) == len(self._postponed):
            return []
        due = self._backlog.oldest(_MAX_BATCH_MESSAGES, later)
        found = {one.id for one in due}
        self._postponed = {
            job: one for job, one in self._postponed.items() if job in later or job in found
        }
        return due

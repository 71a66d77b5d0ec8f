"""Group commit: calls that arrive while a batch is being sent are sent together in the next batch.

Every call puts one ``PublishRequest`` into a queue. At most one thread sends at a time; it is the
leader:

1. A caller that finds no leader becomes the leader. It takes the requests at the head of the
   queue and sends them from its own thread, in one round trip and one transaction.
2. Callers that arrive meanwhile append their requests to the queue and wait.
3. When the batch has been sent, the leader wakes the callers of that batch. Then it makes the
   caller that arrived last the next leader, because that caller has the most time left.

So a single call is sent immediately, in the caller's thread and without a thread switch. If recent
batches had several callers, the leader first yields the processor for a moment, so that those
callers can join its batch: a batch costs about the same whatever its size.

Two kinds of callers cannot lead: async callers, which must not block their event loop, and calls
made inside another call of the same thread, which must not wait for a lock. A sender thread leads
for them. It starts when it is first needed, and such calls take no lock here.

No caller waits longer than its own deadline. An exception, such as KeyboardInterrupt, can stop a
leader at any line, so leadership ends by itself shortly after the leader's deadline.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue

from umbel.backends import Published, reentry
from umbel.clock import Clock
from umbel.errors import BacklogFull, PublishTimeout, Unavailable
from umbel.messages import Envelope

Send = Callable[[Sequence[Envelope], float], list[Published]]
"""Publishes all of the envelopes or none, within a number of seconds. Blocks."""

_MAX_BATCH_ENVELOPES = 2_000
_RETRY_DELAY_SECONDS = 0.1
_LEADER_GRACE_SECONDS = 1.0
"""How long after its own deadline a leader still counts as the leader."""
_MAX_GATHER_SECONDS = 0.002
"""How long a leader waits at most for recent callers to join its batch."""


class PublishRequest:
    """The envelopes of one call, and the result or error of publishing them."""

    __slots__ = (
        "_error",
        "_published",
        "_wake_lock",
        "can_lead",
        "envelopes",
        "expires_at",
        "is_answered",
        "is_leader",
        "needs_own_batch",
        "wake_caller",
    )

    def __init__(
        self,
        envelopes: Sequence[Envelope],
        expires_at: float,
        wake_caller: Callable[[], None] | None = None,
        *,
        can_lead: bool = True,
    ) -> None:
        self.envelopes = envelopes
        self.expires_at = expires_at
        """The monotonic time after which the caller stops waiting."""
        self.wake_caller = wake_caller
        """Wakes an async caller, from any thread; None for a caller that blocks."""
        self.can_lead = can_lead and wake_caller is None
        """Whether the caller may send in its own thread."""
        self.is_answered = False
        self.is_leader = False
        self._published: list[Published] = []
        self._error: BaseException | None = None
        self._wake_lock = threading.Lock()
        self._wake_lock.acquire()
        self.needs_own_batch = any(
            one.unique is not None and one.on_conflict != "return" for one in envelopes
        )
        """Whether a conflict of a unique key may roll its batch back."""

    def answer(self, published: list[Published]) -> None:
        """Record that the envelopes are durable, unless the request is answered already."""
        if not self.is_answered:
            self.is_answered, self._published = True, published

    def fail(self, error: BaseException) -> None:
        """Record that publishing failed, unless the request is answered already."""
        if not self.is_answered:
            # Each caller gets its own error: one object raised in several threads mixes tracebacks.
            own = PublishTimeout(*error.args) if isinstance(error, PublishTimeout) else error
            self.is_answered, self._error = True, own

    def wake(self) -> None:
        """Wake the caller, because its request is answered or because it is the next leader."""
        if self.wake_caller is not None:
            self.wake_caller()
        else:
            with suppress(RuntimeError):  # already woken: its deadline passed at this moment
                self._wake_lock.release()

    def wait(self, seconds: float) -> bool:
        """Block until the caller is woken. Return False if that takes longer than ``seconds``."""
        return self._wake_lock.acquire(timeout=max(seconds, 0.0))

    def result(self) -> list[Published]:
        """Return what was published, or raise the error."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback refers to this request, and maybe to a cursor
        return self._published


class Publisher:
    """Publishes for every caller of one application and process, from any thread."""

    def __init__(
        self,
        send: Send,
        clock: Clock,
        *,
        deadline: float,
        has_backlog: bool = False,
        level: int = 0,
    ) -> None:
        self._send = send
        self._clock = clock
        self._deadline = deadline
        self._has_backlog = has_backlog
        """Whether ``send`` keeps messages that it cannot publish in time. Then a batch is tried
        until the first of its callers expires, otherwise until the last one does."""
        self._level = level
        self._lock = threading.Lock()
        self._queue: deque[PublishRequest] = deque()
        self._leader_until = 0.0
        """The monotonic time after which there is no leader, even if one has not stepped down."""
        self._recent_callers = 1
        """The number of callers in recent batches."""
        self._sender_signals: SimpleQueue[bool] = SimpleQueue()
        """To the sender thread: True to lead if there is no leader, False to end."""
        self._sender_lock = threading.Lock()
        self._is_sender_running = False

    def publish(self, envelopes: Sequence[Envelope]) -> list[Published]:
        """Publish and return when the envelopes are durable.

        Raises:
            PublishTimeout: not confirmed within the deadline. DuplicateJob: a unique key is held.
        """
        request = PublishRequest(envelopes, self._clock.monotonic() + self._deadline)
        is_leader = self._enqueue(request)
        try:
            while is_leader or not request.is_answered:
                if is_leader:
                    self._lead(request)
                is_leader = not request.is_answered and self._wait_for_answer_or_lead(request)
        except BaseException:
            self.abandon(request)
            raise
        return request.result()

    def submit(
        self, envelopes: Sequence[Envelope], wake_caller: Callable[[], None]
    ) -> PublishRequest:
        """Publish without blocking. ``wake_caller`` is called in any thread when it is answered."""
        request = PublishRequest(envelopes, self._clock.monotonic() + self._deadline, wake_caller)
        self._enqueue_for_sender(request)
        return request

    def publish_in_sender_thread(self, envelopes: Sequence[Envelope]) -> list[Published]:
        """Publish like ``publish``, but from the sender thread and without waiting for a lock."""
        expires_at = self._clock.monotonic() + self._deadline
        request = PublishRequest(envelopes, expires_at, can_lead=False)
        try:
            self._enqueue_for_sender(request)
            if not request.wait(request.expires_at - self._clock.monotonic()):
                self.expire(request)
        except BaseException:
            self.abandon(request)
            raise
        return request.result()

    def expire(self, request: PublishRequest) -> None:
        """Fail a request whose deadline has passed. Its batch may be being sent at this moment."""
        request.fail(self._timeout_error("others are being published"))

    def abandon(self, request: PublishRequest) -> None:
        """Drop a request whose caller no longer waits, unless it is being sent already."""
        if not request.can_lead:
            request.is_answered = True
            return
        with self._lock:
            request.is_answered = True
        if request.is_leader:
            self._pass_leadership()

    def close(self) -> None:
        """Stop the sender thread. The next call that needs it starts a new one."""
        if self._is_sender_running:
            self._sender_signals.put(False)

    # --- leadership --------------------------------------------------------------------------

    def _enqueue(self, request: PublishRequest) -> bool:
        """Append the request. Return True if there was no leader: the caller is the leader now."""
        with self._lock:
            self._queue.append(request)
            is_leader = self._clock.monotonic() >= self._leader_until
            if is_leader:
                self._leader_until = request.expires_at + _LEADER_GRACE_SECONDS
        return is_leader

    def _wait_for_answer_or_lead(self, request: PublishRequest) -> bool:
        """Wait until the request is answered, is expired, or leads. Return whether it leads."""
        if not request.wait(request.expires_at - self._clock.monotonic()):
            with self._lock:
                if not request.is_answered and not request.is_leader:
                    self.expire(request)
        return request.is_leader

    def _lead(self, request: PublishRequest | None = None) -> None:
        """Send one batch, then pass the leadership on. The sender thread leads with no request."""
        until = float("inf")
        if request is not None:
            request.is_leader, until = False, request.expires_at
        batch: list[PublishRequest] = []
        try:
            if self._recent_callers > 1:
                self._wait_for_more_callers()
            batch = self._next_batch()
            self._recent_callers = max(len(batch), self._recent_callers - 1)
            self._send_batch(batch, until)
            self._requeue([one for one in batch if not one.is_answered])
        finally:
            for one in batch:
                if one is not request and one.is_answered:
                    one.wake()
            self._pass_leadership()

    def _pass_leadership(self) -> None:
        with self._lock:
            while self._queue and self._queue[-1].is_answered:
                self._queue.pop()
            successor = self._queue[-1] if self._queue else None
            self._leader_until = 0.0
            if successor is not None and successor.can_lead:
                self._leader_until = successor.expires_at + _LEADER_GRACE_SECONDS
                successor.is_leader = True
                successor.wake()
                successor = None
        if successor is not None:
            self._signal_sender()

    # --- the sender thread -------------------------------------------------------------------

    def _enqueue_for_sender(self, request: PublishRequest) -> None:
        """Have the sender thread send the request. Takes no lock, so it is safe in any call."""
        self._queue.append(request)
        self._signal_sender()

    def _signal_sender(self) -> None:
        self._sender_signals.put(True)
        if not self._is_sender_running:
            # Two callers may start a thread each; the second thread ends at once. Preventing that
            # would take a lock.
            reentry.thread(self._run_sender, name="umbel-sender", level=self._level).start()

    def _run_sender(self) -> None:
        if not self._sender_lock.acquire(blocking=False):
            return
        self._is_sender_running = True
        try:
            while self._sender_signals.get():
                if self._take_leadership():
                    self._lead()
        finally:
            self._is_sender_running = False
            self._sender_lock.release()
        if not self._sender_signals.empty():  # from a caller that still saw this thread running
            self._signal_sender()

    def _take_leadership(self) -> bool:
        """Make the sender thread the leader if a request waits and there is no leader."""
        with self._lock:
            if not self._queue or self._clock.monotonic() < self._leader_until:
                return False
            self._leader_until = self._queue[-1].expires_at + _LEADER_GRACE_SECONDS
            return True

    # --- sending -----------------------------------------------------------------------------

    def _wait_for_more_callers(self) -> None:
        """Let other threads run for as long as that adds requests to the queue."""
        seen, until = 0, self._clock.monotonic() + _MAX_GATHER_SECONDS
        while seen < len(self._queue) < self._recent_callers and self._clock.monotonic() < until:
            seen = len(self._queue)
            time.sleep(0)

    def _next_batch(self) -> list[PublishRequest]:
        with self._lock:
            batch: list[PublishRequest] = []
            size = 0
            while self._queue and size < _MAX_BATCH_ENVELOPES:
                request = self._queue[0]
                if not request.is_answered and request.needs_own_batch and batch:
                    break
                self._queue.popleft()
                if not request.is_answered:
                    batch.append(request)
                    size += len(request.envelopes)
                    if request.needs_own_batch:
                        break
            return batch

    def _send_batch(self, batch: list[PublishRequest], until: float) -> None:
        """Publish the batch by ``until``. Requests that are unanswered then have time left."""
        try:
            self._send_until_expired(batch, until)
        except Exception as error:  # noqa: BLE001 - the callers handle it
            if len(batch) == 1:
                batch[0].fail(error)
                return
            # The error of one request must not fail the others: find out which one caused it.
            for request in batch:
                self._send_batch([request], until)
        except BaseException as error:
            _fail(batch, Unavailable(f"the thread that sent this batch was stopped: {error!r}"))
            raise

    def _send_until_expired(self, batch: list[PublishRequest], until: float) -> None:
        """Try until it succeeds, every request has expired, or ``until`` has come."""
        why = ""
        while batch := self._fail_expired(batch, why):
            left = self._remaining_seconds(batch, until)
            if left <= 0:
                return
            try:
                envelopes = batch[0].envelopes if len(batch) == 1 else _envelopes_of(batch)
                published = self._send(envelopes, left)
            except BacklogFull:
                raise
            except Unavailable as error:
                # Not the error itself: this frame is part of its traceback. Such a cycle keeps a
                # cursor until another thread collects it, and that thread then waits for this
                # connection.
                why = str(error)
            else:
                _answer(batch, published)
                return
            time.sleep(min(_RETRY_DELAY_SECONDS, max(self._remaining_seconds(batch, until), 0.0)))

    def _remaining_seconds(self, batch: Sequence[PublishRequest], until: float) -> float:
        """Return how long the batch may be tried: see ``_has_backlog``."""
        ends = [request.expires_at for request in batch]
        end = min(ends) if self._has_backlog else max(ends)
        return min(end, until) - self._clock.monotonic()

    def _requeue(self, requests: Sequence[PublishRequest]) -> None:
        if requests:
            with self._lock:
                self._queue.extendleft(reversed(requests))

    def _fail_expired(self, batch: list[PublishRequest], why: str) -> list[PublishRequest]:
        """Fail the requests that have expired and return those that are unanswered."""
        now = self._clock.monotonic()
        for request in batch:
            if request.expires_at <= now:
                request.fail(self._timeout_error(why or "the broker is busy"))
        return [request for request in batch if not request.is_answered]

    def _timeout_error(self, why: object) -> PublishTimeout:
        return PublishTimeout(f"not published within {self._deadline:g} s: {why}")


def _envelopes_of(batch: Sequence[PublishRequest]) -> list[Envelope]:
    return [envelope for request in batch for envelope in request.envelopes]


def _answer(batch: list[PublishRequest], published: list[Published]) -> None:
    at = 0
    for request in batch:
        end = at + len(request.envelopes)
        request.answer(published[at:end])
        at = end


def _fail(batch: list[PublishRequest], error: BaseException) -> None:
    for request in batch:
        request.fail(error)

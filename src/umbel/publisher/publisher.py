"""Group commit: whoever publishes while a batch is on its way travels with the next one.

Callers queue in one line. The first of them leads: it sends its own parcel and all that wait
behind it, in one round trip and one transaction, in its own thread; then the lead passes to the
first who came meanwhile. So a lone call is sent at once and nobody has to be woken for it. Where
many called last time the leader lets those come aboard who are about to call again: a batch costs
about the same whatever its size. Callers that must not lead, the async ones and those inside
another call of their thread, are led by a courier, a thread that runs only for them. Such callers
wait for no lock here.

No caller waits longer than its own deadline. The lead passes to the caller that came last, because
it has the most time left; the others stop waiting when their own time is over.
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
"""Publishes envelopes, all or none, within so many seconds. Blocks."""

_BATCH = 2_000
_PAUSE = 0.1
_GRACE = 1.0
_BOARDING = 0.002
"""Seconds within which those who called last time are let come aboard again."""


class Parcel:
    """One caller's envelopes, and what became of them."""

    __slots__ = (
        "_error",
        "_published",
        "_woken",
        "answered",
        "can_lead",
        "envelopes",
        "leads",
        "tell",
        "travels_alone",
        "until",
    )

    def __init__(
        self,
        envelopes: Sequence[Envelope],
        until: float,
        tell: Callable[[], None] | None = None,
        *,
        can_lead: bool = True,
    ) -> None:
        self.envelopes = envelopes
        self.until = until
        self.tell = tell
        """Wakes a caller that does not block; None for one that does."""
        self.can_lead = can_lead and tell is None
        """Whether its caller may send in its own thread."""
        self.answered = False
        self.leads = False
        self._published: list[Published] = []
        self._error: BaseException | None = None
        self._woken = threading.Lock()
        self._woken.acquire()
        self.travels_alone = any(
            one.unique is not None and one.on_conflict != "return" for one in envelopes
        )
        """A conflict rolls its batch back, and nobody else's messages with it."""

    def answer(self, published: list[Published]) -> None:
        """They are durable."""
        if not self.answered:
            self.answered, self._published = True, published

    def fail(self, error: BaseException) -> None:
        """They are not, as far as anybody knows."""
        if not self.answered:
            # Each gets its own: one object raised in several threads mixes tracebacks.
            own = PublishTimeout(*error.args) if isinstance(error, PublishTimeout) else error
            self.answered, self._error = True, own

    def wake(self) -> None:
        """Let the caller go on: answered, or to lead."""
        if self.tell is not None:
            self.tell()
        else:
            with suppress(RuntimeError):  # woken already: its time ran out at this very moment
                self._woken.release()

    def wait(self, seconds: float) -> bool:
        """Block until woken. False when that took too long."""
        return self._woken.acquire(timeout=max(seconds, 0.0))

    def result(self) -> list[Published]:
        """What was published. Raises what went wrong."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback has this parcel, and perhaps a cursor
        return self._published


class Publisher:
    """Publishes for every caller of one application and process, from any thread."""

    def __init__(
        self, send: Send, clock: Clock, *, deadline: float, keeps: bool = False, level: int = 0
    ) -> None:
        self._send_now = send
        self._clock = clock
        self._deadline = deadline
        self._keeps = keeps
        """Whether ``send`` keeps in time what it cannot publish. Then it has as long as the caller
        with the least time left; otherwise others go on trying when that one's time is over."""
        self._level = level
        self._lock = threading.Lock()
        self._line: deque[Parcel] = deque()
        self._led_until = 0.0
        """Nobody leads after this moment: a leader may be stopped by an exception at any line."""
        self._crowd = 1
        """How many callers the batches of late had."""
        self._turns: SimpleQueue[bool] = SimpleQueue()
        """Calls the courier: to lead if no other thread does, or to end."""
        self._carrying = threading.Lock()
        self._is_carried = False

    def publish(self, envelopes: Sequence[Envelope]) -> list[Published]:
        """Durable when it returns.

        Raises:
            PublishTimeout: not confirmed within the deadline. DuplicateJob: a unique key is held.
        """
        parcel = Parcel(envelopes, self._clock.monotonic() + self._deadline)
        leads = self._queue(parcel)
        try:
            while leads or not parcel.answered:
                if leads:
                    self._lead(parcel)
                leads = not parcel.answered and self._wait_for_turn(parcel)
        except BaseException:
            self.give_up(parcel)
            raise
        return parcel.result()

    def publish_soon(self, envelopes: Sequence[Envelope], tell: Callable[[], None]) -> Parcel:
        """The same without blocking: ``tell`` is called, in any thread, when it is answered."""
        parcel = Parcel(envelopes, self._clock.monotonic() + self._deadline, tell)
        self._hand_over(parcel)
        return parcel

    def publish_elsewhere(self, envelopes: Sequence[Envelope]) -> list[Published]:
        """``publish``, but it is the courier that sends, and no lock is waited for here."""
        parcel = Parcel(envelopes, self._clock.monotonic() + self._deadline, can_lead=False)
        try:
            self._hand_over(parcel)
            if not parcel.wait(parcel.until - self._clock.monotonic()):
                self.run_out(parcel)
        except BaseException:
            self.give_up(parcel)
            raise
        return parcel.result()

    def run_out(self, parcel: Parcel) -> None:
        """The caller's time is over. Perhaps it is on its way at this moment."""
        parcel.fail(self._late("others are being published"))

    def give_up(self, parcel: Parcel) -> None:
        """Nobody waits for it any more: it is sent only if it is on its way already."""
        if not parcel.can_lead:
            parcel.answered = True
            return
        with self._lock:
            parcel.answered = True
        if parcel.leads:
            self._pass_on()

    def close(self) -> None:
        """Let the courier go. The next call that needs one has a new one."""
        if self._is_carried:
            self._turns.put(False)

    # --- who leads ---------------------------------------------------------------------------

    def _queue(self, parcel: Parcel) -> bool:
        """Put it in the line. True when nobody leads: then it is for the caller to see to that."""
        with self._lock:
            self._line.append(parcel)
            leads = self._clock.monotonic() >= self._led_until
            if leads:
                self._led_until = parcel.until + _GRACE
        return leads

    def _wait_for_turn(self, parcel: Parcel) -> bool:
        """Wait for the answer, or for the lead. True: lead."""
        if not parcel.wait(parcel.until - self._clock.monotonic()):
            with self._lock:
                if not parcel.answered and not parcel.leads:
                    self.run_out(parcel)
        return parcel.leads

    def _lead(self, parcel: Parcel | None = None) -> None:
        """Send the first batch of the line, then pass the lead on."""
        until = float("inf")
        if parcel is not None:
            parcel.leads, until = False, parcel.until
        parcels: list[Parcel] = []
        try:
            if self._crowd > 1:
                self._let_board()
            parcels = self._next_batch()
            self._crowd = max(len(parcels), self._crowd - 1)
            self._deliver(parcels, until)
            self._put_back([one for one in parcels if not one.answered])
        finally:
            for one in parcels:
                if one is not parcel and one.answered:
                    one.wake()
            self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            while self._line and self._line[-1].answered:
                self._line.pop()
            following = self._line[-1] if self._line else None
            self._led_until = 0.0
            if following is not None and following.can_lead:
                self._led_until = following.until + _GRACE
                following.leads = True
                following.wake()
                following = None
        if following is not None:
            self._call_courier()

    def _hand_over(self, parcel: Parcel) -> None:
        """Have the courier see to it. No lock is taken: it is safe inside any other call."""
        self._line.append(parcel)
        self._call_courier()

    def _call_courier(self) -> None:
        self._turns.put(True)
        if not self._is_carried:
            # One too many ends at once. To let one alone start it would take a lock.
            reentry.thread(self._carry, name="umbel-courier", level=self._level).start()

    def _carry(self) -> None:
        if not self._carrying.acquire(blocking=False):
            return
        self._is_carried = True
        try:
            while self._turns.get():
                if self._takes_lead():
                    self._lead()
        finally:
            self._is_carried = False
            self._carrying.release()
        if not self._turns.empty():  # called by a caller that still saw a courier
            self._call_courier()

    def _takes_lead(self) -> bool:
        """Whether the courier leads now: something waits, and no other thread leads."""
        with self._lock:
            if not self._line or self._clock.monotonic() < self._led_until:
                return False
            self._led_until = self._line[-1].until + _GRACE
            return True

    # --- sending -----------------------------------------------------------------------------

    def _let_board(self) -> None:
        """Let other threads run, for as long as that brings callers."""
        came, until = 0, self._clock.monotonic() + _BOARDING
        while came < len(self._line) < self._crowd and self._clock.monotonic() < until:
            came = len(self._line)
            time.sleep(0)

    def _next_batch(self) -> list[Parcel]:
        with self._lock:
            parcels: list[Parcel] = []
            size = 0
            while self._line and size < _BATCH:
                parcel = self._line[0]
                if not parcel.answered and parcel.travels_alone and parcels:
                    break
                self._line.popleft()
                if not parcel.answered:
                    parcels.append(parcel)
                    size += len(parcel.envelopes)
                    if parcel.travels_alone:
                        break
            return parcels

    def _deliver(self, parcels: list[Parcel], until: float) -> None:
        """Have them published by this moment. What is not answered then has more time."""
        try:
            self._try_until_late(parcels, until)
        except Exception as error:  # noqa: BLE001 - it is the callers' to handle
            if len(parcels) == 1:
                parcels[0].fail(error)
                return
            # One caller's fault is not the others': find out whose it is.
            for parcel in parcels:
                self._deliver([parcel], until)
        except BaseException as error:
            _fail(parcels, Unavailable(f"whoever published for others was stopped: {error!r}"))
            raise

    def _try_until_late(self, parcels: list[Parcel], until: float) -> None:
        """Try until it works, or every caller's deadline has passed, or this moment has come."""
        why = ""
        while parcels := self._in_time(parcels, why):
            left = self._seconds(parcels, until)
            if left <= 0:
                return
            try:
                envelopes = parcels[0].envelopes if len(parcels) == 1 else _all_of(parcels)
                published = self._send_now(envelopes, left)
            except BacklogFull:
                raise
            except Unavailable as error:
                # Not the error itself: this frame is part of its traceback. Such a cycle keeps a
                # cursor until some other thread collects it, and waits for this connection there.
                why = str(error)
            else:
                _answer(parcels, published)
                return
            time.sleep(min(_PAUSE, max(self._seconds(parcels, until), 0.0)))

    def _seconds(self, parcels: Sequence[Parcel], until: float) -> float:
        """How long they may be tried: see ``_keeps``."""
        ends = [parcel.until for parcel in parcels]
        end = min(ends) if self._keeps else max(ends)
        return min(end, until) - self._clock.monotonic()

    def _put_back(self, parcels: Sequence[Parcel]) -> None:
        if parcels:
            with self._lock:
                self._line.extendleft(reversed(parcels))

    def _in_time(self, parcels: list[Parcel], why: str) -> list[Parcel]:
        now = self._clock.monotonic()
        for parcel in parcels:
            if parcel.until <= now:
                parcel.fail(self._late(why or "the broker is busy"))
        return [parcel for parcel in parcels if not parcel.answered]

    def _late(self, why: object) -> PublishTimeout:
        return PublishTimeout(f"not published within {self._deadline:g} s: {why}")


def _all_of(parcels: Sequence[Parcel]) -> list[Envelope]:
    return [envelope for parcel in parcels for envelope in parcel.envelopes]


def _answer(parcels: list[Parcel], published: list[Published]) -> None:
    at = 0
    for parcel in parcels:
        end = at + len(parcel.envelopes)
        parcel.answer(published[at:end])
        at = end


def _fail(parcels: list[Parcel], error: BaseException) -> None:
    for parcel in parcels:
        parcel.fail(error)

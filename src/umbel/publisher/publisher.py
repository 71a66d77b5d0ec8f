"""Group commit: whoever publishes while a batch is on its way travels with the next one.

Callers queue in one line. The first of them leads: it sends its own parcel and all that wait
behind it, in one round trip and one transaction, in its own thread; then the lead passes to the
first who came meanwhile. So a lone call is sent at once and nobody has to be woken for it. Where
many called last time the leader lets those come aboard who are about to call again: a batch costs
about the same whatever its size. Callers that must not block, the async ones, are led by a
courier, a thread that runs only for them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue

from umbel.brokers import Published
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
        "envelopes",
        "leads",
        "tell",
        "travels_alone",
        "until",
    )

    def __init__(
        self, envelopes: Sequence[Envelope], until: float, tell: Callable[[], None] | None = None
    ) -> None:
        self.envelopes = envelopes
        self.until = until
        self.tell = tell
        """Wakes a caller that does not block; None for one that does."""
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
            raise self._error
        return self._published


class Publisher:
    """Publishes for every caller of one application and process, from any thread."""

    def __init__(self, send: Send, clock: Clock, *, deadline: float) -> None:
        self._send_now = send
        self._clock = clock
        self._deadline = deadline
        self._lock = threading.Lock()
        self._line: deque[Parcel] = deque()
        self._led_until = 0.0
        """Nobody leads after this moment: a leader may be stopped by an exception at any line."""
        self._crowd = 1
        """How many callers the batches of late had."""
        self._turns: SimpleQueue[bool] | None = None

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
        if self._queue(parcel):
            self._call_courier()
        return parcel

    def give_up(self, parcel: Parcel) -> None:
        """Nobody waits for it any more: it is sent only if it is on its way already."""
        with self._lock:
            parcel.answered = True
        if parcel.leads:
            self._pass_on()

    def close(self) -> None:
        """Let the courier go. The next call that needs one has a new one."""
        with self._lock:
            turns, self._turns = self._turns, None
        if turns is not None:
            turns.put(False)

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
                    # Perhaps on its way at this moment; its caller cannot wait to hear of it.
                    parcel.fail(self._late("others are being published"))
        return parcel.leads

    def _lead(self, parcel: Parcel | None = None) -> None:
        """Send the first batch of the line, then pass the lead on."""
        if parcel is not None:
            parcel.leads = False
        parcels: list[Parcel] = []
        try:
            if self._crowd > 1:
                self._let_board()
            parcels = self._next_batch()
            self._crowd = max(len(parcels), self._crowd - 1)
            self._deliver(parcels)
        finally:
            for one in parcels:
                if one is not parcel:
                    one.wake()
            self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            while self._line and self._line[0].answered:
                self._line.popleft()
            following = self._line[0] if self._line else None
            self._led_until = following.until + _GRACE if following is not None else 0.0
            if following is not None and following.tell is None:
                following.leads = True
                following.wake()
                following = None
        if following is not None:
            self._call_courier()

    def _call_courier(self) -> None:
        with self._lock:
            if self._turns is None:
                self._turns = SimpleQueue()
                threading.Thread(
                    target=self._carry, args=(self._turns,), name="umbel-courier", daemon=True
                ).start()
            self._turns.put(True)

    def _carry(self, turns: SimpleQueue[bool]) -> None:
        while turns.get():
            self._lead()

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

    def _deliver(self, parcels: list[Parcel]) -> None:
        try:
            self._try_until_late(parcels)
        except Exception as error:  # noqa: BLE001 - it is the callers' to handle
            # One caller's fault is not the others': find out whose it is.
            for parcel in parcels if len(parcels) > 1 else ():
                self._deliver([parcel])
            _fail(parcels, error)
        except BaseException as error:
            _fail(parcels, Unavailable(f"whoever published for others was stopped: {error!r}"))
            raise

    def _try_until_late(self, parcels: list[Parcel]) -> None:
        """Try until it works or every caller's deadline has passed."""
        why: Exception | None = None
        while parcels := self._in_time(parcels, why):
            left = parcels[-1].until - self._clock.monotonic()  # who came last has most time
            try:
                envelopes = parcels[0].envelopes if len(parcels) == 1 else _all_of(parcels)
                published = self._send_now(envelopes, max(left, 0.001))
            except BacklogFull:
                raise
            except Unavailable as error:
                why = error
            else:
                _answer(parcels, published)
                return
            left = parcels[-1].until - self._clock.monotonic()
            time.sleep(min(_PAUSE, max(left, 0.0)))

    def _in_time(self, parcels: list[Parcel], why: Exception | None) -> list[Parcel]:
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

"""Runs ``def`` tasks in threads that take work themselves and hand outcomes back in batches."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from umbel.clock import Clock
from umbel.messages import BodyCodec, Lease
from umbel.tasks import Track, running
from umbel.worker import decide
from umbel.worker.activation import Activation
from umbel.worker.gate_sync import passes_here
from umbel.worker.reports import Report
from umbel.worker.stops import Stop, Unfit, Why, ask_to_stop

_NOTHING: Any = object()
_STEPS = 1_000


class _Slot:
    """What one thread is doing. The lock makes sure that a stop hits its own task or nothing."""

    __slots__ = ("activation", "interrupted", "lock", "thread")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.activation: Activation | None = None
        self.interrupted = False
        self.thread = threading.get_ident()

    def enter(self, activation: Activation) -> None:
        """From here on a stop may be aimed at this thread. One that came before is raised now."""
        with self.lock:
            self.activation = activation
        if activation.run.stop_reason is not None:
            raise activation.run.stop_reason

    def interrupt(self, activation: Activation) -> None:
        """Raise Stop inside the thread, if it still runs this very activation."""
        with self.lock:
            if self.activation is activation:
                self.interrupted = True
                _raise_in(self.thread, Stop)

    def leave(self) -> None:
        """From here on no stop is aimed at this thread; one on its way lands here.

        It must land: CPython 3.11 leaves a flag up when it is taken back, which slows down every
        call in the process from then on, and hangs it under a debugger.
        """
        while self.activation is not None or self.interrupted:
            with suppress(Stop):
                with self.lock:
                    self.activation = None
                if self.interrupted:
                    self.interrupted = False
                    for _ in range(_STEPS):  # raised at the first of them, if it is still due
                        pass


class _Crew:
    """Threads that take work from one line: as few as it takes, ``size`` at most.

    Whoever takes work while more waits rouses one other, and nobody rouses while one is on its
    way. So short tasks run one after the other without a switch of threads, and a task that
    blocks lets the next thread in.
    """

    def __init__(self, size: int, run: Callable[[Any], None]) -> None:
        self._size = size
        self._run = run
        self._line: deque[Any] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._resting = 0
        self._coming = False
        self._closing = False

    def give(self, work: Any) -> None:
        """Put it in the line."""
        with self._lock:
            self._line.append(work)
            self._rouse()

    def close(self) -> None:
        """Let idle threads end, and busy ones after their work."""
        with self._lock:
            self._closing = True
            for _ in range(self._resting):
                self._bell.put(None)

    def _rouse(self) -> None:
        if self._coming:
            return
        if self._resting:
            self._coming = True
            self._bell.put(None)
        elif self._threads < self._size:
            self._coming = True
            self._threads += 1
            name = f"umbel-task-{self._threads}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        with self._lock:
            self._coming = False
        while True:
            with self._lock:
                work = self._line.popleft() if self._line else _NOTHING
                if self._line:
                    self._rouse()
                elif work is _NOTHING and self._closing:
                    return
                self._resting += work is _NOTHING
            if work is not _NOTHING:
                self._run(work)
                continue
            self._bell.get()
            with self._lock:
                self._resting -= 1
                self._coming = False


class ThreadRunner:
    """Up to ``budget`` threads, started as needed."""

    kind = "cpu"

    def __init__(
        self, budget: int, codec: BodyCodec, clock: Clock, done: Callable[[Report], None]
    ) -> None:
        self.budget = budget
        self._codec = codec
        self._clock = clock
        self._done = done
        self._crew = _Crew(budget, self._serve)
        self._outbox: deque[Report] = deque()
        self._woken = False
        self._own = threading.local()
        self._slots: dict[Lease, _Slot] = {}
        self._submitted: dict[Lease, Activation] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers: dict[Lease, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Hand outcomes to the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._submitted)

    def activations(self) -> list[Activation]:
        """What runs."""
        return list(self._submitted.values())

    def submit(self, activation: Activation) -> None:
        """Hand it to a free thread; there is one, or the budget allows one more."""
        lease = activation.delivery.lease
        self._submitted[lease] = activation
        if activation.timeout is not None:
            assert self._loop is not None
            self._timers[lease] = self._loop.call_later(
                activation.timeout, self.stop, lease, Stop(Why.TIMEOUT)
            )
        self._crew.give((activation, contextvars.copy_context()))

    def stop(self, lease: Lease, stop: Stop) -> None:
        """Ask a running task to stop: at its next checkpoint, or by an exception raised in it.

        Code that is inside a C function (a sleep, a socket, a long computation) hears of it only
        when it returns to Python. A weaker reason than an earlier one is moot.
        """
        activation = self._submitted.get(lease)
        if activation is not None and ask_to_stop(activation.run, stop):
            slot = self._slots.get(lease)
            if slot is not None:
                slot.interrupt(activation)

    def abandon(self, lease: Lease) -> None:
        """Give up on a thread that does not stop; what it still reports is ignored."""
        self._submitted.pop(lease, None)

    def close(self) -> None:
        """Let the threads end."""
        self._crew.close()

    def _serve(self, work: tuple[Activation, contextvars.Context]) -> None:
        activation, context = work
        slot = getattr(self._own, "slot", None)
        if slot is None:
            slot = self._own.slot = _Slot()
        self._hand_over(context.run(self._run, activation, slot))

    def _run(self, activation: Activation, slot: _Slot) -> Report:
        lease = activation.delivery.lease
        running.set(activation.run)
        started = self._clock.now()
        value: Any = _NOTHING
        error: BaseException | None = None
        self._slots[lease] = slot
        try:
            try:
                slot.enter(activation)
                value = _call(activation)
            except BaseException as raised:  # noqa: BLE001 - SystemExit and Stop included
                error = raised
            slot.leave()
        except Stop as late:  # it came between the task's own end and the line above
            slot.leave()
            error = error or (late if value is _NOTHING else None)
        del self._slots[lease]
        if isinstance(error, Stop) and activation.run.stop_reason is not None:
            error = activation.run.stop_reason  # what is raised in a thread carries no reason
        outcome = decide.conclude(activation, value, error, self._codec)
        keep = activation.track is not Track.FAILURES
        now, held = self._clock.now(), activation.run.held(self._clock.monotonic())
        return Report(activation.delivery, outcome, started, now, keep, held)

    def _hand_over(self, report: Report) -> None:
        self._outbox.append(report)
        if not self._woken:
            self._woken = True
            assert self._loop is not None
            with suppress(RuntimeError):  # the loop is closed: this thread was left behind
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        # Cleared before the outbox is emptied: a report added meanwhile is either seen here or
        # wakes the loop once more.
        self._woken = False
        while self._outbox:
            report = self._outbox.popleft()
            lease = report.delivery.lease
            timer = self._timers.pop(lease, None)
            if timer is not None:
                timer.cancel()
            if self._submitted.pop(lease, None) is not None:
                self._done(report)


def _call(activation: Activation) -> Any:
    for pool, member in activation.unchecked:
        if not passes_here(pool, member):
            raise Unfit(pool.name, member)
    dedupe = activation.task.declared.dedupe
    if dedupe is not None and dedupe(*activation.args, **activation.kwargs):
        raise Stop(Why.DUPLICATE)
    return activation.task.function(*activation.args, **activation.kwargs)


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an exception in another thread as soon as it runs Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))

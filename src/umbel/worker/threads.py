"""Executes ``def`` tasks in threads, which hand their reports to the event loop in batches."""

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
from umbel.messages import Lease
from umbel.tasks import running
from umbel.tasks.hooks import Hooks
from umbel.worker.gate_sync import check_member_blocking
from umbel.worker.runs import Activation, Completion, EndedRun, Report
from umbel.worker.stops import Stop, StopCause, Unfit, request_stop

_NOTHING: Any = object()
_PENDING_STOP_LOOPS = 1_000
"""Loop iterations in which the interpreter surely raises a pending exception."""


class _StopTarget:
    """The task that one thread runs. The lock ensures that a stop hits this task or none."""

    __slots__ = ("activation", "interrupted", "lock", "thread")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.activation: Activation | None = None
        self.interrupted = False
        self.thread = threading.get_ident()

    def enter(self, activation: Activation) -> None:
        """Let stops interrupt this thread. Raise the stop that was requested before, if any."""
        with self.lock:
            self.activation = activation
        if activation.run.stop_reason is not None:
            raise activation.run.stop_reason

    def interrupt(self, activation: Activation) -> None:
        """Raise Stop inside the thread, if it still runs this activation."""
        with self.lock:
            if self.activation is activation:
                self.interrupted = True
                _raise_in(self.thread, Stop)

    def leave(self) -> None:
        """Let no more stops interrupt this thread. A pending one is raised and caught here.

        It must be raised: if it is withdrawn, CPython 3.11 leaves a flag set, which slows down
        every later call in the process and hangs it under a debugger.
        """
        while self.activation is not None or self.interrupted:
            with suppress(Stop):
                with self.lock:
                    self.activation = None
                if self.interrupted:
                    self.interrupted = False
                    for _ in range(_PENDING_STOP_LOOPS):  # a pending stop is raised in here
                        pass


class _ThreadPool:
    """Up to ``size`` threads that take work from one queue; a thread starts only when needed.

    A thread that takes work while more is queued wakes one other thread, unless one has been woken
    that has not taken work yet. So short tasks run one after the other without a thread switch, and
    a task that blocks lets the next thread work.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._queue: deque[Callable[[], None]] = deque()
        self._wake_ups: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._is_waking = False
        self._is_closing = False

    def submit(self, work: Callable[[], None]) -> None:
        """Queue it; a thread calls it."""
        with self._lock:
            self._queue.append(work)
            self._wake_one()

    def close(self) -> None:
        """End idle threads now, and busy ones after their work."""
        with self._lock:
            self._is_closing = True
            for _ in range(self._idle):
                self._wake_ups.put(None)

    def _wake_one(self) -> None:
        if self._is_waking:
            return
        if self._idle:
            self._is_waking = True
            self._wake_ups.put(None)
        elif self._threads < self._size:
            self._is_waking = True
            self._threads += 1
            name = f"umbel-task-{self._threads}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        with self._lock:
            self._is_waking = False
        while True:
            with self._lock:
                work = self._queue.popleft() if self._queue else None
                if self._queue:
                    self._wake_one()
                elif work is None and self._is_closing:
                    return
                self._idle += work is None
            if work is not None:
                work()
                continue
            self._wake_ups.get()
            with self._lock:
                self._idle -= 1
                self._is_waking = False


class ThreadExecutor:
    """Up to ``budget`` tasks at once, each in a thread."""

    def __init__(self, budget: int, clock: Clock, hooks: Hooks | None = None) -> None:
        self.budget = budget
        self._clock = clock
        self._hooks = hooks
        self._pool = _ThreadPool(budget)
        self._outbox: deque[Report] = deque()
        self._is_loop_woken = False
        self._local = threading.local()
        self._targets: dict[Lease, _StopTarget] = {}
        self._submitted: dict[Lease, Activation] = {}
        self._completion: Completion
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers: dict[Lease, asyncio.TimerHandle] = {}

    def start(self, completion: Completion) -> None:
        """Pass ended runs to ``completion``, in the running event loop."""
        self._completion = completion
        self._loop = asyncio.get_running_loop()

    @property
    def running(self) -> int:
        """How many tasks run."""
        return len(self._submitted)

    def activations(self) -> list[Activation]:
        """Return the activations that run."""
        return list(self._submitted.values())

    def submit(self, activation: Activation) -> None:
        """Hand it to a thread; the caller ensures that one is free or the budget allows one."""
        lease = activation.delivery.lease
        self._submitted[lease] = activation
        if activation.timeout is not None:
            assert self._loop is not None
            self._timers[lease] = self._loop.call_later(
                activation.timeout, self.stop, lease, Stop(StopCause.TIMEOUT)
            )
        context = contextvars.copy_context()
        self._pool.submit(lambda: self._hand_over(context.run(self._run, activation)))

    def stop(self, lease: Lease, stop: Stop) -> None:
        """Ask a running task to stop: at its next checkpoint, or by an exception raised in it.

        Code inside a C function (a sleep, a socket, a long computation) is interrupted only when
        it returns to Python. Nothing happens if an equal or stronger cause stopped it before.
        """
        activation = self._submitted.get(lease)
        if activation is not None and request_stop(activation.run, stop):
            target = self._targets.get(lease)
            if target is not None:
                target.interrupt(activation)

    def abandon(self, lease: Lease) -> None:
        """Ignore a thread that does not stop, and what it returns later."""
        self._submitted.pop(lease, None)

    def close(self) -> None:
        """End idle threads now, and busy ones after their task."""
        self._pool.close()

    def _run(self, activation: Activation) -> Report:
        target = getattr(self._local, "target", None)
        if target is None:
            target = self._local.target = _StopTarget()
        lease = activation.delivery.lease
        running.set(activation.run)
        started = self._clock.now()
        value: Any = _NOTHING
        error: BaseException | None = None
        self._targets[lease] = target
        try:
            try:
                target.enter(activation)
                value = self._call(activation)
            except BaseException as raised:  # noqa: BLE001 - SystemExit and Stop included
                error = raised
            target.leave()
        except Stop as late:  # raised between the end of the task and the line above
            target.leave()
            error = error or (late if value is _NOTHING else None)
        del self._targets[lease]
        if isinstance(error, Stop) and activation.run.stop_reason is not None:
            error = activation.run.stop_reason  # the Stop raised in a thread carries no reason
        return self._completion.decide(EndedRun(activation, value, error, started))

    def _call(self, activation: Activation) -> Any:
        hooks = self._hooks
        if hooks is None or not hooks.runs:
            return call_task_blocking(activation)
        assert self._loop is not None
        return hooks.run_blocking(
            activation.run.job, lambda: call_task_blocking(activation), self._loop
        )

    def _hand_over(self, report: Report) -> None:
        self._outbox.append(report)
        if not self._is_loop_woken:
            self._is_loop_woken = True
            assert self._loop is not None
            with suppress(RuntimeError):  # the loop is closed: this thread was abandoned
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        # Cleared before the outbox is emptied: a report added meanwhile is either seen here or
        # wakes the loop once more.
        self._is_loop_woken = False
        while self._outbox:
            report = self._outbox.popleft()
            lease = report.delivery.lease
            timer = self._timers.pop(lease, None)
            if timer is not None:
                timer.cancel()
            if self._submitted.pop(lease, None) is not None:
                self._completion.settle(report)


def call_task_blocking(activation: Activation) -> Any:
    """Check the pool members, then call the function, unless its dedupe policy forbids it."""
    for pool, member in activation.unchecked:
        if not check_member_blocking(pool, member):
            raise Unfit(pool.name, member)
    dedupe = activation.task.declared.dedupe
    if dedupe is not None and dedupe(*activation.args, **activation.kwargs):
        raise Stop(StopCause.DUPLICATE)
    return activation.task.function(*activation.args, **activation.kwargs)


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an exception in another thread as soon as it runs Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))

"""Runs one activation in the caller: in its thread, or in its event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import anyio
import anyio.to_thread

from umbel.clock import Clock
from umbel.messages import BodyCodec
from umbel.tasks import running
from umbel.tasks.hooks import Hooks
from umbel.tasks.steps import running_loop
from umbel.telemetry import Telemetry
from umbel.worker.coroutines import CoroutineExecutor
from umbel.worker.runs import Activation, EndedRun, Report
from umbel.worker.stops import Stop
from umbel.worker.task_runner import report_of
from umbel.worker.threads import call_task_blocking

__tracebackhide__ = True  # pytest shows the lines of the test and of the task


class InlineRun(NamedTuple):
    """A run that has ended."""

    report: Report
    error: BaseException | None
    """The exception itself, which the report only describes."""


class InlineExecutor:
    """Runs activations for callers that block and for callers that await."""

    def __init__(self, codec: BodyCodec, clock: Clock, telemetry: Telemetry, hooks: Hooks) -> None:
        self._hooks = hooks
        self._codec = codec
        self._clock = clock
        self._telemetry = telemetry
        self._runner: asyncio.Runner | None = None
        self._runner_in_use = threading.Lock()

    def run(self, activation: Activation) -> InlineRun:
        """Run it in this thread; in a thread of its own if an event loop runs in this one."""
        if _is_async_code():
            context = contextvars.copy_context()
            with ThreadPoolExecutor(1, "umbel-inline") as thread:
                return thread.submit(context.run, self.run, activation).result()
        if activation.task.kind == "io":
            return self._run_in_loop(activation)
        return contextvars.copy_context().run(self._call, activation)

    async def arun(self, activation: Activation) -> InlineRun:
        """Run a coroutine in the caller's asyncio loop. Run everything else in a thread."""
        if activation.task.kind == "io" and running_loop() is not None:
            return await self._await(activation)
        return await anyio.to_thread.run_sync(self.run, activation)

    def close(self) -> None:
        """Close the event loop for callers that block."""
        if self._runner is not None:
            self._runner.close()

    def _run_in_loop(self, activation: Activation) -> InlineRun:
        """Run a coroutine in the loop that all callers share, or in a new one inside a call."""
        if not self._runner_in_use.acquire(blocking=False):
            return asyncio.run(self._await(activation))
        try:
            if self._runner is None:
                # With a factory, the runner does not set the thread's event loop.
                self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            return self._runner.run(self._await(activation))
        finally:
            self._runner_in_use.release()

    async def _await(self, activation: Activation) -> InlineRun:
        completion = _Completion(self._report)
        executor = CoroutineExecutor(1, self._clock, self._hooks)
        executor.start(completion)
        try:
            if activation.task.declared.loop == "trio":
                from umbel.worker.trio_guest import trio_guest

                async with trio_guest(self._telemetry) as executor.trio:
                    executor.submit(activation)
                    ended = await completion.ended
            else:
                executor.submit(activation)
                ended = await completion.ended
        except asyncio.CancelledError:  # the test itself is cancelled
            executor.stop(activation.delivery.lease, Stop())
            raise
        _raise_if_for_test(ended.error)
        return ended

    def _call(self, activation: Activation) -> InlineRun:
        running.set(activation.run)
        started = self._clock.now()
        value: Any = None
        error: BaseException | None = None
        try:
            call = partial(call_task_blocking, activation)
            job = activation.run.job
            value = self._hooks.run_blocking(job, call) if self._hooks.runs else call()
        except BaseException as raised:  # noqa: BLE001 - SystemExit and Stop included
            error = raised
        _raise_if_for_test(error)
        return InlineRun(self._report(EndedRun(activation, value, error, started)), error)

    def _report(self, ended: EndedRun) -> Report:
        return report_of(ended, self._codec, self._clock)


class _Completion:
    """Implements ``worker.runs.Completion``: keeps how the one run ended."""

    def __init__(self, report: Callable[[EndedRun], Report]) -> None:
        self._report = report
        self._error: BaseException | None = None
        self.ended: asyncio.Future[InlineRun] = asyncio.get_running_loop().create_future()

    def decide(self, ended: EndedRun) -> Report:
        self._error = ended.error
        return self._report(ended)

    def settle(self, report: Report) -> None:
        if not self.ended.done():
            self.ended.set_result(InlineRun(report, self._error))


def _raise_if_for_test(error: BaseException | None) -> None:
    """Raise an error that is not for the job but for the test: an interrupt, ``pytest.fail``."""
    if error is None or isinstance(error, Exception | SystemExit | asyncio.CancelledError):
        return
    if not type(error).__module__.startswith("umbel."):  # not Stop, Snooze and the like
        raise error


def _is_async_code() -> bool:
    """Whether an event loop runs in this thread, of asyncio or Trio."""
    if running_loop() is not None:
        return True
    try:
        anyio.get_current_task()
    except RuntimeError:
        return False
    return True

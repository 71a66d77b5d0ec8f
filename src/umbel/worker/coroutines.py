"""Executes ``async def`` tasks as coroutines in the worker's event loop.

Each coroutine runs in its own asyncio task, with its own context. The tasks are not in a task
group: a group waits forever for a coroutine that swallows every cancellation, and a worker must be
able to abandon such a coroutine. A stop cancels the task once, as asyncio code expects, so that its
``finally`` blocks may await.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from functools import partial
from typing import Any, Protocol

from umbel.clock import Clock
from umbel.messages import Lease
from umbel.tasks import running
from umbel.tasks.hooks import Hooks
from umbel.worker.gate_sync import check_member
from umbel.worker.runs import Activation, Completion, EndedRun
from umbel.worker.stops import Stop, StopCause, Unfit, request_stop


class TrioLoop(Protocol):
    """Runs coroutine functions that are written for Trio; see ``trio_guest``."""

    async def call(self, activation: Activation) -> Any:
        """Run it and return what its task returns."""


async def call_task(activation: Activation) -> Any:
    """Await the task's function, unless its dedupe policy says that it was done before."""
    dedupe = activation.task.declared.dedupe
    if dedupe is not None:
        done_before = dedupe(*activation.args, **activation.kwargs)
        if await done_before if inspect.isawaitable(done_before) else done_before:
            raise Stop(StopCause.DUPLICATE)
    return await activation.task.function(*activation.args, **activation.kwargs)


class _RunningCoroutine:
    """One coroutine that runs."""

    __slots__ = ("activation", "error", "started", "task", "timer", "value")

    def __init__(self, activation: Activation, started: float) -> None:
        self.activation = activation
        self.started = started
        self.value: Any = None
        self.error: BaseException | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None]


class CoroutineExecutor:
    """Up to ``budget`` coroutines at once."""

    def __init__(self, budget: int, clock: Clock, hooks: Hooks | None = None) -> None:
        self.budget = budget
        self.trio: TrioLoop | None = None
        self._hooks = hooks
        self._clock = clock
        self._completion: Completion
        self._running: dict[Lease, _RunningCoroutine] = {}

    def start(self, completion: Completion) -> None:
        """Pass ended runs to ``completion``."""
        self._completion = completion

    @property
    def running(self) -> int:
        """How many coroutines run."""
        return len(self._running)

    def activations(self) -> list[Activation]:
        """Return the activations that run."""
        return [coroutine.activation for coroutine in list(self._running.values())]

    def find(self, task: asyncio.Task[Any] | None) -> Activation | None:
        """Return the activation that runs in an asyncio task. Safe from any thread."""
        found = (one for one in list(self._running.values()) if one.task is task)
        return next((coroutine.activation for coroutine in found), None)

    def submit(self, activation: Activation) -> None:
        """Start it."""
        lease, loop = activation.delivery.lease, asyncio.get_running_loop()
        coroutine = _RunningCoroutine(activation, self._clock.now())
        coroutine.task = loop.create_task(self._run(coroutine), name=activation.task.name)
        self._running[lease] = coroutine
        coroutine.task.add_done_callback(partial(self._end, coroutine))
        if activation.timeout is not None:
            coroutine.timer = loop.call_later(
                activation.timeout, self.stop, lease, Stop(StopCause.TIMEOUT)
            )

    def stop(self, lease: Lease, stop: Stop) -> None:
        """Cancel a running coroutine, unless an equal or stronger cause has cancelled it before."""
        coroutine = self._running.get(lease)
        if coroutine is not None and request_stop(coroutine.activation.run, stop):
            coroutine.task.cancel()

    def abandon(self, lease: Lease) -> None:
        """Ignore a coroutine that does not stop, and what it returns later."""
        coroutine = self._running.pop(lease, None)
        if coroutine is not None:
            # Otherwise closing the event loop would wait for the task and log a warning. There is
            # no public way to say that a task is given up.
            asyncio._unregister_task(coroutine.task)
            coroutine.task._log_destroy_pending = False  # type: ignore[attr-defined]

    async def _run(self, coroutine: _RunningCoroutine) -> None:
        activation, hooks = coroutine.activation, self._hooks
        running.set(activation.run)
        try:
            for pool, member in activation.unchecked:
                if not await check_member(pool, member):
                    raise Unfit(pool.name, member)
            if hooks is not None and hooks.runs:
                call = partial(self._call, activation)
                coroutine.value = await hooks.run(activation.run.job, call)
            else:
                coroutine.value = await self._call(activation)
        # A task may raise anything, SystemExit included; none of it may reach the event loop.
        except BaseException as raised:  # noqa: BLE001
            coroutine.error = raised

    def _call(self, activation: Activation) -> Awaitable[Any]:
        """Return the coroutine of the task."""
        task = activation.task
        if task.declared.loop == "trio":
            assert self.trio is not None
            return self.trio.call(activation)
        if task.declared.dedupe is not None:
            return call_task(activation)
        found: Awaitable[Any] = task.function(*activation.args, **activation.kwargs)
        return found

    def _end(self, coroutine: _RunningCoroutine, task: asyncio.Task[None]) -> None:
        if coroutine.timer is not None:
            coroutine.timer.cancel()
        activation = coroutine.activation
        if self._running.pop(activation.delivery.lease, None) is None:
            return
        error = coroutine.error
        # A task that is cancelled before its first step ends without having run at all.
        if task.cancelled() or isinstance(error, asyncio.CancelledError):
            error = activation.run.stop_reason or error or asyncio.CancelledError()
        ended = EndedRun(activation, coroutine.value, error, coroutine.started)
        self._completion.settle(self._completion.decide(ended))

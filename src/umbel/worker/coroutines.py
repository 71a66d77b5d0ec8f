"""Runs ``async def`` tasks as coroutines in the worker's own event loop.

Each runs in an asyncio task of its own, with its own context. They are not in a task group: a
group waits for ever for a coroutine that swallows every cancellation, and a worker must be able
to leave such a one behind. A stop cancels the task once, as asyncio code expects, so that its
``finally`` may await.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from umbel.clock import Clock
from umbel.messages import BodyCodec, Lease
from umbel.tasks import Track, running
from umbel.worker import decide
from umbel.worker.activation import Activation
from umbel.worker.gate_sync import passes
from umbel.worker.reports import Report
from umbel.worker.stops import Stop, Unfit, Why, ask_to_stop

Call = Callable[[Activation], Awaitable[Any]]


async def call_here(activation: Activation) -> Any:
    """The plain way to run a coroutine function written for asyncio or AnyIO."""
    dedupe = activation.task.declared.dedupe
    if dedupe is not None:
        done_before = dedupe(*activation.args, **activation.kwargs)
        if await done_before if inspect.isawaitable(done_before) else done_before:
            raise Stop(Why.DUPLICATE)
    return await activation.task.function(*activation.args, **activation.kwargs)


class _Running:
    """One coroutine under way."""

    __slots__ = ("activation", "error", "started", "task", "timer", "value")

    def __init__(self, activation: Activation, started: float) -> None:
        self.activation = activation
        self.started = started
        self.value: Any = None
        self.error: BaseException | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None]


class CoroutineRunner:
    """Up to ``budget`` coroutines at once."""

    kind = "io"

    def __init__(
        self, budget: int, codec: BodyCodec, clock: Clock, done: Callable[[Report], None]
    ) -> None:
        self.budget = budget
        self.call_trio: Call | None = None
        self._codec = codec
        self._clock = clock
        self._done = done
        self._running: dict[Lease, _Running] = {}

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._running)

    def activations(self) -> list[Activation]:
        """What runs."""
        return [one.activation for one in self._running.values()]

    def submit(self, activation: Activation) -> None:
        """Start it."""
        lease, loop = activation.delivery.lease, asyncio.get_running_loop()
        one = self._running[lease] = _Running(activation, self._clock.now())
        one.task = loop.create_task(self._run(one), name=activation.task.name)
        one.task.add_done_callback(partial(self._ended, one))
        if activation.timeout is not None:
            one.timer = loop.call_later(activation.timeout, self.stop, lease, Stop(Why.TIMEOUT))

    def stop(self, lease: Lease, stop: Stop) -> None:
        """Cancel a running coroutine, for a reason; a weaker reason than an earlier one is moot."""
        one = self._running.get(lease)
        if one is not None and ask_to_stop(one.activation.run, stop):
            one.task.cancel()

    def abandon(self, lease: Lease) -> None:
        """Give up on a coroutine that does not stop; what it still reports is ignored."""
        one = self._running.pop(lease, None)
        if one is not None:
            # Else the end of the loop would wait for it, and complain of it.
            asyncio._unregister_task(one.task)
            one.task._log_destroy_pending = False  # type: ignore[attr-defined]

    async def _run(self, one: _Running) -> None:
        activation = one.activation
        task = activation.task
        running.set(activation.run)
        try:
            for pool, member in activation.unchecked:
                if not await passes(pool, member):
                    raise Unfit(pool.name, member)
            if task.declared.loop == "trio":
                assert self.call_trio is not None
                one.value = await self.call_trio(activation)
            elif task.declared.dedupe is None:
                one.value = await task.function(*activation.args, **activation.kwargs)
            else:
                one.value = await call_here(activation)
        # A task may raise anything, SystemExit included; none of it may reach the loop.
        except BaseException as raised:  # noqa: BLE001
            one.error = raised

    def _ended(self, one: _Running, task: asyncio.Task[None]) -> None:
        if one.timer is not None:
            one.timer.cancel()
        activation = one.activation
        if self._running.pop(activation.delivery.lease, None) is None:
            return
        error = one.error
        # A task that is cancelled before its first step ends without having run at all.
        if task.cancelled() or isinstance(error, asyncio.CancelledError):
            error = activation.run.stop_reason or error or asyncio.CancelledError()
        outcome = decide.conclude(activation, one.value, error, self._codec)
        keep = activation.track is not Track.FAILURES
        now, held = self._clock.now(), activation.run.held(self._clock.monotonic())
        self._done(Report(activation.delivery, outcome, one.started, now, keep, held))

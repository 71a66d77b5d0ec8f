"""Runs ``async def`` tasks as coroutines in the worker's own event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.abc import TaskGroup

from umbel.clock import Clock
from umbel.messages import BodyCodec
from umbel.tasks import Track, running
from umbel.worker import decide
from umbel.worker.activation import Activation
from umbel.worker.reports import Report
from umbel.worker.stops import Stop, Why

Call = Callable[[Activation], Awaitable[Any]]


async def call_here(activation: Activation) -> Any:
    """The plain way to run a coroutine function written for asyncio or AnyIO."""
    dedupe = activation.task.declared.dedupe
    if dedupe is not None:
        done_before = dedupe(*activation.args, **activation.kwargs)
        if await done_before if inspect.isawaitable(done_before) else done_before:
            raise Stop(Why.DUPLICATE)
    return await activation.task.function(*activation.args, **activation.kwargs)


class CoroutineRunner:
    """Up to ``budget`` coroutines at once, each in a task of its own, in one task group."""

    kind = "io"

    def __init__(
        self, budget: int, codec: BodyCodec, clock: Clock, done: Callable[[Report], None]
    ) -> None:
        self.budget = budget
        self._codec = codec
        self._clock = clock
        self._done = done
        self._scopes: dict[str, tuple[Activation, anyio.CancelScope]] = {}
        self._group: TaskGroup | None = None
        self.call_trio: Call | None = None

    def start(self, group: TaskGroup) -> None:
        """Run tasks in this group from now on."""
        self._group = group

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._scopes)

    def activations(self) -> list[Activation]:
        """What runs."""
        return [activation for activation, _ in self._scopes.values()]

    def submit(self, activation: Activation) -> None:
        """Start it."""
        assert self._group is not None
        scope = anyio.CancelScope()
        if activation.timeout is not None:
            scope.deadline = anyio.current_time() + activation.timeout
        self._scopes[activation.delivery.id] = (activation, scope)
        self._group.start_soon(self._run, activation, scope, name=activation.task.name)

    def stop(self, job: str, stop: Stop) -> None:
        """Cancel a running coroutine, for a reason."""
        found = self._scopes.get(job)
        if found is not None:
            activation, scope = found
            activation.run.stop_reason = stop
            activation.run.stop.set()
            scope.cancel()

    async def _run(self, activation: Activation, scope: anyio.CancelScope) -> None:
        running.set(activation.run)
        call = self.call_trio if activation.task.declared.loop == "trio" else call_here
        started = self._clock.now()
        error: BaseException | None = None
        value: Any = None
        with scope:
            try:
                assert call is not None
                value = await call(activation)
            except asyncio.CancelledError as cancelled:
                error = cancelled
                if scope.cancel_called:
                    raise
            # A task may raise anything, SystemExit included; none of it may reach the loop.
            except BaseException as raised:  # noqa: BLE001
                error = raised
        if scope.cancelled_caught:
            error = activation.run.stop_reason or Stop(Why.TIMEOUT)
        self._report(activation, started, value, error)

    def _report(
        self, activation: Activation, started: float, value: Any, error: BaseException | None
    ) -> None:
        # Frees the slot first: the report makes the worker fetch again.
        del self._scopes[activation.delivery.id]
        if error is None:
            outcome = decide.returned(activation, value, self._codec)
        else:
            outcome = decide.raised(activation, error)
        keep = activation.track is not Track.FAILURES
        self._done(Report(activation.delivery, outcome, started, self._clock.now(), keep))

"""Many event loops on one virtual clock. A seeded timeline chooses the next callback."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import warnings
from asyncio import Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any, TypeVarTuple

from anyio._backends._asyncio import _task_states

Ts = TypeVarTuple("Ts")

_SLOW_STEPS = 0.25
_SLOWEST_STEP = 0.004
_CLOSINGS = 30


class Timeline:
    """Virtual time, and the event loops (lanes) that use it. Nothing here sleeps."""

    def __init__(self, random: Random) -> None:
        self.now = 0.0
        self.steps = 0
        self.lanes: list[Lane] = []
        self._graves: list[Lane] = []
        self._random = random
        self._timers: list[tuple[float, int, TimerHandle, Lane]] = []
        self._serial = 0
        self._running: Lane | None = None

    def lane(self, name: str, owner: Any = None) -> Lane:
        """Return a new loop on this timeline. It implements only what workers need."""
        lane = Lane(self, name, owner)  # type: ignore[abstract]
        self.lanes.append(lane)
        return lane

    def next_serial(self) -> int:
        """Return a unique number: order and hashes must not depend on memory addresses."""
        self._serial += 1
        return self._serial

    def add_timer(self, lane: Lane, handle: TimerHandle) -> None:
        """Run a callback at its time."""
        heapq.heappush(self._timers, (handle.when(), self.next_serial(), handle, lane))

    def step(self, until: float) -> bool:
        """Run one callback, or let time pass. Return False if the time is ``until``."""
        self._wake_due()
        now = self.now
        able = [lane for lane in self.lanes if lane.ready and lane.held_until <= now]
        if not able:
            return self._pass_time(until)
        lane = able[int(self._random.random() * len(able))] if len(able) > 1 else able[0]
        handle = lane.ready.popleft()
        if not handle.cancelled():
            self.steps += 1
            self._enter(lane)
            handle._run()
            dice = self._random.random()
            if dice < _SLOW_STEPS:
                self.now += dice * _SLOWEST_STEP
        return True

    def _enter(self, lane: Lane | None) -> None:
        """Make this lane the running loop of asyncio. This costs a system call."""
        if lane is not self._running:
            self._running = lane
            asyncio._set_running_loop(lane)

    def _wake_due(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            _, _, handle, lane = heapq.heappop(timers)
            if not handle.cancelled() and not lane.dead:
                lane.ready.append(handle)

    def _pass_time(self, until: float) -> bool:
        timers = self._timers
        while timers and (timers[0][2].cancelled() or timers[0][3].dead):
            heapq.heappop(timers)
        moments = [lane.held_until for lane in self.lanes if lane.ready]
        if timers:
            moments.append(timers[0][0])
        self.now = max(self.now, min([until, *moments]))
        return self.now < until

    def close(self) -> None:
        """End all tasks that are left, without errors."""
        for lane in list(self.lanes):
            lane.die()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # a coroutine that never started is not awaited any more
            for lane in self._graves:
                self._enter(lane)
                lane.bury()
        self._enter(None)

    def drop(self, lane: Lane) -> None:
        """Remove a lane: it runs no more callbacks."""
        if lane in self.lanes:
            self.lanes.remove(lane)
            self._graves.append(lane)


class Lane(asyncio.AbstractEventLoop):
    """The event loop of one thread of a simulated process.

    Its callbacks run in the order in which they were scheduled, as in any loop. Callbacks of other
    lanes may run between two of them.
    """

    def __init__(self, timeline: Timeline, name: str, owner: Any) -> None:
        self.name = name
        self.owner = owner
        self.ready: deque[Handle] = deque()
        self.held_until = -1e9
        self.dead = False
        self.failures: list[dict[str, Any]] = []
        self._timeline = timeline
        self._tasks: dict[int, asyncio.Task[Any]] = {}

    def hold(self, seconds: float) -> None:
        """Run no callbacks for some seconds: the thread is frozen or blocked."""
        self.held_until = max(self.held_until, self._timeline.now + seconds)

    def die(self) -> None:
        """Run no callbacks any more. Waiting coroutines never continue."""
        self.dead = True
        self.ready.clear()
        self._timeline.drop(self)

    def bury(self) -> None:
        """Close the coroutines that are left, before the garbage collector does."""
        for task in list(self._tasks.values()):
            _close(task)
        self._tasks.clear()

    # --- what asyncio requires of a loop ------------------------------------------------------

    def time(self) -> float:
        return self._timeline.now

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> Handle:
        handle = Handle(callback, args, self, context)
        if not self.dead:
            self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> TimerHandle:
        return self.call_at(self._timeline.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> TimerHandle:
        handle = TimerHandle(when, callback, args, self, context)
        if not self.dead:
            self._timeline.add_timer(self, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **_: Any,
    ) -> asyncio.Task[Any]:
        serial = self._timeline.next_serial()
        task = SimulatedTask(coro, self, name or f"task {serial}", context, serial)
        self._tasks[serial] = task
        task.add_done_callback(self._forget)
        return task

    def get_task_factory(self) -> None:
        return None

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            self.failures.append(context)

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """A cancelled timer is skipped when its time comes."""

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(hash(task), None)


class SimulatedTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks have the same order in every run."""

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        loop: Lane,
        name: str,
        context: contextvars.Context | None,
        serial: int,
    ) -> None:
        self._serial = serial
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._serial


def _close(task: asyncio.Task[Any]) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine: Any = task.get_coro()
    for _ in range(_CLOSINGS):  # a ``finally`` that awaits ignores the close; it is closed again
        if coroutine.cr_frame is None:
            break
        with suppress(BaseException):  # the code uses objects that are closed already
            coroutine.close()
    # AnyIO forgets a task when it ends. A task that never ends would keep its World in memory.
    _task_states.pop(task, None)

"""Reports a worker's event loop that is blocked, from the heartbeat's thread.

One blocking call in a coroutine stops all coroutines of the worker. The watch has the event loop
run a callback every half second; a callback that did not run for a second is reported.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress

from umbel.clock import Clock
from umbel.telemetry import Telemetry, events

_INTERVAL_SECONDS = 0.5
_BLOCKED_SECONDS = 1.0
_STACK_FRAMES = 12


class LoopWatch:
    """Watches the event loop in which it is made; ``run`` runs in another one.

    ``running`` returns the tasks that may block the loop, each with its job.
    """

    def __init__(
        self, running: Callable[[], list[tuple[str, str]]], clock: Clock, telemetry: Telemetry
    ) -> None:
        self._running = running
        self._clock = clock
        self._telemetry = telemetry
        self._host = asyncio.get_running_loop()
        self._host_thread = threading.get_ident()
        self.is_blocked = False
        """Whether the event loop has not run a callback for a second."""

    async def run(self) -> None:
        """Watch until cancelled, or until the event loop is closed."""
        with suppress(RuntimeError):  # the event loop is closed
            while True:
                await self._check()
                await asyncio.sleep(_INTERVAL_SECONDS)

    async def _check(self) -> None:
        """Wait until the event loop has run a callback. If it takes long, report it once."""
        asked, answered = self._clock.monotonic(), asyncio.Event()
        here = asyncio.get_running_loop()

        def answer() -> None:
            with suppress(RuntimeError):  # this watch has ended
                here.call_soon_threadsafe(answered.set)

        self._host.call_soon_threadsafe(answer)
        while not await self._is_set_in_time(answered):
            if not self.is_blocked:
                self.is_blocked = True
                self._report(self._clock.monotonic() - asked)
        if self.is_blocked:
            self.is_blocked = False
            seconds = round(self._clock.monotonic() - asked, 1)
            self._telemetry.emit(events.LoopUnblocked(seconds=seconds))

    async def _is_set_in_time(self, answered: asyncio.Event) -> bool:
        while True:
            began = self._clock.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(_BLOCKED_SECONDS):
                    await answered.wait()
            if answered.is_set() or self._clock.monotonic() - began < 2 * _BLOCKED_SECONDS:
                return answered.is_set()
            # This thread was late, too: the process was stopped, or the machine is overloaded.

    def _report(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._host_thread)
        stack = "".join(traceback.format_stack(frame, _STACK_FRAMES)) if frame else ""
        running = self._running()
        self._telemetry.emit(
            events.LoopBlocked(
                seconds=round(seconds, 1),
                tasks=tuple(dict.fromkeys(task for task, _ in running)),
                jobs=tuple(job for _, job in running),
                stack=stack,
            )
        )

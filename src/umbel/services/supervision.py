"""Services, and the loop that restarts them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import anyio

from umbel.errors import Unavailable
from umbel.resilience import Backoff
from umbel.telemetry import Telemetry, events

_RESTART_DELAYS = Backoff(first=0.1, factor=2, cap=5)


class Service(Protocol):
    """A service runs until it is stopped. ``run`` may be called again after it failed."""

    name: str

    async def run(self, working: Callable[[], None]) -> None:
        """Work until stopped, and call ``working`` after each successful round.

        If it returns, the service is not restarted.
        """


class UserService:
    """A service of the application: a coroutine function that runs as long as the worker does."""

    def __init__(self, name: str, function: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self._function = function

    async def run(self, working: Callable[[], None]) -> None:
        """Run the function. It counts as working from the start."""
        working()
        await self._function()


class _FailureReporter:
    """Reports an unreachable server once, and once more when it answers again."""

    def __init__(self, service: str, telemetry: Telemetry, max_delay: float) -> None:
        self._service = service
        self._telemetry = telemetry
        self._max_delay = max_delay
        self._tries = 0
        self._is_reported = False

    def record_success(self) -> None:
        self._tries = 0
        if self._is_reported:
            self._is_reported = False
            self._telemetry.emit(events.Reachable(service=self._service))

    def record_unreachable(self, error: Unavailable) -> float:
        if not self._is_reported:
            self._is_reported = True
            self._telemetry.emit(events.Unreachable(service=self._service, error=str(error)))
        return self._next_delay()

    def record_failure(self, error: Exception) -> float:
        delay = self._next_delay()
        self._telemetry.emit(
            events.ServiceFailed(service=self._service, error=repr(error), delay=round(delay, 2))
        )
        return delay

    def _next_delay(self) -> float:
        self._tries += 1
        return min(_RESTART_DELAYS.delay(self._tries, self._service), self._max_delay)


async def keep_running(
    service: Service, telemetry: Telemetry, max_delay: float = _RESTART_DELAYS.cap
) -> None:
    """Run a service, and restart it whenever it fails. This is the outermost loop of a service.

    Delays between restarts grow up to ``max_delay`` seconds.
    """
    reporter = _FailureReporter(service.name, telemetry, max_delay)
    while True:
        try:
            await service.run(reporter.record_success)
            return
        except Unavailable as error:
            delay = reporter.record_unreachable(error)
        except Exception as error:  # noqa: BLE001 - only its own return ends a service
            delay = reporter.record_failure(error)
        await anyio.sleep(delay)


async def run_periodically(
    duties: Sequence[Callable[[], Awaitable[object]]], every: float, telemetry: Telemetry
) -> None:
    """Run each duty every ``every`` seconds, even after errors. No duty waits for another.

    They are spread over the interval, so that one connection is usually enough. An unreachable
    server is reported once, and once more when all duties succeed again.
    """
    failing: set[object] = set()
    async with anyio.create_task_group() as tasks:
        for duty in duties:
            tasks.start_soon(_run_duty, duty, every, failing, telemetry)
            await anyio.sleep(every / len(duties))


async def _run_duty(
    duty: Callable[[], Awaitable[object]], every: float, failing: set[object], telemetry: Telemetry
) -> None:
    while True:
        try:
            await duty()
        except Unavailable as error:
            if not failing:
                telemetry.emit(events.Unreachable(service="upkeep", error=str(error)))
            failing.add(duty)
        except Exception as error:  # noqa: BLE001 - outermost loop of the upkeep
            telemetry.emit(events.ServiceFailed(service="upkeep", error=repr(error), delay=0))
        else:
            if failing:
                failing.discard(duty)
                if not failing:
                    telemetry.emit(events.Reachable(service="upkeep"))
        await anyio.sleep(every)

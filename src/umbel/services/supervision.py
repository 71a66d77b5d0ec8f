"""Services and the loop that keeps one alive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import anyio

from umbel.errors import Unavailable
from umbel.resilience import Backoff
from umbel.telemetry import Telemetry, events

_WAITS = Backoff(first=0.1, factor=2, cap=5)


class Service(Protocol):
    """A part that runs until it is stopped. ``run`` may be called again after it failed."""

    name: str

    async def run(self, working: Callable[[], None]) -> None:
        """Work until stopped, and say ``working()`` after each round. Returning means: done."""


class UserService:
    """A service that users declare: a coroutine function that runs as long as the worker does."""

    def __init__(self, name: str, function: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self._function = function

    async def run(self, working: Callable[[], None]) -> None:
        """Run it. It works as soon as it has been started and does not fail."""
        working()
        await self._function()


class _Trouble:
    """Tells of an unreachable server once, and once more when it answers."""

    def __init__(self, service: str, telemetry: Telemetry, longest: float) -> None:
        self._service = service
        self._telemetry = telemetry
        self._longest = longest
        self._tries = 0
        self._told = False

    def over(self) -> None:
        self._tries = 0
        if self._told:
            self._told = False
            self._telemetry.emit(events.Reachable(service=self._service))

    def unreachable(self, error: Unavailable) -> float:
        if not self._told:
            self._told = True
            self._telemetry.emit(events.Unreachable(service=self._service, error=str(error)))
        return self._wait()

    def failed(self, error: Exception) -> float:
        delay = self._wait()
        self._telemetry.emit(
            events.ServiceFailed(service=self._service, error=repr(error), delay=round(delay, 2))
        )
        return delay

    def _wait(self) -> float:
        self._tries += 1
        return min(_WAITS.delay(self._tries, self._service), self._longest)


async def keep_running(service: Service, telemetry: Telemetry, longest: float = _WAITS.cap) -> None:
    """Run a service, and again whenever it fails: the outermost loop, the one broad ``except``.

    Waits grow, up to ``longest`` seconds.
    """
    trouble = _Trouble(service.name, telemetry, longest)
    while True:
        try:
            await service.run(trouble.over)
            return
        except Unavailable as error:
            delay = trouble.unreachable(error)
        except Exception as error:  # noqa: BLE001 - nothing may end a service but its own return
            delay = trouble.failed(error)
        await anyio.sleep(delay)


async def look_after(
    duties: Sequence[Callable[[], Awaitable[object]]], every: float, telemetry: Telemetry
) -> None:
    """Do these duties again and again, whatever becomes of them. None waits for another."""
    async with anyio.create_task_group() as all_of_them:
        for duty in duties:
            all_of_them.start_soon(_do_again_and_again, duty, every, telemetry)


async def _do_again_and_again(
    duty: Callable[[], Awaitable[object]], every: float, telemetry: Telemetry
) -> None:
    while True:
        try:
            await duty()
        except Unavailable:
            pass  # somebody else tells of it; here the next round simply tries again
        except Exception as error:  # noqa: BLE001 - outermost loop of the upkeep
            telemetry.emit(events.ServiceFailed(service="upkeep", error=repr(error), delay=0))
        await anyio.sleep(every)

"""Schedulers on a store whose clock the test moves. The test runs each of their rounds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from umbel import Umbel
from umbel.backends import JobFilter, Roles
from umbel.messages import Record, State
from umbel.schedules import Catalog, Declared, Scheduler, read_catalog, read_states
from umbel.schedules.due import ScheduleState
from umbel.telemetry import Telemetry, events

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()


class StoppedClock:
    """A clock that only the test moves. The wall time can also jump."""

    def __init__(self, now: float = NOON) -> None:
        self._now = now
        self._monotonic = 1_000.0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall time forward or back."""
        self._now += seconds


class World:
    """An application on SQLite in memory, and its schedulers."""

    def __init__(self) -> None:
        self.clock = StoppedClock()
        self.app = Umbel("sqlite:///:memory:", clock=self.clock)
        self.events: list[events.Event] = []
        self.roles: Roles

        @self.app.task(name="report")
        def report(number: int = 0) -> int:
            return number

        self.report = report

    def scheduler(
        self, name: str = "one", *, declared: Sequence[Declared] | None = None, **how: Any
    ) -> Scheduler:
        """Return a scheduler, as a worker of the application runs it, or of another one."""
        return Scheduler(
            self.roles,
            self.app.schedules.all() if declared is None else declared,
            namespace="umbel",
            candidate=name,
            clock=self.clock,
            telemetry=Telemetry(self.events.append),
            **how,
        )

    async def jobs(self) -> list[Record]:
        """Return all jobs, oldest first by nominal time."""
        found = await self.roles.records.search(JobFilter(limit=10_000))
        return sorted(found, key=lambda one: int(one.headers.get("nominaltime", "0")))

    async def nominals(self, *states: State) -> list[int]:
        """Return the nominal times of the jobs, in seconds after noon."""
        return [
            int(one.headers["nominaltime"]) - int(NOON)
            for one in await self.jobs()
            if not states or one.state in states
        ]

    async def catalog(self) -> Catalog:
        return await read_catalog(self.roles.coordination)

    async def states(self) -> dict[str, ScheduleState]:
        return await read_states(self.roles.coordination)

    def told(self, kind: type[events.Event]) -> list[events.Event]:
        """Return the events of a kind."""
        return [one for one in self.events if isinstance(one, kind)]

    async def run(self, *schedulers: Scheduler, seconds: int, step: int = 1) -> None:
        """Let time pass in steps, and let each scheduler do a round in each."""
        for _ in range(0, seconds, step):
            self.clock.pass_time(step)
            for one in schedulers:
                await settle(one)


async def settle(scheduler: Scheduler) -> None:
    """Let a scheduler do rounds until it waits."""
    for _ in range(10):
        wait, _ = await scheduler.run_once()
        if wait > 0:
            return


@asynccontextmanager
async def open_world(declare: Callable[[World], None] | None = None) -> AsyncIterator[World]:
    """Open a world in which the application declares schedules."""
    world = World()
    if declare is not None:
        declare(world)
    world.roles = world.app.backend.open()
    try:
        yield world
    finally:
        await world.roles.close()
        world.app.close()

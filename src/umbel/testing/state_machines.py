"""What the state machines of the suites share: two sets of adapters, and how a machine is run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from umbel.testing.backend import DEADLINE, Adapters, OpenAdapters
from umbel.testing.clock import FakeClock

T = TypeVar("T")


class AdapterMachine(RuleBasedStateMachine):
    """A machine with the adapters of two processes on the same data."""

    def __init__(self, backends: OpenAdapters) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._open = AsyncExitStack()
        self.sides = self._run(self._enter(backends))
        self.clock = self.sides[0].clock
        if isinstance(self.clock, FakeClock):
            self.clock.stop()

    def finish(self) -> None:
        """Check what must hold at the end."""

    def teardown(self) -> None:
        """Check the end, and close all adapters, also after a failure."""
        try:
            self.finish()
        finally:
            self._run(self._open.aclose())
            self._runner.close()

    async def _enter(self, backends: OpenAdapters) -> list[Adapters]:
        first = await self._open.enter_async_context(backends())
        return [first, await self._open.enter_async_context(first.another())]

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(DEADLINE):
                return await work

        return self._runner.run(bounded())


def run_machine(
    machine: Callable[[OpenAdapters], RuleBasedStateMachine],
    backend: OpenAdapters,
    *,
    examples: int,
    steps: int,
) -> None:
    """Run a machine over an adapter. Nothing is remembered between two runs."""
    run_state_machine_as_test(
        partial(machine, backend),  # type: ignore[arg-type]  # a factory will do
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=True,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )

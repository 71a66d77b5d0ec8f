"""What an adapter's test provides, and how the tests of a suite run over it.

An adapter's test file holds a class that inherits the suites and one fixture::

    class TestMine(BrokerSuite, StoreSuite, MachineSuite):
        @pytest.fixture
        def backend(self, tmp_path) -> OpenAdapters:
            return lambda: my_backend(tmp_path / "data")   # an async context manager of Adapters
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from umbel.backends import (
    Broker,
    Control,
    Coordination,
    Gates,
    Joins,
    Records,
    Registry,
    Routes,
    Steps,
    Transactions,
)
from umbel.clock import Clock
from umbel.control import Deployments, LimitOverrides, Pauses
from umbel.testing.clock import FakeClock

DEADLINE = 45.0
"""Seconds after which a test counts as hanging. Tests measure no other time."""


class Another(Protocol):
    """Opens a second, independent set of adapters on the same data, as another process would."""

    def __call__(self, namespace: str | None = None) -> AbstractAsyncContextManager[Adapters]:
        """Open them in the same namespace, or in the given one."""


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """One set of adapters on a store that is empty at first, and what tests need beside them."""

    broker: Broker
    records: Records
    registry: Registry
    control: Control
    gates: Gates
    steps: Steps
    routes: Routes
    joins: Joins
    coordination: Coordination
    clock: Clock
    """The store's clock: a FakeClock if the adapters use it. A server's clock cannot be moved; then
    the adapters have their own clocks, which should be wrong: see ``wrong_clocks``."""
    namespace: str
    another: Another
    transaction: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    """A caller's own transaction, for ``publish(within=...)``. It commits at the end of the block
    and rolls back if the block raises. None if callers cannot have connections."""
    sync_transaction: Callable[[], AbstractContextManager[Any]] | None = None
    """The same for ``publish_within``."""
    step_transactions: Transactions | None = None
    """Transactions of the store's own database for steps; None if it has none."""

    @property
    def pauses(self) -> Pauses:
        """The pauses in its coordination."""
        return Pauses(self.coordination)

    @property
    def deployments(self) -> Deployments:
        """The deployments in its coordination."""
        return Deployments(self.coordination)

    @property
    def limits(self) -> LimitOverrides:
        """Operators' limits in its coordination."""
        return LimitOverrides(self.coordination, self.gates)

    @property
    def time_travels(self) -> bool:
        """Whether ``advance`` works."""
        return isinstance(self.clock, FakeClock)

    def advance(self, seconds: float) -> None:
        """Let time pass. Skip the test if the store uses the server's clock."""
        if not isinstance(self.clock, FakeClock):
            pytest.skip("the store uses the clock of its server, which cannot be moved")
        self.clock.advance(seconds)


OpenAdapters = Callable[[], AbstractAsyncContextManager[Adapters]]
BackendTest = Callable[[Any, Adapters], Coroutine[Any, Any, None]]


def backend_test(*needs: str) -> Callable[[BackendTest], Callable[[Any, OpenAdapters], None]]:
    """Make a coroutine a test of a suite. It is skipped if the adapter lacks a capability."""

    def decorate(body: BackendTest) -> Callable[[Any, OpenAdapters], None]:
        def test(self: Any, backend: OpenAdapters) -> None:
            asyncio.run(_run(self, body, backend, needs))

        # Not functools.wraps: pytest would inspect the wrapped function and ask for its fixtures.
        test.__name__, test.__doc__ = body.__name__, body.__doc__
        test.__qualname__, test.__module__ = body.__qualname__, body.__module__
        return test

    return decorate


async def _run(
    suite: Any, body: BackendTest, backends: OpenAdapters, needs: tuple[str, ...]
) -> None:
    async with asyncio.timeout(DEADLINE), backends() as backend:
        for need in needs:
            if not getattr(backend.broker.capabilities, need):
                pytest.skip(f"the adapter has no capability {need!r}")
        await body(suite, backend)

"""What an adapter's test provides, and how a suite's tests are told over it.

An adapter's test file holds a class that inherits the suites and one fixture::

    class TestMine(BrokerSuite, StoreSuite, MachineSuite):
        @pytest.fixture
        def backend(self, tmp_path) -> Backends:
            return lambda: my_backend(tmp_path / "data")   # an async context manager of a Backend
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
    Deployments,
    Gates,
    Records,
    Registry,
    Routes,
    Steps,
    Transactions,
)
from umbel.clock import Clock
from umbel.testing.clock import FakeClock

DEADLINE = 45.0
"""Seconds after which a test is taken to hang. Nothing else is ever measured."""


class Another(Protocol):
    """Opens a second, independent set of adapters on the same data, as another process would."""

    def __call__(self, namespace: str | None = None) -> AbstractAsyncContextManager[Backend]:
        """In the same namespace, or in the one given."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One set of adapters over one place where data is kept, empty at first."""

    broker: Broker
    records: Records
    registry: Registry
    control: Control
    gates: Gates
    steps: Steps
    deployments: Deployments
    routes: Routes
    clock: Clock
    """The store's. A FakeClock when the adapters go by it. A server's cannot be moved; the adapters
    then have clocks of their own, which should be wrong: see ``wrong_clocks``."""
    namespace: str
    another: Another
    transaction: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    """A caller's own transaction, for ``publish(within=...)``: commits at the end of the block,
    rolls back when it raises. None when there is no connection beside the adapters' own."""
    sync_transaction: Callable[[], AbstractContextManager[Any]] | None = None
    """The same for ``publish_within``."""
    step_transactions: Transactions | None = None
    """Steps in transactions of the store's own database; None when it has none."""

    @property
    def time_travels(self) -> bool:
        """Whether ``advance`` works here."""
        return isinstance(self.clock, FakeClock)

    def advance(self, seconds: float) -> None:
        """Let time pass. Skips the test where it is the server that keeps the time."""
        if not isinstance(self.clock, FakeClock):
            pytest.skip("the server keeps its own time; it cannot be moved")
        self.clock.advance(seconds)


Backends = Callable[[], AbstractAsyncContextManager[Backend]]
Tale = Callable[[Any, Backend], Coroutine[Any, Any, None]]


def story(*needs: str) -> Callable[[Tale], Callable[[Any, Backends], None]]:
    """A test written as a coroutine over a backend that has the capabilities it ``needs``."""

    def told(tale: Tale) -> Callable[[Any, Backends], None]:
        def test(self: Any, backend: Backends) -> None:
            asyncio.run(_tell(self, tale, backend, needs))

        # Not functools.wraps: pytest would look through it and ask for the wrong fixture.
        test.__name__, test.__doc__ = tale.__name__, tale.__doc__
        test.__qualname__, test.__module__ = tale.__qualname__, tale.__module__
        return test

    return told


async def _tell(suite: Any, tale: Tale, backends: Backends, needs: tuple[str, ...]) -> None:
    async with asyncio.timeout(DEADLINE), backends() as backend:
        for need in needs:
            if not getattr(backend.broker.capabilities, need):
                pytest.skip(f"the adapter has no capability {need!r}")
        await tale(suite, backend)

"""Services that users declare: every worker runs and restarts them, and cancels them at its end."""

from __future__ import annotations

import asyncio

import pytest
from running import Signal, working

from umbel import Umbel
from umbel.errors import ConfigurationError
from umbel.telemetry import events


@pytest.fixture
def app() -> Umbel:
    return Umbel("sqlite:///:memory:")


def test_a_service_runs_beside_the_tasks_and_is_cancelled_when_the_worker_stops(app: Umbel) -> None:
    began, cancelled = Signal("the service to begin"), Signal("the service to be cancelled")

    @app.service
    async def listen() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    with working(app):
        began.wait()
        assert add.delay(1, 2).get(timeout=30) == 3
        assert not cancelled
    assert cancelled


def test_a_service_that_fails_is_started_again_and_reported(app: Umbel) -> None:
    again, tries = Signal("the service to begin again"), []
    told: list[events.Event] = []
    app.telemetry.subscribe(told.append)

    @app.service
    async def flaky() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("not yet")
        again.set()

    with working(app):
        again.wait()
    failed = [event for event in told if isinstance(event, events.ServiceFailed)]
    assert len(failed) == 2
    assert all("not yet" in event.error for event in failed)


def test_a_service_is_an_async_function(app: Umbel) -> None:
    with pytest.raises(ConfigurationError, match="async def"):
        app.service(lambda: None)  # type: ignore[type-var]

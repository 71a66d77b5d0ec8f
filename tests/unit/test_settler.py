"""Outcomes on their way to the store, one of which it never takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from umbel.messages import JSON, Body, Delivery, Envelope, Lease, Settlement, Succeeded
from umbel.services import keep_running
from umbel.tasks.hooks import Hooks
from umbel.telemetry import Telemetry, events
from umbel.worker.incarnation import Incarnation
from umbel.worker.intake import Intake
from umbel.worker.runs import Report
from umbel.worker.settler import Settler


class Store:
    """Records outcomes, but none of the job ``bad``."""

    def __init__(self) -> None:
        self.recorded: list[str] = []

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        if any(one.lease.job == "bad" for one in settlements):
            raise ValueError("a constraint of this row")
        self.recorded += [one.lease.job for one in settlements]
        return []


def test_an_outcome_that_cannot_be_recorded_at_all_does_not_keep_the_others() -> None:
    told: list[events.Event] = []

    async def scenario() -> None:
        store, life, telemetry = Store(), Incarnation("worker"), Telemetry(told.append)
        settler = Settler(cast(Intake, store), life, telemetry, Hooks(lambda hook, error: None))

        def report(job: str) -> Report:
            lease = Lease(job, life.id, 1)
            life.hold(lease)
            made: Any = Envelope(id=job, subject="t", body=Body(JSON, b"{}"))
            return Report(Delivery(envelope=made, lease=lease), Succeeded(), 0.0, 1.0)

        running = asyncio.create_task(keep_running(settler, telemetry))
        for job in ("one", "bad", "two"):
            settler.put(report(job))
        await settler.finish()
        await running
        assert store.recorded == ["one", "two"]
        # Given up, so that a later heartbeat puts the job back into its queue.
        assert life.held() == []

    async def in_time() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(in_time())
    failures = [one for one in told if isinstance(one, events.ServiceFailed)]
    assert ["bad" in one.error for one in failures] == [True]

"""The internal results queue: outcomes wait here until they are settled, in batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import anyio
from msgspec.structs import replace

from umbel.errors import UmbelError, Unavailable
from umbel.messages import (
    Attempt,
    Cancelled,
    Delivery,
    Envelope,
    Expired,
    Failed,
    Interrupted,
    Lease,
    Outcome,
    Parked,
    Rejected,
    Retry,
    Settlement,
    Snoozed,
    Succeeded,
)
from umbel.tasks.failures import describe
from umbel.telemetry import Telemetry, events
from umbel.worker.incarnation import Life
from umbel.worker.intake import Intake

_BATCH = 500
_STEPS = 2
"""Rounds of the event loop in which a worker that has room again asks for more."""


class Report:
    """One run's end, as a runner hands it over."""

    __slots__ = ("delivery", "finished", "follow_ups", "keep", "outcome", "started")

    def __init__(
        self,
        delivery: Delivery,
        outcome: Outcome,
        started: float,
        finished: float,
        keep: bool = True,
        follow_ups: Sequence[Envelope] | None = None,
    ) -> None:
        self.follow_ups = follow_ups
        self.delivery = delivery
        self.outcome = outcome
        self.started = started
        self.finished = finished
        self.keep = keep


class Settler:
    """Settles reports as they come: at once when idle, in batches when busy."""

    name = "settler"

    def __init__(self, intake: Intake, life: Life, telemetry: Telemetry) -> None:
        self._intake = intake
        self._life = life
        self._telemetry = telemetry
        self._reports: deque[Report] = deque()
        self._unsettled: list[Report] = []
        self._arrived = anyio.Event()
        self._emptied = anyio.Event()
        self._stopping = False
        self._resting = False
        self._tells_success = True

    def put(self, report: Report) -> None:
        """Take a report; it is settled soon."""
        self._reports.append(report)
        if self._resting:
            self._arrived.set()

    async def run(self, working: Callable[[], None]) -> None:
        """Settle until told to stop and nothing is left."""
        while True:
            if not self._reports and not self._unsettled:
                self._emptied.set()
                self._emptied = anyio.Event()
                if self._stopping:
                    return
                self._arrived, self._resting = anyio.Event(), True
                await self._arrived.wait()
                self._resting = False
                # Of many, whoever ran them fetches first: the next run waits for that answer.
                for _ in range(_STEPS if len(self._reports) > 1 else 0):
                    await asyncio.sleep(0)
            # What a failed round left behind is settled again first: repeating is safe.
            while self._reports and len(self._unsettled) < _BATCH:
                self._unsettled.append(self._reports.popleft())
            if self._unsettled:
                await self._settle_all(self._unsettled)
                self._unsettled = []
                working()

    async def finish(self) -> None:
        """Return when everything put so far is settled, and end the service."""
        self._stopping = True
        while self._reports or self._unsettled:
            await self._emptied.wait()
        self._arrived.set()

    async def _settle_all(self, reports: list[Report]) -> None:
        """Settle a batch. One outcome that cannot be recorded must not hold up the others."""
        try:
            await self._settle(reports)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the store objects to
            if len(reports) == 1:
                await self._settle_otherwise(reports[0], error)
                return
            for report in reports:
                await self._settle_all([report])

    async def _settle_otherwise(self, report: Report, error: Exception) -> None:
        """Record that an outcome could not be recorded.

        If that fails as well, the lease is given up: the job goes back to its queue with a later
        heartbeat, and the other outcomes are recorded meanwhile.
        """
        try:
            await self._settle([_unrecordable(report, error)])
        except Unavailable:
            raise
        except Exception as again:  # noqa: BLE001 - whatever the store objects to
            self._life.release(report.delivery.lease)
            self._telemetry.emit(
                events.ServiceFailed(
                    service=self.name, error=f"job {report.delivery.id}: {again!r}", delay=0
                )
            )

    async def _settle(self, reports: list[Report]) -> None:
        worker = self._life.name
        refused = await self._intake.settle([_settlement(report, worker) for report in reports])
        lost = {(lease.job, lease.fence) for lease in refused}
        self._tells_success = self._telemetry.hears(events.JobSucceeded)
        for report in reports:
            self._life.release(report.delivery.lease)
            self._tell(report, lost)

    def _tell(self, report: Report, lost: set[tuple[str, int]]) -> None:
        lease: Lease = report.delivery.lease
        if (lease.job, lease.fence) in lost:
            # A life that is over has said so already; its leftovers are no news.
            if lease.owner == self._life.incarnation:
                self._telemetry.emit(events.OutcomeRefused(**_who(report.delivery)))
        elif self._tells_success or not isinstance(report.outcome, Succeeded):
            self._telemetry.emit(event_of(report))


def _unrecordable(report: Report, error: Exception) -> Report:
    """What is recorded instead of an outcome the store does not take."""
    failed = Failed(describe(UmbelError(f"its outcome could not be recorded: {error}")))
    return Report(report.delivery, failed, report.started, report.finished)


def _settlement(report: Report, worker: str) -> Settlement:
    delivery, outcome = report.delivery, report.outcome
    if isinstance(outcome, Succeeded):
        story = Attempt(delivery.attempt, worker, report.started, report.finished, "succeeded")
    else:
        story = Attempt(
            delivery.attempt,
            worker,
            report.started,
            report.finished,
            type(outcome).__name__.lower(),
            outcome.failure if isinstance(outcome, Failed | Retry) else None,
            outcome.reason if isinstance(outcome, Interrupted | Cancelled | Rejected) else "",
            outcome.delay if isinstance(outcome, Retry | Snoozed) else None,
        )
    follow_ups: tuple[Envelope, ...] = ()
    if report.follow_ups and isinstance(outcome, Succeeded):
        # Over a link it is the router that says what the namespace is.
        space = delivery.envelope.namespace
        follow_ups = tuple(replace(one, namespace=space) for one in report.follow_ups)
    return Settlement(
        lease=delivery.lease,
        outcome=outcome,
        keep=report.keep,
        attempt=story,
        follow_ups=follow_ups,
    )


def _who(delivery: Delivery) -> dict[str, Any]:
    envelope = delivery.envelope
    return {
        "job": delivery.id,
        "task": envelope.subject,
        "attempt": delivery.attempt,
        "trace": trace_of(envelope.traceparent),
    }


def trace_of(traceparent: str | None) -> str | None:
    """The trace id inside a traceparent."""
    return traceparent.split("-")[1] if traceparent and traceparent.count("-") == 3 else None


def event_of(report: Report) -> events.JobEvent:
    """What to tell of a settled outcome."""
    who, seconds = _who(report.delivery), round(report.finished - report.started, 6)
    match report.outcome:
        case Succeeded():
            return events.JobSucceeded(**who, seconds=seconds)
        case Failed(failure):
            return events.JobBuried(
                **who,
                seconds=seconds,
                error=f"{failure.type.rpartition(':')[2]}: {failure.message}",
                traceback=failure.traceback,
            )
        case Retry(failure, delay):
            return events.JobRetried(
                **who,
                seconds=seconds,
                error=f"{failure.type.rpartition(':')[2]}: {failure.message}",
                delay=round(delay, 3),
            )
        case Snoozed(delay):
            return events.JobSnoozed(**who, delay=round(delay, 3))
        case Interrupted(reason):
            return events.JobInterrupted(**who, reason=reason)
        case Parked(gates):
            return events.JobParked(**who, gates=gates)
        case Cancelled(reason):
            return events.JobCancelled(**who, reason=reason)
        case Rejected(reason):
            return events.JobRejected(**who, reason=reason)
        case Expired():
            return events.JobExpired(**who)

"""The settler: writes the outcomes of runs to the store, in batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import anyio
from msgspec.structs import replace

from umbel.charts import Tally
from umbel.errors import UmbelError, Unavailable
from umbel.messages import (
    GROUP_HEADER,
    POOL_PREFIX,
    Attempt,
    Cancelled,
    Delivery,
    Envelope,
    Expired,
    Failed,
    Growth,
    Interrupted,
    Lease,
    Parked,
    Rejected,
    Retry,
    Settlement,
    Snoozed,
    Succeeded,
)
from umbel.tasks.failures import describe
from umbel.tasks.hooks import Hooks, SettledJob
from umbel.telemetry import Telemetry, events
from umbel.worker.activation import job_of
from umbel.worker.incarnation import Incarnation
from umbel.worker.intake import Intake
from umbel.worker.runs import Report

_BATCH_SIZE = 500
_LOOP_ROUNDS = 2
"""Rounds of the event loop in which the consumer fetches for the slots that have become free."""


class Settler:
    """Settles reports: at once when idle, in batches when busy."""

    name = "settler"

    def __init__(
        self,
        intake: Intake,
        incarnation: Incarnation,
        telemetry: Telemetry,
        hooks: Hooks,
        tally: Tally | None = None,
    ) -> None:
        self._tally = tally
        """Counts the outcomes for the charts. None: they are not counted."""
        self._intake = intake
        self._hooks = hooks
        self._incarnation = incarnation
        self._telemetry = telemetry
        self._reports: deque[Report] = deque()
        self._unsettled: list[Report] = []
        self._arrived = anyio.Event()
        self._all_settled = anyio.Event()
        self._is_stopping = False
        self._is_idle = False
        self._emits_success = True

    def put(self, report: Report) -> None:
        """Queue a report."""
        self._reports.append(report)
        if self._is_idle:
            self._arrived.set()

    async def run(self, working: Callable[[], None]) -> None:
        """Settle reports until ``finish`` is called and none is left."""
        while True:
            if not self._reports and not self._unsettled:
                self._all_settled.set()
                self._all_settled = anyio.Event()
                if self._is_stopping:
                    return
                self._arrived, self._is_idle = anyio.Event(), True
                await self._arrived.wait()
                self._is_idle = False
                # After several runs, the consumer fetches first: the next runs wait for that.
                for _ in range(_LOOP_ROUNDS if len(self._reports) > 1 else 0):
                    await asyncio.sleep(0)
            # Reports of a failed round are settled again first: repeating is safe.
            while self._reports and len(self._unsettled) < _BATCH_SIZE:
                self._unsettled.append(self._reports.popleft())
            if self._unsettled:
                await self._settle_all(self._unsettled)
                self._unsettled = []
                working()

    async def finish(self) -> None:
        """Wait until all reports are settled, then end the service."""
        self._is_stopping = True
        while self._reports or self._unsettled:
            await self._all_settled.wait()
        self._arrived.set()

    async def _settle_all(self, reports: list[Report]) -> None:
        """Settle a batch. An outcome that cannot be recorded does not delay the others."""
        try:
            await self._settle(reports)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - the store may reject a value in any way
            if len(reports) == 1:
                await self._settle_as_failed(reports[0], error)
                return
            for report in reports:
                await self._settle_all([report])

    async def _settle_as_failed(self, report: Report, error: Exception) -> None:
        """Record a failure in place of an outcome that could not be recorded.

        If that fails as well, the lease is released: a later heartbeat returns the job to its
        queue, and the other outcomes are recorded meanwhile.
        """
        try:
            await self._settle([_unrecordable(report, error)])
        except Unavailable:
            raise
        except Exception as again:  # noqa: BLE001 - as above
            self._incarnation.release(report.delivery.lease)
            self._telemetry.emit(
                events.ServiceFailed(
                    service=self.name, error=f"job {report.delivery.id}: {again!r}", delay=0
                )
            )

    async def _settle(self, reports: list[Report]) -> None:
        worker = self._incarnation.name
        refused = await self._intake.settle([settlement_of(report, worker) for report in reports])
        lost = {(lease.job, lease.fence) for lease in refused}
        self._emits_success = self._telemetry.is_needed(events.JobSucceeded)
        for report in reports:
            self._incarnation.release(report.delivery.lease)
            self._emit(report, lost)
        settled = reports
        if lost:
            leases = ((report, report.delivery.lease) for report in reports)
            settled = [one for one, lease in leases if (lease.job, lease.fence) not in lost]
        if self._tally is not None:
            self._tally.count(
                (envelope.subject, envelope.queue, one.outcome, one.finished - one.started)
                for one in settled
                for envelope in (one.delivery.envelope,)
            )
            self._tally.count_waits(_waits(settled))
        if self._hooks.settles:
            # All at once: a hook that hangs delays a batch only once.
            calls = (self._hooks.call("on_settle", settled_job(report)) for report in settled)
            await asyncio.gather(*calls)

    def _emit(self, report: Report, lost: set[tuple[str, int]]) -> None:
        lease: Lease = report.delivery.lease
        if (lease.job, lease.fence) in lost:
            # The loss of a whole incarnation has been reported already.
            if lease.owner == self._incarnation.id:
                self._telemetry.emit(events.OutcomeRefused(**_event_fields(report.delivery)))
        elif self._emits_success or not isinstance(report.outcome, Succeeded):
            self._telemetry.emit(event_of(report))


def _waits(reports: Iterable[Report]) -> Iterator[float]:
    """Return how many seconds each job waited until its first run began."""
    for one in reports:
        envelope = one.delivery.envelope
        if one.delivery.attempt == 1 and envelope.created:
            due = max(envelope.created, envelope.not_before or 0.0)
            yield max(0.0, one.started - due)


def _unrecordable(report: Report, error: Exception) -> Report:
    """Return the report of a failure, in place of one that the store rejects."""
    failed = Failed(describe(UmbelError(f"its outcome could not be recorded: {error}")))
    return Report(report.delivery, failed, report.started, report.finished)


def settlement_of(report: Report, worker: str) -> Settlement:
    """Return what the store is to record of a report."""
    delivery, outcome = report.delivery, report.outcome
    if isinstance(outcome, Succeeded):
        attempt = Attempt(delivery.attempt, worker, report.started, report.finished, "succeeded")
    else:
        attempt = Attempt(
            delivery.attempt,
            worker,
            report.started,
            report.finished,
            type(outcome).__name__.lower(),
            outcome.failure if isinstance(outcome, Failed | Retry) else None,
            outcome.reason if isinstance(outcome, Interrupted | Cancelled | Rejected) else "",
            outcome.delay if isinstance(outcome, Retry | Snoozed) else None,
        )
    if members := {s.gate.removeprefix(POOL_PREFIX): s.member for s in delivery.slots if s.member}:
        attempt = replace(attempt, members=members)
    follow_ups: tuple[Envelope, ...] = ()
    if report.follow_ups and isinstance(outcome, Succeeded):
        # A worker on a link does not know the namespace; the router put it into the delivery.
        space = delivery.envelope.namespace
        follow_ups = tuple(replace(one, namespace=space) for one in report.follow_ups)
    group = delivery.envelope.headers.get(GROUP_HEADER, "")
    growth = report.growth
    if growth is not None:
        group = group or growth.publication.envelopes[0].headers[GROUP_HEADER]
        growth = in_namespace(growth, delivery.envelope.namespace)
    return Settlement(
        lease=delivery.lease,
        outcome=outcome,
        keep=report.keep or bool(group),
        attempt=attempt,
        follow_ups=follow_ups,
        group=group,
        growth=growth,
    )


def in_namespace(growth: Growth, namespace: str) -> Growth:
    """Return a growth whose jobs are in a namespace: a worker on a link does not know it."""
    publication = growth.publication
    envelopes = tuple(replace(one, namespace=namespace) for one in publication.envelopes)
    return Growth(replace(publication, envelopes=envelopes), growth.replacement)


def settled_job(report: Report) -> SettledJob:
    """Return what hooks see of a settled outcome."""
    outcome, error = report.outcome, ""
    if isinstance(outcome, Failed | Retry):
        error = outcome.failure.line
    elif isinstance(outcome, Interrupted | Cancelled | Rejected):
        error = outcome.reason
    return SettledJob(
        job=job_of(report.delivery),
        outcome=type(outcome).__name__.lower(),
        seconds=report.finished - report.started,
        error=error,
    )


def _event_fields(delivery: Delivery) -> dict[str, Any]:
    envelope = delivery.envelope
    return {
        "job": delivery.id,
        "task": envelope.subject,
        "attempt": delivery.attempt,
        "trace": trace_of(envelope.traceparent),
    }


def trace_of(traceparent: str | None) -> str | None:
    """Return the trace id of a traceparent header, or None."""
    return traceparent.split("-")[1] if traceparent and traceparent.count("-") == 3 else None


def event_of(report: Report) -> events.JobEvent:
    """Return the telemetry event of a settled outcome."""
    fields, seconds = _event_fields(report.delivery), round(report.finished - report.started, 6)
    match report.outcome:
        case Succeeded():
            return events.JobSucceeded(**fields, seconds=seconds)
        case Failed(failure):
            return events.JobBuried(
                **fields,
                seconds=seconds,
                error=failure.line,
                traceback=failure.traceback,
            )
        case Retry(failure, delay):
            return events.JobRetried(
                **fields,
                seconds=seconds,
                error=failure.line,
                delay=round(delay, 3),
            )
        case Snoozed(delay):
            return events.JobSnoozed(**fields, delay=round(delay, 3))
        case Interrupted(reason):
            return events.JobInterrupted(**fields, reason=reason)
        case Parked(gates):
            return events.JobParked(**fields, gates=gates)
        case Cancelled(reason):
            return events.JobCancelled(**fields, reason=reason)
        case Rejected(reason):
            return events.JobRejected(**fields, reason=reason)
        case Expired():
            return events.JobExpired(**fields)

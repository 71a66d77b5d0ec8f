"""A worker that claims and settles jobs one at a time, for the callers that run them.

The jobs pass through the real broker, activation and settlement. While only jobs with a delay are
left, the worker moves the clock.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from umbel.app import Umbel
from umbel.backends import Demand, JobFilter, WorkerEntry
from umbel.errors import BadMessage, JobFailed, ResultTimeout, UnknownJob
from umbel.graphs import NodePreparer, PreparedNode, must_prepare
from umbel.messages import (
    KINDS,
    REFERENCE,
    Cancelled,
    Delivery,
    Envelope,
    Finish,
    Growth,
    Interrupted,
    Outcome,
    Parked,
    Record,
    Rejected,
    Rule,
    State,
    Succeeded,
    decode_as,
    disposition,
    inbox,
)
from umbel.router import DuplicateFilter, Router
from umbel.tasks.failures import rebuild
from umbel.telemetry import events
from umbel.testing.clock import VirtualClock
from umbel.testing.inline_execution import InlineRun
from umbel.worker import WorkerOptions
from umbel.worker.activation import Activator
from umbel.worker.executors import Executors
from umbel.worker.gate_sync import GateSync
from umbel.worker.incarnation import Incarnation
from umbel.worker.progress import ProgressNotes
from umbel.worker.runs import Activation, Report
from umbel.worker.settler import event_of, settlement_of, trace_of
from umbel.worker.step_writer import StepWriter

_ONE_OF_EACH_KIND = Demand(dict.fromkeys(KINDS, 1))
_FIRST_STEP_SECONDS = 0.05
_LAST_STEP_SECONDS = 40 * 86_400.0
"""How far the clock is moved at once while a rate delays jobs: first, and at most."""
_AFTER_SECONDS = 0.001
"""How long after the time at which a job is due the clock stops."""
_PACKAGE_FOLDER = str(Path(__file__).parent.parent)


class FinishedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has ended."""

    id: str
    task: str
    state: State
    result: Any = None
    """The result, of the type that the task declares."""
    error: BaseException | None = None
    """Of a buried job: the exception that its task raised."""
    reason: str = ""
    attempt: int = 1
    """The number of its last attempt."""


class InlineWorker:
    """Claims jobs and settles them. All methods run in the event loop of the client."""

    def __init__(self, app: Umbel, clock: VirtualClock) -> None:
        options = WorkerOptions(name="test", lease=3600)
        self._registry = app.registry
        self._codec = app.codec
        self._clock = clock
        self._telemetry = app.telemetry
        roles = app.backend.open(is_loop_dedicated=True)
        self._roles = roles
        self._router = Router(
            roles,
            queues=options.queues,
            duplicates=DuplicateFilter(0),
            clock=clock,
            telemetry=app.telemetry,
        )
        self._incarnation = Incarnation(options.name)
        self._progress = ProgressNotes(roles.records)
        self._steps = StepWriter(
            roles.steps,
            app.codec,
            clock,
            app.backend.transactions(),
            Executors(options, clock, app.hooks),
        )
        self._activator = Activator(
            app.registry,
            app.codec,
            incarnation=self._incarnation,
            progress=self._progress,
            steps=self._steps,
        )
        self._nodes = NodePreparer(roles, app.registry, app.codec)
        self._claimed: deque[Delivery] = deque()
        self._rules: list[Rule] = []
        self._step = _FIRST_STEP_SECONDS
        self.finished: list[FinishedJob] = []
        """The jobs that have ended so far."""

    async def close(self) -> None:
        """Close the connections."""
        self._steps.transactions.close()
        await self._roles.close()

    async def claim(self, until: float) -> Activation | FinishedJob | None:
        """Return the next job: under lease, or ended if it cannot run. None: no job is left.

        If all jobs are due later, move the clock to the first of them, but not beyond ``until``.
        """
        self._steps.start()  # again in each call: after app.close() there is another event loop
        while True:
            looked = self._clock.now()
            if not self._claimed:
                self._claimed.extend(await self._fetch())
            if self._claimed:
                self._step = _FIRST_STEP_SECONDS
                if (next_job := await self._activate(self._claimed.popleft())) is not None:
                    return next_job
            elif not await self._advance(looked, until):
                return None

    def put_back(self, activation: Activation) -> None:
        """Make a job that was claimed and not run the next one that ``claim`` returns."""
        self._claimed.appendleft(activation.delivery)

    async def release(self) -> None:
        """Return the jobs that were claimed and not run to their queues."""
        now = self._clock.now()
        while self._claimed:
            delivery = self._claimed.popleft()
            report = Report(delivery, Parked(delivery.envelope.gates), now, now)
            await self._router.settle([settlement_of(report, self._incarnation.name)])

    async def settle(self, run: InlineRun) -> tuple[FinishedJob | None, tuple[Envelope, ...]]:
        """Record the outcome. Return the job if it has ended, and the messages that follow it."""
        await self._progress.write()
        report = run.report
        settlement = settlement_of(report, self._incarnation.name)
        await self._router.settle([settlement])
        self._telemetry.emit(event_of(report))
        ended = disposition(report.outcome)
        if not isinstance(ended, Finish):
            return None, ()
        finished = FinishedJob(
            id=report.delivery.id,
            task=report.delivery.envelope.subject,
            state=ended.state,
            result=await self._result(report),
            error=_error(ended, run) if ended.state is State.BURIED else None,
            reason=ended.reason,
            attempt=report.delivery.attempt,
        )
        self.finished.append(finished)
        return finished, settlement.follow_ups

    async def find(self, job: str) -> Record | None:
        """Return the record of a job; None if there is no such job."""
        try:
            return await self._roles.records.find(job)
        except UnknownJob:
            return None

    async def wait_finished(self, job: str, seconds: float) -> None:
        """Wait until a job has ended, but not longer than so many seconds."""
        with suppress(UnknownJob, ResultTimeout):
            await self._roles.records.wait_finished(job, seconds)

    async def _register(self) -> None:
        entry = WorkerEntry(
            incarnation=self._incarnation.id,
            name=self._incarnation.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=tuple(self._registry.queues()),
            capacity=_ONE_OF_EACH_KIND.free,
            lease=3600,
            tasks=tuple(task.name for task in self._registry),
        )
        self._incarnation.index = await self._router.register(entry)

    async def _declare_gates(self) -> None:
        """Declare gates that are new, of tasks declared meanwhile and of computed limits."""
        if (rules := self._registry.rules()) != self._rules:
            await GateSync(self._router, self._registry, self._telemetry).declare()
            self._rules = rules

    async def _fetch(self) -> list[Delivery]:
        """Return at most one job of each kind, from any queue."""
        if self._incarnation.index is None:
            await self._register()
            assert self._incarnation.index is not None
        await self._declare_gates()
        broker = self._roles.broker
        queues = {depth.queue for depth in await broker.depths()}
        own = inbox(self._incarnation.index)
        found = await broker.fetch(
            [own, *sorted(queues - {own})], _ONE_OF_EACH_KIND, self._incarnation.id, 0
        )
        return sorted(found, key=lambda one: (-one.envelope.priority, one.envelope.created))

    async def _activate(self, delivery: Delivery) -> Activation | FinishedJob | None:
        """Return what a run needs, or a job that has ended. None: the job waits for gates."""
        cancelled = await self._roles.control.cancellations([delivery.id])
        activated: Activation | Outcome
        if delivery.id in cancelled:
            activated = Cancelled(cancelled[delivery.id])
        else:
            node = PreparedNode([])
            if must_prepare(delivery):
                node = await self._nodes.prepare(delivery)
            if node.outcome is not None:
                return await self._settle_unrun(delivery, node.outcome, node.growth)
            activated = self._activator.activate(delivery, node.values)
        if isinstance(activated, Activation):
            self._emit_started(delivery)
            return activated
        if isinstance(activated, Interrupted):  # no other worker could have the task
            activated = Rejected(activated.reason)
        return await self._settle_unrun(delivery, activated)

    async def _settle_unrun(
        self, delivery: Delivery, outcome: Outcome, growth: Growth | None = None
    ) -> FinishedJob | None:
        now = self._clock.now()
        report = Report(delivery, outcome, now, now, growth=growth)
        finished, _ = await self.settle(InlineRun(report, None))
        return finished

    async def _advance(self, looked: float, until: float) -> bool:
        """Move the clock to when the next job may run. Return False if that is not known.

        A job that became due since this moment, when no job was found, may run now.
        """
        now, filter_ = self._clock.now(), JobFilter(states=(State.SCHEDULED,), limit=100_000)
        scheduled = await self._roles.records.search(filter_)
        times = [one.not_before for one in scheduled if one.not_before is not None]
        gates = await self._roles.gates.gates(limit=100_000)
        if any(gate.rates and gate.waiting for gate in gates) and self._step <= _LAST_STEP_SECONDS:
            times.append(now + self._step)
            self._step *= 2
        due = min((time for time in times if time > looked), default=None)
        if due is None or due > until:
            return False
        self._clock.advance(max(due - now, 0.0) + _AFTER_SECONDS)
        return True

    def _emit_started(self, delivery: Delivery) -> None:
        envelope = delivery.envelope
        self._telemetry.emit(
            events.JobStarted(
                job=delivery.id,
                task=envelope.subject,
                attempt=delivery.attempt,
                trace=trace_of(envelope.traceparent),
            )
        )

    async def _result(self, report: Report) -> Any:
        outcome, task = report.outcome, self._registry.get(report.delivery.envelope.subject)
        if not isinstance(outcome, Succeeded) or outcome.result is None:
            return None
        if outcome.result.content_type == REFERENCE:
            return None  # handle.get() reads it
        value = self._codec.decode(outcome.result)
        with suppress(BadMessage):  # its annotation is wrong; handle.get() says so
            return decode_as(value, Any if task is None else task.parameters.returns, "result")
        return value


def _error(ended: Finish, run: InlineRun) -> BaseException:
    """Return the exception of a buried job: the one that its task raised, if it raised one."""
    job = run.report.delivery.id
    if run.error is not None and ended.failure is not None:
        own = run.error if isinstance(run.error, Exception) else rebuild(ended.failure, job)
        return _without_own_frames(own)
    if ended.failure is not None:
        return rebuild(ended.failure, job)
    return JobFailed(f"job {job} was buried: {ended.reason}")


def _without_own_frames(error: Exception) -> Exception:
    """Return the error with a traceback that begins in the task, if it was raised there."""
    inner = error.__traceback__
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_PACKAGE_FOLDER):
        inner = inner.tb_next
    return error if inner is None else error.with_traceback(inner)

"""Runs the jobs of an application in its callers. The client calls it; see ``app.client``."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Sequence
from math import inf
from typing import Any, Literal, TypeVar

from umbel.app import Umbel
from umbel.app.client import Client
from umbel.errors import ConfigurationError, UmbelError
from umbel.messages import Envelope, Record, State
from umbel.testing.clock import VirtualClock
from umbel.testing.inline_execution import InlineExecutor
from umbel.testing.inline_worker import FinishedJob, InlineWorker
from umbel.testing.published import PublishedCall, read_call
from umbel.worker.runs import Activation

__tracebackhide__ = True  # pytest shows the lines of the test and of the task
T = TypeVar("T")
Errors = Literal["raise", "collect"]
Steps = Generator[Activation | Coroutine[Any, Any, Any], Any, T]
"""Yields activations to run and coroutines for the client's event loop; gets their results."""

MAX_RUNS = 10_000
"""After so many runs, ``drain`` gives up: a task may publish itself."""
_WAIT_SECONDS = 0.02
"""How long a thread waits for a job that another thread runs, before it looks for jobs again."""


class InlineRunner:
    """Implements ``InlineJobs`` of the client. Each method has one body for both kinds of callers.

    The bodies are generators: ``_drive`` and ``_adrive`` do what they yield.
    """

    def __init__(self, app: Umbel, client: Client, clock: VirtualClock) -> None:
        self._app = app
        self._client = client
        self._executor = InlineExecutor(app.codec, clock, app.telemetry, app.hooks)
        self._opened: InlineWorker | None = None
        self.clock = clock
        self.eager_errors: Errors | None = None
        """What to do with errors of jobs that run at once. None: jobs stay in their queues."""
        self.published: list[PublishedCall] = []

    def drain(self, within: float | None, errors: Errors, max_runs: int) -> list[FinishedJob]:
        """Run jobs until none is left: see ``InMemoryJobs.drain``."""
        return self._drive(self._drain_steps(within, errors, max_runs))

    async def adrain(
        self, within: float | None, errors: Errors, max_runs: int
    ) -> list[FinishedJob]:
        """``drain`` for async code."""
        return await self._adrive(self._drain_steps(within, errors, max_runs))

    def after_publish(self, envelopes: Sequence[Envelope], *, committed: bool) -> None:
        """Record what was published, and run it if calls are eager."""
        self._record(envelopes)
        if committed and self.eager_errors is not None:
            self.drain(None, self.eager_errors, MAX_RUNS)

    async def aafter_publish(self, envelopes: Sequence[Envelope], *, committed: bool) -> None:
        """``after_publish`` for async code."""
        self._record(envelopes)
        if committed and self.eager_errors is not None:
            await self.adrain(None, self.eager_errors, MAX_RUNS)

    def before_wait(self, job: str, timeout: float | None) -> float | None:
        """Run jobs until this one has ended. Return the timeout with which to wait for it."""
        return self._drive(self._wait_steps(job, timeout))

    async def abefore_wait(self, job: str, timeout: float | None) -> float | None:
        """``before_wait`` for async code."""
        return await self._adrive(self._wait_steps(job, timeout))

    def close(self) -> None:
        """Close what the jobs used."""
        self._executor.close()
        if self._opened is not None:
            self._client.bridge.run(self._opened.close())

    # --- steps -------------------------------------------------------------------------------

    def _drain_steps(
        self, within: float | None, errors: Errors, max_runs: int
    ) -> Steps[list[FinishedJob]]:
        check_errors(errors)
        until = self._until("within", within)
        worker: InlineWorker = yield self._worker()
        first, runs, failed = len(worker.finished), 0, list[FinishedJob]()
        while (found := (yield worker.claim(until))) is not None:
            ended = found if isinstance(found, FinishedJob) else None
            if isinstance(found, Activation):
                if runs == max_runs:
                    worker.put_back(found)
                    raise _too_many(max_runs)
                runs += 1
                ended = yield from self._run(found)
            if ended is not None and ended.error is not None:
                failed.append(ended)
        if failed and errors == "raise":
            raise _error_of(failed)
        return worker.finished[first:]

    def _wait_steps(self, job: str, timeout: float | None) -> Steps[float | None]:
        until = self._until("timeout", None if timeout is None else max(timeout, 0.0))
        real_end = inf if timeout is None else self.clock.monotonic() + timeout
        worker: InlineWorker = yield self._worker()
        idle_rounds = 0
        record: Record | None = yield worker.find(job)
        while record is not None and not record.state.finished and idle_rounds < 2:
            found = yield worker.claim(until)
            if isinstance(found, Activation):
                yield from self._run(found)
            is_running = record.state is State.RUNNING and self.clock.monotonic() < real_end
            if found is None and is_running:  # in another thread
                yield worker.wait_finished(job, _WAIT_SECONDS)
            # Twice: the job may have been queued again after this thread found none.
            idle_rounds = idle_rounds + 1 if found is None and not is_running else 0
            record = yield worker.find(job)
        yield worker.release()
        if record is None or record.state.finished:
            return timeout
        if timeout is None:
            raise _cannot_run(record)
        return 0.0

    def _run(self, activation: Activation) -> Steps[FinishedJob | None]:
        worker = yield self._worker()
        ended, follow_ups = yield worker.settle((yield activation))
        self._record(follow_ups)
        return ended  # type: ignore[no-any-return]

    def _record(self, envelopes: Sequence[Envelope]) -> None:
        registry, codec = self._app.registry, self._app.codec
        self.published += [read_call(one, registry, codec) for one in envelopes]

    async def _worker(self) -> InlineWorker:
        if self._opened is None:
            self._opened = InlineWorker(self._app, self.clock)
        return self._opened

    def _until(self, name: str, seconds: float | None) -> float:
        if seconds is not None and not seconds >= 0:
            raise ConfigurationError(f"{name}={seconds}: give seconds, 0 or more")
        return inf if seconds is None else self.clock.now() + seconds

    def _drive(self, steps: Steps[T]) -> T:
        answer: Any = None
        while True:
            try:
                request = steps.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(request, Activation):
                answer = self._executor.run(request)
            else:
                answer = self._client.bridge.run(request)

    async def _adrive(self, steps: Steps[T]) -> T:
        answer: Any = None
        while True:
            try:
                request = steps.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(request, Activation):
                answer = await self._executor.arun(request)
            else:
                answer = await self._client.bridge.arun(request)


def check_errors(errors: Errors) -> Errors:
    """Return it. Raise ConfigurationError if it is unknown."""
    if errors not in ("raise", "collect"):
        raise ConfigurationError(f'errors={errors!r}: give "raise" or "collect"')
    return errors


def _cannot_run(record: Record) -> UmbelError:
    gate = f" at {record.gate}" if record.gate else ""
    return UmbelError(
        f"job {record.id} of {record.task} cannot run: it is {record.state}{gate}. A queue or a"
        " task that is paused, a limit whose slots are taken, or an unfinished transaction may be"
        " the reason"
    )


def _too_many(runs: int) -> UmbelError:
    return UmbelError(
        f"drain has made {runs} runs, and jobs are left. If a task publishes itself, give"
        " within=seconds; if there are so many jobs, give max_runs=..."
    )


def _error_of(failed: Sequence[FinishedJob]) -> BaseException:
    """Return the error of the first job, with a note about the others."""
    error = failed[0].error
    assert error is not None
    if len(failed) > 1:
        names = ", ".join(f"{job.task} {job.id}" for job in failed[1:])
        error.add_note(f"These jobs failed, too: {names}")
    return error

"""Runs an application in a test: on a private database in memory, without a worker process."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, Literal, TypeVar

from umbel.app import Umbel
from umbel.app.client import Client
from umbel.errors import ConfigurationError, UmbelError
from umbel.messages import Envelope, State
from umbel.tasks import Task
from umbel.testing.clock import VirtualClock
from umbel.testing.inline_execution import InlineExecutor
from umbel.testing.inline_worker import FinishedJob, InlineWorker
from umbel.testing.published import PublishedCall, WantedCall, list_calls, read_call
from umbel.worker.runs import Activation

T = TypeVar("T")
Errors = Literal["raise", "collect"]
Steps = Generator[Activation | Coroutine[Any, Any, Any], Any, T]
"""Yields activations to run and coroutines for the client's event loop; gets their results."""

_DEADLINE_SECONDS = 60.0
"""The publishing deadline in tests: a busy machine must not fail them."""


class InMemoryJobs:
    """The jobs of an application during a test.

    Jobs stay in their queues until ``drain`` runs them, or until the test waits for one:
    ``handle.get()`` and ``await handle`` run what is queued until that job has ended.
    """

    def __init__(self, app: Umbel, client: Client, clock: VirtualClock) -> None:
        self._app = app
        self._client = client
        self._clock = clock
        self._executor = InlineExecutor(app.codec, clock, app.telemetry)
        self._opened: InlineWorker | None = None
        self._eager_errors: Errors | None = None
        self._published: list[PublishedCall] = []

    # --- running -----------------------------------------------------------------------------

    def drain(
        self, *, within: float | None = None, errors: Errors = "raise", max_runs: int = 10_000
    ) -> list[FinishedJob]:
        """Run all jobs until none is left, and return those that have ended.

        Jobs that retry, follow others or have a delay are run, too: instead of waiting, the clock
        of the application is moved. With ``within``, it is moved by at most so many seconds, and
        jobs that are due later stay. If a job is buried, the other jobs run nevertheless; then the
        error of the first such job is raised. ``errors="collect"`` raises none.

        Raises:
            UmbelError: jobs were left after ``max_runs`` runs.
        """
        return self._drive(self._drain_steps(within, errors, max_runs))

    async def adrain(
        self, *, within: float | None = None, errors: Errors = "raise", max_runs: int = 10_000
    ) -> list[FinishedJob]:
        """``drain`` for async code. ``async def`` tasks run in the caller's event loop."""
        return await self._adrive(self._drain_steps(within, errors, max_runs))

    @contextmanager
    def eager(self, errors: Errors = "raise") -> Iterator[None]:
        """Run each job as soon as it is published, before ``delay`` returns.

        ``delay`` raises the error of a job that is buried. ``errors="collect"`` raises none; the
        handle tells.
        """
        before, self._eager_errors = self._eager_errors, _check_errors(errors)
        try:
            yield
        finally:
            self._eager_errors = before

    def advance(self, seconds: float) -> None:
        """Move the clock of the application. The test's own clock is not moved."""
        self._clock.advance(seconds)

    # --- what was published ------------------------------------------------------------------

    @property
    def published(self) -> list[PublishedCall]:
        """All calls that were published so far, in this order, also those that have run."""
        return list(self._published)

    def assert_published(self, task: Task[..., Any], /, *args: Any, **kwargs: Any) -> PublishedCall:
        """Return the first published call of a task with these arguments.

        Without arguments, every call of the task counts. Give options as for the call itself:
        ``assert_published(charge.options(queue="money", delay=30), 7)``.

        Raises:
            AssertionError: there is none. The text lists what was published.
        """
        wanted = WantedCall(task, args, kwargs, self._app.codec)
        for call in self._published:
            if wanted.matches(call):
                return call
        raise AssertionError(f"{wanted} was not published. {list_calls(self._published)}")

    def refute_published(self, task: Task[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Assert the opposite of ``assert_published``."""
        wanted = WantedCall(task, args, kwargs, self._app.codec)
        if found := [call for call in self._published if wanted.matches(call)]:
            raise AssertionError(f"{wanted} was published. {list_calls(found)}")

    # --- called by the client ----------------------------------------------------------------

    def published_now(self, envelopes: Sequence[Envelope]) -> None:
        """Record what was published."""
        registry, codec = self._app.registry, self._app.codec
        self._published += [read_call(one, registry, codec) for one in envelopes]

    def after_publish(self, envelopes: Sequence[Envelope], *, committed: bool) -> None:
        """Record what was published, and run it if this is eager."""
        self.published_now(envelopes)
        if committed and self._eager_errors is not None:
            self.drain(errors=self._eager_errors)

    async def aafter_publish(self, envelopes: Sequence[Envelope], *, committed: bool) -> None:
        """``after_publish`` for async code."""
        self.published_now(envelopes)
        if committed and self._eager_errors is not None:
            await self.adrain(errors=self._eager_errors)

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
        _check_errors(errors)
        until = self._until("within", within)
        worker: InlineWorker = yield self._worker()
        first, failed = len(worker.finished), list[FinishedJob]()
        for _ in range(max_runs):
            found = yield worker.claim(until)
            if found is None:
                if failed and errors == "raise":
                    raise _error_of(failed)
                return worker.finished[first:]
            ended = found if isinstance(found, FinishedJob) else (yield from self._run(found))
            if ended is not None and ended.error is not None:
                failed.append(ended)
        raise UmbelError(
            f"drain has made {max_runs} runs, and jobs are left. If a task publishes itself, give"
            " within=seconds; if there are so many jobs, give max_runs=..."
        )

    def _wait_steps(self, job: str, timeout: float | None) -> Steps[float | None]:
        until = self._until("timeout", timeout)
        worker = yield self._worker()
        record = yield worker.find(job)
        while record is not None and not record.state.finished:
            found = yield worker.claim(until)
            if found is None:
                break
            if isinstance(found, Activation):
                yield from self._run(found)
            record = yield worker.find(job)
        if record is None or record.state.finished or record.state is State.RUNNING:
            return timeout  # a running job runs in another thread, or called this itself
        if timeout is None:
            gate = f" at {record.gate}" if record.gate else ""
            raise UmbelError(
                f"job {job} of {record.task} cannot run: it is {record.state}{gate}. A queue or a"
                " task that is paused, a limit whose slots are taken, or an unfinished transaction"
                " may be the reason"
            )
        return 0.0

    def _run(self, activation: Activation) -> Steps[FinishedJob | None]:
        worker = yield self._worker()
        ended, follow_ups = yield worker.settle((yield activation))
        self.published_now(follow_ups)
        return ended  # type: ignore[no-any-return]

    async def _worker(self) -> InlineWorker:
        if self._opened is None:
            self._opened = InlineWorker(self._app, self._clock)
        return self._opened

    def _until(self, name: str, seconds: float | None) -> float:
        if seconds is not None and not seconds >= 0:
            raise ConfigurationError(f"{name}={seconds}: give seconds, 0 or more")
        return inf if seconds is None else self._clock.now() + seconds

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


@contextmanager
def in_memory(app: Umbel) -> Iterator[InMemoryJobs]:
    """Use a private SQLite database in memory for an application until the block ends.

    All its tasks, handles and operations use it. No server is contacted and no file is written.
    """
    clock = VirtualClock()
    with app.redirected("sqlite:///:memory:", deadline=_DEADLINE_SECONDS, clock=clock) as client:
        outer, jobs = client.inline_jobs, InMemoryJobs(app, client, clock)
        client.inline_jobs = jobs
        try:
            yield jobs
        finally:
            client.inline_jobs = outer
            jobs.close()


@contextmanager
def eager(app: Umbel, errors: Errors = "raise") -> Iterator[InMemoryJobs]:
    """``in_memory`` in which each job runs as soon as it is published."""
    with in_memory(app) as jobs, jobs.eager(errors):
        yield jobs


def _check_errors(errors: Errors) -> Errors:
    if errors not in ("raise", "collect"):
        raise ConfigurationError(f'errors={errors!r}: give "raise" or "collect"')
    return errors


def _error_of(failed: Sequence[FinishedJob]) -> BaseException:
    """Return the error of the first job, with a note about the others."""
    error = failed[0].error
    assert error is not None
    if len(failed) > 1:
        names = ", ".join(f"{job.task} {job.id}" for job in failed[1:])
        error.add_note(f"These jobs failed, too: {names}")
    return error

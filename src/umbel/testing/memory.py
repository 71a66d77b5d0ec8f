"""Runs an application in a test: on a private database in memory, without a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from umbel.app import Umbel
from umbel.backends.sqlite.backend import SqliteBackend
from umbel.messages import BodyCodec
from umbel.tasks import Task
from umbel.testing.clock import VirtualClock
from umbel.testing.inline_runner import MAX_RUNS, Errors, InlineRunner, check_errors
from umbel.testing.inline_worker import FinishedJob
from umbel.testing.published import PublishedCall, WantedCall, list_calls

__tracebackhide__ = True  # pytest shows the lines of the test and of the task
_URL = "sqlite:///:memory:"
_DEADLINE = 60.0
"""The publishing deadline in seconds: a busy machine must not fail a test."""


class InMemoryJobs:
    """The jobs of an application during a test.

    Jobs stay in their queues until ``drain`` runs them, or until the test waits for one:
    ``handle.get()`` and ``await handle`` run what is queued until that job has ended.
    """

    def __init__(self, runner: InlineRunner, codec: BodyCodec) -> None:
        self._runner = runner
        self._codec = codec

    # --- running -----------------------------------------------------------------------------

    def drain(
        self, *, within: float | None = None, errors: Errors = "raise", max_runs: int = MAX_RUNS
    ) -> list[FinishedJob]:
        """Run all jobs until none is left, and return those that have ended.

        Jobs that retry, follow others or have a delay are run, too: instead of waiting, the clock
        of the application is moved. With ``within``, it is moved by at most so many seconds, and
        jobs that are due later stay. If a job is buried, the other jobs run nevertheless; then the
        error of the first such job is raised. ``errors="collect"`` raises none.

        Raises:
            UmbelError: jobs were left after ``max_runs`` runs.
        """
        return self._runner.drain(within, errors, max_runs)

    async def adrain(
        self, *, within: float | None = None, errors: Errors = "raise", max_runs: int = MAX_RUNS
    ) -> list[FinishedJob]:
        """``drain`` for async code. ``async def`` tasks run in the caller's event loop."""
        return await self._runner.adrain(within, errors, max_runs)

    @contextmanager
    def eager(self, errors: Errors = "raise") -> Iterator[None]:
        """Run each job as soon as it is published, before ``delay`` returns.

        ``delay`` raises the error of a job that is buried. ``errors="collect"`` raises none;
        ``handle.get()`` does.
        """
        runner = self._runner
        before, runner.eager_errors = runner.eager_errors, check_errors(errors)
        try:
            yield
        finally:
            runner.eager_errors = before

    def advance(self, seconds: float) -> None:
        """Move the clock of the application. The test's own clock is not moved."""
        self._runner.clock.advance(seconds)

    # --- what was published ------------------------------------------------------------------

    @property
    def published(self) -> list[PublishedCall]:
        """All calls that were published so far, in this order, also those that have run."""
        return list(self._runner.published)

    def assert_published(self, task: Task[..., Any], /, *args: Any, **kwargs: Any) -> PublishedCall:
        """Return the first published call of a task with these arguments.

        Without arguments, every call of the task counts. Give options as for the call itself:
        ``assert_published(charge.options(queue="money", delay=30), 7)``.

        Raises:
            AssertionError: there is none. The text lists what was published.
        """
        wanted = WantedCall(task, args, kwargs, self._codec)
        for call in self._runner.published:
            if wanted.matches(call):
                return call
        raise AssertionError(f"{wanted} was not published. {list_calls(self._runner.published)}")

    def refute_published(self, task: Task[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Assert the opposite of ``assert_published``."""
        wanted = WantedCall(task, args, kwargs, self._codec)
        if found := [call for call in self._runner.published if wanted.matches(call)]:
            raise AssertionError(f"{wanted} was published. {list_calls(found)}")


@contextmanager
def in_memory(app: Umbel) -> Iterator[InMemoryJobs]:
    """Use a private SQLite database in memory for an application until the block ends.

    All its tasks, handles and operations use it. No server is contacted and no file is written.
    """
    clock = VirtualClock()
    with ExitStack() as at_end, app.redirected(_URL, deadline=_DEADLINE, clock=clock) as client:
        at_end.callback(cast(SqliteBackend, app.backend).close)
        outer, runner = client.inline_jobs, InlineRunner(app, client, clock)
        client.inline_jobs = runner
        try:
            yield InMemoryJobs(runner, app.codec)
        finally:
            client.inline_jobs = outer
            runner.close()


@contextmanager
def eager(app: Umbel, errors: Errors = "raise") -> Iterator[InMemoryJobs]:
    """``in_memory`` in which each job runs as soon as it is published."""
    with in_memory(app) as jobs, jobs.eager(errors):
        yield jobs

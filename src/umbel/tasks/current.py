"""What a running task can see and say of itself: ``from umbel import current``."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import msgspec

from umbel.errors import UmbelError
from umbel.messages import Lease


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The job being run, as its task sees it."""

    id: str
    task: str
    queue: str
    attempt: int
    deaths: int = 0
    priority: int = 0
    created: float = 0.0
    traceparent: str | None = None
    headers: dict[str, str] = {}


class Run:
    """One run of a job: what ``current`` shows, and the notes sections leave for the worker."""

    __slots__ = ("job", "lease", "marks", "on_progress", "stop_reason")

    def __init__(
        self, job: Job, lease: Lease, on_progress: Callable[[float, float | None], None]
    ) -> None:
        self.job = job
        self.lease = lease
        self.on_progress = on_progress
        self.stop_reason: BaseException | None = None
        self.marks: list[tuple[BaseException, Any]] = []

    def mark(self, error: BaseException, mark: Any) -> None:
        """Remember what a section says of an error. The innermost section speaks first and wins."""
        if self.mark_of(error) is None:
            self.marks.append((error, mark))

    def mark_of(self, error: BaseException) -> Any:
        """What a section said of this error, or None."""
        return next((mark for marked, mark in self.marks if marked is error), None)


running: ContextVar[Run | None] = ContextVar("umbel_running", default=None)


class Current:
    """The job this code runs in. Works in coroutines and in threads."""

    __slots__ = ()

    @property
    def job(self) -> Job:
        """Id, task, attempt and the like of the running job."""
        return self._run.job

    @property
    def lease(self) -> Lease:
        """The claim under which it runs, with its fencing number."""
        return self._run.lease

    def progress(self, done: float, of: float | None = None) -> None:
        """Tell how far it is. Cheap: kept in memory and written about once a second."""
        self._run.on_progress(done, of)

    def checkpoint(self) -> None:
        """A point where a ``def`` task may be stopped: by cancel, timeout, shutdown, a lost lease.

        Raises:
            BaseException: what stops the task; let it pass.
        """
        reason = self._run.stop_reason
        if reason is not None:
            raise reason

    @property
    def _run(self) -> Run:
        run = running.get()
        if run is None:
            raise UmbelError("current: no job runs here; use it inside a task that a worker runs")
        return run


current = Current()

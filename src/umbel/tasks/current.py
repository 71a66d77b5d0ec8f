"""The running job, as its task sees it: ``from umbel import current``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from umbel.errors import ConfigurationError, UmbelError
from umbel.messages import (
    NOMINAL_TIME,
    POOL_PREFIX,
    SCHEDULE,
    Envelope,
    Lease,
    Slot,
    route_key,
    subtract_wait,
)
from umbel.tasks.composing import Composable
from umbel.tasks.replacing import Finished, Replacement

if TYPE_CHECKING:
    from umbel.tasks.steps import StepRunner
    from umbel.tasks.task import Task


T = TypeVar("T")
_NOMINAL = re.compile("[0-9]{1,12}")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The running job, as its task sees it."""

    id: str
    task: str
    queue: str
    attempt: int
    deaths: int = 0
    priority: int = 0
    created: float = 0.0
    """When it was published, by the store's clock."""
    claimed: float = 0.0
    """When this run was claimed, by the same clock."""
    traceparent: str | None = None
    headers: dict[str, str] = {}

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that published it; None for other jobs."""
        return self.headers.get(SCHEDULE)

    @property
    def nominal(self) -> datetime | None:
        """When its schedule was due, in UTC, however late it runs; None for other jobs."""
        text = self.headers.get(NOMINAL_TIME, "")
        return datetime.fromtimestamp(int(text), UTC) if _NOMINAL.fullmatch(text) else None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The claim under which a job runs, with the pool member that the job was given."""

    job: str
    owner: str
    fence: int
    """Grows with every claim of the job; with a pool, with every claim of the member."""
    member: str = ""
    """The name of the pool member; of the first pool, if the task has several."""
    data: dict[str, Any] = {}
    """The data that the pool declares for the member."""
    members: dict[str, str] = {}
    """With several pools: the member of each, by the pool's name."""


class CurrentRoute(msgspec.Struct, frozen=True):
    """The route by which a job with affinity reached its worker."""

    key: str
    number: int
    """Grows with every new route. State that was kept under an older route of this key may be gone,
    or belong to another worker."""


class CurrentWorker(msgspec.Struct, frozen=True):
    """The worker that runs a job."""

    name: str
    index: int | None = None
    """The worker index; None if the job does not run in a worker."""


_NO_WORKER = CurrentWorker("")


class Run:
    """One run of a job: what ``current`` shows, and how sections have marked its errors."""

    __slots__ = (
        "_held",
        "_open_steps",
        "_steps",
        "fatal",
        "job",
        "lease",
        "marks",
        "on_progress",
        "replacement",
        "slots",
        "stop_reason",
        "task",
        "worker",
    )

    def __init__(
        self,
        job: Job,
        lease: Lease,
        on_progress: Callable[[float, float | None], None],
        slots: Sequence[Slot] = (),
        task: Task[..., Any] | None = None,
        open_steps: Callable[[Run], StepRunner] | None = None,
        worker: CurrentWorker = _NO_WORKER,
    ) -> None:
        self.job = job
        self.task = task
        self.worker = worker
        self.replacement: Replacement | None = None
        """What ``current.replace`` returned: the task must return it."""
        self._held: list[tuple[float, Envelope]] | None = None
        self.fatal: Exception | None = None
        """An error that ends the job, even if the task's code catches it."""
        self._open_steps = open_steps
        self._steps: StepRunner | None = None
        self.lease = lease
        self.slots = slots
        self.on_progress = on_progress
        self.stop_reason: BaseException | None = None
        self.marks: list[tuple[BaseException, Any]] = []

    def hold(self, envelopes: Sequence[Envelope], monotonic: float) -> None:
        """Keep messages that are to be published when the job succeeds."""
        self._held = [*(self._held or ()), *((monotonic, one) for one in envelopes)]

    def held(self, monotonic: float) -> list[Envelope] | None:
        """Return the messages to publish at success, with delays shortened by the time passed."""
        if self._held is None:
            return None
        return [subtract_wait(envelope, monotonic - since) for since, envelope in self._held]

    @property
    def claim(self) -> Claim:
        """The claim. Built on demand: few tasks read it."""
        lease, held = self.lease, [slot for slot in self.slots if slot.member]
        first = held[0] if held else Slot("", fence=lease.fence)
        return Claim(
            job=lease.job,
            owner=lease.owner,
            fence=first.fence,
            member=first.member,
            data=first.data,
            members={slot.gate.removeprefix(POOL_PREFIX): slot.member for slot in held},
        )

    @property
    def steps(self) -> StepRunner | None:
        """The step runner, opened on demand: few tasks have steps. None: no steps are kept here."""
        if self._steps is None and self._open_steps is not None:
            self._steps = self._open_steps(self)
        return self._steps

    @property
    def route(self) -> CurrentRoute | None:
        """The route. Built on demand: few tasks read it."""
        found = (
            CurrentRoute(route_key(slot.gate), slot.route) for slot in self.slots if slot.route
        )
        return next(found, None)

    def mark(self, error: BaseException, mark: Any) -> None:
        """Mark an error with the section that it passed. The mark of the innermost section wins."""
        if self.mark_of(error) is None:
            self.marks.append((error, mark))

    def mark_of(self, error: BaseException) -> Any:
        """Return the mark of an error, or None."""
        return next((mark for marked, mark in self.marks if marked is error), None)


running: ContextVar[Run | None] = ContextVar("umbel_running", default=None)


class Current:
    """The job that this code runs in. Works in coroutines and in threads."""

    __slots__ = ()

    @property
    def job(self) -> Job:
        """The running job: id, task, attempt and more."""
        return self._run.job

    @property
    def lease(self) -> Claim:
        """The claim under which it runs, with its fencing number and its member of a pool."""
        return self._run.claim

    @property
    def route(self) -> CurrentRoute | None:
        """The route by which it reached this worker; None for a task without affinity."""
        return self._run.route

    @property
    def worker(self) -> CurrentWorker:
        """Name and index of the worker that runs it."""
        return self._run.worker

    def progress(self, done: float, of: float | None = None) -> None:
        """Report progress. Cheap: it is kept in memory and written about once a second.

        Raises:
            ConfigurationError: the number is NaN or infinite; not every store can keep these.
        """
        for name, value in (("done", done), ("of", of)):
            if value is not None and not isfinite(value):
                raise ConfigurationError(f"progress({name}={value}): give a finite number")
        self._run.on_progress(done, of)

    def checkpoint(self) -> None:
        """A point where a ``def`` task may be stopped: by cancel, timeout, shutdown, a lost lease.

        Raises:
            BaseException: the stop; do not catch it.
        """
        reason = self._run.stop_reason
        if reason is not None:
            raise reason

    def replace(self, canvas: Composable[Any]) -> Any:
        """Let a canvas replace this job: ``return current.replace(add.s(1, 2))``.

        The result of the canvas becomes the result of the job, for its handle and in its graph. It
        costs no attempt. The canvas is published in the step in which the job ends.

        Raises:
            ConfigurationError: it is neither a signature nor a canvas.
        """
        if not isinstance(canvas, Composable):
            raise ConfigurationError(
                f"current.replace({canvas!r:.80}): give a signature or a canvas"
            )
        self._run.replacement = Replacement(canvas)
        return self._run.replacement

    def finish(self, value: T) -> T:
        """End the chain of this node early: ``return current.finish(value)``.

        The rest of the chain is skipped, and the chain succeeds with this value. In a job that is
        not in a chain, it is the same as ``return value``.
        """
        return cast(T, Finished(value))

    @property
    def _run(self) -> Run:
        run = running.get()
        if run is None:
            raise UmbelError("current: no job runs here; use it inside a task that a worker runs")
        return run


current = Current()

"""What a running task can see and say of itself: ``from umbel import current``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from umbel.errors import ConfigurationError, UmbelError
from umbel.messages import POOL, Envelope, Lease, Slot, route_key, waited

if TYPE_CHECKING:
    from umbel.tasks.steps import StepKeeper
    from umbel.tasks.task import Task


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The job being run, as its task sees it."""

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


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The claim under which a job runs, and the member of a pool that comes with it."""

    job: str
    owner: str
    fence: int
    """Grows with every claim of the job; with a pool, each time that the member is handed out."""
    member: str = ""
    """The name of the pool's member; of the first pool, if there are several."""
    data: dict[str, Any] = {}
    """What the pool says of the member."""
    members: dict[str, str] = {}
    """With several pools: the member of each, by the pool's name."""


class Routed(msgspec.Struct, frozen=True):
    """How a job with affinity came to its worker."""

    key: str
    number: int
    """Grows with every route that is made: what was kept under an older one of this key may be
    gone, or be another worker's."""


class Place(msgspec.Struct, frozen=True):
    """The worker that runs a job."""

    name: str
    index: int | None = None
    """Its place among the workers; None when the job does not run in one."""


_NOWHERE = Place("")


class Run:
    """One run of a job: what ``current`` shows, and the notes sections leave for the worker."""

    __slots__ = (
        "_held",
        "_open_steps",
        "_steps",
        "fatal",
        "job",
        "lease",
        "marks",
        "on_progress",
        "place",
        "slots",
        "stop_reason",
        "task",
    )

    def __init__(
        self,
        job: Job,
        lease: Lease,
        on_progress: Callable[[float, float | None], None],
        slots: Sequence[Slot] = (),
        task: Task[..., Any] | None = None,
        open_steps: Callable[[Run], StepKeeper] | None = None,
        place: Place = _NOWHERE,
    ) -> None:
        self.job = job
        self.task = task
        self.place = place
        self._held: list[tuple[float, Envelope]] | None = None
        self.fatal: Exception | None = None
        """Why it cannot go on, whatever its code makes of that."""
        self._open_steps = open_steps
        self._steps: StepKeeper | None = None
        self.lease = lease
        self.slots = slots
        self.on_progress = on_progress
        self.stop_reason: BaseException | None = None
        self.marks: list[tuple[BaseException, Any]] = []

    def hold(self, envelopes: Sequence[Envelope], monotonic: float) -> None:
        """It has published these, and they wait for its success."""
        self._held = [*(self._held or ()), *((monotonic, one) for one in envelopes)]

    def held(self, monotonic: float) -> list[Envelope] | None:
        """What waits for its success. The time that it has waited counts."""
        if self._held is None:
            return None
        return [waited(envelope, monotonic - since) for since, envelope in self._held]

    @property
    def claim(self) -> Claim:
        """Made when somebody asks: few tasks do."""
        lease, held = self.lease, [slot for slot in self.slots if slot.member]
        first = held[0] if held else Slot("", fence=lease.fence)
        return Claim(
            job=lease.job,
            owner=lease.owner,
            fence=first.fence,
            member=first.member,
            data=first.data,
            members={slot.gate.removeprefix(POOL): slot.member for slot in held},
        )

    @property
    def steps(self) -> StepKeeper | None:
        """Opened when the first is called: few tasks have any. None: nobody keeps them here."""
        if self._steps is None and self._open_steps is not None:
            self._steps = self._open_steps(self)
        return self._steps

    @property
    def route(self) -> Routed | None:
        """Made when somebody asks: few tasks do."""
        found = (Routed(route_key(slot.gate), slot.route) for slot in self.slots if slot.route)
        return next(found, None)

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
    def lease(self) -> Claim:
        """The claim under which it runs, with its fencing number and its member of a pool."""
        return self._run.claim

    @property
    def route(self) -> Routed | None:
        """The route by which it came to this worker; None for a task without affinity."""
        return self._run.route

    @property
    def worker(self) -> Place:
        """Name and index of the worker that runs it."""
        return self._run.place

    def progress(self, done: float, of: float | None = None) -> None:
        """Tell how far it is. Cheap: kept in memory and written about once a second.

        Raises:
            ConfigurationError: NaN or infinity; not every store can keep these.
        """
        for name, value in (("done", done), ("of", of)):
            if value is not None and not isfinite(value):
                raise ConfigurationError(f"progress({name}={value}): give a finite number")
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

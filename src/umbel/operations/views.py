"""What operators see, as plain values: queues, workers, pools, deployments, health."""

from __future__ import annotations

from typing import Literal

import msgspec

from umbel.backends import PoolMember, RunTimes
from umbel.control import Deployment, Pause
from umbel.operations.graphs import WorkflowVersion

WorkerState = Literal["working", "paused", "stopping", "silent"]


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue: its jobs by state, and its workers."""

    name: str
    queued: int = 0
    waiting: int = 0
    """Jobs of the queue that wait at a gate."""
    scheduled: int = 0
    blocked: int = 0
    """Jobs of the queue that wait for other jobs."""
    running: int = 0
    oldest: float | None = None
    """Seconds since the oldest queued job was queued."""
    paused: bool = False
    pauses: tuple[Pause, ...] = ()
    """The pauses that stop all its jobs: of this queue, and of everything."""
    workers: int = 0


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that the store knows."""

    name: str
    index: int | None
    """Its worker index; None if it has none."""
    incarnation: str
    host: str
    pid: int
    queues: tuple[str, ...]
    running: int
    io: int
    cpu: int
    uptime: float
    silent: float
    """Seconds since its last heartbeat."""
    state: WorkerState
    epoch: int
    code: str = ""
    """Names the code of its tasks: equal code has equal names. Empty if it is not known."""
    zone_data: str = ""
    """The version of its time zone data. Empty if it is not known."""


class RunStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How long the runs of a task took, of the newest finished jobs."""

    jobs: int
    runs: int
    """Runs of these jobs; a retried job has several."""
    buried: int
    p50: float
    p95: float
    longest: float


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task that the application declares or that a worker has."""

    name: str
    is_declared: bool = True
    """Whether this application declares it. If not, only the workers and the runs are known."""
    kind: str = ""
    queue: str = ""
    signature: str = ""
    description: str = ""
    """The first line of the function's docstring."""
    options: dict[str, str] = {}
    """The options that differ from the defaults, as text."""
    workers: tuple[str, ...] = ()
    """The running workers that have it."""
    runs: RunStatistics | None = None
    """None if none of the newest jobs has run."""


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A pool, its members, and the number of jobs that wait for one."""

    name: str
    waiting: int = 0
    paused: bool = False
    members: tuple[PoolMember, ...] = ()


class MissingTask(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A task with waiting jobs that no worker of their queue has."""

    queue: str
    task: str
    jobs: int

    def __str__(self) -> str:
        wait = "job waits" if self.jobs == 1 else "jobs wait"
        return (
            f"no running worker of the queue {self.queue} has the task {self.task}:"
            f" {self.jobs:,} {wait}"
        )


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether jobs can be published and run."""

    ok: bool
    checks: dict[str, str]
    pauses: tuple[Pause, ...] = ()
    """The pauses of operators and deployments."""


# --- deployments --------------------------------------------------------------------------------


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A job that runs during a deployment."""

    job: str
    task: str
    queue: str
    seconds: float
    """Seconds since it was claimed."""
    interruptible: bool


class DeployWorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker during a deployment."""

    name: str
    host: str
    pid: int
    incarnation: str
    confirmed: bool
    """Whether it has confirmed that it fetches no more paused jobs."""
    silent: float
    """Seconds since its last heartbeat."""
    lapsed: bool = False
    """Whether it has sent no heartbeat for longer than its lease. It is then not waited for."""
    runs: tuple[RunView, ...] = ()

    @property
    def blocking_runs(self) -> tuple[RunView, ...]:
        """The runs that must end first, because they cannot be interrupted."""
        return tuple(run for run in self.runs if not run.interruptible)


class CodeChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between the application as loaded here and the code that workers run."""

    changed: dict[str, tuple[str, ...]] = {}
    """Tasks whose code differs, and the workers with the old code."""
    new: dict[str, tuple[str, ...]] = {}
    """Tasks that workers do not have yet, and those workers."""
    removed: dict[str, int] = {}
    """Tasks that workers have and the application does not, and how many of their jobs wait."""
    restart: tuple[str, ...] = ()
    """Workers that run other code, and need a restart."""
    incomparable: dict[str, str] = {}
    """Workers whose code cannot be compared, with the reason."""
    others: int = 0
    """The number of workers that have no task in common with the application."""


class DeployView(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a deployment."""

    deployment: Deployment | None
    workers: tuple[DeployWorkerView, ...] = ()
    code: CodeChanges | None = None

    @property
    def unconfirmed(self) -> list[DeployWorkerView]:
        """The workers that have not confirmed and still send heartbeats."""
        return [one for one in self.workers if not one.confirmed and not one.lapsed]

    @property
    def blocking_runs(self) -> list[tuple[DeployWorkerView, RunView]]:
        """The runs that must end first, longest first."""
        found = [(one, r) for one in self.workers if not one.lapsed for r in one.blocking_runs]
        return sorted(found, key=lambda pair: -pair[1].seconds)

    @property
    def ready(self) -> bool:
        """Whether all workers have confirmed, and no run is left that cannot be interrupted."""
        return not self.unconfirmed and not self.blocking_runs


class AuditedTask(RunTimes, frozen=True, kw_only=True):
    """A task with runs that are too long, although it cannot be interrupted."""

    share: float
    """The share of its runs that took too long."""
    advice: str


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that would delay a deployment."""

    longer_than: float
    since: float
    tasks: tuple[AuditedTask, ...]
    workflows: tuple[WorkflowVersion, ...] = ()
    """Versions of workflows that are not declared any more, and have runs that have not ended."""

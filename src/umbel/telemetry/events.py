"""Everything that can happen, on one page. Log lines, metrics and live views come from here.

``level`` is the log level, ``text`` the log line; fields are the line's key-value pairs.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

Level = Literal["debug", "info", "warning", "error"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened."""

    level: ClassVar[Level] = "info"
    text: ClassVar[str] = ""


class JobEvent(Event, frozen=True, kw_only=True):
    """Something that happened to one job."""

    job: str
    task: str
    attempt: int
    trace: str | None = None


# --- a job's way ---------------------------------------------------------------------------


class JobStarted(JobEvent, frozen=True, kw_only=True):
    level = "debug"
    text = "started"


class JobSucceeded(JobEvent, frozen=True, kw_only=True):
    text = "succeeded"
    seconds: float


class JobRetried(JobEvent, frozen=True, kw_only=True):
    level = "warning"
    text = "failed, will be tried again"
    seconds: float
    error: str
    delay: float


class JobBuried(JobEvent, frozen=True, kw_only=True):
    level = "error"
    text = "failed for good and was buried"
    seconds: float
    error: str
    traceback: str = ""


class JobRejected(JobEvent, frozen=True, kw_only=True):
    level = "error"
    text = "cannot run and was buried"
    reason: str


class JobSnoozed(JobEvent, frozen=True, kw_only=True):
    text = "asked to be run later"
    delay: float


class JobInterrupted(JobEvent, frozen=True, kw_only=True):
    text = "interrupted, back in its queue"
    reason: str


class JobCancelled(JobEvent, frozen=True, kw_only=True):
    text = "cancelled"
    reason: str


class JobExpired(JobEvent, frozen=True, kw_only=True):
    level = "warning"
    text = "expired before it could start"


class OutcomeRefused(JobEvent, frozen=True, kw_only=True):
    level = "warning"
    text = "outcome refused: the lease was lost, another worker has the job"


class DuplicateDiscarded(JobEvent, frozen=True, kw_only=True):
    level = "warning"
    text = "duplicate discarded"


# --- publishing ----------------------------------------------------------------------------


class BacklogBegun(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "the broker is out of reach; messages are kept and will be published"
    backlog: str
    error: str


class BacklogEnded(Event, frozen=True, kw_only=True):
    text = "the broker answers again; what was kept is published"


class MessageRefused(Event, frozen=True, kw_only=True):
    level = "error"
    text = "a message that was kept is refused by the broker and was dropped"
    job: str
    task: str
    error: str


class BacklogLost(Event, frozen=True, kw_only=True):
    level = "error"
    text = "the process ends with messages in memory that could not be published"
    messages: int


# --- a worker's life -----------------------------------------------------------------------


class WorkerStarted(Event, frozen=True, kw_only=True):
    text = "worker started"
    worker: str
    incarnation: str
    queues: tuple[str, ...]
    io: int
    cpu: int


class WorkerStopping(Event, frozen=True, kw_only=True):
    text = "stopping: no more fetching, finishing what runs"
    worker: str
    running: int
    grace: float


class WorkerStopped(Event, frozen=True, kw_only=True):
    text = "worker stopped"
    worker: str
    abandoned: int


class WorkerAlone(Event, frozen=True, kw_only=True):
    level = "error"
    text = "lost its leases: stops what runs and begins a new life"
    worker: str
    running: int


class WorkerLost(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a worker's heart stood still; its jobs are put back"
    worker: str
    incarnation: str


class JobsRecovered(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "jobs of dead workers were put back or buried"
    jobs: int


class NameShared(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "another living worker has the same name; give each its own --name"
    worker: str


class ManyThreads(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "more than 10 threads for def tasks: they share one interpreter; prefer --processes"
    cpu: int


class PauseSeen(Event, frozen=True, kw_only=True):
    text = "control changed"
    worker: str
    paused: tuple[str, ...]


# --- trouble -------------------------------------------------------------------------------


class ServiceFailed(Event, frozen=True, kw_only=True):
    level = "error"
    text = "a service failed and is started again"
    service: str
    error: str
    delay: float


class Unreachable(Event, frozen=True, kw_only=True):
    level = "error"
    text = "a server cannot be reached; trying on"
    service: str
    error: str


class Reachable(Event, frozen=True, kw_only=True):
    text = "the server answers again"
    service: str


class LoopBlocked(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "the event loop is blocked: an async task does not await; make it def or use a thread"
    seconds: float
    stack: str


class Stalled(Event, frozen=True, kw_only=True):
    level = "error"
    text = "work waits, slots are free, nothing is fetched"
    worker: str
    action: str


class RecordsPruned(Event, frozen=True, kw_only=True):
    level = "debug"
    text = "old records pruned"
    records: int

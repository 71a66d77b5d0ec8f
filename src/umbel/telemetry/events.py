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


class JobParked(JobEvent, frozen=True, kw_only=True):
    text = "waits at its gates"
    gates: tuple[str, ...]


class MemberSuspected(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a pool's member failed its check and is set aside"
    pool: str
    member: str


class MemberRestored(Event, frozen=True, kw_only=True):
    text = "a pool's member passed its check and is handed out again"
    pool: str
    member: str


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


class PublishedUnheld(Event, frozen=True, kw_only=True):
    level = "warning"
    text = (
        "an interruptible task publishes: a run that is interrupted publishes again when it is"
        ' repeated. Publish inside a step, or declare the task publishing="held"; publishing="now"'
        " says that a second time does no harm"
    )
    task: str
    calls: str


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


class JobUnsendable(Event, frozen=True, kw_only=True):
    level = "error"
    text = "a job that the transport can never carry was buried"
    job: str
    task: str
    error: str


class MessagePostponed(Event, frozen=True, kw_only=True):
    level = "error"
    text = "a message that was kept cannot be published; it stays there and is tried again"
    job: str
    task: str
    error: str
    delay: float


class LinksServed(Event, frozen=True, kw_only=True):
    text = "serves workers and publishers"
    address: str
    roles: str


class LinksClosed(Event, frozen=True, kw_only=True):
    text = "serves nobody any more"
    address: str


class PeerRefused(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a peer that could not be understood or trusted was refused"
    error: str


class PeerDropped(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a peer was dropped: it was silent, or exceeded a limit"
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
    index: int | None
    queues: tuple[str, ...]
    io: int
    cpu: int


class RouteReleased(Event, frozen=True, kw_only=True):
    text = "a route was released: the next job of its key makes a new one"
    key: str
    index: int
    reason: str


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


class InboxUnguarded(Event, frozen=True, kw_only=True):
    level = "warning"
    text = (
        "messages to this worker alone are not signed: whoever can publish can command it. Make"
        " keys with umbel keys make, and set UMBEL_KEYS for workers and publishers"
    )
    worker: str


class InboxClosed(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "this worker hears no messages to itself alone: no commands, no broadcasts"
    worker: str


class InboxRefused(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a message to this worker alone was refused"
    job: str
    task: str
    why: str
    """``unsigned``, ``forged``, ``expired``, ``replayed``, or ``closed``."""
    reason: str


class KeysUnreadable(Event, frozen=True, kw_only=True):
    level = "error"
    text = "the file of keys cannot be read any more; the keys it held before stay in use"
    error: str


class PauseSeen(Event, frozen=True, kw_only=True):
    text = "control changed"
    worker: str
    paused: tuple[str, ...]


class DeploymentLapsed(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a deployment was given up, for nobody renewed it; its pauses are lifted"
    who: str
    host: str
    seconds: float


# --- trouble -------------------------------------------------------------------------------


class TaskMissing(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "this worker does not have the task; its jobs wait for a worker that has it"
    worker: str
    task: str
    elsewhere: bool
    """Whether another running worker has it."""


class MissingTaskBuried(Event, frozen=True, kw_only=True):
    level = "error"
    text = "jobs were buried: no running worker had their task for too long"
    task: str
    jobs: int


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


class ExitRefused(Event, frozen=True, kw_only=True):
    level = "error"
    text = (
        "an asyncio task or a callback that a task started raised SystemExit or KeyboardInterrupt;"
        " the worker goes on"
    )
    error: str
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

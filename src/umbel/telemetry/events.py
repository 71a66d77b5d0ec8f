"""All telemetry events. Log lines, metrics and live views are made from them.

``level`` is the log level, ``text`` the text of the log line; the fields are its key-value pairs.
The log line of a job's event begins with the task's name, so that ``text`` is the predicate.
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


# --- jobs ----------------------------------------------------------------------------------


class JobStarted(JobEvent, frozen=True, kw_only=True):
    level = "debug"
    text = "started"


class JobSucceeded(JobEvent, frozen=True, kw_only=True):
    text = "succeeded"
    seconds: float


class JobRetried(JobEvent, frozen=True, kw_only=True):
    level = "warning"
    text = "failed and will be retried"
    seconds: float
    error: str
    delay: float


class JobBuried(JobEvent, frozen=True, kw_only=True):
    level = "error"
    text = "failed permanently and was buried"
    seconds: float
    error: str
    traceback: str = ""


class JobRejected(JobEvent, frozen=True, kw_only=True):
    level = "error"
    text = "could not be run and was buried"
    reason: str


class JobSnoozed(JobEvent, frozen=True, kw_only=True):
    text = "was snoozed by its task and will run later"
    delay: float


class JobInterrupted(JobEvent, frozen=True, kw_only=True):
    text = "was interrupted and is back in its queue"
    reason: str


class JobParked(JobEvent, frozen=True, kw_only=True):
    text = "is waiting for a slot at its gates"
    gates: tuple[str, ...]


class HookFailed(Event, frozen=True, kw_only=True):
    level = "error"
    text = "a hook failed; the job goes on without it"
    hook: str
    error: str


class PoolMemberFailed(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a pool member failed its check and gets no jobs until it passes"
    pool: str
    member: str


class PoolMemberRestored(Event, frozen=True, kw_only=True):
    text = "a pool member passed its check and gets jobs again"
    pool: str
    member: str


class JobCancelled(JobEvent, frozen=True, kw_only=True):
    text = "cancelled"
    reason: str


class JobExpired(JobEvent, frozen=True, kw_only=True):
    level = "warning"
    text = "expired before it could start"


class JobsExpired(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "jobs expired before they could start"
    jobs: int


class JoinAbandoned(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a graph was never completely published; its waiting jobs were cancelled"
    join: str


class OutcomeRefused(JobEvent, frozen=True, kw_only=True):
    level = "warning"
    text = (
        "ran, but its outcome was rejected: this worker lost the lease, and another worker may be"
        " running the job"
    )


class DuplicateDiscarded(JobEvent, frozen=True, kw_only=True):
    level = "warning"
    text = "was a duplicate and was discarded"


# --- publishing ----------------------------------------------------------------------------


class PublishNotHeld(Event, frozen=True, kw_only=True):
    level = "warning"
    text = (
        "an interruptible task publishes: if its run is interrupted, the repeated run publishes"
        ' again. Publish inside a step, or declare the task publishing="held". If publishing twice'
        ' is harmless, declare publishing="now"'
    )
    task: str
    calls: str


class LimitIgnored(Event, frozen=True, kw_only=True):
    level = "warning"
    text = (
        "limits have no effect beside rates of the same task; to have both, limit its queue with"
        " app.queue(name, limit=...)"
    )
    owners: tuple[str, ...]
    """Tasks, and queues with an ``@`` before the name."""


class PriorityIgnored(Event, frozen=True, kw_only=True):
    level = "warning"
    text = (
        "this broker ignores priorities: jobs of a queue start in the order of publication. Use a"
        " queue of its own for urgent jobs and name it first in --queues, or use PostgreSQL, Redis"
        " or SQLite as the broker"
    )
    task: str
    priority: int


class JobNotStarting(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a caller in this process is waiting for the result of a job that has not started"
    job: str
    reason: str


class BacklogStarted(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "the broker is unreachable; new messages go to the backlog and are published later"
    backlog: str
    error: str


class BacklogEnded(Event, frozen=True, kw_only=True):
    text = "the broker is reachable again and the backlog has been published"


class MessageRefused(Event, frozen=True, kw_only=True):
    level = "error"
    text = "the broker refused a message from the backlog; the message was dropped"
    job: str
    task: str
    error: str


class JobUnsendable(Event, frozen=True, kw_only=True):
    level = "error"
    text = "a job was buried because the transport cannot carry its message"
    job: str
    task: str
    error: str


class MessagePostponed(Event, frozen=True, kw_only=True):
    level = "error"
    text = "a message from the backlog could not be published; it stays there and is retried"
    job: str
    task: str
    error: str
    delay: float


class LinksServed(Event, frozen=True, kw_only=True):
    text = "serving links"
    address: str
    roles: str


class LinksClosed(Event, frozen=True, kw_only=True):
    text = "stopped serving links"
    address: str


class PeerRefused(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a connection was refused: the peer does not speak the protocol or is not trusted"
    peer: str
    """Its address."""
    error: str
    remedy: str = ""
    """How a peer that failed in the TLS handshake can connect."""


class PeerDropped(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a peer was disconnected: it was silent or exceeded a limit"
    peer: str
    error: str


class BacklogLost(Event, frozen=True, kw_only=True):
    level = "error"
    text = "the process is exiting and loses messages in memory that it could not publish"
    messages: int


# --- workers -------------------------------------------------------------------------------


class SchemaCreated(Event, frozen=True, kw_only=True):
    text = "the database schema was created"
    version: int


class SchemaUpgraded(Event, frozen=True, kw_only=True):
    text = "the database schema was upgraded"
    before: int
    version: int


class WorkerStarted(Event, frozen=True, kw_only=True):
    text = "worker started"
    worker: str
    incarnation: str
    index: int | None
    queues: tuple[str, ...]
    io: int
    cpu: int


class RouteReleased(Event, frozen=True, kw_only=True):
    text = "a route was released; the next job with its key gets a new route"
    key: str
    index: int
    reason: str


class WorkerStopping(Event, frozen=True, kw_only=True):
    text = "worker is stopping: it fetches no more jobs and waits for running ones"
    worker: str
    running: int
    grace: float


class WorkerStopped(Event, frozen=True, kw_only=True):
    text = "worker stopped"
    worker: str
    abandoned: int


class LeasesLost(Event, frozen=True, kw_only=True):
    level = "error"
    text = "worker lost its leases; it stops its running jobs and registers again"
    worker: str
    running: int


class WorkerLost(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a worker sent no heartbeat and is considered dead; its jobs are requeued"
    worker: str
    incarnation: str


class JobsRecovered(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "jobs of dead workers were requeued or buried"
    jobs: int


class WorkerNameShared(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "another running worker has the same name; give each worker its own --name"
    worker: str


class ManyThreads(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "more than 10 threads for def tasks share one interpreter; use --processes instead"
    cpu: int


class InboxUnsigned(Event, frozen=True, kw_only=True):
    level = "warning"
    text = (
        "any publisher can send commands to this worker, because it has no keys; to make and share"
        " keys, run: umbel keys make"
    )
    worker: str


class SigningOff(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "any publisher can send commands to this worker, because it runs with --no-signing"
    worker: str


class SigningNotInstalled(Event, frozen=True, kw_only=True):
    text = "messages to one worker are not signed: pip install 'umbel[signing]'"


class UserKeyUnusable(Event, frozen=True, kw_only=True):
    level = "warning"
    text = (
        "messages to one worker are not signed, because the user's key cannot be used; set"
        " UMBEL_KEYS to another file"
    )
    error: str


class InboxClosed(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "this worker accepts no commands or broadcasts: its inbox is closed"
    worker: str


class InboxRefused(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a message to this worker's inbox was refused"
    job: str
    task: str
    why: str
    """``unsigned``, ``forged``, ``expired``, ``replayed``, or ``closed``."""
    reason: str


class KeysUnreadable(Event, frozen=True, kw_only=True):
    level = "error"
    text = "the key file can no longer be read; the keys read before stay in use"
    error: str


class PausesChanged(Event, frozen=True, kw_only=True):
    text = "the pauses for this worker have changed"
    worker: str
    paused: tuple[str, ...]


class DeploymentExpired(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a deployment expired because it was not renewed; its pauses were lifted"
    who: str
    host: str
    seconds: float


# --- problems ------------------------------------------------------------------------------


class TaskMissing(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "this worker does not have the task; its jobs wait for a worker that does"
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
    text = "a service failed and is restarted"
    service: str
    error: str
    delay: float


class Unreachable(Event, frozen=True, kw_only=True):
    level = "error"
    text = "a server cannot be reached; retrying"
    service: str
    error: str


class Reachable(Event, frozen=True, kw_only=True):
    text = "the server can be reached again"
    service: str


class LoopBlocked(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "the event loop is blocked: an async task does not await; declare it def or use a thread"
    seconds: float
    tasks: tuple[str, ...]
    """The task that blocks it; if that is not known, all tasks that run as coroutines."""
    jobs: tuple[str, ...]
    stack: str
    """Where the event loop's thread is."""


class BlockingGet(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "an async task blocks the event loop with get(); await the handle, or replace the job"
    task: str
    job: str
    """The job for which it waits."""


class LoopUnblocked(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "the event loop was blocked and runs again"
    seconds: float


class ExitIgnored(Event, frozen=True, kw_only=True):
    level = "error"
    text = (
        "an asyncio task or a callback that a task started raised SystemExit or KeyboardInterrupt;"
        " the worker ignores it"
    )
    error: str
    stack: str


class WorkerStalled(Event, frozen=True, kw_only=True):
    level = "error"
    text = "jobs are waiting and slots are free, but nothing is fetched"
    worker: str
    action: str


class RecordsPruned(Event, frozen=True, kw_only=True):
    level = "debug"
    text = "old records pruned"
    records: int


# --- schedules -----------------------------------------------------------------------------


class SchedulerElected(Event, frozen=True, kw_only=True):
    text = "this scheduler is now the leader and publishes the jobs of all schedules"
    scheduler: str


class TickPublished(Event, frozen=True, kw_only=True):
    level = "debug"
    text = "a schedule has published a job"
    schedule: str
    job: str
    task: str
    late: float


class TicksMissed(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "ticks of a schedule were missed: no scheduler could publish them in time"
    schedule: str
    missed: int
    exact: bool
    published: int


class ScheduleOverlaps(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "ticks of a schedule were skipped because its earlier jobs have not ended"
    schedule: str
    ticks: int


class ScheduleSetBack(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "the store's clock was set back; a schedule continues from the present time"
    schedule: str
    seconds: float


class ScheduleFailed(Event, frozen=True, kw_only=True):
    level = "error"
    text = "the next time of a schedule could not be computed"
    schedule: str
    error: str


class ScheduleDoubtful(Event, frozen=True, kw_only=True):
    level = "warning"
    text = "a schedule may not fire when you expect it to"
    schedule: str
    reason: str


class ScheduleRetired(Event, frozen=True, kw_only=True):
    text = "a schedule was retired: no running worker declares it"
    schedule: str

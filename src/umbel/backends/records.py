"""The role that reads and keeps the records of jobs, live and finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from umbel.errors import ConfigurationError
from umbel.messages import Body, Record, State


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list. ``None`` and empty ``states`` match all jobs.

    Raises:
        ConfigurationError: a name is empty, which could be mistaken for "all".
    """

    states: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    worker: str | None = None
    published_before: float | None = None
    """Wall time. Jobs whose time of publication is wrong, in the future, match too."""
    limit: int = 50

    def __post_init__(self) -> None:
        for field in ("task", "queue", "worker"):
            name = getattr(self, field)
            if name is not None and not name.strip():
                raise ConfigurationError(
                    f"{field}={name!r} of a job filter is empty: give the name of a {field}, or"
                    " leave it out for all"
                )


class ProgressNote(msgspec.Struct, frozen=True):
    """The progress that a running job reports."""

    job: str
    fence: int
    done: float
    of: float | None


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What to change in a job that is queued again. None leaves the field unchanged."""

    task: str | None = None
    kind: str | None = None
    queue: str | None = None
    priority: int | None = None
    body: Body | None = None
    from_scratch: bool = False
    """Whether to delete its steps, so that all of them run again."""


UNCHANGED = Changes()


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A job that an incarnation holds."""

    job: str
    task: str
    queue: str
    owner: str
    """The incarnation that holds it."""
    age: float
    """Seconds since it was claimed, by the store's clock."""


class RunTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of the runs of a task, of which some took too long."""

    task: str
    runs: int
    long: int
    """How many runs took too long."""
    p50: float
    p95: float
    worst: float
    jobs: tuple[str, ...]
    """The jobs of the longest runs, longest first."""


class Waiting(msgspec.Struct, frozen=True):
    """How many jobs of one task in one queue wait."""

    queue: str
    task: str
    jobs: int


class Records(Protocol):
    """Reads and keeps job records."""

    async def find(self, job: str) -> Record:
        """Return the record of a job, live or finished. Raises UnknownJob."""

    async def search(self, wanted: JobFilter) -> list[Record]:
        """Return the newest jobs that match, newest first."""

    async def wait_finished(self, job: str, timeout: float | None) -> Record:
        """Wait until the job has finished, and return its record. None waits without a limit.

        A notification ends the wait; a slow poll remains in case it is lost.

        Raises:
            UnknownJob: there is no such job.
            ResultTimeout: the job has not finished in time.
        """

    async def record_progress(self, notes: Sequence[ProgressNote]) -> None:
        """Record the progress of running jobs. A note with an old fencing number has no effect."""

    async def replay(self, jobs: Sequence[str], changes: Changes = UNCHANGED) -> list[str]:
        """Queue finished jobs again, with their ids, history and steps. Attempts start over.

        The ``changes`` are made in the same step. Jobs that succeeded or are live are not changed.
        Returns the ids that were queued. After a crash, each job is either finished or queued.
        """

    async def prune(self, *, older_than: float, keep: int, limit: int) -> int:
        """Delete jobs that finished at least ``older_than`` seconds ago, by the store's clock, and
        the oldest beyond ``keep``, with their steps. Jobs that succeeded with ``keep_for`` are
        deleted so many seconds after their end, if that is sooner. Returns how many, at most
        ``limit``.

        Buried jobs are never pruned: an operator has to look at them. Records of a group that has
        joins are kept, too. Rate gates that no longer
        delay any job are deleted, too, one batch per call.
        """

    async def remove(self, jobs: Sequence[str]) -> int:
        """Delete these finished jobs with their steps, including buried ones. Returns how many."""

    async def runs(self, owners: Sequence[str]) -> list[Run]:
        """Return the jobs that these incarnations hold, oldest first.

        After they have confirmed an epoch, it includes all that they claimed before that epoch.
        """

    async def count_waiting(self) -> list[Waiting]:
        """Return how many live jobs of each queue and task are not running.

        If there are very many, only the oldest are counted.
        """

    async def run_times(
        self, *, since: float, longer: float, but: Sequence[str], worst: int
    ) -> list[RunTimes]:
        """Return tasks that ran longer than ``longer`` seconds, longest first, except those named.

        It covers the runs recorded in the last ``since`` seconds; a retried job has several. Time
        in a queue or a waiting list does not count. Each result names up to ``worst`` jobs.
        """

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""


class BlockingRecords(Records, Protocol):
    """Records that can be read in the caller's own thread, without an event loop."""

    def find_finished_blocking(self, job: str, timeout: float) -> Record | None:
        """Return the record of a job that has finished; None if it is live or unknown.

        Publishing has priority: the result is also None if the connection is in use.

        Raises:
            Unavailable: there was no answer in time.
        """

"""The role that reads and keeps the records of jobs, live and finished."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from math import inf, isnan
from typing import Protocol

import msgspec

from umbel.errors import ConfigurationError
from umbel.messages import TERMINAL, Body, Record, State

LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
FIRST_ID = "00000000-0000-0000-0000-000000000000"
_SEARCH_ROWS = 10_000
"""How many rows one query of ``search`` reads at most, so that other queries do not wait."""


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
    since: float | None = None
    """Wall time at which, or after which, the job finished; a live job: was published."""
    until: float | None = None
    """Wall time at which, or before which, the job finished; a live job: was published."""
    id_part: str | None = None
    """The first or last characters of the job's id, in lower case."""
    limit: int = 50

    def __post_init__(self) -> None:
        for field in ("task", "queue", "worker", "id_part"):
            name = getattr(self, field)
            if name is not None and not name.strip():
                raise ConfigurationError(
                    f"{field}={name!r} of a job filter is empty: give the name of a {field}, or"
                    " leave it out for all"
                )

    def start(self, after: str) -> Cursor:
        """Return where a page begins. Raises ConfigurationError if ``after`` is not a cursor."""
        if self.states and not after and TERMINAL.issuperset(self.states):
            return FINISHED_JOBS
        return Cursor.parse(after)


class Cursor(msgspec.Struct, frozen=True):
    """A place in the list of jobs: live jobs, newest first, then finished ones, last one first."""

    is_live: bool = True
    position: float = inf
    """The number of a live job, or the time at which a job finished."""
    job: str = LAST_ID

    def __str__(self) -> str:
        if self.is_live:
            return f"live_{self.position:.0f}"
        return f"ended_{self.position!r}_{self.job}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Return the cursor of a text; the beginning of the list if it is empty.

        Raises:
            ConfigurationError: the text is not a cursor.
        """
        table, *place = text.split("_", 2)
        try:
            if table == "live" and len(place) == 1:
                return cls(True, float(int(place[0])), "")
            if table == "ended" and len(place) == 2 and not isnan(float(place[0])):
                return cls(False, float(place[0]), place[1])
        except (ValueError, OverflowError):
            pass
        if text:
            raise bad_cursor(text)
        return cls()


def bad_cursor(text: str) -> ConfigurationError:
    """Return the error for a text that is not a cursor."""
    return ConfigurationError(
        f"after={text!r:.80} is not a cursor: give the one that a list of jobs ended with"
    )


FINISHED_JOBS = Cursor(is_live=False)
"""The cursor before all finished jobs."""


class JobPage(msgspec.Struct, frozen=True):
    """A part of the list of jobs."""

    jobs: list[Record]
    cursors: list[str]
    """For each job, the cursor from which the list continues after it."""
    after: str | None
    """Where the list continues. None: there are no more jobs."""
    read: int
    """How many jobs were read at least."""


def page_of(
    jobs: Sequence[tuple[Record, Cursor]], limit: int, following: Cursor | None, read: int
) -> JobPage:
    """Return the page with these jobs. If it is not full, the list continues at ``following``."""
    if len(jobs) >= limit:
        following, read = jobs[-1][1], len(jobs)
    cursors = [str(cursor) for _, cursor in jobs]
    after = None if following is None else str(following)
    return JobPage([job for job, _ in jobs], cursors, after, max(read, len(jobs)))


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

    async def tasks(self, jobs: Sequence[str]) -> dict[str, str]:
        """Return the task of each of these jobs, live or finished. Unknown ids are missing."""

    async def scan(self, wanted: JobFilter, *, after: str = "", rows: int) -> JobPage:
        """Return the next jobs that match, in the order of ``search``, at most ``wanted.limit``.

        It begins after the cursor, reads at most ``rows`` finished jobs, and says where to
        continue. A page may be empty although more jobs follow. A job that ends between two pages
        may be on both.

        Raises:
            ConfigurationError: ``after`` is not a cursor.
        """

    async def search(self, wanted: JobFilter) -> list[Record]:
        """Return the newest jobs that match: live ones, newest first, then finished ones, last
        finished first. See ``search_all``.
        """

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
        joins are kept, too; see ``prunable_groups``. Rate gates that no longer delay any job are
        deleted, too, one batch per call.
        """

    async def prunable_groups(
        self, *, older_than: float, keep: int, after: str = "", limit: int
    ) -> list[str]:
        """Return groups that ``prune`` keeps only because they have joins, oldest first.

        These are the ids of ended jobs of the task ``GRAPH_TASK``, if the joins of a group have
        that id, and if the jobs have the age or are beyond the number by the rules of ``prune``.
        Buried ones are not returned. At most ``limit`` are returned, from those after the group
        ``after``, or from the first if that group is not known any more.
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


async def search_all(scan: Callable[..., Awaitable[JobPage]], wanted: JobFilter) -> list[Record]:
    """Return the newest jobs that match. It reads as many jobs as needed, in portions."""
    found: dict[str, Record] = {}
    after: str | None = ""
    while after is not None and len(found) < wanted.limit:
        rest = msgspec.structs.replace(wanted, limit=wanted.limit - len(found))
        page = await scan(rest, after=after, rows=_SEARCH_ROWS)
        for job in page.jobs:
            found.setdefault(job.id, job)
        after = page.after
    return [*found.values()]

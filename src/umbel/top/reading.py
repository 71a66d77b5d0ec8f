"""What the screen shows, read from the store: always the overview, and what was opened."""

from __future__ import annotations

from typing import Literal

import msgspec

from umbel.backends import JobFilter
from umbel.charts import OTHER_QUEUES, RATE_POINTS
from umbel.errors import UnknownJob
from umbel.messages import Record, State
from umbel.operations import JobSearch, Operations, Overview, read_overview

MAX_JOBS = 200
_WINDOW = 20_000

Tab = Literal["all", "live", "running", "buried", "succeeded"]
TABS: tuple[Tab, ...] = ("all", "live", "running", "buried", "succeeded")
Subject = Literal["queue", "worker", "task"]


class JobsWanted(msgspec.Struct, frozen=True):
    """Jobs of a queue, a worker or a task."""

    subject: Subject
    name: str
    tab: Tab = "all"

    @property
    def filter(self) -> JobFilter:
        """The filter that selects them."""
        names = {self.subject: self.name}
        return JobFilter(states=_states(self.tab), limit=MAX_JOBS, **names)  # type: ignore[arg-type]


def _states(tab: Tab) -> tuple[State, ...]:
    if tab == "live":
        return tuple(state for state in State if not state.finished)
    return () if tab == "all" else (State(tab),)


class Wanted(msgspec.Struct, frozen=True):
    """What is open besides the overview."""

    jobs: JobsWanted | None = None
    job: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What was read at one time."""

    overview: Overview
    wanted: Wanted = Wanted()
    jobs: tuple[Record, ...] = ()
    jobs_is_more: bool = False
    job: Record | None = None
    """The open job; None if it was deleted."""
    hindrances: tuple[str, ...] = ()
    """Why the open job does not start."""

    @property
    def succeeded_rate(self) -> float | None:
        """Jobs per second that succeed; None if it is not known yet."""
        return self._rate("succeeded")

    @property
    def failed_rate(self) -> float | None:
        """Runs per second that fail."""
        retried, buried = self._rate("retried"), self._rate("buried")
        return None if retried is None or buried is None else retried + buried

    def _rate(self, name: str) -> float | None:
        ended = [one for one in self.overview.numbers.points if one.complete][-RATE_POINTS:]
        counts = [getattr(one, name) or 0 for one in ended]
        seconds = sum(one.seconds for one in ended)
        return sum(counts) / seconds if seconds else None

    def queue_rates(self, queue: str) -> tuple[float | None, float | None]:
        """Return how many jobs of a queue succeed and how many runs fail per second.

        None if it is not known, because there are too many queues.
        """
        rates = {one.queue: one for one in self.overview.numbers.queues}
        if (found := rates.get(queue)) is not None:
            return found.succeeded, found.failed
        return (None, None) if OTHER_QUEUES in rates else (0.0, 0.0)

    @property
    def measured_seconds(self) -> float:
        """How long numbers have been recorded in the range of the overview."""
        points = self.overview.numbers.points
        first = next((one.time for one in points if one.succeeded is not None), None)
        return 0.0 if first is None else max(1.0, self.overview.now - first)


async def read_snapshot(operations: Operations, wanted: Wanted, address: str) -> Snapshot:
    """Return what the screen shows.

    Raises:
        Unavailable: the caller should try again.
    """
    overview = await read_overview(operations, "15m", address)
    if wanted.job:
        try:
            job = await operations.job(wanted.job)
        except UnknownJob:
            return Snapshot(overview=overview, wanted=wanted)
        hindrances = await operations.hindrances(job, address)
        return Snapshot(overview=overview, wanted=wanted, job=job, hindrances=tuple(hindrances))
    if wanted.jobs is None:
        return Snapshot(overview=overview, wanted=wanted)
    search = JobSearch(wanted=wanted.jobs.filter, window=_WINDOW, with_values=False)
    found = await operations.search(search)
    return Snapshot(
        overview=overview,
        wanted=wanted,
        jobs=tuple(found.jobs),
        jobs_is_more=found.after is not None,
    )

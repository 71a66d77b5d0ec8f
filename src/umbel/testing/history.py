"""Compares the records of jobs with traces that the tasks themselves wrote.

Tasks write a line for every start and every end to a file of their process. After a run with
killed processes and restarted servers, ``check`` compares these lines with the records.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from umbel.messages import Record, State
from umbel.tasks import current


class Trace(msgspec.Struct, frozen=True):
    """One line that a task wrote: it started or ended a run with this fencing number."""

    job: str
    what: str
    fence: int
    at: float


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a run, and the promises that it broke."""

    published: int
    succeeded: int
    starts: int
    ends: int
    redeliveries: int
    deaths: int
    violations: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"published {self.published}, succeeded {self.succeeded}, starts {self.starts},"
            f" ends {self.ends}, redelivered {self.redeliveries}, deaths counted {self.deaths},"
            f" violations {len(self.violations)}"
        )


class Tracer:
    """Writes traces: one file per process, unbuffered, so that a killed process loses none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: tuple[int, int] | None = None

    def leave(self, what: str) -> None:
        """Record that the running job started or ended."""
        pid = os.getpid()
        if self._opened is None or self._opened[0] != pid:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._opened = (pid, os.open(self._folder / f"{pid}.trace", flags, 0o600))
        trace = Trace(current.job.id, what, current.lease.fence, time.time())
        os.write(self._opened[1], msgspec.json.encode(trace) + b"\n")

    def read(self) -> list[Trace]:
        """Return the traces of all processes."""
        lines = [line for file in self._folder.glob("*.trace") for line in file.open("rb")]
        return [msgspec.json.decode(line, type=Trace) for line in lines if line.endswith(b"\n")]


def check(published: Iterable[str], records: Sequence[Record], traces: Sequence[Trace]) -> History:
    """Compare the published ids, the records and the traces."""
    ids = set(published)
    recorded = Counter(record.id for record in records)
    starts = Counter(trace.job for trace in traces if trace.what == "start")
    ends = Counter(trace.job for trace in traces if trace.what == "end")
    return History(
        published=len(ids),
        succeeded=sum(record.state is State.SUCCEEDED for record in records),
        starts=starts.total(),
        ends=ends.total(),
        redeliveries=starts.total() - len(starts),
        deaths=sum(record.deaths for record in records),
        violations=tuple(_violations(ids, records, recorded, starts, ends, traces)),
    )


def _violations(
    ids: set[str],
    records: Sequence[Record],
    recorded: Counter[str],
    starts: Counter[str],
    ends: Counter[str],
    traces: Sequence[Trace],
) -> Iterable[str]:
    for job in ids - recorded.keys():
        yield f"lost: {job} was published and has no record"
    for job in recorded.keys() - ids:
        yield f"invented: {job} has a record and was never published"
    for job, times in recorded.items():
        if times > 1:
            yield f"recorded {times} times: {job}"
    for record in records:
        if record.state is not State.SUCCEEDED:
            yield f"{record.state}: {record.id} ({record.reason})"
        succeeded = sum(attempt.ended == "succeeded" for attempt in record.attempts)
        if record.state is State.SUCCEEDED and succeeded != 1:
            yield f"completed {succeeded} times: {record.id}"
        if record.state is State.SUCCEEDED and not ends[record.id]:
            yield f"recorded as done, but it never ran to its end: {record.id}"
    fences = Counter((trace.job, trace.fence) for trace in traces if trace.what == "start")
    for (job, fence), times in fences.items():
        if times > 1:
            yield f"started {times} times under fence {fence}: {job}"
    for job in starts.keys() - ids:
        yield f"ran without having been published: {job}"

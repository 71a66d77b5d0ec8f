"""Everything that is known of a run, put together: one story a job."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from chaos.audit import Entry
from chaos.diary import Line
from umbel.messages import Record

SURE = ("published", "committed")
NEVER = ("rolled back", "not published")


@dataclass
class Lease:
    """One claim of a job, from the database's point of view."""

    fence: int
    owner: str
    claimed: Entry
    ended: Entry | None = None


@dataclass
class Run:
    """One run of the task, from its own point of view."""

    start: Line
    end: Line | None = None


@dataclass
class Job:
    """What publishers, database and tasks say of one job."""

    id: str
    meant: Line | None = None
    answers: set[str] = field(default_factory=set)
    entries: list[Entry] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    record: Record | None = None
    fence: int | None = None
    """The fence in its record."""
    leases: dict[int, Lease] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.meant.kind if self.meant is not None else "unknown"

    @property
    def replayed(self) -> bool:
        return any(line.what == "replayed" for line in self.lines)

    def told(self) -> str:
        """Its whole story, in the order of the machine's clock."""
        known = [(line.at, _line_text(line)) for line in self.lines]
        known += [(entry.at, _entry_text(entry)) for entry in self.entries]
        text = [f"    {at:.3f}  {what}" for at, what in sorted(known)]
        if self.record is not None:
            ends = ", ".join(f"{a.number}:{a.ended}@{a.worker}" for a in self.record.attempts)
            state = f"record: {self.record.state}, attempt {self.record.attempt},"
            text.append(f"    {state} deaths {self.record.deaths}, attempts [{ends}]")
        return "\n".join([f"  job {self.id} ({self.kind})", *text])


class Story:
    """All jobs, and what was done to processes."""

    def __init__(
        self,
        lines: Sequence[Line],
        entries: Sequence[Entry],
        records: Sequence[Record] = (),
        fences: dict[str, int] | None = None,
        business: set[str] | None = None,
        *,
        one_clock: bool = False,
    ) -> None:
        self.one_clock = one_clock
        """Whether the store goes by the clocks of the processes, which are wrong together."""
        self.lines = lines
        self.entries = entries
        self.records = records
        self.business = business or set()
        self.jobs: dict[str, Job] = {}
        self._frozen: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self._gone: dict[int, float] = {}
        for entry in entries:
            if entry.job:
                self._take_entry(self.job(entry.job), entry)
        for line in lines:
            if line.job:
                self._take_line(self.job(line.job), line)
            else:
                self._take_fate(line)
        for record in records:
            self.job(record.id).record = record
            self.job(record.id).fence = (fences or {}).get(record.id)

    def job(self, job: str) -> Job:
        return self.jobs.setdefault(job, Job(job))

    def was_frozen(self, pid: int, since: float, until: float) -> bool:
        """Whether the process stood still at some moment of that time."""
        return any(a <= until and since <= b for a, b in self._frozen.get(pid, ()))

    def gone(self, pid: int) -> float | None:
        """When the process was killed or had ended."""
        return self._gone.get(pid)

    def of(self, what: str) -> Iterator[Line]:
        return (line for line in self.lines if line.what == what)

    def _take_entry(self, job: Job, entry: Entry) -> None:
        job.entries.append(entry)
        if entry.what in ("claimed", "stolen"):
            job.leases.setdefault(entry.fence, Lease(entry.fence, entry.owner, entry))
        elif entry.what in ("released", "left") and entry.fence in job.leases:
            lease = job.leases[entry.fence]
            lease.ended = lease.ended or entry

    def _take_line(self, job: Job, line: Line) -> None:
        job.lines.append(line)
        if line.what == "meant":
            job.meant = line
        elif line.what in (*SURE, *NEVER, "unsure"):
            job.answers.add(line.what)
        elif line.what == "start":
            job.runs.append(Run(line))
        elif line.what in ("end", "stopped"):
            for run in job.runs:
                if (run.start.fence, run.start.pid) == (line.fence, line.pid):
                    run.end = line

    def _take_fate(self, line: Line) -> None:
        match line.what:
            case "frozen":
                self._frozen[line.pid].append((line.at, float("inf")))
            case "woken" if self._frozen[line.pid]:
                began, _ = self._frozen[line.pid][-1]
                # Its threads do not all wake at the same moment.
                self._frozen[line.pid][-1] = (began, line.at + 1)
            case "killed" | "gone":
                self._gone.setdefault(line.pid, line.at)


def between(entries: Sequence[Entry], first: int, last: int) -> Sequence[Entry]:
    """Entries from one sequence number up to another, without either."""
    low = bisect_right(entries, first, key=lambda entry: entry.seq)
    return entries[low : bisect_left(entries, last, key=lambda entry: entry.seq)]


def resumed_at(entries: Sequence[Entry], paused: Entry) -> int:
    """Where a pause was over; after everything when it never was."""
    end = entries[-1].seq + 1
    after = between(entries, paused.seq, end)
    over = (e.seq for e in after if e.what == "resumed" and e.note == paused.note)
    return next(over, end)


def _line_text(line: Line) -> str:
    fence = f" under fence {line.fence} by {line.owner[-6:]}" if line.fence else ""
    clock = line.clock - line.at
    wrong = f" (its clock is {clock:+.0f} s)" if abs(clock) > 1 else ""
    return f"[process {line.pid}] {line.what}{fence} {line.note}{wrong}".rstrip()


def _entry_text(entry: Entry) -> str:
    who = f" by {entry.owner[-6:]}" if entry.owner else ""
    return (
        f"[database {entry.seq}] {entry.what} fence {entry.fence}{who} {entry.state} {entry.note}"
    )

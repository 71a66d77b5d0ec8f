"""The history of a run: for each job, the database's entries and the processes' events."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from chaos.audit import Entry
from chaos.event_log import Event
from umbel.messages import Record

SURE = ("published", "committed")
NEVER = ("rolled back", "not published")


@dataclass
class Lease:
    """One claim of a job, as recorded by the database."""

    fence: int
    owner: str
    claimed: Entry
    ended: Entry | None = None


@dataclass
class Run:
    """One run of the task, as recorded by the task."""

    start: Event
    end: Event | None = None


@dataclass
class Job:
    """What publishers, database and tasks recorded about one job."""

    id: str
    meant: Event | None = None
    answers: set[str] = field(default_factory=set)
    entries: list[Entry] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
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
        return any(event.what == "replayed" for event in self.events)

    def describe(self) -> str:
        """Return its whole history as text, in the order of the machine's clock."""
        known = [(event.at, _event_text(event)) for event in self.events]
        known += [(entry.at, _entry_text(entry)) for entry in self.entries]
        text = [f"    {at:.3f}  {what}" for at, what in sorted(known)]
        if self.record is not None:
            ends = ", ".join(f"{a.number}:{a.ended}@{a.worker}" for a in self.record.attempts)
            state = f"record: {self.record.state}, attempt {self.record.attempt},"
            text.append(f"    {state} deaths {self.record.deaths}, attempts [{ends}]")
        return "\n".join([f"  job {self.id} ({self.kind})", *text])


class History:
    """All jobs, and the signals that processes received."""

    def __init__(
        self,
        events: Sequence[Event],
        entries: Sequence[Entry],
        records: Sequence[Record] = (),
        fences: dict[str, int] | None = None,
        business: set[str] | None = None,
        *,
        one_clock: bool = False,
    ) -> None:
        self.one_clock = one_clock
        """Whether the store uses the clocks of the processes, which all have the same error."""
        self.events = events
        self.entries = entries
        self.records = records
        self.business = business or set()
        self.jobs: dict[str, Job] = {}
        self._frozen: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self._gone: dict[int, float] = {}
        for entry in entries:
            if entry.job:
                self._add_entry(self.job(entry.job), entry)
        for event in events:
            if event.job:
                self._add_event(self.job(event.job), event)
            else:
                self._add_process_event(event)
        for record in records:
            self.job(record.id).record = record
            self.job(record.id).fence = (fences or {}).get(record.id)

    def job(self, job: str) -> Job:
        return self.jobs.setdefault(job, Job(job))

    def was_frozen(self, pid: int, since: float, until: float) -> bool:
        """Return whether the process was frozen at some point in that period."""
        return any(a <= until and since <= b for a, b in self._frozen.get(pid, ()))

    def gone(self, pid: int) -> float | None:
        """Return when the process was killed or ended."""
        return self._gone.get(pid)

    def of(self, what: str) -> Iterator[Event]:
        return (event for event in self.events if event.what == what)

    def _add_entry(self, job: Job, entry: Entry) -> None:
        job.entries.append(entry)
        if entry.what in ("claimed", "stolen"):
            job.leases.setdefault(entry.fence, Lease(entry.fence, entry.owner, entry))
        elif entry.what in ("released", "left") and entry.fence in job.leases:
            lease = job.leases[entry.fence]
            lease.ended = lease.ended or entry

    def _add_event(self, job: Job, event: Event) -> None:
        job.events.append(event)
        if event.what == "meant":
            job.meant = event
        elif event.what in (*SURE, *NEVER, "unsure"):
            job.answers.add(event.what)
        elif event.what == "start":
            job.runs.append(Run(event))
        elif event.what in ("end", "stopped"):
            for run in job.runs:
                if (run.start.fence, run.start.pid) == (event.fence, event.pid):
                    run.end = event

    def _add_process_event(self, event: Event) -> None:
        match event.what:
            case "frozen":
                self._frozen[event.pid].append((event.at, float("inf")))
            case "woken" if self._frozen[event.pid]:
                began, _ = self._frozen[event.pid][-1]
                # Its threads do not all wake at the same time.
                self._frozen[event.pid][-1] = (began, event.at + 1)
            case "killed" | "gone":
                self._gone.setdefault(event.pid, event.at)


def between(entries: Sequence[Entry], first: int, last: int) -> Sequence[Entry]:
    """Return the entries between two sequence numbers, excluding both."""
    low = bisect_right(entries, first, key=lambda entry: entry.seq)
    return entries[low : bisect_left(entries, last, key=lambda entry: entry.seq)]


def resumed_at(entries: Sequence[Entry], paused: Entry) -> int:
    """Return where a pause ended, or a position after all entries if it did not end."""
    end = entries[-1].seq + 1
    after = between(entries, paused.seq, end)
    over = (e.seq for e in after if e.what == "resumed" and e.note == paused.note)
    return next(over, end)


def _event_text(event: Event) -> str:
    fence = f" under fence {event.fence} by {event.owner[-6:]}" if event.fence else ""
    clock = event.clock - event.at
    wrong = f" (its clock is {clock:+.0f} s)" if abs(clock) > 1 else ""
    return f"[process {event.pid}] {event.what}{fence} {event.note}{wrong}".rstrip()


def _entry_text(entry: Entry) -> str:
    who = f" by {entry.owner[-6:]}" if entry.owner else ""
    return (
        f"[database {entry.seq}] {entry.what} fence {entry.fence}{who} {entry.state} {entry.note}"
    )

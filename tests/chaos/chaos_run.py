"""One chaos run on one backend: jobs and faults for a while, then drain, then check."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from processes import until
from scenario_client import Client

from chaos.audit import Entry
from chaos.backends_under_test import BackendUnderTest
from chaos.drain import DRAIN_SECONDS, Drain
from chaos.event_log import Event, EventLog, read
from chaos.faults import FaultInjector
from chaos.history import History, between, resumed_at
from chaos.processes_under_test import ProcessGroup
from chaos.rules import Violation, broken
from umbel import State


@dataclass
class Outcome:
    """The result of a run."""

    history: History
    faults: Counter[str]
    violations: list[Violation]
    seconds: float
    drained: float | None
    """Seconds from the last fault until all jobs had finished; None if they did not finish."""
    figures: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What to run."""

    seconds: float
    seed: int
    plant: str = ""
    faults: tuple[str, ...] = ()
    """Words in the names of the faults to choose from. If empty, all faults are used."""
    progress: Callable[[str], None] = print


def run(backend: BackendUnderTest, folder: Path, plan: Plan) -> Outcome:
    """Inject faults, drain, and check the history."""
    (folder / "events").mkdir()
    audit = backend.audit
    audit.install()
    event_log = EventLog(folder / "events", "chaos-")
    client = backend.client()
    group = ProcessGroup(
        folder,
        event_log,
        backend.environments,
        one_clock=backend.one_clock,
        plant=plan.plant,
        poison=plan.seconds >= 60,
        seed=plan.seed,
    )
    injector = FaultInjector(group, backend, client, event_log, seed=plan.seed, only=plan.faults)
    try:
        _begin(group, client)
        _inject_faults(group, injector, plan)
        began = time.monotonic()
        injector.undo(all_of_it=True)
        backend.restore()
        drained = Drain(group, backend, client, audit, event_log).finish_all_jobs(
            ahead=injector.ahead
        )
        took = time.monotonic() - began if drained else None
        records = client.records()
    finally:
        group.end()
        client.close()
    entries = audit.entries()
    if backend.one_clock:
        entries = in_real_time(entries, read(folder / "events"))
    (folder / "audit.json").write_bytes(b"\n".join(map(msgspec.json.encode, entries)))
    history = History(
        read(folder / "events"),
        entries,
        records,
        audit.fences(),
        audit.business(),
        one_clock=backend.one_clock,
    )
    violations = broken(history)
    counts = figures(history)
    if not counts["starts"]:
        violations.append(("", "no task ran: this run proves nothing"))
    if not drained:
        violations.append(
            ("", f"not all jobs finished within {DRAIN_SECONDS:g} s after the faults")
        )
    return Outcome(history, injector.done, violations, plan.seconds, took, counts)


def in_real_time(entries: Sequence[Entry], events: Sequence[Event]) -> list[Entry]:
    """Return the entries of a SQLite file with their wrong times corrected.

    A clock is wrong by more than the duration of a run, so only one shift fits each entry.
    """
    shifts = {0.0, *(float(event.note.split()[1]) for event in events if event.what == "clock")}
    began, ended = events[0].at - 60, events[-1].at + 60

    def real(at: float) -> float:
        return next((at - shift for shift in shifts if began < at - shift < ended), at)

    return [msgspec.structs.replace(entry, at=real(entry.at)) for entry in entries]


def _begin(group: ProcessGroup, client: Client) -> None:
    for number, worker in enumerate(group.workers):
        worker.release = ("old", "new")[number % 2]
    for member in group.members:
        group.start(member)

    def all_enlisted() -> bool:
        group.reap()
        return len(client.workers()) >= len(group.workers)

    until(all_enlisted, "all workers to register")


def _inject_faults(group: ProcessGroup, injector: FaultInjector, plan: Plan) -> None:
    pick = random.Random(plan.seed + 1)
    due = reported = time.monotonic()
    end = due + plan.seconds
    while (now := time.monotonic()) < end:
        injector.undo()
        if now >= due:
            injector.inject()
            due = now + pick.uniform(0.4, 1.1)
        if now - reported > 10:
            reported = now
            plan.progress(f"  {end - now:4.0f} s to go, {injector.done.total()} faults so far")
        group.reap()
        time.sleep(0.05)


def figures(history: History) -> dict[str, int]:
    """The counts of a run."""
    jobs = history.jobs.values()
    known = [job for job in jobs if any(entry.what == "published" for entry in job.entries)]
    states = Counter(record.state for record in history.records)
    return {
        "jobs": len(known),
        "rolled back or refused": sum(
            bool(j.answers & {"rolled back", "not published"}) for j in jobs
        ),
        "answers lost": sum(j.answers == {"unsure"} or not j.answers for j in jobs),
        "claims": sum(len(job.leases) for job in jobs),
        "starts": sum(len(job.runs) for job in jobs),
        "redeliveries": sum(max(0, len(job.runs) - 1) for job in jobs),
        "outcomes refused": sum(1 for _ in history.of("refused")),
        "workers removed by others": _ended_incarnations(history),
        "deaths": sum(record.deaths for record in history.records),
        "succeeded": states[State.SUCCEEDED],
        "buried": states[State.BURIED],
        "cancelled": states[State.CANCELLED],
        "expired": states[State.EXPIRED],
        "replayed": sum(job.replayed for job in jobs),
        "pauses confirmed": _confirmed_pauses(history),
    }


def _confirmed_pauses(history: History) -> int:
    """Pauses that at least one worker confirmed before they were over."""
    pauses = [
        between(history.entries, entry.seq, resumed_at(history.entries, entry))
        for entry in history.entries
        if entry.what == "paused"
    ]
    return sum(any(entry.what == "confirmed" for entry in during) for during in pauses)


def _ended_incarnations(history: History) -> int:
    return sum(entry.what == "ended" for entry in history.entries)

"""One chaos run in one place: work and faults for a while, then peace, then the check."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from desk import Client
from processes import until

from chaos.audit import Entry
from chaos.crew import Crew
from chaos.diary import Diary, Line, read
from chaos.faults import Deck
from chaos.peace import PEACE, Peace
from chaos.places import Place
from chaos.rules import Violation, broken
from chaos.story import Story, between, resumed_at
from umbel import State


@dataclass
class Outcome:
    """What came of a run."""

    story: Story
    faults: Counter[str]
    violations: list[Violation]
    seconds: float
    drained: float | None
    """Seconds from the last fault until nothing was left to do; None when that never came."""
    figures: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What to run."""

    seconds: float
    seed: int
    plant: str = ""
    faults: tuple[str, ...] = ()
    """Words of the faults to draw from; all when empty."""
    progress: Callable[[str], None] = print


def run(place: Place, folder: Path, plan: Plan) -> Outcome:
    """Chaos, peace, check."""
    (folder / "diaries").mkdir()
    audit = place.audit
    audit.put_up()
    diary = Diary(folder / "diaries", "chaos-")
    desk = place.desk()
    crew = Crew(
        folder,
        diary,
        place.environments,
        one_clock=place.one_clock,
        plant=plan.plant,
        poison=plan.seconds >= 60,
        seed=plan.seed,
    )
    deck = Deck(crew, place, desk, diary, seed=plan.seed, only=plan.faults)
    try:
        _begin(crew, desk)
        _rage(crew, deck, plan)
        began = time.monotonic()
        deck.undo(all_of_it=True)
        place.get_up()
        drained = Peace(crew, place, desk, audit, diary).kept(ahead=deck.ahead)
        took = time.monotonic() - began if drained else None
        records = desk.records()
    finally:
        crew.end()
        desk.close()
    entries = audit.entries()
    if place.one_clock:
        entries = in_real_time(entries, read(folder / "diaries"))
    (folder / "audit.json").write_bytes(b"\n".join(map(msgspec.json.encode, entries)))
    story = Story(
        read(folder / "diaries"),
        entries,
        records,
        audit.fences(),
        audit.business(),
        one_clock=place.one_clock,
    )
    violations = broken(story)
    counts = figures(story)
    if not counts["starts"]:
        violations.append(("", "nothing ran: this has proved nothing"))
    if not drained:
        violations.append(("", f"not everything came to an end within {PEACE:g} s of peace"))
    return Outcome(story, deck.done, violations, plan.seconds, took, counts)


def in_real_time(entries: Sequence[Entry], lines: Sequence[Line]) -> list[Entry]:
    """Entries of a file, which its processes stamped with their wrong clock, by the right one.

    A clock is wrong by more than a run takes, so only one of the shifts makes sense for each entry.
    """
    shifts = {0.0, *(float(line.note.split()[1]) for line in lines if line.what == "clock")}
    began, ended = lines[0].at - 60, lines[-1].at + 60

    def real(at: float) -> float:
        return next((at - shift for shift in shifts if began < at - shift < ended), at)

    return [msgspec.structs.replace(entry, at=real(entry.at)) for entry in entries]


def _begin(crew: Crew, desk: Client) -> None:
    for number, worker in enumerate(crew.workers):
        worker.release = ("old", "new")[number % 2]
    for member in crew.everybody:
        crew.start(member)

    def all_enlisted() -> bool:
        crew.reap()
        return len(desk.workers()) >= len(crew.workers)

    until(all_enlisted, "the crew to register")


def _rage(crew: Crew, deck: Deck, plan: Plan) -> None:
    pick = random.Random(plan.seed + 1)
    due = told = time.monotonic()
    end = due + plan.seconds
    while (now := time.monotonic()) < end:
        deck.undo()
        if now >= due:
            deck.strike()
            due = now + pick.uniform(0.4, 1.1)
        if now - told > 10:
            told = now
            plan.progress(f"  {end - now:4.0f} s to go, {deck.done.total()} faults so far")
        crew.reap()
        time.sleep(0.05)


def figures(story: Story) -> dict[str, int]:
    """The counts of a run."""
    jobs = story.jobs.values()
    known = [job for job in jobs if any(entry.what == "published" for entry in job.entries)]
    states = Counter(record.state for record in story.records)
    return {
        "jobs": len(known),
        "rolled back or refused": sum(
            bool(j.answers & {"rolled back", "not published"}) for j in jobs
        ),
        "answers lost": sum(j.answers == {"unsure"} or not j.answers for j in jobs),
        "claims": sum(len(job.leases) for job in jobs),
        "starts": sum(len(job.runs) for job in jobs),
        "redeliveries": sum(max(0, len(job.runs) - 1) for job in jobs),
        "outcomes refused": sum(1 for _ in story.of("refused")),
        "lives ended by others": _ended_lives(story),
        "deaths": sum(record.deaths for record in story.records),
        "succeeded": states[State.SUCCEEDED],
        "buried": states[State.BURIED],
        "cancelled": states[State.CANCELLED],
        "expired": states[State.EXPIRED],
        "replayed": sum(job.replayed for job in jobs),
        "pauses confirmed": _confirmed_pauses(story),
    }


def _confirmed_pauses(story: Story) -> int:
    """Pauses that at least one worker confirmed before they were over."""
    pauses = [
        between(story.entries, entry.seq, resumed_at(story.entries, entry))
        for entry in story.entries
        if entry.what == "paused"
    ]
    return sum(any(entry.what == "confirmed" for entry in during) for during in pauses)


def _ended_lives(story: Story) -> int:
    return sum(entry.what == "ended" for entry in story.entries)

"""The promises as rules over a story. Each gives what breaks it: the job, and what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from chaos.audit import Entry
from chaos.diary import Line
from chaos.story import NEVER, SURE, Job, Run, Story, between, resumed_at
from umbel.messages import State

Violation = tuple[str, str]
"""A job's id, or nothing, and what is wrong."""

PATIENCE = 2.0
"""Seconds that a machine under load may take from deciding to start a task to its first line."""

_DEADLINE = 2.0
"""Seconds that a call may take to publish."""

_ENDS: dict[str, tuple[State, ...]] = {
    "fails": (State.BURIED,),
    "poison": (State.BURIED,),
    "fragile": (State.SUCCEEDED, State.BURIED),
    "expires": (State.SUCCEEDED, State.EXPIRED),
}


def nothing_is_lost(story: Story) -> Iterator[Violation]:
    """What was published is in the database, and whatever was there has come to an end."""
    for job in story.jobs.values():
        known = any(entry.what == "published" for entry in job.entries)
        if job.answers & set(SURE) and not known:
            yield job.id, "lost: published, and the database never had it"
        if known and job.record is None and not _may_vanish(job):
            yield job.id, "lost: it left without a record"


def _may_vanish(job: Job) -> bool:
    """A job that is not to be remembered, and did run to its end under the lease that took it."""
    left = [entry.fence for entry in job.entries if entry.what == "left"]
    ended = {run.start.fence for run in job.runs if run.end and run.end.what == "end"}
    return job.kind == "forgotten" and len(left) == 1 and left[0] in ended


def nothing_runs_that_was_rolled_back(story: Story) -> Iterator[Violation]:
    for job in story.jobs.values():
        if job.answers & set(NEVER) and (job.entries or job.runs):
            yield job.id, "it was rolled back or refused, and is there all the same"
        if job.meant is not None and job.meant.note == "in a transaction":
            there = any(entry.what == "published" for entry in job.entries)
            if there != (job.id in story.business):
                yield job.id, f"half a transaction: job {there}, the caller's row {not there}"


def each_lease_ends_before_the_next(story: Story) -> Iterator[Violation]:
    """By the database's own order: one life, one holder, one record, growing fences."""
    for job in story.jobs.values():
        state, fence = "absent", 0
        for entry in job.entries:
            step = (state, entry.what)
            match step:
                case ("absent", "published") | ("running", "released"):
                    state = "waiting"
                case ("waiting", "claimed") if entry.fence > fence:
                    state, fence = "running", entry.fence
                case ("waiting" | "running", "recorded" | "left"):
                    state = f"{entry.what} only"
                case ("recorded only", "left") | ("left only", "recorded"):
                    state = "absent"
                case _:
                    yield job.id, f"{entry.what} under fence {entry.fence} while {state}"
        if state in ("waiting", "running", "recorded only"):
            yield job.id, f"not finished: it is still {state}"
        lives = sum(entry.what == "published" for entry in job.entries)
        if lives > 1 + job.replayed:
            yield job.id, f"one id, published {lives} times"


def every_run_has_its_claim(story: Story) -> Iterator[Violation]:
    for job in story.jobs.values():
        seen: set[int] = set()
        for run in job.runs:
            lease = job.leases.get(run.start.fence)
            if lease is None or lease.owner != run.start.owner:
                yield job.id, f"ran under fence {run.start.fence}, which nobody claimed"
            if run.start.fence in seen:
                yield job.id, f"started twice under fence {run.start.fence}"
            seen.add(run.start.fence)


def nothing_starts_under_a_lost_lease(story: Story) -> Iterator[Violation]:
    """Unless its process stood still in between: then nobody could have told it."""
    for job in story.jobs.values():
        for run in job.runs:
            lease = job.leases.get(run.start.fence)
            if lease is None or lease.ended is None or run.start.at <= lease.ended.at + 0.05:
                continue
            if not story.was_frozen(run.start.pid, lease.claimed.at, run.start.at):
                late = run.start.at - lease.ended.at
                yield job.id, f"started {late:.2f} s after its lease {lease.fence} had ended"


def no_two_runs_of_coroutines_overlap(story: Story) -> Iterator[Violation]:
    """A holder stops itself before others can take over. Threads cannot be stopped anywhere."""
    for job in story.jobs.values():
        runs = sorted(job.runs, key=lambda run: run.start.fence)
        for first, second in pairwise(runs):
            if first.start.kind == "coroutine" and _overlap(story, first, second):
                fences = f"{first.start.fence} and {second.start.fence}"
                yield job.id, f"two runs at once, under fences {fences}"


def _overlap(story: Story, first: Run, second: Run) -> bool:
    gone = story.gone(first.start.pid)
    ended = first.end.at if first.end is not None else gone
    if ended is not None and gone is not None:
        ended = min(ended, gone)
    if ended is not None and ended <= second.start.at:
        return False
    return not story.was_frozen(first.start.pid, first.start.at, second.start.at)


def no_outcome_under_an_old_fence(story: Story) -> Iterator[Violation]:
    """What is recorded is what the run under the record's own fence came to."""
    for job in story.jobs.values():
        recorded = {entry.fence for entry in job.entries if entry.what in ("recorded", "left")}
        for line in job.lines:
            if line.what == "settled" and line.fence not in recorded:
                yield job.id, f"an outcome under the old fence {line.fence} was taken"
        if job.record is None or job.record.state is not State.SUCCEEDED:
            continue
        result = job.record.result.data if job.record.result is not None else b""
        kept = job.record.result is not None or job.kind != "forgotten"
        if kept and result != str(job.fence).encode():
            said = result.decode(errors="replace")
            yield job.id, f"recorded under fence {job.fence}, the result of fence {said}"
        ends = [run for run in job.runs if run.end is not None and run.end.what == "end"]
        if job.fence not in {run.start.fence for run in ends}:
            yield job.id, "recorded as done, but that run never came to its end"


def a_cancelled_job_does_not_start(story: Story) -> Iterator[Violation]:
    for line in story.of("cancelled"):
        job = story.jobs[line.job]
        if job.record is not None and job.record.state is not State.CANCELLED:
            yield job.id, f"confirmed as cancelled while queued, and it is {job.record.state}"
        for run in job.runs:
            lease = job.leases.get(run.start.fence)
            since = lease.claimed.at if lease is not None else line.at
            frozen = story.was_frozen(run.start.pid, since, run.start.at)
            if run.start.at > line.at and not frozen:
                yield job.id, "started after its cancellation was confirmed"


def nothing_is_claimed_by_who_confirmed_a_pause(story: Story) -> Iterator[Violation]:
    """In the database's order: paused, confirmed by a worker, claimed by it, not resumed yet."""
    entries = story.entries
    for paused in (entry for entry in entries if entry.what == "paused"):
        during = between(entries, paused.seq, resumed_at(entries, paused))
        epoch = next((entry.fence for entry in during if entry.what == "epoch"), None)
        confirmed: set[str] = set()
        for entry in during:
            if entry.what == "confirmed" and epoch is not None and entry.fence >= epoch:
                confirmed.add(entry.owner)
            elif entry.owner in confirmed and _concerns(paused.note, story, entry):
                what = paused.note.replace("|", " ").strip()
                yield entry.job, f"claimed by {entry.owner[-6:]}, which confirmed: {what} paused"


def _concerns(pause: str, story: Story, entry: Entry) -> bool:
    if entry.what != "claimed":
        return False
    job = story.job(entry.job)
    scope, _, name = pause.partition("|")
    published = next(known for known in job.entries if known.what == "published")
    task, queue, _ = published.note.split("|", 2)
    return scope == "all" or name == (queue if scope == "queue" else task)


def one_live_job_a_unique_key(story: Story) -> Iterator[Violation]:
    live: dict[str, str] = {}
    for entry in story.entries:
        if entry.what == "published" and (key := entry.note.split("|", 2)[2]):
            if key in live:
                yield entry.job, f"published with {key}, which {live[key]} holds"
            live[key] = entry.job
        elif entry.what == "left":
            live = {key: job for key, job in live.items() if job != entry.job}


def nothing_starts_after_it_expired(story: Story) -> Iterator[Violation]:
    """By the store's clock, however wrong that of the worker is that started it."""
    for job in story.jobs.values():
        for run in job.runs:
            if job.meant is None or job.meant.until is None or job.replayed:
                continue
            # The seconds until it expires count from when the store took it.
            taken = min((one.at for one in job.lines if one.what == "published"), default=0.0)
            late = _store_time(story, run.start) - job.meant.until - max(taken - job.meant.at, 0.0)
            lease = job.leases.get(run.start.fence)
            since = lease.claimed.at if lease is not None else run.start.at
            if late <= PATIENCE or _jumped(story, since, run.start.at):
                continue
            if not story.was_frozen(run.start.pid, since, run.start.at):
                yield job.id, f"started {late:.2f} s after it had expired"


def nothing_starts_before_it_is_due(story: Story) -> Iterator[Violation]:
    """By the store's clock, however wrong that of the worker is that started it."""
    for job in story.jobs.values():
        for run in job.runs:
            if job.meant is not None and job.meant.due is not None:
                early = job.meant.due - _store_time(story, run.start)
                if early > 0.1 and not _jumped(story, job.meant.at, run.start.at):
                    yield job.id, f"started {early:.2f} s before its time"


def nothing_expires_before_its_time(story: Story) -> Iterator[Violation]:
    """By the store's clock, however wrong that of the worker is that met it."""
    for job in story.jobs.values():
        record, meant = job.record, job.meant
        expired = record is not None and record.state is State.EXPIRED
        if not expired or meant is None or meant.until is None or record is None:
            continue
        early = meant.until - (record.finished or 0.0)
        if early > 0.1 and not _jumped(story, meant.at, meant.until):
            yield job.id, f"expired {early:.2f} s before its time"


def _store_time(story: Story, line: Line) -> float:
    return line.clock if story.one_clock else line.at


def _jumped(story: Story, since: float, until: float) -> bool:
    """Whether the store's clock was set at about that time: processes do not see it at once."""
    low, high = since - PATIENCE, until + PATIENCE
    return story.one_clock and any(low < line.at < high for line in story.of("clock"))


def no_call_outlasts_its_deadline(story: Story) -> Iterator[Violation]:
    """A call may be made twice, and interrupted once by a handler that makes one itself."""
    for job in story.jobs.values():
        answered = [line for line in job.lines if line.what in (*SURE, *NEVER, "unsure")]
        if job.meant is None or not answered or job.meant.note == "in a transaction":
            continue
        took = answered[0].at - job.meant.at
        if took > 4 * _DEADLINE + PATIENCE:
            yield job.id, f"publishing took {took:.1f} s"


def each_job_ends_as_its_kind_says(story: Story) -> Iterator[Violation]:
    asked = {line.job for what in ("cancelled", "asked to stop") for line in story.of(what)}
    for job in story.jobs.values():
        record = job.record
        if record is None:
            continue
        allowed = _ENDS.get(job.kind, (State.SUCCEEDED,))
        if job.id in asked or job.kind == "unique":  # which may have been replaced
            allowed = (*allowed, State.CANCELLED)
        if record.state not in allowed:
            yield job.id, f"{record.state}: {record.reason}"
        for_deaths = record.state is State.BURIED and job.kind in ("poison", "fragile")
        if for_deaths and not any(attempt.ended == "lost" for attempt in record.attempts):
            yield job.id, f"buried without a death: {record.reason}"


def attempts_are_counted_right(story: Story) -> Iterator[Violation]:
    """Failures cost an attempt; deaths and interruptions do not."""
    for job in story.jobs.values():
        record = job.record
        if record is None or job.replayed or len(record.attempts) >= 100:
            continue
        ends = [attempt.ended for attempt in record.attempts]
        if record.attempt != 1 + ends.count("retry"):
            yield job.id, f"attempt {record.attempt} after {ends.count('retry')} failures"
        # The death of a worker that turned out to be alive is taken back; the attempt stays told.
        if not _certain_deaths(story, job) <= record.deaths <= ends.count("lost"):
            yield job.id, f"{record.deaths} deaths counted, {ends.count('lost')} told"
        if job.kind == "fragile" and "lost" in ends and record.state is not State.BURIED:
            yield job.id, "it ran again after a death, and was not to"


def _certain_deaths(story: Story, job: Job) -> int:
    """Runs that had begun, and not ended, when their process was killed or ended."""
    return sum(
        run.end is None
        and (gone := story.gone(run.start.pid)) is not None
        and (lease := job.leases.get(run.start.fence)) is not None
        and (lease.ended is None or gone < lease.ended.at)
        for run in job.runs
    )


def nobody_ends_unasked(story: Story) -> Iterator[Violation]:
    """A worker may not find its server when it starts; poison kills it; nothing else does."""
    expected = {"0": "", "-9": "", "-15": "", "3": "worker", "9": "worker"}
    for line in story.of("gone"):
        name, code = line.note.split()
        if not name.startswith(expected.get(code, "nobody")):
            yield "", f"{name} (process {line.pid}) ended by itself with exit code {code}"
    for line in story.of("odd"):
        yield "", f"a publisher met an error that no fault explains: {line.note}"


Rule = Callable[[Story], Iterator[Violation]]
RULES: tuple[Rule, ...] = (
    nothing_is_lost,
    nothing_runs_that_was_rolled_back,
    each_lease_ends_before_the_next,
    every_run_has_its_claim,
    nothing_starts_under_a_lost_lease,
    no_two_runs_of_coroutines_overlap,
    no_outcome_under_an_old_fence,
    a_cancelled_job_does_not_start,
    nothing_is_claimed_by_who_confirmed_a_pause,
    one_live_job_a_unique_key,
    nothing_starts_after_it_expired,
    nothing_starts_before_it_is_due,
    nothing_expires_before_its_time,
    no_call_outlasts_its_deadline,
    each_job_ends_as_its_kind_says,
    attempts_are_counted_right,
    nobody_ends_unasked,
)


def broken(story: Story) -> list[Violation]:
    """Everything that breaks a rule, with the rule's name."""
    return [
        (job, f"{rule.__name__.replace('_', ' ')}: {what}")
        for rule in RULES
        for job, what in rule(story)
    ]

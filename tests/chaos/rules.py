"""The guarantees as rules over a history. Each rule yields its violations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from chaos.audit import Entry
from chaos.event_log import Event
from chaos.history import NEVER, SURE, History, Job, Run, between, resumed_at
from umbel.messages import State

Violation = tuple[str, str]
"""A job's id, or an empty string, and what is wrong."""

START_DELAY_SECONDS = 2.0
"""Seconds that a machine under load may need to start a task and log its first event."""

_DEADLINE = 2.0
"""Seconds that a call may take to publish."""

_ENDS: dict[str, tuple[State, ...]] = {
    "fails": (State.BURIED,),
    "poison": (State.BURIED,),
    "fragile": (State.SUCCEEDED, State.BURIED),
    "expires": (State.SUCCEEDED, State.EXPIRED),
}


def nothing_is_lost(history: History) -> Iterator[Violation]:
    """Every published job was in the database, and every job in the database has finished."""
    for job in history.jobs.values():
        known = any(entry.what == "published" for entry in job.entries)
        if job.answers & set(SURE) and not known:
            yield job.id, "lost: published, but never in the database"
        if known and job.record is None and not _may_vanish(job):
            yield job.id, "lost: it left without a record"


def _may_vanish(job: Job) -> bool:
    """Return whether the job keeps no record and finished under the lease that removed it."""
    left = [entry.fence for entry in job.entries if entry.what == "left"]
    ended = {run.start.fence for run in job.runs if run.end and run.end.what == "end"}
    return job.kind == "forgotten" and len(left) == 1 and left[0] in ended


def nothing_runs_that_was_rolled_back(history: History) -> Iterator[Violation]:
    for job in history.jobs.values():
        if job.answers & set(NEVER) and (job.entries or job.runs):
            yield job.id, "it was rolled back or refused, but it exists"
        if job.meant is not None and job.meant.note == "in a transaction":
            there = any(entry.what == "published" for entry in job.entries)
            if there != (job.id in history.business):
                yield job.id, f"half a transaction: job {there}, the caller's row {not there}"


def each_lease_ends_before_the_next(history: History) -> Iterator[Violation]:
    """In the database's order: published once, one holder at a time, one record, growing fences."""
    for job in history.jobs.values():
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
        times = sum(entry.what == "published" for entry in job.entries)
        if times > 1 + job.replayed:
            yield job.id, f"one id, published {times} times"


def every_run_has_its_claim(history: History) -> Iterator[Violation]:
    for job in history.jobs.values():
        seen: set[int] = set()
        for run in job.runs:
            lease = job.leases.get(run.start.fence)
            if lease is None or lease.owner != run.start.owner:
                yield job.id, f"ran under fence {run.start.fence}, which no worker claimed"
            if run.start.fence in seen:
                yield job.id, f"started twice under fence {run.start.fence}"
            seen.add(run.start.fence)


def nothing_starts_under_a_lost_lease(history: History) -> Iterator[Violation]:
    """Except when its process was frozen in between and could not notice."""
    for job in history.jobs.values():
        for run in job.runs:
            lease = job.leases.get(run.start.fence)
            if lease is None or lease.ended is None or run.start.at <= lease.ended.at + 0.05:
                continue
            if not history.was_frozen(run.start.pid, lease.claimed.at, run.start.at):
                late = run.start.at - lease.ended.at
                yield job.id, f"started {late:.2f} s after its lease {lease.fence} had ended"


def no_two_runs_of_coroutines_overlap(history: History) -> Iterator[Violation]:
    """A holder stops itself before others can take over. Threads cannot always be stopped."""
    for job in history.jobs.values():
        runs = sorted(job.runs, key=lambda run: run.start.fence)
        for first, second in pairwise(runs):
            if first.start.kind == "coroutine" and _overlap(history, first, second):
                fences = f"{first.start.fence} and {second.start.fence}"
                yield job.id, f"two runs at once, under fences {fences}"


def _overlap(history: History, first: Run, second: Run) -> bool:
    gone = history.gone(first.start.pid)
    ended = first.end.at if first.end is not None else gone
    if ended is not None and gone is not None:
        ended = min(ended, gone)
    if ended is not None and ended <= second.start.at:
        return False
    return not history.was_frozen(first.start.pid, first.start.at, second.start.at)


def no_outcome_under_an_old_fence(history: History) -> Iterator[Violation]:
    """The recorded outcome is that of the run under the record's own fence."""
    for job in history.jobs.values():
        recorded = {entry.fence for entry in job.entries if entry.what in ("recorded", "left")}
        for event in job.events:
            if event.what == "settled" and event.fence not in recorded:
                yield job.id, f"an outcome under the old fence {event.fence} was taken"
        if job.record is None or job.record.state is not State.SUCCEEDED:
            continue
        result = job.record.result.data if job.record.result is not None else b""
        has_result = job.record.result is not None or job.kind != "forgotten"
        if has_result and result != str(job.fence).encode():
            said = result.decode(errors="replace")
            yield job.id, f"recorded under fence {job.fence}, the result of fence {said}"
        ends = [run for run in job.runs if run.end is not None and run.end.what == "end"]
        if job.fence not in {run.start.fence for run in ends}:
            yield job.id, "recorded as succeeded, but that run did not finish"


def a_cancelled_job_does_not_start(history: History) -> Iterator[Violation]:
    for event in history.of("cancelled"):
        job = history.jobs[event.job]
        if job.record is not None and job.record.state is not State.CANCELLED:
            yield job.id, f"confirmed as cancelled while queued, and it is {job.record.state}"
        for run in job.runs:
            lease = job.leases.get(run.start.fence)
            since = lease.claimed.at if lease is not None else event.at
            frozen = history.was_frozen(run.start.pid, since, run.start.at)
            if run.start.at > event.at and not frozen:
                yield job.id, "started after its cancellation was confirmed"


def no_worker_claims_after_it_confirmed_a_pause(history: History) -> Iterator[Violation]:
    """In the database's order: paused, confirmed by a worker, claimed by that worker, resumed."""
    entries = history.entries
    for paused in (entry for entry in entries if entry.what == "paused"):
        during = between(entries, paused.seq, resumed_at(entries, paused))
        epoch = next((entry.fence for entry in during if entry.what == "epoch"), None)
        confirmed: set[str] = set()
        for entry in during:
            if entry.what == "confirmed" and epoch is not None and entry.fence >= epoch:
                confirmed.add(entry.owner)
            elif entry.owner in confirmed and _concerns(paused.note, history, entry):
                what = paused.note.replace("|", " ").strip()
                yield entry.job, f"claimed by {entry.owner[-6:]}, which confirmed: {what} paused"


def _concerns(pause: str, history: History, entry: Entry) -> bool:
    if entry.what != "claimed":
        return False
    job = history.job(entry.job)
    scope, _, name = pause.partition("|")
    published = next(known for known in job.entries if known.what == "published")
    task, queue, _ = published.note.split("|", 2)
    return scope == "all" or name == (queue if scope == "queue" else task)


def one_live_job_a_unique_key(history: History) -> Iterator[Violation]:
    live: dict[str, str] = {}
    for entry in history.entries:
        if entry.what == "published" and (key := entry.note.split("|", 2)[2]):
            if key in live:
                yield entry.job, f"published with {key}, which {live[key]} holds"
            live[key] = entry.job
        elif entry.what == "left":
            live = {key: job for key, job in live.items() if job != entry.job}


def nothing_starts_after_it_expired(history: History) -> Iterator[Violation]:
    """According to the store's clock, however wrong the worker's clock is."""
    for job in history.jobs.values():
        for run in job.runs:
            if job.meant is None or job.meant.until is None or job.replayed:
                continue
            # The seconds until expiry count from the time when the store accepted the job.
            taken = min((one.at for one in job.events if one.what == "published"), default=0.0)
            late = (
                _store_time(history, run.start) - job.meant.until - max(taken - job.meant.at, 0.0)
            )
            lease = job.leases.get(run.start.fence)
            since = lease.claimed.at if lease is not None else run.start.at
            if late <= START_DELAY_SECONDS or _jumped(history, since, run.start.at):
                continue
            if not history.was_frozen(run.start.pid, since, run.start.at):
                yield job.id, f"started {late:.2f} s after it had expired"


def nothing_starts_before_it_is_due(history: History) -> Iterator[Violation]:
    """According to the store's clock, however wrong the worker's clock is."""
    for job in history.jobs.values():
        for run in job.runs:
            if job.meant is not None and job.meant.due is not None:
                early = job.meant.due - _store_time(history, run.start)
                if early > 0.1 and not _jumped(history, job.meant.at, run.start.at):
                    yield job.id, f"started {early:.2f} s before its time"


def nothing_expires_before_its_time(history: History) -> Iterator[Violation]:
    """According to the store's clock, however wrong the worker's clock is."""
    for job in history.jobs.values():
        record, meant = job.record, job.meant
        expired = record is not None and record.state is State.EXPIRED
        if not expired or meant is None or meant.until is None or record is None:
            continue
        early = meant.until - (record.finished or 0.0)
        if early > 0.1 and not _jumped(history, meant.at, meant.until):
            yield job.id, f"expired {early:.2f} s before its time"


def _store_time(history: History, event: Event) -> float:
    return event.clock if history.one_clock else event.at


def _jumped(history: History, since: float, until: float) -> bool:
    """Return whether the store's clock was set in that period. Processes notice it with a delay."""
    low, high = since - START_DELAY_SECONDS, until + START_DELAY_SECONDS
    return history.one_clock and any(low < event.at < high for event in history.of("clock"))


def no_call_outlasts_its_deadline(history: History) -> Iterator[Violation]:
    """A call may be made twice, and interrupted once by a signal handler that also publishes."""
    for job in history.jobs.values():
        answered = [event for event in job.events if event.what in (*SURE, *NEVER, "unsure")]
        if job.meant is None or not answered or job.meant.note == "in a transaction":
            continue
        took = answered[0].at - job.meant.at
        if took > 4 * _DEADLINE + START_DELAY_SECONDS:
            yield job.id, f"publishing took {took:.1f} s"


def each_job_ends_as_its_kind_says(history: History) -> Iterator[Violation]:
    asked = {event.job for what in ("cancelled", "asked to stop") for event in history.of(what)}
    for job in history.jobs.values():
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


def attempts_are_counted_right(history: History) -> Iterator[Violation]:
    """Failures cost an attempt; deaths and interruptions do not."""
    for job in history.jobs.values():
        record = job.record
        if record is None or job.replayed or len(record.attempts) >= 100:
            continue
        ends = [attempt.ended for attempt in record.attempts]
        if record.attempt != 1 + ends.count("retry"):
            yield job.id, f"attempt {record.attempt} after {ends.count('retry')} failures"
        # The death of a worker that was alive after all is revoked; its attempt stays listed.
        if not _certain_deaths(history, job) <= record.deaths <= ends.count("lost"):
            yield job.id, f"{record.deaths} deaths counted, {ends.count('lost')} listed"
        if job.kind == "fragile" and "lost" in ends and record.state is not State.BURIED:
            yield job.id, "it ran again after a death, which is not allowed"


def _certain_deaths(history: History, job: Job) -> int:
    """Return the number of runs that were unfinished when their process ended."""
    return sum(
        run.end is None
        and (gone := history.gone(run.start.pid)) is not None
        and (lease := job.leases.get(run.start.fence)) is not None
        and (lease.ended is None or gone < lease.ended.at)
        for run in job.runs
    )


def no_process_ends_by_itself(history: History) -> Iterator[Violation]:
    """A worker may exit if its server is unavailable at the start, or if poison kills it."""
    expected = {"0": "", "-9": "", "-15": "", "3": "worker", "9": "worker"}
    for event in history.of("gone"):
        name, code = event.note.split()
        if not name.startswith(expected.get(code, "no process")):
            yield "", f"{name} (process {event.pid}) ended by itself with exit code {code}"
    for event in history.of("odd"):
        yield "", f"a publisher had an error that no fault explains: {event.note}"


Rule = Callable[[History], Iterator[Violation]]
RULES: tuple[Rule, ...] = (
    nothing_is_lost,
    nothing_runs_that_was_rolled_back,
    each_lease_ends_before_the_next,
    every_run_has_its_claim,
    nothing_starts_under_a_lost_lease,
    no_two_runs_of_coroutines_overlap,
    no_outcome_under_an_old_fence,
    a_cancelled_job_does_not_start,
    no_worker_claims_after_it_confirmed_a_pause,
    one_live_job_a_unique_key,
    nothing_starts_after_it_expired,
    nothing_starts_before_it_is_due,
    nothing_expires_before_its_time,
    no_call_outlasts_its_deadline,
    each_job_ends_as_its_kind_says,
    attempts_are_counted_right,
    no_process_ends_by_itself,
)


def broken(history: History) -> list[Violation]:
    """Return all violations, with the names of their rules."""
    return [
        (job, f"{rule.__name__.replace('_', ' ')}: {what}")
        for rule in RULES
        for job, what in rule(history)
    ]

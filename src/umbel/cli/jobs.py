"""``umbel jobs list | show | cancel | retry | edit | purge``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import click
import msgspec

from umbel.app import Umbel
from umbel.backends import Changes, JobFilter
from umbel.cli import job_details
from umbel.cli.command_context import TIMEOUT_SECONDS, CommandContext, command, plain_group
from umbel.cli.confirmation import require_confirmation
from umbel.cli.formatting import count, duration, relative_time
from umbel.cli.job_steps import print_steps, step_document
from umbel.cli.jobs_edit import edit
from umbel.cli.output import print_json, print_line, print_note, print_table
from umbel.cli.pause_lines import print_pause_note
from umbel.cli.progress import DeletionProgress
from umbel.cli.short_names import find_job_id, find_task_name, recent_ids, short_ids
from umbel.cli.times import moment
from umbel.control import Pause
from umbel.errors import UnknownTask
from umbel.messages import TERMINAL, Record, State, Step
from umbel.operations import FORGETTABLE, FoundJobs, JobSearch, Operations, job_document
from umbel.operations.pause_texts import without_missing_tasks
from umbel.processes.exit_codes import FAILED
from umbel.urls import mask_secrets

_BATCH_JOBS = 500
_MAX_JOBS = 1_000_000
_BULK_TIMEOUT_SECONDS = 600.0
"""For a command over very many jobs."""
_TEXT_TIMEOUT_SECONDS = 60.0
"""For a list by texts, which reads many jobs."""
_NOT_STARTED = (State.SCHEDULED, State.WAITING, State.QUEUED)
_REPLAYABLE = (State.BURIED, State.CANCELLED, State.EXPIRED)


@plain_group()
def jobs() -> None:
    """List, show, cancel, retry, edit and delete jobs."""


class StateChoice(click.Choice[str]):
    """A state of jobs, also by the word that users of other task libraries know."""

    _OTHER_WORDS: ClassVar = {
        "failed": State.BURIED.value,
        "failure": State.BURIED.value,
        "dead": State.BURIED.value,
        "done": State.SUCCEEDED.value,
        "success": State.SUCCEEDED.value,
        "pending": State.QUEUED.value,
        "started": State.RUNNING.value,
        "revoked": State.CANCELLED.value,
    }

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(self._OTHER_WORDS.get(value, value), param, ctx)


def _filters(*states: State) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        choice = StateChoice([state.value for state in states])
        for option in (
            click.option("--queue", help="Only jobs of this queue."),
            click.option("--task", help="Only jobs of this task; its last part is enough."),
            click.option(
                "--state", "states", multiple=True, type=choice, help="Only jobs in this state."
            ),
        ):
            function = option(function)
        return function

    return decorate


_ARGUMENT = click.option(
    "--argument",
    "arguments",
    metavar="NAME=VALUE|TEXT",
    multiple=True,
    help="Only jobs with this argument, or with this text in their arguments.",
)
_KEY = click.option("--key", help="Only jobs with this unique key or affinity key.")


def _job_filter(
    app: Umbel, states: Sequence[str], task: str | None, queue: str | None, limit: int
) -> JobFilter:
    if task is not None:
        # A task of another application may have jobs here, so an unknown name is used as it is.
        with suppress(UnknownTask):
            task = find_task_name(app.registry, task)
    chosen = tuple(State(state) for state in states)
    return JobFilter(states=chosen, task=task, queue=queue, limit=limit)


# --- list and show ---------------------------------------------------------------------------


@command(name="list")
@_filters(*State)
@click.option("--worker", help="Only jobs that this worker runs or ran last.")
@click.option("--since", metavar="TIME", help="Only jobs since then: 30m, 2h, 7d, or ISO 8601.")
@click.option("--until", metavar="TIME", help="Only jobs until then: 30m, 2h, 7d, or ISO 8601.")
@click.option("--error", metavar="TEXT", help="Only jobs with this text in an error or reason.")
@_ARGUMENT
@_KEY
@click.option("-n", "--limit", default=20, show_default=True, type=click.IntRange(1, _MAX_JOBS))
@click.option("--after", default="", metavar="CURSOR", help="Continue after an earlier list.")
@click.option(
    "--window",
    default=50_000,
    show_default=True,
    type=click.IntRange(1, 100 * _MAX_JOBS),
    help="Stop after reading this many jobs.",
)
def list_jobs(
    context: CommandContext,
    states: tuple[str, ...],
    task: str | None,
    queue: str | None,
    worker: str | None,
    since: str | None,
    until: str | None,
    error: str | None,
    arguments: tuple[str, ...],
    key: str | None,
    limit: int,
    after: str,
    window: int,
    as_json: bool,
) -> None:
    """List the newest jobs: live ones, then finished ones.

    The time of a job is when it finished; of a live job, when it was published. The ids are
    shortened; every command accepts them so. --json prints the full ids, and the cursor after
    each job.
    """
    app = context.app_or_bare
    now = app.clock.now()
    chosen = msgspec.structs.replace(
        _job_filter(app, states, task, queue, limit),
        worker=worker,
        since=moment("--since", since, now),
        until=moment("--until", until, now),
    )
    search = JobSearch(
        wanted=chosen,
        error=error,
        arguments=arguments,
        key=key,
        after=after,
        window=window,
    )

    async def work(operations: Operations) -> tuple[FoundJobs, list[str], tuple[Pause, ...]]:
        found = await operations.search(search)
        if as_json:
            return found, [], ()
        # Jobs that are not listed count, too: a shown id must be enough for other commands.
        return found, await recent_ids(operations), await operations.pauses()

    limit_seconds = _TEXT_TIMEOUT_SECONDS if error or arguments or key else TIMEOUT_SECONDS
    found, others, pauses = context.run(work, timeout=limit_seconds)
    if as_json:
        documents = [job_document(job, app.codec) for job in found.jobs]
        print_json([doc | {"cursor": at} for doc, at in zip(documents, found.cursors, strict=True)])
    elif not found.jobs:
        filters = (states, task, queue, worker, since, until, error, arguments, key, after)
        print_line("No jobs match." if any(filters) else "No jobs yet.")
    else:
        head = ("id", "task", "queue", "state", "try", "published", "took", "note")
        ids = short_ids([job.id for job in found.jobs], others)
        rows = [_row(job, ids[job.id], now) for job in found.jobs]
        print_table(head, rows, right=("try", "took"), optional=("try", "took", "queue"))
    if not as_json:
        print_pause_note(without_missing_tasks(pauses))
    _print_rest(found)


def _print_rest(found: FoundJobs) -> None:
    """Say how to continue, if the list is not complete."""
    if found.after is None:
        return
    if found.is_cut:
        print_note(f"Stopped after reading {found.read:,} jobs; older ones may match. Continue:")
    else:
        print_note("There are more jobs. Continue:")
    print_note(f"  --after {found.after}")


def _row(record: Record, short_id: str, now: float) -> tuple[object, ...]:
    return (
        short_id,
        record.task,
        record.queue,
        record.state.value,
        record.attempt,
        relative_time(record.created, now),
        _took(record, now),
        _note(record, now),
    )


def _took(record: Record, now: float) -> str:
    if record.started is None or record.state in _NOT_STARTED:
        return ""
    end = record.finished if record.finished is not None else now
    return duration(max(0.0, end - record.started))


def _note(record: Record, now: float) -> str:
    if record.state is State.SCHEDULED:
        return f"runs {relative_time(record.not_before, now)}"
    if record.state is State.WAITING:
        return f"at {record.gate}"
    if record.state is State.RUNNING:
        return " ".join(filter(None, (record.worker, job_details.progress_share(record))))
    if record.failure is not None:
        return record.failure.line[:120]
    return mask_secrets(record.reason)[:120]


@command()
@click.argument("job", metavar="ID")
def show(context: CommandContext, job: str, as_json: bool) -> None:
    """Show one job with its history. Either end of its id is enough if it is unique."""
    app = context.app_or_bare

    async def work(operations: Operations) -> tuple[Record, list[Step], list[str]]:
        found = await operations.job(await find_job_id(operations, job))
        reasons = await operations.hindrances(found, context.address or "MODULE:APP")
        return found, await operations.steps(found.id), reasons

    record, steps, hindrances = context.run(work)
    if as_json:
        more = {"steps": [step_document(one) for one in steps], "hindrances": hindrances}
        print_json({**job_document(record, app.codec), **more})
    else:
        job_details.print_job(record, app.codec, app.clock.now(), hindrances)
        print_steps(steps)


# --- change ----------------------------------------------------------------------------------


@command()
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
@click.option(
    "--reason", default="cancelled from the command line", help="Reason, for its history."
)
def cancel(context: CommandContext, ids: tuple[str, ...], reason: str, as_json: bool) -> int:
    """Cancel jobs that wait or run. The exit code is 1 if one had finished already."""

    async def work(operations: Operations) -> dict[str, State]:
        return await operations.cancel([await find_job_id(operations, one) for one in ids], reason)

    states = context.run(work)
    if as_json:
        print_json(states)
    else:
        for job, state in states.items():
            print_line(f"{job}  {_cancelled(state)}")
    finished = [s for s in states.values() if s not in (State.CANCELLED, State.RUNNING)]
    return FAILED if finished else 0


def _cancelled(state: State) -> str:
    match state:
        case State.CANCELLED:
            return "cancelled"
        case State.RUNNING:
            return "is running; its worker was asked to stop it"
        case _:
            return f"not cancelled: it is already {state.value}"


@command()
@click.argument("ids", metavar="[ID…]", nargs=-1)
@_filters(*_REPLAYABLE)
@click.option("--all", "every", is_flag=True, help="All buried jobs.")
@click.option("--from-scratch", is_flag=True, help="Discard the steps that they have completed.")
def retry(
    context: CommandContext,
    ids: tuple[str, ...],
    states: tuple[str, ...],
    task: str | None,
    queue: str | None,
    every: bool,
    from_scratch: bool,
    as_json: bool,
) -> None:
    """Queue buried, cancelled or expired jobs again.

    Give ids, or options that select jobs.

    Without --state it retries buried jobs. Their attempts start again from 1. Their history is
    kept, and the steps that they have completed are not run again.
    """
    chosen = bool(states or task or queue or every)
    if chosen == bool(ids):
        raise click.UsageError("give ids, or one or more of --task, --queue, --state, --all.")
    app = context.app_or_bare
    wanted = _job_filter(app, states or (State.BURIED,), task, queue, _MAX_JOBS)

    changes = Changes(from_scratch=from_scratch)

    async def work(operations: Operations) -> list[str]:
        if ids:
            return await operations.retry(
                [await find_job_id(operations, one) for one in ids], changes
            )
        found = [record.id for record in await operations.jobs(wanted)]
        return await _retry_all(operations, found, changes)

    done = context.run(work, timeout=_BULK_TIMEOUT_SECONDS if chosen else 5.0)
    if as_json:
        print_json({"queued": done})
    else:
        print_line(f"{count(len(done), 'job')} queued again")


async def _retry_all(operations: Operations, found: list[str], changes: Changes) -> list[str]:
    """Queue all jobs again; one whose state another command has changed is skipped."""
    done: list[str] = []
    for start in range(0, len(found), _BATCH_JOBS):
        done += await operations.retry_possible(found[start : start + _BATCH_JOBS], changes)
    return done


@command()
@_filters(*(state for state in State if state in TERMINAL))
@_ARGUMENT
@_KEY
@click.option("--all", "every", is_flag=True, help="Jobs in every state, also live ones.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def purge(
    context: CommandContext,
    states: tuple[str, ...],
    task: str | None,
    queue: str | None,
    arguments: tuple[str, ...],
    key: str | None,
    every: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Delete finished jobs with their results and histories. This cannot be undone.

    Without --state it deletes succeeded, cancelled and expired jobs. Buried jobs are deleted only
    with --state buried or --all. With --all, jobs that wait are cancelled and deleted, and workers
    are asked to stop those that run; the exit code is 1 then, and the command is to be repeated.
    """
    if every and states:
        raise click.UsageError("give --all or --state, not both.")
    which = "" if every else f" {' and '.join(states) or 'succeeded, cancelled and expired'}"
    subject = _of(task, queue, arguments, key)
    require_confirmation(f"Delete all{which} jobs{subject}{', in every state' * every}?", yes)
    app = context.app_or_bare
    if not every:
        states = states or tuple(state.value for state in FORGETTABLE)
    wanted = _job_filter(app, states, task, queue, _BATCH_JOBS)
    search = JobSearch(wanted=wanted, arguments=arguments, key=key)
    progress = DeletionProgress(app.clock, "job")
    done = context.run(
        lambda operations: operations.erase_jobs(search, progress), timeout=_BULK_TIMEOUT_SECONDS
    )
    if as_json:
        print_json({"forgotten": done.deleted} | ({"stopping": done.stopping} if every else {}))
    else:
        print_line(f"{count(done.deleted, 'job')} deleted")
        if done.stopping:
            verb, end = ("was", "it has") if done.stopping == 1 else ("were", "they have")
            jobs = count(done.stopping, "running job")
            print_line(f"{jobs} {verb} asked to stop; repeat the command when {end} ended")
    return FAILED if done.stopping else 0


def _of(
    task: str | None, queue: str | None, arguments: Sequence[str] = (), key: str | None = None
) -> str:
    parts = [("task", task), ("queue", queue), ("key", key)]
    parts += [("argument", argument) for argument in arguments]
    return "".join(f" of {kind} {name}" for kind, name in parts if name)


for _command in (list_jobs, show, cancel, retry, edit, purge):
    jobs.add_command(_command)

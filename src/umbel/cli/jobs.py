"""``umbel jobs list | show | cancel | retry | edit | purge``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import click

from umbel.app import Umbel
from umbel.backends import Changes, JobFilter
from umbel.cli import story
from umbel.cli.answers import answer, say, table
from umbel.cli.command_context import CommandContext, command, plain_group
from umbel.cli.consent import consent
from umbel.cli.editing import edit
from umbel.cli.errors import FAILED
from umbel.cli.names import full_id, full_name
from umbel.cli.steps import step_view, tell_steps
from umbel.cli.words import ago, count, duration
from umbel.errors import NotAllowed, UnknownJob, UnknownTask
from umbel.messages import TERMINAL, Record, State, Step
from umbel.operations import Operations
from umbel.urls import masked

_BATCH = 500
_ALL = 1_000_000
_BULK = 600.0
"""Seconds that a command over very many jobs may take."""
_IDLE = (State.SCHEDULED, State.WAITING, State.QUEUED)
_REPLAYABLE = (State.BURIED, State.CANCELLED, State.EXPIRED)


@plain_group()
def jobs() -> None:
    """List, show, cancel, retry, edit and forget jobs."""


def _filters(*states: State) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        choice = click.Choice([state.value for state in states])
        for option in (
            click.option("--queue", help="Only of this queue."),
            click.option("--task", help="Only of this task; its last part is enough."),
            click.option(
                "--state", "states", multiple=True, type=choice, help="Only in this state."
            ),
        ):
            function = option(function)
        return function

    return decorate


def _wanted(
    app: Umbel, states: Sequence[str], task: str | None, queue: str | None, limit: int
) -> JobFilter:
    if task is not None:
        # A task of another application has jobs here too: an unknown name is taken as it is.
        with suppress(UnknownTask):
            task = full_name(app.registry, task)
    chosen = tuple(State(state) for state in states)
    return JobFilter(states=chosen, task=task, queue=queue, limit=limit)


# --- list and show ---------------------------------------------------------------------------


@command(name="list")
@_filters(*State)
@click.option("--worker", help="Only those this worker runs or ran last.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, _ALL))
def list_jobs(
    frame: CommandContext,
    states: tuple[str, ...],
    task: str | None,
    queue: str | None,
    worker: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """The newest jobs."""
    app = frame.app_or_bare
    chosen = _wanted(app, states, task, queue, limit)
    wanted = JobFilter(
        states=chosen.states, task=chosen.task, queue=queue, worker=worker, limit=limit
    )
    found = frame.ask(lambda operations: operations.jobs(wanted))
    if as_json:
        answer([story.view(record, app.codec) for record in found])
    elif not found:
        say("no such job")
    else:
        now = app.clock.now()
        head = ("id", "task", "queue", "state", "try", "published", "took", "note")
        table(head, [_row(record, now) for record in found], right=("try", "took"))


def _row(record: Record, now: float) -> tuple[object, ...]:
    return (
        record.id,
        record.task,
        record.queue,
        record.state.value,
        record.attempt,
        ago(record.created, now),
        _took(record, now),
        _note(record, now),
    )


def _took(record: Record, now: float) -> str:
    if record.started is None or record.state in _IDLE:
        return ""
    end = record.finished if record.finished is not None else now
    return duration(max(0.0, end - record.started))


def _note(record: Record, now: float) -> str:
    if record.state is State.SCHEDULED:
        return f"runs {ago(record.not_before, now)}"
    if record.state is State.WAITING:
        return f"at {record.gate}"
    if record.state is State.RUNNING:
        return " ".join(filter(None, (record.worker, story.progress_share(record))))
    if record.failure is not None:
        return masked(f"{record.failure.type.rpartition(':')[2]}: {record.failure.message}")[:120]
    return masked(record.reason)[:120]


@command()
@click.argument("job", metavar="ID")
def show(frame: CommandContext, job: str, as_json: bool) -> None:
    """The whole story of one job. Either end of its id is enough, if no other has it."""
    app = frame.app_or_bare

    async def work(operations: Operations) -> tuple[Record, list[Step], list[str]]:
        found = await operations.job(await full_id(operations, job))
        return found, await operations.steps(found.id), await operations.hindrances(found)

    record, steps, hindrances = frame.ask(work)
    if as_json:
        told = {"steps": [step_view(one) for one in steps], "hindrances": hindrances}
        answer({**story.view(record, app.codec), **told})
    else:
        story.tell(record, app.codec, app.clock.now(), hindrances)
        tell_steps(steps)


# --- change ----------------------------------------------------------------------------------


@command()
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
@click.option("--reason", default="cancelled from the command line", help="Why, for its story.")
def cancel(frame: CommandContext, ids: tuple[str, ...], reason: str, as_json: bool) -> int:
    """Keep jobs from running, or stop them. Exit code 1 when one was over already."""

    async def work(operations: Operations) -> dict[str, State]:
        return await operations.cancel([await full_id(operations, one) for one in ids], reason)

    states = frame.ask(work)
    if as_json:
        answer(states)
    else:
        for job, state in states.items():
            say(f"{job}  {_cancelled(state)}")
    over = [s for s in states.values() if s not in (State.CANCELLED, State.RUNNING)]
    return FAILED if over else 0


def _cancelled(state: State) -> str:
    match state:
        case State.CANCELLED:
            return "cancelled"
        case State.RUNNING:
            return "runs; its worker was asked to stop it"
        case _:
            return f"not cancelled: it has {state.value} already"


@command()
@click.argument("ids", metavar="[ID…]", nargs=-1)
@_filters(*_REPLAYABLE)
@click.option("--all", "every", is_flag=True, help="All buried jobs.")
@click.option("--from-scratch", is_flag=True, help="Forget the steps they have done.")
def retry(
    frame: CommandContext,
    ids: tuple[str, ...],
    states: tuple[str, ...],
    task: str | None,
    queue: str | None,
    every: bool,
    from_scratch: bool,
    as_json: bool,
) -> None:
    """Queue jobs anew that were buried, cancelled or expired: by id, or all that match.

    Without --state, buried ones are meant. Their attempts start over; their story is kept, and so
    are the steps they have done, which are not done again.
    """
    chosen = bool(states or task or queue or every)
    if chosen == bool(ids):
        raise click.UsageError("give ids, or some of --task, --queue, --state, --all.")
    app = frame.app_or_bare
    wanted = _wanted(app, states or (State.BURIED,), task, queue, _ALL)

    changes = Changes(from_scratch=from_scratch)

    async def work(operations: Operations) -> list[str]:
        if ids:
            return await operations.retry([await full_id(operations, one) for one in ids], changes)
        found = [record.id for record in await operations.jobs(wanted)]
        return await _retry_all(operations, found, changes)

    done = frame.ask(work, deadline=_BULK if chosen else 5.0)
    if as_json:
        answer({"queued": done})
    else:
        say(f"{count(len(done), 'job')} queued anew")


async def _retry_all(operations: Operations, found: list[str], changes: Changes) -> list[str]:
    """Queue them all; one that somebody else has dealt with meanwhile is no error."""
    done: list[str] = []
    for start in range(0, len(found), _BATCH):
        batch = found[start : start + _BATCH]
        try:
            done += await operations.retry(batch, changes)
        except (NotAllowed, UnknownJob):
            done += [job for job in batch if await _retried(operations, job, changes)]
    return done


async def _retried(operations: Operations, job: str, changes: Changes) -> bool:
    try:
        await operations.retry([job], changes)
    except NotAllowed:
        # The batch before it may have queued it already.
        return not (await operations.job(job)).state.finished
    except UnknownJob:
        return False
    return True


@command()
@_filters(*(state for state in State if state in TERMINAL))
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(
    frame: CommandContext,
    states: tuple[str, ...],
    task: str | None,
    queue: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Forget finished jobs, with their results and stories. It cannot be undone.

    Without --state: succeeded, cancelled and expired jobs. Buried jobs are only forgotten with
    --state buried.
    """
    which = " and ".join(states) or "succeeded, cancelled and expired"
    consent(f"Forget all {which} jobs{_of(task, queue)}?", yes)
    wanted = _wanted(frame.app_or_bare, states, task, queue, _BATCH)
    done = frame.ask(lambda operations: operations.forget(wanted), deadline=_BULK)
    if as_json:
        answer({"forgotten": done})
    else:
        say(f"{count(done, 'job')} forgotten")


def _of(task: str | None, queue: str | None) -> str:
    return (f" of task {task}" if task else "") + (f" of queue {queue}" if queue else "")


for _command in (list_jobs, show, cancel, retry, edit, purge):
    jobs.add_command(_command)

"""``umbel workers [health | cancel | pause | reload | retire]``."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeVar

import click

from umbel.backends import WorkerIndex
from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.errors import Failure
from umbel.cli.formatting import count, duration
from umbel.cli.output import print_json, print_line, print_table
from umbel.cli.short_names import find_job_id, parse_worker, recent_ids, short_ids
from umbel.errors import JobFailed, ResultTimeout, UmbelError
from umbel.operations import Operations
from umbel.tasks.task import IOTask

_HEAD = (
    *("worker", "index", "state", "running", "io", "cpu", "queues", "up", "heartbeat", "host"),
    "pid",
)
_OPTIONAL = ("host", "pid", "cpu", "io", "up")
"""Left out on a narrow terminal, in this order."""
_NUMBERS = ("index", "running", "io", "cpu", "up", "heartbeat", "pid")
_POLL_SECONDS = 0.2
_WAIT = click.option(
    "--wait",
    type=click.FloatRange(0.1, 3600),
    default=10.0,
    show_default=True,
    help="Seconds to wait for an answer.",
)
T = TypeVar("T")


@group()
def workers(context: CommandContext, as_json: bool) -> None:
    """Show running workers; send a command to one."""
    found = context.run(lambda operations: operations.workers())
    if as_json:
        print_json(found)
    elif not found:
        print_line("No workers are running. Start one: umbel -A module:app worker")
    else:
        rows = [
            (
                one.name,
                "" if one.index is None else one.index,
                one.state,
                one.running,
                one.io,
                one.cpu,
                ", ".join(one.queues),
                duration(one.uptime),
                f"{duration(one.silent)} ago",
                one.host,
                one.pid,
            )
            for one in found
        ]
        print_table(_HEAD, rows, right=_NUMBERS, optional=_OPTIONAL)


@command()
@click.option("--index", "indexes", type=click.IntRange(0, 999_999), multiple=True, required=True)
@click.option("--wait", type=float, default=0.0, help="Seconds to wait until they have no routes.")
@click.option("--undo", is_flag=True, help="Give them routes again.")
def retire(
    context: CommandContext, indexes: tuple[int, ...], wait: float, undo: bool, as_json: bool
) -> None:
    """Give the workers with these indexes no more routes before you remove them.

    Each of their keys moves to another worker when its running jobs have ended: highest index
    first, as a StatefulSet scales down. A worker that is started again gets routes again.

    \b
    umbel workers retire --index 3 --index 2 --wait 600 && kubectl scale --replicas=2 …
    """

    async def work(operations: Operations) -> list[WorkerIndex]:
        worker_indexes = {one.index: one for one in await operations.worker_indexes()}
        if missing := [index for index in indexes if index not in worker_indexes]:
            there = ", ".join(map(str, worker_indexes)) or "none"
            raise Failure(f"no worker has index {missing[0]}; known indexes: {there}")
        for index in sorted(indexes, reverse=True):
            await operations.retire(index, not undo)
        until = asyncio.get_running_loop().time() + wait
        while True:
            left = [one for one in await operations.worker_indexes() if one.index in indexes]
            done = undo or not any(one.routes for one in left)
            if done or asyncio.get_running_loop().time() >= until:
                return left
            await asyncio.sleep(_POLL_SECONDS)

    left = context.run(work, timeout=wait + 10)
    if as_json:
        print_json(left)
    for one in left if not as_json else []:
        state = "gets routes again" if undo else "gets no more routes"
        routes = f"; {count(one.routes, 'route')} left" if one.routes and not undo else ""
        print_line(f"worker {one.index} ({one.worker}) {state}{routes}")
    if wait and any(one.routes for one in left) and not undo:
        raise Failure(f"after {wait:g} s some routes are still in use; see umbel routes")


# --- commands to one worker ------------------------------------------------------------------


@command()
@click.argument("worker", metavar="INDEX|NAME")
@_WAIT
def health(context: CommandContext, worker: str, wait: float, as_json: bool) -> None:
    """Ask a worker for its state: running jobs, for how long, and free slots."""
    found = _call(context, context.app_or_bare.inbox.health, worker, wait)
    if as_json:
        print_json(found)
        return
    state = "stopping" if found.stopping else "paused" if found.paused else "working"
    print_line(f"worker {found.index} ({found.worker}), {state}, up {duration(found.up)}")
    beat = "none yet" if found.last_beat is None else f"{duration(found.last_beat)} ago"
    print_line(
        f"host {found.host}, pid {found.pid}, Python {found.python}, {found.memory >> 20} MiB"
    )
    print_line(
        f"last heartbeat {beat}; free slots: {found.free_io} async def, {found.free_cpu} def"
    )
    if found.paused:
        print_line(f"paused: {', '.join(found.paused)}")
    if found.jobs:
        # Calls of a worker are jobs, too, and their ids begin like those of other recent jobs.
        ids = short_ids([job.id for job in found.jobs], context.run(recent_ids))
        rows = [(ids[job.id], job.task, duration(job.seconds)) for job in found.jobs]
        print_table(("job", "task", "for"), rows)


@command()
@click.argument("worker", metavar="INDEX|NAME")
@click.argument("job")
@click.option("--reason", default="", help="Reason, for the record of the job.")
@_WAIT
def cancel(
    context: CommandContext, worker: str, job: str, reason: str, wait: float, as_json: bool
) -> None:
    """Stop a job that runs on a worker. To cancel it wherever it is: umbel jobs cancel."""
    given = job
    job = context.run(lambda operations: find_job_id(operations, given))
    done = _call(context, context.app_or_bare.inbox.cancel, worker, wait, job, reason)
    if as_json:
        print_json({"job": job, "stopped": done})
    elif done:
        print_line(f"{job} was asked to stop")
    if not done:
        raise Failure(f"{job} is not running on worker {worker}; see umbel jobs show {job}")


@command(name="pause")
@click.argument("worker", metavar="INDEX|NAME")
@click.option("--reason", default="", help="Reason, shown to operators.")
@_WAIT
def pause_one(
    context: CommandContext, worker: str, reason: str, wait: float, as_json: bool
) -> None:
    """Ask a worker to start no more jobs. umbel resume --worker ends the pause.

    umbel pause --worker does the same through the store, also while the worker is busy.
    """
    _call(context, context.app_or_bare.inbox.pause, worker, wait, reason)
    _print_state(worker, "paused", f"to resume: umbel resume --worker {worker}", as_json)


@command()
@click.argument("worker", metavar="INDEX|NAME")
@_WAIT
def reload(context: CommandContext, worker: str, wait: float, as_json: bool) -> None:
    """Ask a worker to finish its running jobs and restart with the current code."""
    _call(context, context.app_or_bare.inbox.reload, worker, wait)
    _print_state(worker, "reloads", "it finishes its running jobs, then it restarts", as_json)


def _call(
    context: CommandContext, command: IOTask[..., T], worker: str, wait: float, *arguments: str
) -> T:
    """Return the answer of a worker. Raises Failure if it does not answer or rejects the call."""
    app = context.app_or_bare
    try:
        handle = command.options(worker=parse_worker(worker), expires=wait).delay(*arguments)
        try:
            return handle.get(timeout=wait)
        except ResultTimeout:
            with suppress(UmbelError):
                handle.cancel("the caller no longer waits for the answer")
            raise Failure(
                f"worker {worker} did not answer within {wait:g} s: it may be dead, paused, or have"
                " no free slot for an async def task; see umbel workers"
            ) from None
        except JobFailed as error:
            raise Failure(f"worker {worker} rejected the command: {error}") from None
    finally:
        with suppress(UmbelError, TimeoutError):
            app.close()


def _print_state(worker: str, state: str, text: str, as_json: bool) -> None:
    if as_json:
        print_json({"worker": worker, "state": state})
    else:
        print_line(f"worker {worker} {state}; {text}")


for _command in (health, cancel, pause_one, reload, retire):
    workers.add_command(_command)

"""``umbel workers [health | cancel | pause | reload | retire]``."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeVar

import click

from umbel.backends import Seat
from umbel.cli.answers import answer, say, table
from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.errors import Failure
from umbel.cli.names import worker_named
from umbel.cli.words import count, duration
from umbel.errors import JobFailed, ResultTimeout, UmbelError
from umbel.operations import Operations
from umbel.tasks.task import IOTask

_HEAD = (
    *("worker", "index", "state", "running", "io", "cpu", "queues", "up", "last beat", "host"),
    "pid",
)
_NUMBERS = ("index", "running", "io", "cpu", "up", "last beat", "pid")
_STEP = 0.2
_WAIT = click.option(
    "--wait",
    type=click.FloatRange(0.1, 3600),
    default=10.0,
    show_default=True,
    help="Seconds to wait for an answer.",
)
T = TypeVar("T")


@group()
def workers(frame: CommandContext, as_json: bool) -> None:
    """Show the workers that live, as the store knows them; tell one something."""
    found = frame.ask(lambda operations: operations.workers())
    if as_json:
        answer(found)
    elif not found:
        say("no worker lives; start one: umbel -A module:app worker")
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
        table(_HEAD, rows, right=_NUMBERS)


@command()
@click.option("--index", "indexes", type=click.IntRange(0, 999_999), multiple=True, required=True)
@click.option("--wait", type=float, default=0.0, help="Seconds to wait until no route is left.")
@click.option("--undo", is_flag=True, help="Give them routes again.")
def retire(
    frame: CommandContext, indexes: tuple[int, ...], wait: float, undo: bool, as_json: bool
) -> None:
    """Give the workers with these indexes no more routes, before they are stopped for good.

    Their keys move to others as soon as what runs by them is done: highest index first, as a
    StatefulSet scales down. Starting such a worker anew gives it routes again.

    \b
    umbel workers retire --index 3 --index 2 --wait 600 && kubectl scale --replicas=2 …
    """

    async def work(operations: Operations) -> list[Seat]:
        seats = {seat.index: seat for seat in await operations.seats()}
        if missing := [index for index in indexes if index not in seats]:
            there = ", ".join(map(str, seats)) or "none"
            raise Failure(f"no worker has index {missing[0]}; there is {there}")
        for index in sorted(indexes, reverse=True):
            await operations.retire(index, not undo)
        until = asyncio.get_running_loop().time() + wait
        while True:
            left = [seat for seat in await operations.seats() if seat.index in indexes]
            done = undo or not any(seat.routes for seat in left)
            if done or asyncio.get_running_loop().time() >= until:
                return left
            await asyncio.sleep(_STEP)

    left = frame.ask(work, deadline=wait + 10)
    if as_json:
        answer(left)
    for seat in left if not as_json else []:
        word = "gets routes again" if undo else "retires"
        routes = f"; {count(seat.routes, 'route')} left" if seat.routes and not undo else ""
        say(f"worker {seat.index} ({seat.worker}) {word}{routes}")
    if wait and any(seat.routes for seat in left) and not undo:
        raise Failure(f"after {wait:g} s some routes are still in use; see umbel routes")


# --- told in its own queue -------------------------------------------------------------------


@command()
@click.argument("worker", metavar="INDEX|NAME")
@_WAIT
def health(frame: CommandContext, worker: str, wait: float, as_json: bool) -> None:
    """How a worker is, answered by itself: what runs there, since when, and what is free."""
    found = _told(frame, frame.app_or_bare.inbox.health, worker, wait)
    if as_json:
        answer(found)
        return
    state = "stopping" if found.stopping else "paused" if found.paused else "working"
    say(f"worker {found.index} ({found.worker}), {state}, up {duration(found.up)}")
    beat = "none yet" if found.last_beat is None else f"{duration(found.last_beat)} ago"
    say(f"host {found.host}, pid {found.pid}, Python {found.python}, {found.memory >> 20} MiB")
    say(f"last beat {beat}; room for {found.free_io} async def and {found.free_cpu} def tasks")
    if found.paused:
        say(f"paused: {', '.join(found.paused)}")
    if found.jobs:
        table(("job", "task", "for"), [(j.id, j.task, duration(j.seconds)) for j in found.jobs])


@command()
@click.argument("worker", metavar="INDEX|NAME")
@click.argument("job")
@click.option("--reason", default="", help="Why, for its record.")
@_WAIT
def cancel(
    frame: CommandContext, worker: str, job: str, reason: str, wait: float, as_json: bool
) -> None:
    """Stop a job that runs on a worker, now. Where it runs on any: umbel jobs cancel."""
    done = _told(frame, frame.app_or_bare.inbox.cancel, worker, wait, job, reason)
    if as_json:
        answer({"job": job, "stopped": done})
    elif done:
        say(f"{job} was told to stop")
    if not done:
        raise Failure(f"{job} does not run on worker {worker}; see umbel jobs show {job}")


@command(name="pause")
@click.argument("worker", metavar="INDEX|NAME")
@click.option("--reason", default="", help="Why, for whoever looks.")
@_WAIT
def pause_one(frame: CommandContext, worker: str, reason: str, wait: float, as_json: bool) -> None:
    """Tell a worker to start nothing more. umbel resume --worker lets it go on.

    umbel pause --worker does the same through the store, also while the worker is busy.
    """
    _told(frame, frame.app_or_bare.inbox.pause, worker, wait, reason)
    _said(worker, "paused", f"umbel resume --worker {worker} lets it go on", as_json)


@command()
@click.argument("worker", metavar="INDEX|NAME")
@_WAIT
def reload(frame: CommandContext, worker: str, wait: float, as_json: bool) -> None:
    """Tell a worker to finish what runs and to begin again, with the code as it is then."""
    _told(frame, frame.app_or_bare.inbox.reload, worker, wait)
    _said(worker, "reloads", "it finishes what runs, then it begins again", as_json)


def _told(
    frame: CommandContext, command: IOTask[..., T], worker: str, wait: float, *arguments: str
) -> T:
    """What a worker answers. Raises Failure: it does not."""
    app = frame.app_or_bare
    try:
        handle = command.options(worker=worker_named(worker), expires=wait).delay(*arguments)
        try:
            return handle.get(timeout=wait)
        except ResultTimeout:
            with suppress(UmbelError):
                handle.cancel("nobody waits for the answer any more")
            raise Failure(
                f"worker {worker} has not answered within {wait:g} s: it may be dead, paused, or"
                " have no room for an async def task; see umbel workers"
            ) from None
        except JobFailed as error:
            raise Failure(f"worker {worker} refuses: {error}") from None
    finally:
        with suppress(UmbelError, TimeoutError):
            app.close()


def _said(worker: str, state: str, text: str, as_json: bool) -> None:
    if as_json:
        answer({"worker": worker, "state": state})
    else:
        say(f"worker {worker} {state}; {text}")


for _command in (health, cancel, pause_one, reload, retire):
    workers.add_command(_command)

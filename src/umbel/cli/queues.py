"""``umbel queues [list] | purge | move``."""

from __future__ import annotations

import click

from umbel.cli.answers import answer, say, table
from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.consent import consent
from umbel.cli.words import count, duration
from umbel.operations import MissingTask, Operations, QueueView

_HEAD = ("queue", "queued", "waiting", "running", "scheduled", "oldest", "workers", "state")


@group()
def queues(frame: CommandContext, as_json: bool) -> None:
    """Show queues; empty or move one."""
    _show(frame, as_json)


@command(name="list")
def list_queues(frame: CommandContext, as_json: bool) -> None:
    """Every queue that holds jobs, has a worker or is paused."""
    _show(frame, as_json)


def _show(frame: CommandContext, as_json: bool) -> None:
    async def work(operations: Operations) -> tuple[list[QueueView], list[MissingTask]]:
        return await operations.queues(), await operations.missing_tasks()

    found, missing = frame.ask(work)
    if as_json:
        answer(found)
        return
    if found:
        table(_HEAD, [_row(queue) for queue in found], right=_HEAD[1:7])
    else:
        say("no queue holds jobs, and no worker serves one")
    for one in missing:
        say(str(one))


def _row(queue: QueueView) -> tuple[object, ...]:
    oldest = "" if queue.oldest is None else duration(queue.oldest)
    state = "paused" if queue.paused else "" if queue.workers else "no worker"
    numbers = (queue.queued, queue.waiting, queue.running, queue.scheduled)
    return (queue.name, *(f"{n:,}" for n in numbers), oldest, queue.workers, state)


@command(name="purge")
@click.argument("queue")
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(frame: CommandContext, queue: str, yes: bool, as_json: bool) -> None:
    """Cancel everything in QUEUE that does not run yet."""
    consent(f"Cancel every job that waits in queue {queue!r}?", yes)
    done = frame.ask(lambda operations: operations.purge(queue), deadline=60)
    if as_json:
        answer({"queue": queue, "cancelled": done})
    else:
        say(f"{count(done, 'job')} of queue {queue} cancelled")


@command(name="move")
@click.argument("source")
@click.argument("target")
def move(frame: CommandContext, source: str, target: str, as_json: bool) -> None:
    """Put everything that waits in SOURCE into TARGET."""
    done = frame.ask(lambda operations: operations.move(source, target), deadline=60)
    if as_json:
        answer({"source": source, "target": target, "moved": done})
    else:
        say(f"{count(done, 'job')} moved from queue {source} to {target}")


for _command in (list_queues, purge, move):
    queues.add_command(_command)

"""``umbel queues [list] | purge | move``."""

from __future__ import annotations

import click

from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.confirmation import require_confirmation
from umbel.cli.formatting import count, duration
from umbel.cli.output import print_json, print_line, print_table
from umbel.operations import MissingTask, Operations, QueueView

_HEAD = ("queue", "queued", "waiting", "running", "scheduled", "oldest", "workers", "state")


@group()
def queues(context: CommandContext, as_json: bool) -> None:
    """Show queues; empty or move one."""
    _show(context, as_json)


@command(name="list")
def list_queues(context: CommandContext, as_json: bool) -> None:
    """List every queue that has jobs or a worker, or is paused."""
    _show(context, as_json)


def _show(context: CommandContext, as_json: bool) -> None:
    async def work(operations: Operations) -> tuple[list[QueueView], list[MissingTask]]:
        return await operations.queues(), await operations.missing_tasks()

    found, missing = context.run(work)
    if as_json:
        print_json(found)
        return
    if found:
        print_table(_HEAD, [_row(queue) for queue in found], right=_HEAD[1:7])
    else:
        print_line("No queue has jobs, and no worker serves one.")
    for one in missing:
        print_line(str(one))


def _row(queue: QueueView) -> tuple[object, ...]:
    oldest = "" if queue.oldest is None else duration(queue.oldest)
    state = "paused" if queue.paused else "" if queue.workers else "no worker"
    numbers = (queue.queued, queue.waiting, queue.running, queue.scheduled)
    return (queue.name, *(f"{n:,}" for n in numbers), oldest, queue.workers, state)


@command(name="purge")
@click.argument("queue")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def purge(context: CommandContext, queue: str, yes: bool, as_json: bool) -> None:
    """Cancel all jobs in QUEUE that do not run yet."""
    require_confirmation(f"Cancel all waiting jobs of queue {queue!r}?", yes)
    done = context.run(lambda operations: operations.purge(queue), timeout=60)
    if as_json:
        print_json({"queue": queue, "cancelled": done})
    else:
        print_line(f"{count(done, 'job')} of queue {queue} cancelled")


@command(name="move")
@click.argument("source")
@click.argument("target")
def move(context: CommandContext, source: str, target: str, as_json: bool) -> None:
    """Move all waiting jobs from SOURCE to TARGET."""
    done = context.run(lambda operations: operations.move(source, target), timeout=60)
    if as_json:
        print_json({"source": source, "target": target, "moved": done})
    else:
        print_line(f"{count(done, 'job')} moved from queue {source} to {target}")


for _command in (list_queues, purge, move):
    queues.add_command(_command)

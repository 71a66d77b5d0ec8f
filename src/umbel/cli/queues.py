"""``umbel queues [list] | purge | move``."""

from __future__ import annotations

from collections.abc import Sequence

import click

from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.confirmation import require_confirmation
from umbel.cli.formatting import count, duration
from umbel.cli.output import print_json, print_line, print_table
from umbel.cli.pause_lines import print_pause_lines
from umbel.control import Pause
from umbel.operations import MissingTask, Operations, QueueView
from umbel.operations.pause_texts import without_missing_tasks

_STATES = ("queued", "waiting", "running", "scheduled", "blocked")


@group()
def queues(context: CommandContext, as_json: bool) -> None:
    """Show queues; empty or move one."""
    _show(context, as_json)


@command(name="list")
def list_queues(context: CommandContext, as_json: bool) -> None:
    """List every queue that has jobs or a worker, or is paused."""
    _show(context, as_json)


def _show(context: CommandContext, as_json: bool) -> None:
    async def work(
        operations: Operations,
    ) -> tuple[list[QueueView], list[MissingTask], tuple[Pause, ...]]:
        missing = await operations.missing_tasks()
        return await operations.queues(), missing, await operations.pauses()

    found, missing, pauses = context.run(work)
    if as_json:
        print_json(found)
        return
    if found:
        # Few applications have jobs that wait for others, and lines are short.
        states = _STATES if any(queue.blocked for queue in found) else _STATES[:-1]
        head = ("queue", *states, "oldest", "workers", "state")
        print_table(head, [_row(queue, states) for queue in found], right=head[1:-1])
    else:
        print_line("No queue has jobs, and no worker serves one.")
    print_pause_lines(without_missing_tasks(pauses))
    for one in missing:
        print_line(str(one))


def _row(queue: QueueView, states: Sequence[str]) -> tuple[object, ...]:
    oldest = "" if queue.oldest is None else duration(queue.oldest)
    state = ", ".join(["no worker"] * (not queue.workers) + [*map(_paused, queue.pauses)])
    numbers = [f"{getattr(queue, name):,}" for name in states]
    return (queue.name, *numbers, oldest, queue.workers, state)


def _paused(pause: Pause) -> str:
    return "all paused" if pause.scope == "all" else "paused"


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

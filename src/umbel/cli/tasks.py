"""``umbel tasks [NAME]``: tasks with their options, run times and workers."""

from __future__ import annotations

from contextlib import suppress

import click

from umbel.cli.command_context import CommandContext, command
from umbel.cli.formatting import count, duration
from umbel.cli.output import print_json, print_line, print_table
from umbel.cli.short_names import find_task_name
from umbel.errors import UnknownTask
from umbel.operations import TaskView

_HEAD = ("task", "queue", "runs", "p50", "p95", "workers", "options")
_KINDS = {"io": "async def", "cpu": "def"}
_MAX_WORKERS = 10


@command()
@click.argument("name", required=False)
@click.option(
    "--window",
    default=10_000,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Compute run times from this many finished jobs, the newest.",
)
def tasks(context: CommandContext, name: str | None, window: int, as_json: bool) -> None:
    """Show the declared tasks, their options and run times, and the workers that have them.

    With NAME, show one task; the last part of its name is enough. Only options that differ from
    the defaults are shown. A task without workers waits for one.
    """
    if name is not None:
        # A worker of another application may have it, so an unknown name is used as it is.
        with suppress(UnknownTask):
            name = find_task_name(context.app_or_bare.registry, name)
    found = context.run(lambda operations: operations.tasks(name, window=window), timeout=60.0)
    if as_json:
        print_json(found if name is None else found[0])
    elif name is not None:
        _print_task(found[0], window)
    elif found:
        right = ("runs", "p50", "p95", "workers")
        print_table(_HEAD, list(map(_row, found)), right=right, optional=("p50", "queue"))
    else:
        print_line("No tasks are declared, and no workers are running.")


def _row(task: TaskView) -> tuple[object, ...]:
    runs = task.runs
    times = ("", "", "") if runs is None else (runs.runs, duration(runs.p50), duration(runs.p95))
    return (task.name, task.queue, *times, len(task.workers), _option_text(task))


def _option_text(task: TaskView) -> str:
    if not task.is_declared:
        return "not declared in this application"
    return ", ".join(f"{name} {value}" for name, value in task.options.items())


def _print_task(task: TaskView, window: int) -> None:
    lines: list[tuple[str, str]] = [("task", f"{task.name}{task.signature}")]
    if task.description:
        lines.append(("", task.description))
    if task.is_declared:
        lines += [("kind", _KINDS.get(task.kind, task.kind)), ("queue", task.queue)]
        lines += task.options.items()
    else:
        lines.append(("declared", "not in this application"))
    lines.append(("runs", _run_text(task, window)))
    names = ", ".join(task.workers[:_MAX_WORKERS])
    more = len(task.workers) - _MAX_WORKERS
    lines.append(("workers", f"{names} and {more} more" if more > 0 else names or "none"))
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        print_line(f"{label:{width}}  {text}")


def _run_text(task: TaskView, window: int) -> str:
    runs = task.runs
    if runs is None:
        return f"none among the {window:,} newest jobs"
    times = f"p50 {duration(runs.p50)}, p95 {duration(runs.p95)}, longest {duration(runs.longest)}"
    return f"{runs.runs:,} of {count(runs.jobs, 'job')}, {runs.buried:,} buried; {times}"

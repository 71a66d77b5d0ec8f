"""``umbel jobs edit``: changes a finished job and queues it again."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

import click

from umbel.app import Umbel
from umbel.backends import Changes
from umbel.cli.arguments import Call, fit_to_task, parse
from umbel.cli.command_context import CommandContext, command
from umbel.cli.output import print_json, print_line
from umbel.cli.send import SendCommand
from umbel.cli.short_names import find_job_id, find_task_name
from umbel.errors import BadMessage, UnknownTask
from umbel.messages import Body, Record
from umbel.operations import Operations
from umbel.tasks import Task


@command(cls=SendCommand)
@click.argument("job", metavar="ID")
@click.argument("words", metavar="[ARGS | KEY=VALUE]…", nargs=-1)
@click.option("--kwargs", metavar="JSON", help="Keyword arguments as a JSON object.")
@click.option("--task", help="Run this task instead; its last part is enough.")
@click.option("--queue", help="Put it into this queue instead.")
@click.option(
    "--priority", type=click.IntRange(-32767, 32767), help="Jobs with a higher priority run first."
)
def edit(
    context: CommandContext,
    job: str,
    words: tuple[str, ...],
    kwargs: str | None,
    task: str | None,
    queue: str | None,
    priority: int | None,
    as_json: bool,
) -> None:
    """Change a buried, cancelled or expired job and queue it again.

    KEY=VALUE changes that argument and keeps the others. Plain ARGS replace all arguments. They
    are read as by "umbel send" and must fit the task. The job keeps its id and its history.

    \b
    umbel -A tasks jobs edit d32ebc amount=8
    umbel -A tasks jobs edit d32ebc --queue slow
    """
    call = parse([word.removeprefix("\0") for word in words], kwargs)
    if not (call.args or call.kwargs or task or queue or priority is not None):
        raise click.UsageError(
            "give at least one change. To run the job as it was: umbel jobs retry ID"
        )
    app = context.app_or_bare

    async def work(operations: Operations) -> str:
        record = await operations.job(await find_job_id(operations, job.removeprefix("\0")))
        known = _task(app, record, task)
        changes = Changes(
            task=known.name if task and known else task,
            kind=known.kind if known else None,
            queue=queue,
            priority=priority,
            body=_body(app, record, known, call, moved=bool(task)),
        )
        await operations.retry([record.id], changes)
        return record.id

    done = context.run(work)
    print_json({"queued": [done]}) if as_json else print_line(f"{done}  changed and queued again")


def _task(app: Umbel, record: Record, given: str | None) -> Task[..., Any] | None:
    """Return the task that the job will run; None if it is not registered here."""
    if given is not None and len(app.registry):
        return app.registry.find(find_task_name(app.registry, given))
    with suppress(UnknownTask):
        return app.registry.find(given or record.task)
    return None


def _body(
    app: Umbel, record: Record, task: Task[..., Any] | None, call: Call, *, moved: bool
) -> Body | None:
    """Return the changed arguments; None if they stay. Raises BadMessage if they do not fit."""
    changed = bool(call.args or call.kwargs)
    if not changed and not moved:
        return None
    data = _merged(app, record, task, call) if changed else app.codec.decode(record.body)
    body = app.codec.encode(data, what=f"arguments of {record.task}")
    if task is not None:
        task.parameters.decode(app.codec.decode(body))
    return body


def _merged(app: Umbel, record: Record, task: Task[..., Any] | None, call: Call) -> dict[str, Any]:
    """Return the arguments of the job with the given ones in their places."""
    args, kwargs = _fitted(task, call)
    if call.args:
        return {"args": args, "kwargs": kwargs}
    try:
        old = app.codec.decode(record.body)
        kept, named = list(old.get("args") or ()), dict(old.get("kwargs") or {})
    except (BadMessage, AttributeError, TypeError, ValueError):
        return {"args": [], "kwargs": kwargs}  # the old arguments cannot be read
    places = {name: place for place, name in enumerate(_positional(task)) if place < len(kept)}
    for name, value in kwargs.items():
        if name in places:
            kept[places[name]] = value
        else:
            named[name] = value
    return {"args": kept, "kwargs": named}


def _fitted(task: Task[..., Any] | None, call: Call) -> tuple[list[Any], dict[str, Any]]:
    if task is not None:
        return fit_to_task(task, call)
    return [word.value for word in call.args], {n: word.value for n, word in call.kwargs.items()}


def _positional(task: Task[..., Any] | None) -> list[str]:
    if task is None:
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = task.parameters.signature.parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind in kinds]

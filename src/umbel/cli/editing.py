"""``umbel jobs edit``: what a job runs with is changed before it is queued anew."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

import click

from umbel.app import Umbel
from umbel.backends import Changes
from umbel.cli.answers import answer, say
from umbel.cli.arguments import Call, parse, typed
from umbel.cli.command_context import CommandContext, command
from umbel.cli.names import full_id, full_name
from umbel.cli.send import SendCommand
from umbel.errors import BadMessage, UnknownTask
from umbel.messages import Body, Record
from umbel.operations import Operations
from umbel.tasks import Task


@command(cls=SendCommand)
@click.argument("job", metavar="ID")
@click.argument("words", metavar="[ARGS | KEY=VALUE]…", nargs=-1)
@click.option("--kwargs", metavar="JSON", help="Keyword arguments as a JSON object.")
@click.option("--task", help="Run this task instead; its last part is enough.")
@click.option("--queue", help="Into this queue instead of its own.")
@click.option("--priority", type=click.IntRange(-32767, 32767), help="Higher runs first.")
def edit(
    frame: CommandContext,
    job: str,
    words: tuple[str, ...],
    kwargs: str | None,
    task: str | None,
    queue: str | None,
    priority: int | None,
    as_json: bool,
) -> None:
    """Change a job that was buried, cancelled or expired, and queue it anew.

    KEY=VALUE changes that argument and leaves the others. Plain ARGS replace all arguments. They
    are read as by "umbel send" and must fit the task. The job keeps its id and its story.

    \b
    umbel -A tasks jobs edit d32ebc amount=8
    umbel -A tasks jobs edit d32ebc --queue slow
    """
    call = parse([word.removeprefix("\0") for word in words], kwargs)
    if not (call.args or call.kwargs or task or queue or priority is not None):
        raise click.UsageError("give what is to change; to run it as it was: umbel jobs retry ID")
    app = frame.app_or_bare

    async def work(operations: Operations) -> str:
        record = await operations.job(await full_id(operations, job.removeprefix("\0")))
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

    done = frame.ask(work)
    answer({"queued": [done]}) if as_json else say(f"{done}  changed and queued anew")


def _task(app: Umbel, record: Record, given: str | None) -> Task[..., Any] | None:
    """The task the job is to run; None where nobody here knows it."""
    if given is not None and len(app.registry):
        return app.registry.find(full_name(app.registry, given))
    with suppress(UnknownTask):
        return app.registry.find(given or record.task)
    return None


def _body(
    app: Umbel, record: Record, task: Task[..., Any] | None, call: Call, *, moved: bool
) -> Body | None:
    """The changed arguments; None when they stay. Raises BadMessage when the task refuses them."""
    changed = bool(call.args or call.kwargs)
    if not changed and not moved:
        return None
    data = _merged(app, record, task, call) if changed else app.codec.decode(record.body)
    body = app.codec.encode(data, what=f"arguments of {record.task}")
    if task is not None:
        task.parameters.decode(app.codec.decode(body))
    return body


def _merged(app: Umbel, record: Record, task: Task[..., Any] | None, call: Call) -> dict[str, Any]:
    """What is given, in place of what it replaces."""
    args, kwargs = _fitted(task, call)
    if call.args:
        return {"args": args, "kwargs": kwargs}
    try:
        old = app.codec.decode(record.body)
        kept, named = list(old.get("args") or ()), dict(old.get("kwargs") or {})
    except (BadMessage, AttributeError, TypeError, ValueError):
        return {"args": [], "kwargs": kwargs}  # nothing readable to keep
    places = {name: place for place, name in enumerate(_positional(task)) if place < len(kept)}
    for name, value in kwargs.items():
        if name in places:
            kept[places[name]] = value
        else:
            named[name] = value
    return {"args": kept, "kwargs": named}


def _fitted(task: Task[..., Any] | None, call: Call) -> tuple[list[Any], dict[str, Any]]:
    if task is not None:
        return typed(task, call)
    return [word.value for word in call.args], {n: word.value for n, word in call.kwargs.items()}


def _positional(task: Task[..., Any] | None) -> list[str]:
    if task is None:
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = task.parameters.signature.parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind in kinds]

"""``umbel pause`` and ``umbel resume``: by queue, by task, or everything."""

from __future__ import annotations

from typing import Literal

import click

from umbel.app import Umbel
from umbel.cli.answers import answer, say
from umbel.cli.frame import Frame, command
from umbel.cli.names import full_name
from umbel.errors import UnknownTask
from umbel.operations import Operations
from umbel.stores import Pause

Scope = Literal["all", "queue", "task"]
Target = tuple[Scope, str]

_CONFIRM = 1.0


@command()
@click.argument("name", required=False, metavar="[QUEUE|TASK]")
@click.option("--queue", help="Pause this queue, whatever else has its name.")
@click.option("--task", help="Pause this task, whatever else has its name.")
@click.option("--reason", default="", help="Why, for whoever looks.")
def pause(
    frame: Frame, name: str | None, queue: str | None, task: str | None, reason: str, as_json: bool
) -> None:
    """Start no more jobs: of a queue, of a task, or at all. What runs goes on.

    It holds until resumed, for workers started later too.
    """
    app = frame.site

    async def work(operations: Operations) -> None:
        scope, target = await _target(app, operations, name, queue, task)
        epoch = await operations.pause(scope, target, reason)
        await _report(operations, "paused", scope, target, epoch, as_json)

    frame.ask(work)


@command()
@click.argument("name", required=False, metavar="[QUEUE|TASK]")
@click.option("--queue", help="Resume this queue, whatever else has its name.")
@click.option("--task", help="Resume this task, whatever else has its name.")
def resume(
    frame: Frame, name: str | None, queue: str | None, task: str | None, as_json: bool
) -> None:
    """Undo a pause. Without a name: the pause of everything."""
    app = frame.site

    async def work(operations: Operations) -> None:
        pauses = await operations.pauses()
        found = _among(pauses, name) if name and not queue and not task else None
        scope, target = found or await _target(app, operations, name, queue, task)
        epoch = await operations.resume(scope, target)
        await _report(operations, "resumed", scope, target, epoch, as_json)

    frame.ask(work)


def _among(pauses: tuple[Pause, ...], name: str) -> Target | None:
    """What is paused under a name. Raises UsageError when it is two things."""
    found: list[Target] = [
        (pause.scope, pause.name)
        for pause in pauses
        if pause.name == name or (pause.scope == "task" and pause.name.endswith(f".{name}"))
    ]
    if len(found) > 1:
        raise click.UsageError(f"{name!r} is paused as {_said(found)}: say --queue or --task.")
    return found[0] if found else None


async def _target(
    app: Umbel, operations: Operations, name: str | None, queue: str | None, task: str | None
) -> Target:
    """What is meant. Raises UsageError when that is nothing or two things."""
    if (name is not None) + (queue is not None) + (task is not None) > 1:
        raise click.UsageError("give one of: a name, --queue, --task.")
    if queue is not None:
        return "queue", queue
    if task is not None:
        return "task", _task(app, task) or task
    if name is None:
        return "all", ""
    found: list[Target] = []
    if name in {*app.registry.queues(), *(view.name for view in await operations.queues())}:
        found.append(("queue", name))
    known = _task(app, name)
    if known is not None:
        found.append(("task", known))
    if len(found) == 1:
        return found[0]
    if found:
        raise click.UsageError(f"{name!r} is {_said(found)}: say --queue {name} or --task {name}.")
    raise click.UsageError(
        f"{name!r} is no queue and no task known here: say --queue {name} or --task {name}"
        " if it will be."
    )


def _task(app: Umbel, name: str) -> str | None:
    try:
        return full_name(app.registry, name)
    except UnknownTask:
        return None


def _said(targets: list[Target]) -> str:
    return " and ".join(f"{scope} {name}" for scope, name in targets)


async def _report(
    operations: Operations, word: str, scope: Scope, name: str, epoch: int, as_json: bool
) -> None:
    done, living = await operations.confirmed(epoch, _CONFIRM)
    left = [p for p in await operations.pauses() if (p.scope, p.name) != (scope, name)]
    if as_json:
        answer(
            {
                "scope": scope,
                "name": name,
                "state": word,
                "workers": living,
                "confirmed": done,
                "also_paused": [{"scope": p.scope, "name": p.name} for p in left],
            }
        )
        return
    what = "everything" if scope == "all" else f"{scope} {name}"
    workers = "worker" if living == 1 else "workers"
    heard = f"{done} of {living} {workers} confirmed" if living else "no worker lives"
    say(f"{what} {word}; {heard}")
    if done < living:
        say("the others will with their next heartbeat: see umbel workers")
    if left and word == "resumed":
        say(f"still paused: {', '.join(f'{p.scope} {p.name}'.strip() for p in left)}")

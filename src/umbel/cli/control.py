"""``umbel pause`` and ``umbel resume``: by queue, task, gate or worker, or everything."""

from __future__ import annotations

import difflib
from typing import NamedTuple

import click

from umbel.app import Umbel
from umbel.backends import Pause, Scope
from umbel.cli.answers import answer, say
from umbel.cli.command_context import CommandContext, command
from umbel.cli.names import by_token, full_name, names_token, worker_named
from umbel.errors import UnknownTask
from umbel.messages import POOL, rule_of
from umbel.operations import Operations

Target = tuple[Scope, str]

_CONFIRM = 1.0
_KINDS = ("limit:", "rate:", POOL)
"""What the name of a gate begins with."""


class Chosen(NamedTuple):
    """What somebody names on the command line."""

    name: str | None
    queue: str | None
    task: str | None
    gate: str | None
    worker: str | None


@command()
@click.argument("name", required=False, metavar="[QUEUE|TASK]")
@click.option("--queue", help="Pause this queue, whatever else has its name.")
@click.option("--task", help="Pause this task, whatever else has its name.")
@click.option("--gate", help="Let nobody pass this gate, as umbel limits and pools name it.")
@click.option("--worker", metavar="NAME|INDEX", help="Let this worker fetch nothing.")
@click.option("--reason", default="", help="Why, for whoever looks.")
def pause(frame: CommandContext, reason: str, as_json: bool, **chosen: str | None) -> None:
    """Start no more jobs: of a queue, of a task, at a gate, on a worker, or at all.

    What runs goes on. It holds until resumed, for workers started later too.

    \b
    umbel -A tasks pause mail
    umbel -A tasks pause --gate limit:tasks.mail/tenant#acme
    """
    app, named = frame.app_or_bare, Chosen(**chosen)

    async def work(operations: Operations) -> None:
        scope, target = await _target(app, operations, named)
        if scope == "gate":
            await _check_gate(operations, target)
        epoch = await operations.pause(scope, target, reason)
        await _report(operations, "paused", scope, target, epoch, as_json)

    frame.ask(work)


@command()
@click.argument("name", required=False, metavar="[QUEUE|TASK]")
@click.option("--queue", help="Resume this queue, whatever else has its name.")
@click.option("--task", help="Resume this task, whatever else has its name.")
@click.option("--gate", help="Resume this gate.")
@click.option("--worker", metavar="NAME|INDEX", help="Resume this worker.")
def resume(frame: CommandContext, as_json: bool, **chosen: str | None) -> None:
    """Undo a pause. Without a name: the pause of everything."""
    app, named = frame.app_or_bare, Chosen(**chosen)

    async def work(operations: Operations) -> None:
        pauses = await operations.pauses()
        alone = named.name and not any(named[1:])
        found = _among(pauses, named.name) if named.name and alone else None
        scope, target = found or await _target(app, operations, named)
        epoch = await operations.resume(scope, target)
        await _report(operations, "resumed", scope, target, epoch, as_json)

    frame.ask(work)


def _among(pauses: tuple[Pause, ...], name: str) -> Target | None:
    """What is paused under a name. Raises UsageError when it is two things."""
    found: list[Target] = [
        (pause.scope, pause.name)
        for pause in pauses
        if not pause.holder
        and (pause.name == name or (pause.scope == "task" and pause.name.endswith(f".{name}")))
    ]
    if len(found) > 1:
        raise click.UsageError(
            f"{name!r} is paused as {_said(found)}: say which, as in --{found[0][0]}."
        )
    return found[0] if found else None


async def _target(app: Umbel, operations: Operations, named: Chosen) -> Target:
    """What is meant. Raises UsageError when that is nothing or two things."""
    if sum(one is not None for one in named) > 1:
        raise click.UsageError("give one of: a name, --queue, --task, --gate, --worker.")
    name, queue, task, gate, worker = named
    if worker is not None:
        return "worker", await _worker(operations, worker)
    if gate is not None:
        return "gate", gate
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
    if name.startswith(_KINDS):
        raise click.UsageError(f"{name!r} is no queue and no task: say --gate {name}")
    raise click.UsageError(
        f"{name!r} is no queue and no task known here: say --queue {name} or --task {name}"
        " if it will be."
    )


async def _worker(operations: Operations, named: str) -> str:
    """The name of a worker that is called so, or sits at that index. Raises UsageError."""
    seats = await operations.seats()
    names = {seat.worker for seat in seats}
    found = [seat.worker for seat in seats if seat.index == worker_named(named)]
    if not found and named in names:
        return named
    if not found:
        raise click.UsageError(
            f"--worker {named!r}: there is {', '.join(sorted(names)) or 'no worker'};"
            " see umbel workers"
        )
    return found[0]


async def _check_gate(operations: Operations, gate: str) -> None:
    """Raises UsageError: there is no such gate, or there is one for each token."""
    rule = rule_of(gate)
    found = await operations.gates(rule) if rule else []
    if not found:
        known = sorted({rule_of(one.key) for one in await operations.gates()})
        near = difflib.get_close_matches(rule, known, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "see umbel limits and umbel pools"
        raise click.UsageError(f"--gate {gate!r}: no worker has told of it; {hint}")
    if gate != rule and not names_token(rule):
        raise click.UsageError(f"--gate {gate}: {rule} has no tokens; say --gate {rule}")
    if any(one.key == gate and by_token(one) for one in found):
        raise click.UsageError(
            f"--gate {gate}: there is a gate for each token. Say which, {gate}#TOKEN,"
            f" or stop all of them: umbel limits set {gate} 0"
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
    every = await operations.pauses()
    left = [p for p in every if (p.scope, p.name, p.holder) != (scope, name, "")]
    if as_json:
        answer(
            {
                "scope": scope,
                "name": name,
                "state": word,
                "workers": living,
                "confirmed": done,
                "also_paused": [_document(pause) for pause in left],
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
        say(f"still paused: {', '.join(_named(pause) for pause in left)}")


def _document(pause: Pause) -> dict[str, str]:
    found = {"scope": pause.scope, "name": pause.name}
    return found | {"holder": pause.holder} if pause.holder else found


def _named(pause: Pause) -> str:
    by = f", by a deployment: see umbel {pause.holder} status" if pause.holder else ""
    return f"{pause.scope} {pause.name}".strip() + by

"""``umbel pause``, ``pause list`` and ``resume``: by queue, task, gate or worker, or everything."""

from __future__ import annotations

import difflib
from typing import NamedTuple

import click

from umbel.app import Umbel
from umbel.cli.command_context import CommandContext, command
from umbel.cli.confirmation import require_confirmation
from umbel.cli.output import print_json, print_line
from umbel.cli.pause_lines import print_pause_table
from umbel.cli.short_names import can_have_tokens, find_task_name, has_gate_per_token, parse_worker
from umbel.control import Pause, Scope
from umbel.errors import UnknownTask
from umbel.messages import POOL_PREFIX, WORKER_RULE_PREFIX, rule_of
from umbel.operations import Operations
from umbel.operations.pause_texts import how_it_ends, paused_by, paused_subject

Target = tuple[Scope, str]

_CONFIRMATION_TIMEOUT_SECONDS = 1.0
_LIST = "list"
"""The name that lists the pauses; a queue or task that is called so needs its option."""
_GATE_PREFIXES = ("limit:", "rate:", POOL_PREFIX)


class Names(NamedTuple):
    """The names on the command line; at most one of them may be given."""

    name: str | None
    queue: str | None
    task: str | None
    gate: str | None
    worker: str | None


@command()
@click.argument("name", required=False, metavar="[list|QUEUE|TASK]")
@click.option("--queue", help="Pause this queue.")
@click.option("--task", help="Pause this task.")
@click.option("--gate", help="Let no job pass this gate; umbel limits and umbel pools list them.")
@click.option("--worker", metavar="NAME|INDEX", help="Let this worker fetch no jobs.")
@click.option("--reason", default="", help="Reason, shown to operators.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation before all is paused.")
def pause(
    context: CommandContext, reason: str, yes: bool, as_json: bool, **chosen: str | None
) -> None:
    """Stop starting jobs of a queue or task, at a gate, on a worker, or everywhere.

    Running jobs continue. The pause lasts until umbel resume, also for workers that start later.
    Without a name, everything is paused, after a confirmation. "umbel pause list" shows what is
    paused, by whom, for how long and why.

    \b
    umbel -A tasks pause mail --reason "provider is down"
    umbel -A tasks pause list
    umbel -A tasks pause --gate limit:tasks.mail/tenant#acme
    """
    named = Names(**chosen)
    if named.name == _LIST:
        _list(context, named, has_options=bool(reason or yes), as_json=as_json)
        return
    if not any(named):
        require_confirmation("Pause everything, so that no job of any queue starts?", yes)
    app = context.app_or_bare

    async def work(operations: Operations) -> None:
        scope, target = await _target(app, operations, named)
        if scope == "gate":
            await _check_gate(operations, target)
        epoch = await operations.pause(scope, target, reason)
        await _report(operations, "paused", scope, target, epoch, as_json)

    context.run(work)


def _list(context: CommandContext, named: Names, *, has_options: bool, as_json: bool) -> None:
    if has_options or any(named[1:]):
        raise click.UsageError(
            "umbel pause list takes only --json. To pause a queue or a task that is called list,"
            " give --queue list or --task list."
        )
    found = context.run(lambda operations: operations.pauses())
    if as_json:
        print_json(found)
    else:
        print_pause_table(found)


@command()
@click.argument("name", required=False, metavar="[QUEUE|TASK]")
@click.option("--queue", help="Resume this queue.")
@click.option("--task", help="Resume this task.")
@click.option("--gate", help="Resume this gate.")
@click.option("--worker", metavar="NAME|INDEX", help="Resume this worker.")
def resume(context: CommandContext, as_json: bool, **chosen: str | None) -> None:
    """End a pause. Without a name, end the pause of everything.

    Pauses of queues, tasks, gates and workers stay until each is resumed; "umbel pause list" shows
    them. It is no error if nothing was paused.
    """
    app, named = context.app_or_bare, Names(**chosen)

    async def work(operations: Operations) -> None:
        pauses = await operations.pauses()
        is_name_only = named.name and not any(named[1:])
        found = _find_paused(pauses, named.name) if named.name and is_name_only else None
        scope, target = found or await _target(app, operations, named)
        resumed = await operations.resume(scope, target)
        word = "resumed" if resumed.existed else "not paused"
        await _report(operations, word, scope, target, resumed.epoch, as_json)

    context.run(work)


def _find_paused(pauses: tuple[Pause, ...], name: str) -> Target | None:
    """Return what is paused under a name, or None. Raises UsageError if the name is ambiguous."""
    found: list[Target] = [
        (pause.scope, pause.name)
        for pause in pauses
        if not pause.holder
        and (pause.name == name or (pause.scope == "task" and pause.name.endswith(f".{name}")))
    ]
    if len(found) > 1:
        raise click.UsageError(
            f"{name!r} is paused as {_describe(found)}: say which, as in --{found[0][0]} {name}."
        )
    return found[0] if found else None


async def _target(app: Umbel, operations: Operations, named: Names) -> Target:
    """Return what the names stand for. Raises UsageError if it is unknown or ambiguous."""
    if sum(one is not None for one in named) > 1:
        raise click.UsageError("give only one of: a name, --queue, --task, --gate, --worker.")
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
        raise click.UsageError(
            f"{name!r} is {_describe(found)}: give --queue {name} or --task {name}."
        )
    if name.startswith(_GATE_PREFIXES):
        raise click.UsageError(f"{name!r} is neither a queue nor a task: give --gate {name}")
    raise click.UsageError(
        f"{name!r} is neither a known queue nor a known task: if it does not exist yet, give"
        f" --queue {name} or --task {name}."
    )


async def _worker(operations: Operations, named: str) -> str:
    """Return the name of the worker with this name or index. Raises UsageError."""
    worker_indexes = await operations.worker_indexes()
    names = {worker.worker for worker in worker_indexes}
    found = [worker.worker for worker in worker_indexes if worker.index == parse_worker(named)]
    if not found and named in names:
        return named
    if not found:
        raise click.UsageError(
            f"--worker {named!r}: no such worker; known workers:"
            f" {', '.join(sorted(names)) or 'none'}. See umbel workers."
        )
    return found[0]


async def _check_gate(operations: Operations, gate: str) -> None:
    """Raise UsageError if there is no such gate, or if there is one for each token."""
    rule = rule_of(gate)
    found = await operations.gates(rule) if rule else []
    if not found:
        known = sorted({rule_of(one.key) for one in await operations.gates()})
        near = difflib.get_close_matches(rule, known, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "see umbel limits and umbel pools"
        raise click.UsageError(f"--gate {gate!r}: no worker has declared it; {hint}")
    if gate.startswith(WORKER_RULE_PREFIX):
        raise click.UsageError(
            f"--gate {gate}: each worker counts it by itself, so it cannot be paused. Pause the"
            " task: umbel pause --task NAME"
        )
    if gate != rule and not can_have_tokens(rule):
        raise click.UsageError(f"--gate {gate}: {rule} has no tokens; give --gate {rule}")
    if any(one.key == gate and has_gate_per_token(one) for one in found):
        raise click.UsageError(
            f"--gate {gate}: there is a gate for each token. Give one of them, {gate}#TOKEN,"
            f" or stop all of them: umbel limits set {gate} 0"
        )


def _task(app: Umbel, name: str) -> str | None:
    try:
        return find_task_name(app.registry, name)
    except UnknownTask:
        return None


def _describe(targets: list[Target]) -> str:
    return " and ".join(f"{scope} {name}" for scope, name in targets)


async def _report(
    operations: Operations, word: str, scope: Scope, name: str, epoch: int, as_json: bool
) -> None:
    done, running = await operations.confirmed(epoch, _CONFIRMATION_TIMEOUT_SECONDS)
    every = await operations.pauses()
    left = [p for p in every if (p.scope, p.name, p.holder) != (scope, name, "")]
    if as_json:
        print_json(
            {
                "scope": scope,
                "name": name,
                "state": word,
                "workers": running,
                "confirmed": done,
                "also_paused": [_document(pause) for pause in left],
            }
        )
        return
    what = paused_subject(Pause(scope=scope, name=name))
    if word == "not paused":
        print_line(f"No operator has paused {what}." if left else "Nothing was paused.")
    else:
        _print_confirmations(f"{what} {word}", done, running)
    if left and word != "paused":
        print_line(f"Still paused: {', '.join(map(_describe_pause, left))}")


def _print_confirmations(change: str, done: int, running: int) -> None:
    workers = "worker" if running == 1 else "workers"
    confirmed = f"{done} of {running} {workers} confirmed" if running else "no workers are running"
    print_line(f"{change}; {confirmed}")
    if done < running:
        print_line("The others follow with their next heartbeat; see umbel workers.")


def _document(pause: Pause) -> dict[str, str]:
    found = {"scope": pause.scope, "name": pause.name}
    return found | {"holder": pause.holder} if pause.holder else found


def _describe_pause(pause: Pause) -> str:
    by = f", by {paused_by(pause)} ({how_it_ends(pause)})" if pause.holder else ""
    return paused_subject(pause) + by

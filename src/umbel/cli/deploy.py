"""``umbel deploy``: begin, end, status, audit."""

from __future__ import annotations

import getpass
import os
import re
import socket

import click

from umbel.app import Umbel
from umbel.backends import DeploymentPlan
from umbel.cli.answers import answer, say
from umbel.cli.command_context import CommandContext, plain_group
from umbel.cli.errors import FAILED
from umbel.cli.gatekeeping import Waiting, waited
from umbel.cli.standing import as_document, say_audit, say_code, say_status
from umbel.cli.words import duration
from umbel.messages import fresh_id
from umbel.operations import DeployView, Operations
from umbel.tasks.fingerprints import fingerprint, python

_LOOKING = 60.0
"""Seconds that a look through the whole history may take."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


@plain_group()
def deploy() -> None:
    """Deploy without fear: workers stop fetching, and you are told when to restart them.

    \b
    umbel -A shop deploy begin && migrate && restart-workers; umbel -A shop deploy end
    """


def _names(_: click.Context, option: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Names with commas between them. Raises BadParameter."""
    names = tuple(name.strip() for name in (value or "").split(",") if name.strip())
    if value is not None and not names:
        raise click.BadParameter("is empty: give one name or several, with commas between them.")
    return names


def _span(_: click.Context, option: click.Parameter, value: str) -> float:
    """A time: ``90``, ``90s``, ``10m``, ``12h``, ``7d``. Raises BadParameter."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no time: write 90, 90s, 10m, 12h or 7d.")
    return float(found[1]) * _UNITS[found[2] or "s"]


@deploy.command("begin")
@click.option(
    "--interval",
    metavar="TIME",
    callback=_span,
    show_default=True,
    default="20",
    help="Look at the latest after so long.",
)
@click.option(
    "--limit",
    metavar="TIME",
    callback=_span,
    show_default=True,
    default="600",
    help="Give up after so long, and resume.",
)
@click.option(
    "--workers", metavar="NAMES", callback=_names, help="Only these workers, by name: a,b."
)
@click.option("--queues", metavar="NAMES", callback=_names, help="Only these queues: a,b.")
@click.option("--reason", default="", help="Why, for whoever looks.")
@click.option("--force", is_flag=True, help="Take over a deployment that somebody left behind.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON, for programs.")
@click.pass_obj
def begin(
    frame: CommandContext,
    interval: float,
    limit: float,
    workers: tuple[str, ...],
    queues: tuple[str, ...],
    reason: str,
    force: bool,
    as_json: bool,
) -> int:
    """Stop all fetching; wait until workers are idle or run interruptible tasks only; say go.

    Nothing is fetched until umbel deploy end, by workers started meanwhile neither. When it is not
    "go" within the limit, or you end it with Ctrl-C, workers fetch again.

    \b
    Exit codes: 0 go, 1 not within the limit, 4 somebody else deploys or took over, 3 the server
    cannot be reached, 129, 130 or 143 ended by a signal.
    """
    app, plan = frame.app_or_bare, _plan(workers, queues, reason)

    async def work(operations: Operations) -> int:
        await _check(app, operations, plan)
        waiting = Waiting(plan=plan, interval=interval, limit=limit, force=force, quiet=as_json)
        view, code = await waited(operations, waiting)
        if code == 0:
            view = await _with_code(frame, operations, view)
        if as_json:
            answer({**as_document(view), "exit_code": code})
        elif view.code is not None and view.code.restart:
            say_code(view.code)
        return code

    return frame.ask(work, deadline=limit + _LOOKING)


@deploy.command("end")
@click.option("--force", is_flag=True, help="Also somebody else's, or one that still waits.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON, for programs.")
@click.pass_obj
def end(frame: CommandContext, force: bool, as_json: bool) -> None:
    """Let workers fetch again. What operators had paused stays paused. Safe to repeat."""

    async def work(operations: Operations) -> None:
        ended = await operations.deploy.end(_who(), force=force)
        left = [pause for pause in await operations.pauses() if not pause.holder]
        if as_json:
            names = [{"scope": pause.scope, "name": pause.name} for pause in left]
            answer({"ended": ended, "still_paused": names})
            return
        if ended is None:
            say("no deployment is under way; nothing to resume")
        else:
            what = ", ".join(f"{s} {n}".strip() for s, n in ended.pauses())
            say(
                f"resumed: {'everything' if what == 'all' else what};"
                f" fetching stood still for {duration(ended.stood)}"
            )
        if left:
            names_ = ", ".join(f"{pause.scope} {pause.name}".strip() for pause in left)
            say(f"still paused by operators: {names_}")

    frame.ask(work)


@deploy.command("status")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON, for programs.")
@click.pass_obj
def status(frame: CommandContext, as_json: bool) -> None:
    """Show how a deployment stands, what runs where, and which workers run other code.

    The code compared is the one that this command has loaded: with -A, where the new code is.
    """

    async def work(operations: Operations) -> None:
        view = await operations.deploy.status(*_code(frame))
        if as_json:
            answer(as_document(view))
        else:
            say_status(view)

    frame.ask(work)


@deploy.command("audit")
@click.option(
    "--longer-than",
    metavar="TIME",
    callback=_span,
    show_default=True,
    default="60",
    help="What is too long.",
)
@click.option(
    "--since",
    metavar="TIME",
    callback=_span,
    show_default=True,
    default="7d",
    help="Look so far back: 12h, 7d.",
)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON, for programs.")
@click.pass_obj
def audit(frame: CommandContext, longer_than: float, since: float, as_json: bool) -> int:
    """Name tasks that are not interruptible and ran too long, from the records. For CI.

    \b
    Exit codes: 0 there is none, 1 there are some.
    """
    said = {task.name: task.declared.interruptible for task in frame.app_or_bare.registry}

    async def work(operations: Operations) -> int:
        found = await operations.deploy.audit(longer=longer_than, since=since, interruptible=said)
        if as_json:
            answer(found)
        else:
            say_audit(found)
        return FAILED if found.tasks else 0

    return frame.ask(work, deadline=_LOOKING)


def _plan(workers: tuple[str, ...], queues: tuple[str, ...], reason: str) -> DeploymentPlan:
    return DeploymentPlan(
        id=fresh_id(),
        who=_who(),
        host=socket.gethostname(),
        pid=os.getpid(),
        reason=reason,
        workers=workers,
        queues=queues,
    )


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user that has no name
        return f"user {os.getuid()}"


async def _check(app: Umbel, operations: Operations, plan: DeploymentPlan) -> None:
    """Raises UsageError: nobody and nothing has such a name."""
    if plan.workers:
        alive = sorted({worker.name for worker in await operations.workers()})
        _known("--workers", "worker lives", plan.workers, alive)
    if plan.queues:
        held = {view.name for view in await operations.queues()}
        _known("--queues", "queue is known", plan.queues, sorted({*app.registry.queues(), *held}))


def _known(option: str, what: str, names: tuple[str, ...], known: list[str]) -> None:
    for name in names:
        if name not in known:
            there = ", ".join(known) or "none"
            raise click.UsageError(f"{option} {name}: no such {what}; there are: {there}")


def _code(frame: CommandContext) -> tuple[dict[str, str] | None, str]:
    """The code of the application as loaded here; None when there is only a server's URL."""
    registry = frame.app_or_bare.registry
    if not len(registry):
        return None, ""
    return {task.name: fingerprint(task) for task in registry}, python()


async def _with_code(frame: CommandContext, operations: Operations, view: DeployView) -> DeployView:
    from msgspec.structs import replace

    code, version = _code(frame)
    if code is None:
        return view
    return replace(view, code=(await operations.deploy.status(code, version)).code)

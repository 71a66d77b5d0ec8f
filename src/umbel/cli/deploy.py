"""``umbel deploy``: begin, end, status, audit."""

from __future__ import annotations

import os
import socket

import click
import msgspec

from umbel.app import Umbel
from umbel.cli.command_context import CommandContext, plain_group
from umbel.cli.deploy_begin import WaitOptions, wait_for_go
from umbel.cli.deploy_report import (
    deployment_document,
    print_audit,
    print_code_changes,
    print_status,
)
from umbel.cli.formatting import duration
from umbel.cli.operator import operator_name
from umbel.cli.output import print_json, print_line
from umbel.cli.times import seconds
from umbel.control import DeploymentPlan
from umbel.messages import fresh_id
from umbel.operations import DeployView, Operations
from umbel.processes.exit_codes import FAILED
from umbel.tasks.fingerprints import fingerprint, python_version

_HISTORY_TIMEOUT_SECONDS = 60.0
"""For a query over the whole history."""


@plain_group()
def deploy() -> None:
    """Stop fetching, wait until workers can be restarted, and resume.

    \b
    umbel -A shop deploy begin && migrate && restart-workers; umbel -A shop deploy end
    """


def _names(_: click.Context, option: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Return names that are separated by commas. Raises BadParameter."""
    names = tuple(name.strip() for name in (value or "").split(",") if name.strip())
    if value is not None and not names:
        raise click.BadParameter("is empty: give one or more names, separated by commas.")
    return names


@deploy.command("begin")
@click.option(
    "--interval",
    metavar="TIME",
    callback=seconds,
    show_default=True,
    default="20",
    help="Maximum time between checks.",
)
@click.option(
    "--limit",
    metavar="TIME",
    callback=seconds,
    show_default=True,
    default="600",
    help="Give up and resume after this time.",
)
@click.option(
    "--workers", metavar="NAMES", callback=_names, help="Only these workers, by name: a,b."
)
@click.option("--queues", metavar="NAMES", callback=_names, help="Only these queues: a,b.")
@click.option("--reason", default="", help="Reason, shown to operators.")
@click.option("--force", is_flag=True, help="Take over a deployment that is still open.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.pass_obj
def begin(
    context: CommandContext,
    interval: float,
    limit: float,
    workers: tuple[str, ...],
    queues: tuple[str, ...],
    reason: str,
    force: bool,
    as_json: bool,
) -> int:
    """Stop all fetching and wait until no uninterruptible task runs; then print "go".

    No worker fetches jobs until umbel deploy end, not even one that starts meanwhile. If it is not
    "go" within the limit, or if you press Ctrl-C, workers fetch again.

    \b
    Exit codes: 0 go, 1 not within the limit, 3 the server cannot be reached,
    4 another deployment is in progress or took over, 129, 130 or 143 stopped by a
    signal.
    """
    app, plan = context.app_or_bare, _plan(workers, queues, reason)

    async def work(operations: Operations) -> int:
        await _check(app, operations, plan)
        options = WaitOptions(plan=plan, interval=interval, limit=limit, force=force, quiet=as_json)
        view, code = await wait_for_go(operations, options)
        if code == 0:
            view = await _with_code(context, operations, view)
        if as_json:
            print_json({**deployment_document(view), "exit_code": code})
        elif view.code is not None and view.code.restart:
            print_code_changes(view.code)
        return code

    return context.run(work, timeout=limit + _HISTORY_TIMEOUT_SECONDS)


@deploy.command("end")
@click.option(
    "--force", is_flag=True, help="Also end another user's deployment, or one that still waits."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.pass_obj
def end(context: CommandContext, force: bool, as_json: bool) -> None:
    """Let workers fetch again. Pauses by operators remain. It is safe to repeat."""

    async def work(operations: Operations) -> None:
        ended = await operations.deploy.end(operator_name(), force=force)
        left = [pause for pause in await operations.pauses() if not pause.holder]
        if as_json:
            names = [{"scope": pause.scope, "name": pause.name} for pause in left]
            print_json({"ended": ended, "still_paused": names})
            return
        if ended is None:
            print_line("No deployment is in progress.")
        else:
            what = ", ".join(f"{s} {n}".strip() for s, n in ended.pauses())
            print_line(
                f"Resumed: {'everything' if what == 'all' else what}."
                f" Fetching was paused for {duration(ended.stood)}."
            )
        if left:
            names_ = ", ".join(f"{pause.scope} {pause.name}".strip() for pause in left)
            print_line(f"Still paused by operators: {names_}")

    context.run(work)


@deploy.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.pass_obj
def status(context: CommandContext, as_json: bool) -> None:
    """Show the state of a deployment, the running jobs, and which workers run different code.

    The workers' code is compared with the code of the application that -A gives.
    """

    async def work(operations: Operations) -> None:
        view = await operations.deploy.status(*_code(context))
        if as_json:
            print_json(deployment_document(view))
        else:
            print_status(view)

    context.run(work)


@deploy.command("audit")
@click.option(
    "--longer-than",
    metavar="TIME",
    callback=seconds,
    show_default=True,
    default="60",
    help="Maximum time of a task.",
)
@click.option(
    "--since",
    metavar="TIME",
    callback=seconds,
    show_default=True,
    default="7d",
    help="Period to examine, until now: 12h, 7d.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.pass_obj
def audit(context: CommandContext, longer_than: float, since: float, as_json: bool) -> int:
    """Find tasks in the records that are not interruptible and ran too long. For CI.

    It also lists versions of workflows that the code no longer declares and that have runs: these
    need the tasks of the earlier code until they end.

    \b
    Exit codes: 0 no such task, 1 there are such tasks.
    """
    app = context.app_or_bare
    declared = {task.name: task.declared.interruptible for task in app.registry}

    async def work(operations: Operations) -> int:
        found = await operations.deploy.audit(
            longer=longer_than, since=since, interruptible=declared
        )
        if declared:
            versions = {name: one.version for name, one in app.workflows.items()}
            earlier = await operations.graphs.earlier_versions(versions)
            found = msgspec.structs.replace(found, workflows=tuple(earlier))
        if as_json:
            print_json(found)
        else:
            print_audit(found)
        return FAILED if found.tasks else 0

    return context.run(work, timeout=_HISTORY_TIMEOUT_SECONDS)


def _plan(workers: tuple[str, ...], queues: tuple[str, ...], reason: str) -> DeploymentPlan:
    return DeploymentPlan(
        id=fresh_id(),
        who=operator_name(),
        host=socket.gethostname(),
        pid=os.getpid(),
        reason=reason,
        workers=workers,
        queues=queues,
    )


async def _check(app: Umbel, operations: Operations, plan: DeploymentPlan) -> None:
    """Raise UsageError if there is no such worker or queue."""
    if plan.workers:
        alive = sorted({worker.name for worker in await operations.workers()})
        _check_names("--workers", "worker", plan.workers, alive)
    if plan.queues:
        held = {view.name for view in await operations.queues()}
        _check_names("--queues", "queue", plan.queues, sorted({*app.registry.queues(), *held}))


def _check_names(option: str, what: str, names: tuple[str, ...], known: list[str]) -> None:
    for name in names:
        if name not in known:
            there = ", ".join(known) or "none"
            raise click.UsageError(f"{option} {name}: no such {what}; known {what}s: {there}")


def _code(context: CommandContext) -> tuple[dict[str, str] | None, str]:
    """Return the fingerprints of the tasks and the Python version; None without tasks."""
    registry = context.app_or_bare.registry
    if not len(registry):
        return None, ""
    return {task.name: fingerprint(task) for task in registry}, python_version()


async def _with_code(
    context: CommandContext, operations: Operations, view: DeployView
) -> DeployView:
    from msgspec.structs import replace

    code, version = _code(context)
    if code is None:
        return view
    return replace(view, code=(await operations.deploy.status(code, version)).code)

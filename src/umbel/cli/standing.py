"""How a deployment stands, which code differs, which tasks are too long: for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from umbel.cli.answers import coloured, say, table
from umbel.cli.words import ago, clock, count, duration
from umbel.operations import Audit, CodeChanges, DeployView, RunView, StandingView

_NAMED = 10


def as_document(view: DeployView) -> dict[str, Any]:
    """A view for programs, with what follows from it."""
    found: dict[str, Any] = {"deployment": view.deployment, "workers": view.workers}
    if view.deployment is not None and view.deployment.is_under_way:
        found["ready"] = view.ready
        found["not_answered"] = [one.name for one in view.silent]
    found["in_the_way"] = [
        {"worker": one.name, **msgspec.to_builtins(run)} for one, run in view.in_the_way
    ]
    return found | {"code": view.code}


def say_status(view: DeployView) -> None:
    """All of it."""
    found = view.deployment
    if found is None:
        say("there was no deployment yet")
    elif found.is_under_way:
        why = f" ({found.reason})" if found.reason else ""
        say(
            coloured(found.state),
            f": {found.who} on {found.host}, process {found.pid}{why}, since {clock(found.since)}",
        )
        what = ", ".join(f"{scope} {name}".strip() for scope, name in found.pauses())
        ready = f", go for {duration(found.ready)}" if found.ready is not None else ""
        say(f"paused: {what}, for {duration(found.stood)}{ready}")
    else:
        when = ago(0.0, found.ended or 0.0)
        say(
            f"no deployment is under way; the last, by {found.who} on {found.host}, {found.state}"
            f" {when} ({found.outcome})"
        )
    _say_workers(view, found is not None and found.is_under_way)
    if view.code is not None:
        say()
        say_code(view.code)


def _say_workers(view: DeployView, under_way: bool) -> None:
    if not view.workers:
        say("no worker lives")
        return
    rows: list[tuple[object, ...]] = []
    for one in view.workers:
        answered = ("paused" if one.confirmed else "not answered") if under_way else ""
        first = (one.name, answered, one.host, one.pid, f"{duration(one.silent)} ago")
        runs = one.runs[:_NAMED]
        rows += [(*first, *_told(run)) for run in runs[:1]] or [(*first, "idle", "", "", "")]
        rows += [("", "", "", "", "", *_told(run)) for run in runs[1:]]
        if len(one.runs) > _NAMED:
            rows.append(("", "", "", "", "", f"and {len(one.runs) - _NAMED} more", "", "", ""))
    head = ("worker", "fetching", "host", "pid", "last beat", "task", "running for", "", "job")
    table(head, rows, right=("pid", "last beat", "running for"))


def _told(run: RunView) -> tuple[str, str, str, str]:
    may_be = "interruptible" if run.interruptible else "not interruptible"
    return run.task, duration(run.seconds), may_be, run.job


def say_runs(runs: Sequence[tuple[StandingView, RunView]]) -> None:
    """What runs where, and since when."""
    for one, run in runs[: 2 * _NAMED]:
        say(run_line(one, run))
    if len(runs) > 2 * _NAMED:
        say(f"  and {len(runs) - 2 * _NAMED} more")


def run_line(one: StandingView, run: RunView) -> str:
    """One of them."""
    may_be = " (interruptible)" if run.interruptible else ""
    return f"  {run.task} for {duration(run.seconds)} on {one.name}, job {run.job}{may_be}"


def say_code(code: CodeChanges) -> None:
    """Which tasks are other code than workers run, and who has to be restarted."""
    for task, workers in code.changed.items():
        say(f"changed: {task}, on {_some(workers)}")
    for task, workers in code.new.items():
        say(f"new: {task}, unknown to {_some(workers)}")
    for task, jobs in code.removed.items():
        waiting = f"; {count(jobs, 'job')} waiting for a worker that has it" if jobs else ""
        say(f"removed: {task}{waiting}")
    for worker, why in code.incomparable.items():
        say(f"cannot be compared: {worker} ({why})")
    if code.restart:
        say(f"restart: {', '.join(code.restart)}")
    elif not code.incomparable:
        say("code: every worker runs this very code; none needs a restart")
    if code.others:
        say(f"{count(code.others, 'worker')} of another application")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def say_audit(found: Audit) -> None:
    """Tasks that break the rule."""
    longer, since = duration(found.longer_than), duration(found.since)
    if not found.tasks:
        say(f"no uninterruptible task ran longer than {longer} in the last {since}")
        return
    rows = [
        (
            one.task,
            one.long,
            one.runs,
            "<0.1%" if one.share < 0.001 else f"{one.share:.1%}",
            duration(one.p50),
            duration(one.p95),
            duration(one.worst),
        )
        for one in found.tasks
    ]
    say(f"not interruptible, and longer than {longer} in the last {since}:")
    head = ("task", "too long", "of runs", "share", "p50", "p95", "worst")
    table(head, rows, right=head[1:])
    for one in found.tasks:
        say()
        say(f"{one.task}: {one.advice}")
        say(f"  the worst: {', '.join(one.jobs)}")

"""Prints the state of a deployment, differences of code, and tasks that run too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from umbel.cli.formatting import count, duration, local_time, relative_time
from umbel.cli.output import colored, print_line, print_table
from umbel.cli.short_names import short_id, short_ids
from umbel.operations import Audit, CodeChanges, DeployView, DeployWorkerView, RunView

_MAX_NAMES = 10


def deployment_document(view: DeployView) -> dict[str, Any]:
    """Return a view as plain data, for programs."""
    found: dict[str, Any] = {"deployment": view.deployment, "workers": view.workers}
    if view.deployment is not None and view.deployment.is_under_way:
        found["ready"] = view.ready
        found["not_answered"] = [one.name for one in view.unconfirmed]
    found["in_the_way"] = [
        {"worker": one.name, **msgspec.to_builtins(run)} for one, run in view.blocking_runs
    ]
    return found | {"code": view.code}


def print_status(view: DeployView) -> None:
    """Print the state of a deployment, its workers and differences of code."""
    found = view.deployment
    if found is None:
        print_line("There has been no deployment yet.")
    elif found.is_under_way:
        why = f" ({found.reason})" if found.reason else ""
        print_line(
            colored(found.state),
            f": {found.who} on {found.host}, process {found.pid}{why},"
            f" since {local_time(found.since)}",
        )
        what = ", ".join(f"{scope} {name}".strip() for scope, name in found.pauses())
        ready = f", go for {duration(found.ready)}" if found.ready is not None else ""
        print_line(f"Paused: {what}, for {duration(found.stood)}{ready}")
    else:
        when = relative_time(0.0, found.ended or 0.0)
        print_line(
            f"No deployment is in progress. The last one, by {found.who} on {found.host},"
            f" {found.state} {when} ({found.outcome})"
        )
    _print_workers(view, found is not None and found.is_under_way)
    if view.code is not None:
        print_line()
        print_code_changes(view.code)


def _print_workers(view: DeployView, under_way: bool) -> None:
    if not view.workers:
        print_line("No workers are running.")
        return
    rows: list[tuple[object, ...]] = []
    ids = short_ids([run.job for one in view.workers for run in one.runs])
    for one in view.workers:
        answered = ("paused" if one.confirmed else "not answered") if under_way else ""
        first = (one.name, answered, one.host, one.pid, f"{duration(one.silent)} ago")
        runs = one.runs[:_MAX_NAMES]
        rows += [(*first, *_run_cells(run, ids)) for run in runs[:1]] or [
            (*first, "idle", "", "", "")
        ]
        rows += [("", "", "", "", "", *_run_cells(run, ids)) for run in runs[1:]]
        if len(one.runs) > _MAX_NAMES:
            rows.append(("", "", "", "", "", f"and {len(one.runs) - _MAX_NAMES} more", "", "", ""))
    head = ("worker", "fetching", "host", "pid", "heartbeat", "task", "running for", "", "job")
    optional = ("host", "pid", "heartbeat")
    print_table(head, rows, right=("pid", "heartbeat", "running for"), optional=optional)


def _run_cells(run: RunView, ids: Mapping[str, str]) -> tuple[str, str, str, str]:
    kind = "interruptible" if run.interruptible else "not interruptible"
    return run.task, duration(run.seconds), kind, ids[run.job]


def print_runs(runs: Sequence[tuple[DeployWorkerView, RunView]]) -> None:
    """Print running jobs, their workers and times."""
    for one, run in runs[: 2 * _MAX_NAMES]:
        print_line(run_text(one, run))
    if len(runs) > 2 * _MAX_NAMES:
        print_line(f"  and {len(runs) - 2 * _MAX_NAMES} more")


def run_text(one: DeployWorkerView, run: RunView) -> str:
    """Return the line about one running job."""
    suffix = " (interruptible)" if run.interruptible else ""
    job = f"{short_id(run.job)}{suffix}"
    return f"  {run.task} for {duration(run.seconds)} on {one.name}, job {job}"


def print_code_changes(code: CodeChanges) -> None:
    """Print which tasks differ from the workers' code, and which workers to restart."""
    for task, workers in code.changed.items():
        print_line(f"changed: {task}, on {_list_some(workers)}")
    for task, workers in code.new.items():
        print_line(f"new: {task}, missing on {_list_some(workers)}")
    for task, jobs in code.removed.items():
        waiting = f"; {count(jobs, 'job')} waiting for a worker that has it" if jobs else ""
        print_line(f"removed: {task}{waiting}")
    for worker, why in code.incomparable.items():
        print_line(f"cannot be compared: {worker} ({why})")
    if code.restart:
        print_line(f"restart: {', '.join(code.restart)}")
    elif not code.incomparable:
        print_line("code: every worker runs this code; no restart is needed")
    if code.others:
        print_line(f"{count(code.others, 'worker')} of another application")


def _list_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def print_audit(found: Audit) -> None:
    """Print the tasks that run too long."""
    longer, since = duration(found.longer_than), duration(found.since)
    if not found.tasks:
        print_line(f"No uninterruptible task ran longer than {longer} in the last {since}.")
    else:
        _print_long_tasks(found, longer, since)
    if found.workflows:
        print_line()
        print_line(
            "Runs of workflow versions that this code no longer declares."
            " They keep the graph with which they were started:"
        )
        versions = [(one.workflow, one.version, one.live) for one in found.workflows]
        print_table(("workflow", "version", "running"), versions, right=("running",))


def _print_long_tasks(found: Audit, longer: str, since: str) -> None:
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
    print_line(f"Not interruptible, and longer than {longer} in the last {since}:")
    head = ("task", "too long", "of runs", "share", "p50", "p95", "worst")
    print_table(head, rows, right=head[1:])
    for one in found.tasks:
        print_line()
        print_line(f"{one.task}: {one.advice}")
        print_line(f"  longest: {', '.join(map(short_id, one.jobs))}")

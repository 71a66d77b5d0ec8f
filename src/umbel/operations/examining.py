"""Pure: which code differs, and what to do about tasks that run too long."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from umbel.backends import RunTimes, WorkerEntry
from umbel.operations.deployment_views import AuditedTask, CodeChanges

_RARE = 0.05


def compared(code: Mapping[str, str], python: str, workers: Sequence[WorkerEntry]) -> CodeChanges:
    """What of the application is other code than workers run."""
    changed: dict[str, list[str]] = {}
    new: dict[str, list[str]] = {}
    removed: set[str] = set()
    restart: list[str] = []
    incomparable: dict[str, str] = {}
    others = 0
    for worker in workers:
        if worker.tasks and not {*worker.tasks} & code.keys():
            others += 1
            continue
        fresh = sorted(code.keys() - {*worker.tasks})
        gone = {*worker.tasks} - code.keys()
        other: list[str] = []
        if worker.code and worker.python == python:
            other = sorted(t for t, mark in code.items() if worker.code.get(t, mark) != mark)
        else:
            runs = f"runs {worker.python}, this is {python}" if worker.code else "an older Umbel"
            incomparable[worker.name] = runs
        for task in other:
            changed.setdefault(task, []).append(worker.name)
        for task in fresh:
            new.setdefault(task, []).append(worker.name)
        removed |= gone
        if other or fresh or gone:
            restart.append(worker.name)
    return CodeChanges(
        changed={task: tuple(names) for task, names in sorted(changed.items())},
        new={task: tuple(names) for task, names in sorted(new.items())},
        removed=dict.fromkeys(sorted(removed), 0),
        restart=tuple(dict.fromkeys(restart)),
        incomparable=incomparable,
        others=others,
    )


def advised(times: RunTimes, longer: float) -> AuditedTask:
    """What to do about a task that took too long."""
    share = times.long / times.runs
    if share <= _RARE and times.p95 <= longer:
        enough = max(1, math.ceil(times.p95 * 2))
        advice = (
            f"hardly ever: give it timeout={min(enough, math.ceil(longer))}, so that a run which"
            " hangs ends; or make it interruptible"
        )
    elif times.p50 > longer:
        advice = (
            "as a rule: make it interruptible (safe to stop anywhere and run again; durable steps"
            " keep what is done), or split it into shorter tasks"
        )
    else:
        advice = (
            "now and then: split the large ones into shorter tasks, or make it interruptible with"
            " durable steps"
        )
    fields = {name: getattr(times, name) for name in times.__struct_fields__}
    return AuditedTask(**fields, share=share, advice=advice)

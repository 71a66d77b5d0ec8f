"""Compares code, and advises on tasks that run too long. Pure functions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

from umbel.backends import RunTimes, WorkerEntry
from umbel.operations.views import AuditedTask, CodeChanges

_RARE_SHARE = 0.05
"""Up to this share of its runs, a task is too long "hardly ever"."""


def compare_code(
    code: Mapping[str, str], python: str, workers: Sequence[WorkerEntry]
) -> CodeChanges:
    """Return the differences between the application's code and that of the workers."""
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


def code_name(worker: WorkerEntry) -> str:
    """Return a short name of the code that a worker runs, equal for equal code; "" if unknown."""
    if not worker.code:
        return ""
    lines = [worker.python, *(f"{task} {mark}" for task, mark in sorted(worker.code.items()))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:6]


def advise(times: RunTimes, longer: float) -> AuditedTask:
    """Return the task with advice on how to shorten its runs or make them interruptible."""
    share = times.long / times.runs
    if share <= _RARE_SHARE and times.p95 <= longer:
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

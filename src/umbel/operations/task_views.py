"""Describes tasks: what the code declares, how long they run, which workers have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from math import ceil
from typing import Any

from umbel.backends import JobFilter, RegisteredWorker
from umbel.messages import TERMINAL, Record, State
from umbel.operations.job_search import JobSearch
from umbel.operations.views import RunStatistics, TaskView
from umbel.tasks import Limit, Pool, Rate, Retry, Task, TaskOptions

_RATE_UNITS = {1.0: "s", 60.0: "m", 3600.0: "h", 86_400.0: "d"}
_SECONDS = ("delay", "expires", "timeout", "keep", "broadcast")
"""Options that are a number of seconds, or something else."""
_DEFAULTS = TaskOptions()


def recent_runs(task: str | None, window: int) -> JobSearch:
    """Return the search for the jobs from which run times are computed."""
    wanted = JobFilter(states=tuple(TERMINAL), task=task, limit=window)
    return JobSearch(wanted=wanted, window=max(window, JobSearch().window), with_values=False)


def describe_tasks(
    declared: Iterable[Task[..., Any]], workers: Sequence[RegisteredWorker], jobs: Iterable[Record]
) -> list[TaskView]:
    """Return the tasks that are declared here or that workers have, by name."""
    known = {task.name: task for task in declared}
    holders: dict[str, list[str]] = {}
    for worker in workers:
        for name in worker.entry.tasks:
            holders.setdefault(name, []).append(worker.entry.name)
    history: dict[str, list[Record]] = {}
    for job in jobs:
        history.setdefault(job.task, []).append(job)
    return [
        _describe(name, known.get(name), tuple(holders.get(name, ())), history.get(name, ()))
        for name in sorted({*known, *holders})
    ]


def _describe(
    name: str, task: Task[..., Any] | None, workers: tuple[str, ...], jobs: Sequence[Record]
) -> TaskView:
    runs = _statistics(jobs)
    if task is None:
        return TaskView(name=name, is_declared=False, workers=workers, runs=runs)
    return TaskView(
        name=name,
        kind=task.kind,
        queue=task.declared.queue,
        signature=str(task.parameters.signature),
        description=(task.function.__doc__ or "").strip().partition("\n")[0],
        options=option_texts(task.declared),
        workers=workers,
        runs=runs,
    )


def _statistics(jobs: Iterable[Record]) -> RunStatistics | None:
    """Return the run times of finished jobs; None if there are none."""
    times: list[float] = []
    jobs = [*jobs]
    for job in jobs:
        ended = (one for one in job.attempts if one.ended != "lost")
        times += [max(0.0, one.finished - one.started) for one in ended]
    if not times:
        return None
    times.sort()
    return RunStatistics(
        jobs=len(jobs),
        runs=len(times),
        buried=sum(job.state is State.BURIED for job in jobs),
        p50=times[ceil(len(times) * 0.5) - 1],
        p95=times[ceil(len(times) * 0.95) - 1],
        longest=times[-1],
    )


def option_texts(declared: TaskOptions) -> dict[str, str]:
    """Return the options that differ from the defaults, except the queue, as people write them."""
    found: dict[str, str] = {}
    for option in fields(declared):
        value = getattr(declared, option.name)
        text = _text(option.name, value)
        if option.name != "queue" and text != _text(option.name, getattr(_DEFAULTS, option.name)):
            found[option.name] = text
    return found


def _text(option: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_gate_text, value))
    if isinstance(value, Retry):
        return _retry_text(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and option in _SECONDS:
        return f"{value:g} s"
    if callable(value):
        return _name_of(value)
    return "yes" if value is True else str(value)


def _gate_text(gate: Limit | Rate | Pool) -> str:
    if isinstance(gate, Pool):
        return gate.name
    if isinstance(gate, Limit):
        text = _name_of(gate.capacity) if callable(gate.capacity) else f"{gate.capacity}"
    else:
        unit = _RATE_UNITS.get(gate.period, f"{gate.period:g}s")
        text = f"{gate.count}/{unit}"
    if gate.token is not None:
        text += f" for each {_name_of(gate.token) if callable(gate.token) else gate.token}"
    return f"{text} per worker" if gate.per == "worker" else text


def _retry_text(retry: Retry) -> str:
    backoff, default = retry.backoff, _DEFAULTS.retry.backoff
    waits = (("first", backoff.first), ("factor", backoff.factor), ("cap", backoff.cap))
    changed = [f"{name} {value:g}" for name, value in waits if value != getattr(default, name)]
    return ", ".join([f"{retry.times}", *changed]) if retry.times else "0"


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__)).rpartition(".")[2]

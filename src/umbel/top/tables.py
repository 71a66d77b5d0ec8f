"""The tables of the screen: which columns and rows they have, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from umbel.charts import TaskTotals
from umbel.control import Pause
from umbel.messages import Record, State
from umbel.operations import QueueView, WorkerView
from umbel.top.glyphs import Glyphs, number, rate, span
from umbel.top.reading import Snapshot

Pane = Literal["queues", "workers", "tasks"]
PANES: tuple[Pane, ...] = ("queues", "workers", "tasks")
_BAR = 8


class Column(NamedTuple):
    """A column: its heading, its width, where it is aligned, and at which end it is cut."""

    title: str
    width: int
    """0 for the one column that takes what is left."""
    is_right: bool = False
    is_cut_left: bool = False
    """Whether the end of a long text is kept, as of ``shop.orders.charge``."""


class Row(NamedTuple):
    """A row: what it is about, its cells, and the state that gives its colour."""

    key: str
    cells: tuple[str, ...]
    state: str = ""


class Table(NamedTuple):
    """A table that is ready to be drawn."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    sorted_by: str
    empty: str


SORTS: dict[str, tuple[str, ...]] = {
    "queues": ("oldest", "queued", "name"),
    "workers": ("name", "busy"),
    "tasks": ("failures", "p95", "runs", "name"),
    "jobs": ("newest", "longest", "tries"),
}
"""What each table can be sorted by; the first is the usual order."""


def make_table(pane: Pane, snapshot: Snapshot, sort: str, text: str, glyphs: Glyphs) -> Table:
    """Return a pane of the overview with the rows whose name contains the text."""
    return _MAKERS[pane](snapshot, sort, text.casefold(), glyphs)


# --- queues ----------------------------------------------------------------------------------

_QUEUE_COLUMNS = (
    Column("queued", 6, True),
    Column("wait", 5, True),
    Column("run", 5, True),
    Column("sched", 5, True),
    Column("oldest", 7, True),
    Column("ok/s", 5, True),
    Column("fail/s", 6, True),
    Column("workers", 7, True),
    Column("state", 10),
)


def _queue_order(sort: str) -> Callable[[QueueView], Any]:
    if sort == "name":
        return lambda one: one.name
    if sort == "queued":
        return lambda one: (-one.queued, one.name)
    return lambda one: (-(one.oldest or 0.0), one.name)


def _queue_table(snapshot: Snapshot, sort: str, text: str, glyphs: Glyphs) -> Table:
    queues = [one for one in snapshot.overview.queues if text in one.name.casefold()]
    rows = []
    for queue in sorted(queues, key=_queue_order(sort)):
        state = _queue_state(queue)
        cells = (
            glyphs.foreign(queue.name),
            number(queue.queued),
            number(queue.waiting),
            number(queue.running),
            number(queue.scheduled),
            span(queue.oldest),
            *map(rate, snapshot.queue_rates(queue.name)),
            f"{queue.workers}",
            state,
        )
        rows.append(Row(queue.name, cells, {"no worker": "silent", "": ""}.get(state, "paused")))
    columns = (Column("QUEUES", 0), *_QUEUE_COLUMNS)
    return Table(columns, tuple(rows), sort, "No queue holds jobs and no worker serves one.")


def _queue_state(queue: QueueView) -> str:
    if any(pause.scope == "all" for pause in queue.pauses):
        return "all paused"
    if queue.pauses:
        return "paused"
    return "no worker" if not queue.workers and queue.queued + queue.waiting else ""


# --- workers ---------------------------------------------------------------------------------

_WORKER_COLUMNS = (
    Column("busy", _BAR + 8),
    Column("io", 5, True),
    Column("cpu", 5, True),
    Column("beat", 7, True),
    Column("code", 7),
    Column("state", 9),
)


def _worker_table(snapshot: Snapshot, sort: str, text: str, glyphs: Glyphs) -> Table:
    workers = [one for one in snapshot.overview.workers if text in one.name.casefold()]
    order: Callable[[WorkerView], Any] = (
        (lambda one: (-one.running, one.name)) if sort == "busy" else (lambda one: one.name)
    )
    rows = tuple(
        Row(
            one.name,
            (
                glyphs.foreign(one.name),
                glyphs.own(_bar(one)),
                f"{one.io}",
                f"{one.cpu}",
                f"{one.silent:.1f} s" if one.silent < 60 else span(one.silent),
                glyphs.foreign(one.code),
                one.state,
            ),
            one.state,
        )
        for one in sorted(workers, key=order)
    )
    return Table((Column("WORKERS", 0), *_WORKER_COLUMNS), rows, sort, "No workers are running.")


def _bar(worker: WorkerView) -> str:
    slots = worker.io + worker.cpu
    share = min(1.0, worker.running / slots) if slots else 0.0
    filled = max(round(share * _BAR), min(1, worker.running))
    return f"{'█' * filled}{'░' * (_BAR - filled)} {worker.running}/{slots}"


# --- tasks -----------------------------------------------------------------------------------

_TASK_COLUMNS = (
    Column("runs/s", 6, True),
    Column("p50", 7, True),
    Column("p95", 7, True),
    Column("fail", 5, True),
    Column("last error", 20),
)


def _task_order(sort: str) -> Callable[[TaskTotals], Any]:
    if sort == "name":
        return lambda one: one.task
    if sort == "runs":
        return lambda one: (-one.runs, one.task)
    if sort == "p95":
        return lambda one: (-(one.p95 or 0.0), one.task)
    return lambda one: (-one.failures / max(1, one.runs), -(one.p95 or 0.0), one.task)


def _task_table(snapshot: Snapshot, sort: str, text: str, glyphs: Glyphs) -> Table:
    tasks = [one for one in snapshot.overview.numbers.tasks if text in one.task.casefold()]
    seconds = snapshot.measured_seconds
    errors: dict[str, str] = {}
    for group in sorted(snapshot.overview.groups, key=lambda one: -one.last):
        errors.setdefault(group.task, group.error)
    rows = []
    for task in sorted(tasks, key=_task_order(sort)):
        share = task.failures / task.runs if task.runs else 0.0
        cells = (
            glyphs.foreign(task.task),
            rate(task.runs / seconds if seconds else None),
            span(task.p50),
            span(task.p95),
            f"{share:.0%}" if task.failures else "",
            glyphs.own(glyphs.foreign(errors.get(task.task, ""))),
        )
        rows.append(Row(task.task, cells, "buried" if share > 0.1 else ""))
    empty = "No job has ended in the last 15 minutes."
    return Table((Column("TASKS", 0, is_cut_left=True), *_TASK_COLUMNS), tuple(rows), sort, empty)


_MAKERS: dict[Pane, Callable[[Snapshot, str, str, Glyphs], Table]] = {
    "queues": _queue_table,
    "workers": _worker_table,
    "tasks": _task_table,
}


# --- jobs ------------------------------------------------------------------------------------

_JOB_COLUMNS = (
    Column("state", 10),
    Column("job", 9),
    Column("try", 3, True),
    Column("age", 7, True),
    Column("took", 7, True),
)


def make_jobs_table(
    jobs: Sequence[Record], now: float, sort: str, text: str, glyphs: Glyphs
) -> Table:
    """Return the jobs whose task, id, state or error contains the text."""
    wanted = text.casefold()
    found = [job for job in jobs if not wanted or wanted in _searched(job)]
    if sort == "longest":
        found.sort(key=lambda job: -_took(job, now))
    elif sort == "tries":
        found.sort(key=lambda job: -job.attempt)
    rows = tuple(
        Row(
            job.id,
            (
                job.state.value,
                glyphs.foreign(job.id)[-8:],
                f"{job.attempt}",
                span(max(0.0, now - job.created)),
                span(_took(job, now)) if job.attempts or job.started else "",
                glyphs.foreign(job.task),
                glyphs.foreign(last_error(job)),
            ),
            job.state.value,
        )
        for job in found
    )
    columns = (*_JOB_COLUMNS, Column("task", 18, is_cut_left=True), Column("error", 0))
    return Table(columns, rows, sort, "No jobs match.")


def _searched(job: Record) -> str:
    return f"{job.task} {job.id} {job.state.value} {last_error(job)}".casefold()


def _took(job: Record, now: float) -> float:
    running = max(0.0, now - job.started) if job.state is State.RUNNING and job.started else 0.0
    return job.ran + running


def last_error(job: Record) -> str:
    """Return the newest error of a job in a few words, or the reason for its end."""
    failures = [job.failure, *(attempt.failure for attempt in reversed(job.attempts))]
    for failure in failures:
        if failure is not None:
            return failure.line[:400]
    return job.reason[:400]


def pause_of(pauses: Sequence[Pause], scope: str, name: str) -> Pause | None:
    """Return the pause of an operator; None if there is none."""
    found = (one for one in pauses if (one.scope, one.name) == (scope, name) and not one.holder)
    return next(found, None)

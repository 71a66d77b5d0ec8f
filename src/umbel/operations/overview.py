"""What is wrong now, since when and what helps; totals; what happened lately.

The first page of the dashboard and ``umbel top`` show it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from umbel.backends import JobFilter
from umbel.charts import ChartData, ChartRange, TaskTotals
from umbel.control import Pause
from umbel.messages import State
from umbel.operations.buried_groups import BuriedGroup, group_buried
from umbel.operations.job_search import JobSearch
from umbel.operations.pause_texts import without_missing_tasks
from umbel.operations.views import QueueView, WorkerView

if TYPE_CHECKING:
    from umbel.operations.operations import Operations

LIVE_STATES = ("queued", "waiting", "scheduled", "blocked", "running")
_OLD_SECONDS = 300.0
"""A queue whose oldest job waits longer is a problem."""
_FAILING_SHARE = 0.1
_FAILING_RUNS = 10
"""A task with so many runs, of which more than this share failed, is a problem."""
_BURIED_JOBS = 100
_BURIED_WINDOW = 2_000


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an operator should look at."""

    text: str
    since: float | None
    """When it began, in seconds since 1970 by the store's clock; None if this is not known."""
    page: str
    """The page of the dashboard that shows more."""
    command: str
    """A command that helps or shows more."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The state of everything, on one page."""

    now: float
    """The store's time."""
    problems: tuple[Problem, ...]
    queues: tuple[QueueView, ...]
    workers: tuple[WorkerView, ...]
    pauses: tuple[Pause, ...]
    totals: dict[str, int]
    """Live jobs by state."""
    buried: int
    buried_is_more: bool
    """Whether there are more buried jobs than ``buried``."""
    groups: tuple[BuriedGroup, ...]
    """The newest buried jobs by error, largest group first."""
    numbers: ChartData

    @property
    def running_workers(self) -> list[WorkerView]:
        """The workers that send heartbeats."""
        return [worker for worker in self.workers if worker.state != "silent"]


def command(address: str, words: str) -> str:
    """Return a command line for the application, which is MODULE:APP if it is not known."""
    needs_app = words.startswith("worker ") or words == "worker"
    is_known = address != "MODULE:APP"
    return f"umbel -A {address} {words}" if is_known or needs_app else f"umbel {words}"


async def read_overview(operations: Operations, range: ChartRange, address: str) -> Overview:
    """Return the state of everything. ``address`` is the application, for commands.

    Raises:
        Unavailable: the caller should try again.
    """
    queues = await operations.queues()
    workers = await operations.workers()
    pauses = without_missing_tasks(await operations.pauses())
    missing = await operations.missing_tasks()
    numbers = await operations.charts(range)
    buried = await operations.search(
        JobSearch(
            wanted=JobFilter(states=(State.BURIED,), limit=_BURIED_JOBS),
            window=_BURIED_WINDOW,
            with_values=False,
        )
    )
    problems = [
        *_worker_problems(workers, numbers.now, address),
        *_queue_problems(queues, numbers.now, address),
        *(
            Problem(
                text=f"{str(one)[:1].upper()}{str(one)[1:]}.",
                since=None,
                page=f"/queues/{quote(one.queue, safe='')}",
                command=command(address, "workers"),
            )
            for one in missing
        ),
        *_task_problems(numbers.tasks, address),
    ]
    return Overview(
        now=numbers.now,
        problems=tuple(problems),
        queues=tuple(queues),
        workers=tuple(workers),
        pauses=tuple(pauses),
        totals={state: sum(getattr(queue, state) for queue in queues) for state in LIVE_STATES},
        buried=len(buried.jobs),
        buried_is_more=buried.after is not None,
        groups=tuple(group_buried(buried.jobs)),
        numbers=numbers,
    )


def _worker_problems(workers: Iterable[WorkerView], now: float, address: str) -> Iterator[Problem]:
    if all(worker.state == "silent" for worker in workers):
        yield Problem(
            text="No workers are running.",
            since=None,
            page="/workers",
            command=command(address, "worker"),
        )
    for worker in workers:
        if worker.state == "silent":
            yield Problem(
                text=f"The worker {worker.name} sends no heartbeats.",
                since=now - worker.silent,
                page="/workers",
                command=command(address, "workers"),
            )


def _queue_problems(queues: Iterable[QueueView], now: float, address: str) -> Iterator[Problem]:
    for queue in queues:
        if queue.paused or not (queue.queued or queue.waiting):
            continue
        since = None if queue.oldest is None else now - queue.oldest
        page = f"/queues/{quote(queue.name, safe='')}"
        if not queue.workers:
            wait = "1 job waits" if queue.queued == 1 else f"{queue.queued:,} jobs wait"
            yield Problem(
                text=f"No worker serves the queue {queue.name}; {wait}.",
                since=since,
                page=page,
                command=command(address, f"worker --queues {shlex.quote(queue.name)}"),
            )
        elif queue.oldest is not None and queue.oldest > _OLD_SECONDS:
            yield Problem(
                text=f"The oldest job of the queue {queue.name} still waits.",
                since=since,
                page=page,
                command=command(address, "queues"),
            )


def _task_problems(tasks: Iterable[TaskTotals], address: str) -> Iterator[Problem]:
    for task in sorted(tasks, key=lambda one: -one.failures):
        if task.runs >= _FAILING_RUNS and task.failures > _FAILING_SHARE * task.runs:
            yield Problem(
                text=f"{task.failures / task.runs:.0%} of the runs of {task.task} fail.",
                since=task.failing_since,
                page="/buried",
                command=command(address, f"jobs list --task {shlex.quote(task.task)}"),
            )

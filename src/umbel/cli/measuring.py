"""What ``umbel bench`` measures, one function each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import msgspec

from umbel.app import Umbel
from umbel.backends import JobFilter
from umbel.errors import UmbelError
from umbel.messages import TERMINAL, Record
from umbel.operations import Operations
from umbel.tasks import Task

Ask = Callable[..., Any]
"""``CommandContext.ask``."""

_BATCH = 1_000
_IDLE_SECONDS = 3.0
_PATIENCE = 300.0
_LOOK = 0.1
_IMPORT = "import time; t = time.perf_counter(); import umbel; print(time.perf_counter() - t)"


class Measure(msgspec.Struct, frozen=True):
    """One figure."""

    name: str
    value: float
    unit: str
    note: str = ""


def import_time() -> float:
    """Seconds that ``import umbel`` takes in a fresh interpreter; the best of three."""
    command = [sys.executable, "-c", _IMPORT]
    return min(float(subprocess.check_output(command)) for _ in range(3))


def publish_singly(task: Task[..., Any], jobs: int) -> float:
    """Jobs a second, each published and durable before the next."""
    began = time.perf_counter()
    for number in range(jobs):
        task.delay(number)
    return jobs / (time.perf_counter() - began)


def publish_in_bulk(app: Umbel, task: Task[..., Any], jobs: int) -> float:
    """Jobs a second, published a thousand at a time."""
    began = time.perf_counter()
    for start in range(0, jobs, _BATCH):
        app.publish_many([task.s(n) for n in range(start, min(start + _BATCH, jobs))])
    return jobs / (time.perf_counter() - began)


def drained(ask: Ask, queue: str, jobs: int) -> float:
    """Jobs a second, from the first start to the last end, as the records tell it."""
    until = time.monotonic() + _PATIENCE
    while ask(lambda operations: _left(operations, queue)):
        if time.monotonic() > until:
            raise UmbelError(f"{jobs} jobs were not run within {_PATIENCE:g} s")
        time.sleep(_LOOK)
    wanted = JobFilter(queue=queue, states=tuple(TERMINAL), limit=jobs)
    records: list[Record] = ask(lambda operations: operations.jobs(wanted), 60.0)
    first = min(record.started or 0.0 for record in records)
    last = max(record.finished or 0.0 for record in records)
    return len(records) / max(last - first, 1e-9)


async def _left(operations: Operations, queue: str) -> int:
    found = [view for view in await operations.queues() if view.name == queue]
    return sum(view.queued + view.waiting + view.running + view.scheduled for view in found)


def latencies(app: Umbel, task: Task[..., Any], times: int) -> tuple[list[float], list[float]]:
    """Seconds until an idle worker has started a lone job, and until its result is here."""
    started, answered = [], []
    for _ in range(times):
        before, began = app.clock.now(), time.perf_counter()
        at = task.delay().get(timeout=30)
        answered.append(time.perf_counter() - began)
        started.append(at - before)
    return started, answered


def percentile(values: list[float], percent: int) -> float:
    """The value that so many percent do not exceed."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def idle_share(pid: int) -> float | None:
    """The share of one core a process uses while it has nothing to do; None if unknown here."""
    before = _cpu_seconds(pid)
    time.sleep(_IDLE_SECONDS)
    after = _cpu_seconds(pid)
    return None if before is None or after is None else (after - before) / _IDLE_SECONDS


def _cpu_seconds(pid: int) -> float | None:
    try:
        # The name in parentheses may hold anything; the numbers begin behind it.
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int | None:
    """Bytes of memory a process has; None if unknown here."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A worker process for the measured application, stopped at the end."""
    command = [sys.executable, "-m", "umbel", "-A", "umbel.cli.bench_tasks", "worker"]
    child = subprocess.Popen([*command, "--log-level", "error"], stdin=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

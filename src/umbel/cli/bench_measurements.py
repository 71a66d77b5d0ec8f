"""The measurements of ``umbel bench``, one function each."""

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

RunOperation = Callable[..., Any]
"""``CommandContext.run``."""

_BATCH_JOBS = 1_000
_IDLE_SECONDS = 3.0
_MAX_DRAIN_SECONDS = 300.0
_POLL_SECONDS = 0.1
_IMPORT = (
    "import time; t = time.perf_counter(); from umbel import Umbel; print(time.perf_counter() - t)"
)


class Measure(msgspec.Struct, frozen=True):
    """One figure."""

    name: str
    value: float
    unit: str
    note: str = ""


def import_time() -> float:
    """Return the seconds that ``from umbel import Umbel`` takes in a new process; best of three."""
    command = [sys.executable, "-c", _IMPORT]
    return min(float(subprocess.check_output(command)) for _ in range(3))


def publish_singly(task: Task[..., Any], jobs: int) -> float:
    """Return jobs per second, each published and durable before the next."""
    began = time.perf_counter()
    for number in range(jobs):
        task.delay(number)
    return jobs / (time.perf_counter() - began)


def publish_in_bulk(app: Umbel, task: Task[..., Any], jobs: int) -> float:
    """Return jobs per second, published a thousand at a time."""
    began = time.perf_counter()
    for start in range(0, jobs, _BATCH_JOBS):
        app.publish_many([task.s(n) for n in range(start, min(start + _BATCH_JOBS, jobs))])
    return jobs / (time.perf_counter() - began)


def drain_rate(run: RunOperation, queue: str, jobs: int) -> float:
    """Return jobs per second from the first start to the last end, according to the records."""
    until = time.monotonic() + _MAX_DRAIN_SECONDS
    while run(lambda operations: _left(operations, queue)):
        if time.monotonic() > until:
            raise UmbelError(f"{jobs} jobs were not run within {_MAX_DRAIN_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)
    wanted = JobFilter(queue=queue, states=tuple(TERMINAL), limit=jobs)
    records: list[Record] = run(lambda operations: operations.jobs(wanted), 60.0)
    first = min(record.started or 0.0 for record in records)
    last = max(record.finished or 0.0 for record in records)
    return len(records) / max(last - first, 1e-9)


async def _left(operations: Operations, queue: str) -> int:
    found = [view for view in await operations.queues() if view.name == queue]
    return sum(view.queued + view.waiting + view.running + view.scheduled for view in found)


def latencies(app: Umbel, task: Task[..., Any], times: int) -> tuple[list[float], list[float]]:
    """Return the seconds until an idle worker starts a lone job, and until its result is here."""
    started, answered = [], []
    for _ in range(times):
        before, began = app.clock.now(), time.perf_counter()
        at = task.delay().get(timeout=30)
        answered.append(time.perf_counter() - began)
        started.append(at - before)
    return started, answered


def percentile(values: list[float], percent: int) -> float:
    """Return the value that this percentage of the values does not exceed."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def idle_share(pid: int) -> float | None:
    """Return the share of one core that an idle process uses; None if the system does not tell."""
    before = _cpu_seconds(pid)
    time.sleep(_IDLE_SECONDS)
    after = _cpu_seconds(pid)
    return None if before is None or after is None else (after - before) / _IDLE_SECONDS


def _cpu_seconds(pid: int) -> float | None:
    try:
        # The name in parentheses may contain anything; the numbers follow it.
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int | None:
    """Return the resident bytes of a process; None if the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker process of the measured application while the block runs."""
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

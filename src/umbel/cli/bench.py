"""``umbel bench``: measures this machine and this server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from umbel.app import Umbel
from umbel.backends import JobFilter
from umbel.cli import bench_measurements
from umbel.cli.bench_measurements import Measure
from umbel.cli.command_context import CommandContext, command
from umbel.cli.output import print_json, print_line, print_note, print_table
from umbel.errors import UmbelError
from umbel.messages import TERMINAL
from umbel.operations import Operations

_SINGLE_JOBS = 1_000
_LATENCY_JOBS = 100


@command()
@click.option("--jobs", type=click.IntRange(10, 1_000_000), default=5_000, show_default=True)
@click.option("--url", help="Server to measure. Default: a temporary SQLite file.")
def bench(context: CommandContext, jobs: int, url: str | None, as_json: bool) -> None:
    """Measure throughput, latency and idle cost on this machine.

    It uses its own namespace, umbel-bench-PID, and deletes its jobs at the end. One worker process
    with the default settings runs the jobs.
    """
    with tempfile.TemporaryDirectory(prefix="umbel-bench-") as folder:
        os.environ["UMBEL_URL"] = url or f"sqlite:///{folder}/bench.db"
        os.environ["UMBEL_NAMESPACE"] = f"umbel-bench-{os.getpid()}"
        context.address = "umbel.cli.bench_tasks"
        app = context.app
        context.wait_for(app.backend.migrate(), 60)
        try:
            measures = list(_with_notes(_measure(context, app, jobs), as_json))
        finally:
            context.run(_clean_up, 60)
            with suppress(UmbelError, TimeoutError):
                app.close()
        _report(app, jobs, measures, as_json)


def _measure(context: CommandContext, app: Umbel, jobs: int) -> Iterator[Measure]:
    tasks: Any = import_module("umbel.cli.bench_tasks")
    yield Measure("import umbel", bench_measurements.import_time() * 1000, "ms")
    singly = min(jobs, _SINGLE_JOBS)
    rate = bench_measurements.publish_singly(tasks.nothing_async, singly)
    yield Measure("publish, one by one", rate, "jobs/s", f"{singly:,} jobs")
    more = max(jobs - singly, 1)
    rate = bench_measurements.publish_in_bulk(app, tasks.nothing_async, more)
    yield Measure("publish, in bulk", rate, "jobs/s", f"{more:,} jobs")
    with bench_measurements.worker():
        rate = bench_measurements.drain_rate(context.run, tasks.IO, singly + more)
        yield Measure("drain, async def", rate, "jobs/s", f"{singly + more:,} jobs")
    bench_measurements.publish_in_bulk(app, tasks.nothing_limited, singly + more)
    with bench_measurements.worker():
        gated = bench_measurements.drain_rate(context.run, tasks.GATED, singly + more)
        share = f"{gated / rate:.0%} of the rate without"
        yield Measure("drain, async def with a limit", gated, "jobs/s", share)
    bench_measurements.publish_in_bulk(app, tasks.nothing_sync, jobs)
    with bench_measurements.worker() as worker:
        rate = bench_measurements.drain_rate(context.run, tasks.CPU, jobs)
        yield Measure("drain, def", rate, "jobs/s", f"{jobs:,} jobs")
        yield from _measure_idle_worker(app, tasks.now, worker.pid)


def _measure_idle_worker(app: Umbel, task: Any, pid: int) -> Iterator[Measure]:
    started, answered = bench_measurements.latencies(app, task, _LATENCY_JOBS)
    for label, values in (("start of a lone job", started), ("round trip", answered)):
        for percent in (50, 99):
            value = bench_measurements.percentile(values, percent) * 1000
            yield Measure(f"{label}, p{percent}", value, "ms", f"{_LATENCY_JOBS} jobs")
    idle, memory = bench_measurements.idle_share(pid), bench_measurements.resident_bytes(pid)
    if idle is not None:
        yield Measure("idle worker, CPU", idle * 100, "% of a core")
    if memory is not None:
        yield Measure("worker, memory", memory / 2**20, "MiB")


def _with_notes(measures: Iterator[Measure], as_json: bool) -> Iterator[Measure]:
    """Yield the measures, and print a note about each to stderr."""
    for measure in measures:
        if not as_json:
            print_note(f"  {measure.name} …")
        yield measure


async def _clean_up(operations: Operations) -> None:
    for queue in await operations.queues():
        await operations.purge(queue.name)
    await operations.forget(JobFilter(states=tuple(TERMINAL), limit=1_000))


def _report(app: Umbel, jobs: int, measures: list[Measure], as_json: bool) -> None:
    url = app.settings.public()["broker"]
    if as_json:
        print_json({"url": url, "jobs": jobs, "measures": measures})
        return
    print_line(f"{jobs:,} jobs on {url}")
    rows = [
        (m.name, f"{m.value:,.{0 if m.value >= 100 else 2}f}", m.unit, m.note) for m in measures
    ]
    print_table(("what", "value", "unit", "how"), rows, right=("value",))

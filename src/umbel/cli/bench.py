"""``umbel bench``: what this machine and this server can do."""

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
from umbel.cli import measuring
from umbel.cli.answers import answer, note, say, table
from umbel.cli.command_context import CommandContext, command
from umbel.cli.measuring import Measure
from umbel.errors import UmbelError
from umbel.messages import TERMINAL
from umbel.operations import Operations

_SINGLY = 1_000
_LONE = 100


@command()
@click.option("--jobs", type=click.IntRange(10, 1_000_000), default=5_000, show_default=True)
@click.option("--url", help="Which server; a temporary SQLite file if not given.")
def bench(frame: CommandContext, jobs: int, url: str | None, as_json: bool) -> None:
    """Measure publishing, draining, latency and idle cost on this machine.

    It works in a namespace of its own, umbel-bench-PID, and leaves nothing behind. One worker
    process with its default settings runs the jobs.
    """
    with tempfile.TemporaryDirectory(prefix="umbel-bench-") as folder:
        os.environ["UMBEL_URL"] = url or f"sqlite:///{folder}/bench.db"
        os.environ["UMBEL_NAMESPACE"] = f"umbel-bench-{os.getpid()}"
        frame.address = "umbel.cli.bench_tasks"
        app = frame.app
        frame.wait_for(app.backend.migrate(), 60)
        try:
            measures = list(_shown(_measured(frame, app, jobs), as_json))
        finally:
            frame.ask(_clean_up, 60)
            with suppress(UmbelError, TimeoutError):
                app.close()
        _report(app, jobs, measures, as_json)


def _measured(frame: CommandContext, app: Umbel, jobs: int) -> Iterator[Measure]:
    tasks: Any = import_module("umbel.cli.bench_tasks")
    yield Measure("import umbel", measuring.import_time() * 1000, "ms")
    singly = min(jobs, _SINGLY)
    rate = measuring.publish_singly(tasks.nothing_async, singly)
    yield Measure("publish, one by one", rate, "jobs/s", f"{singly:,} jobs")
    more = max(jobs - singly, 1)
    rate = measuring.publish_in_bulk(app, tasks.nothing_async, more)
    yield Measure("publish, in bulk", rate, "jobs/s", f"{more:,} jobs")
    with measuring.worker():
        rate = measuring.drained(frame.ask, tasks.IO, singly + more)
        yield Measure("drain, async def", rate, "jobs/s", f"{singly + more:,} jobs")
    measuring.publish_in_bulk(app, tasks.nothing_limited, singly + more)
    with measuring.worker():
        gated = measuring.drained(frame.ask, tasks.GATED, singly + more)
        share = f"{gated / rate:.0%} of the rate without"
        yield Measure("drain, async def with a limit", gated, "jobs/s", share)
    measuring.publish_in_bulk(app, tasks.nothing_sync, jobs)
    with measuring.worker() as worker:
        rate = measuring.drained(frame.ask, tasks.CPU, jobs)
        yield Measure("drain, def", rate, "jobs/s", f"{jobs:,} jobs")
        yield from _of_idle_worker(app, tasks.now, worker.pid)


def _of_idle_worker(app: Umbel, task: Any, pid: int) -> Iterator[Measure]:
    started, answered = measuring.latencies(app, task, _LONE)
    for label, values in (("start of a lone job", started), ("round trip", answered)):
        for percent in (50, 99):
            value = measuring.percentile(values, percent) * 1000
            yield Measure(f"{label}, p{percent}", value, "ms", f"{_LONE} jobs")
    idle, memory = measuring.idle_share(pid), measuring.resident(pid)
    if idle is not None:
        yield Measure("idle worker, CPU", idle * 100, "% of a core")
    if memory is not None:
        yield Measure("worker, memory", memory / 2**20, "MiB")


def _shown(measures: Iterator[Measure], as_json: bool) -> Iterator[Measure]:
    """Pass them on; say what is done to whoever waits at a terminal."""
    for measure in measures:
        if not as_json:
            note(f"  {measure.name} …")
        yield measure


async def _clean_up(operations: Operations) -> None:
    for queue in await operations.queues():
        await operations.purge(queue.name)
    await operations.forget(JobFilter(states=tuple(TERMINAL), limit=1_000))


def _report(app: Umbel, jobs: int, measures: list[Measure], as_json: bool) -> None:
    url = app.settings.public()["broker"]
    if as_json:
        answer({"url": url, "jobs": jobs, "measures": measures})
        return
    say(f"{jobs:,} jobs on {url}")
    rows = [
        (m.name, f"{m.value:,.{0 if m.value >= 100 else 2}f}", m.unit, m.note) for m in measures
    ]
    table(("what", "value", "unit", "how"), rows, right=("value",))

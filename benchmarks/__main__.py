"""``python -m benchmarks``: measure, then say how Umbel stands beside its peers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import drawing, environments, machine, options, plan, report, runner
from benchmarks.options import Options
from benchmarks.runner import Results

_WIDTH = 140
"""Columns of a table that goes into a file."""
_MARKS = ("<!-- figures -->", "<!-- end of figures -->")


def main() -> int:
    given = options.read()
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    told = Console(stderr=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    server = given.server if any(s.database == "postgresql" for s in given.systems) else None
    if server is not None and (trouble := _trouble(server)):
        told.print(trouble, markup=False, highlight=False, soft_wrap=True)
        return 2
    try:
        _prepare(given, told)
        if machine.is_busy():
            told.print("this machine is busy: trust ratios and costs a job, not rates and times")
        about = machine.describe(server, [system.peer for system in given.systems])
        results = _measure(given, told)
        about["load after"] = f"{os.getloadavg()[0]:.2f}, of which the run itself makes about 2"
    except KeyboardInterrupt:
        told.print("stopped; everything it had started has ended")
        return 130
    report.show(console, results, about)
    _write(given, results, about, told)
    return 1 if results.failures else 0


def _stop(number: int, frame: object) -> None:
    # Only the first one stops the run: a second must not stop the tidying up.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _trouble(server: str) -> str | None:
    try:
        psycopg.connect(server, connect_timeout=3).close()
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[0]
        remedy = "start one with `make servers`, name one with --database, or give --only sqlite"
        return f"No PostgreSQL to measure on: {reason}. To go on, {remedy}."
    return None


def _prepare(given: Options, told: Console) -> None:
    for peer in dict.fromkeys(system.peer for system in given.systems):
        if not environments.is_ready(peer):
            told.print(f"making the environment of {peer} …")
            environments.prepare(peer)


def _measure(given: Options, told: Console) -> Results:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with (
        runner.ground(given.systems, given.server, options.RUN) as ground,
        Progress(*columns, console=told) as progress,
    ):
        steps = plan.steps(ground.stands, ground.raw, given.scale, given.groups)
        bar = progress.add_task("", total=len(steps))
        done = iter(range(len(steps)))

        def tell(step: plan.Step) -> None:
            description = f"{step.row}: {step.system}"
            progress.update(bar, completed=next(done), description=description)

        results = runner.run(steps, tell)
        progress.update(bar, completed=len(steps), description="done")
    return results


def _write(given: Options, results: Results, about: dict[str, str], told: Console) -> None:
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(report.as_json(results, about))
    drawn = drawing.draw(results, given.charts)
    where = f"{given.json} and {len(drawn)} charts in {given.charts}"
    told.print(where, highlight=False, soft_wrap=True)
    if given.page is not None:
        before, _, rest = given.page.read_text().partition(_MARKS[0])
        after = rest.partition(_MARKS[1])[2]
        figures = f"{_MARKS[0]}\n\n{report.markdown(results, about)}\n\n{_MARKS[1]}"
        given.page.write_text(before + figures + after)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as failure:
        sys.exit(f"an environment could not be made: {failure}")

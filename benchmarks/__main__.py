"""``python -m benchmarks``: measure, then say how Umbel stands beside its peers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import drawing, environments, machine, options, pages, plan, report, runner, servers
from benchmarks.options import Options
from benchmarks.runner import Results

_WIDTH = 140
"""Columns of a table that goes into a file."""


def main() -> int:
    given = options.read()
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    told = Console(stderr=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    if troubles := [text for one in given.servers.items() if (text := servers.trouble(*one))]:
        for text in troubles:
            told.print(text, markup=False, highlight=False, soft_wrap=True)
        return 2
    try:
        _prepare(given, told)
        if machine.is_busy():
            told.print("this machine is busy: trust ratios and costs a job, not rates and times")
        about = machine.describe(given.servers, [system.peer for system in given.systems])
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
        runner.ground(given.systems, given.servers, options.RUN) as ground,
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
        given.page.write_text(pages.written(given.page.read_text(), results, about))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as failure:
        sys.exit(f"an environment could not be made: {failure}")

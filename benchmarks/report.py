"""What was found, in tables: ratios first, then the figures themselves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.charts import number
from benchmarks.figures import Measures, spread
from benchmarks.runner import Results
from benchmarks.systems import SYSTEMS
from benchmarks.targets import Verdict, cpu, judge


@dataclass(frozen=True)
class Column:
    """A column of a row's table."""

    head: str
    value: Callable[[Measures], float | None]


@dataclass(frozen=True)
class Grid:
    """A table that can be shown on a terminal or written into a page."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def _plain(name: str, factor: float = 1.0) -> Callable[[Measures], float | None]:
    return lambda measures: measures[name] * factor if name in measures else None


_COSTS = (
    Column("server µs/job", _plain("server", 1e6)),
    Column("transactions/job", _plain("transactions")),
    Column("WAL bytes/job", _plain("log")),
)
_TIMES = (Column("p50 ms", _plain("p50")), Column("p99 ms", _plain("p99")))
_COLUMNS: dict[str, tuple[Column, ...]] = {
    "publish": (
        Column("jobs/s", _plain("rate")),
        Column("caller µs/job", _plain("client", 1e6)),
        *_COSTS,
    ),
    "drain": (
        Column("started/s", _plain("rate")),
        Column("recorded/s", _plain("recorded")),
        Column("worker µs/job", _plain("worker", 1e6)),
        *_COSTS,
    ),
    "start of a lone job": _TIMES,
    "round trip": _TIMES,
    "idle": (
        Column("worker, % of a core", _plain("worker")),
        Column("server, % of a core", _plain("server")),
        Column("both", cpu),
        Column("memory MiB", _plain("memory")),
    ),
    "raw limit": (Column("jobs/s", _plain("rate")),),
    "growth": (
        Column("published/s", _plain("published")),
        Column("drained/s", _plain("rate")),
        Column("worker µs/job", _plain("worker", 1e6)),
        Column("server µs/job", _plain("server", 1e6)),
        Column("worker MiB", _plain("memory")),
    ),
}


def columns(row: str) -> tuple[Column, ...]:
    """The columns of a row's table."""
    return next(found for name, found in _COLUMNS.items() if row.startswith(name))


def less_is_better(row: str) -> bool:
    """Whether the first column of a row is a time or a cost."""
    return row.startswith(("start of a lone job", "round trip", "idle"))


def ratios(verdicts: Sequence[Verdict]) -> Grid:
    """Umbel against the best peer of each row."""
    heads = ("", "on", "Umbel", "best peer", "its figure", "ratio", "target", "")
    return Grid("Umbel beside the best peer", heads, tuple(map(_verdict, verdicts)))


def _verdict(verdict: Verdict) -> tuple[str, ...]:
    target = verdict.target
    factor = 1e6 if target.label.endswith("CPU a job") else 1.0
    sign, times = ("≥" if target.high else "≤"), ("" if target.absolute else "×")
    known = not math.isnan(verdict.theirs)
    return (
        target.label,
        target.database,
        number(verdict.ours * factor),
        verdict.peer.partition(" ")[0] or "–",
        number(verdict.theirs * factor) if known else "–",
        f"{verdict.ratio:.2f}×" if known else "–",
        f"{sign} {target.bound:g}{times}",
        "ok" if verdict.met else "missed",
    )


def grids(results: Results) -> list[Grid]:
    """A table for each row; those of the growth together."""
    found = [_grid(row, results) for row in results.figures if not row.startswith("growth")]
    growth = [row for row in results.figures if row.startswith("growth")]
    if growth:
        heads = ("", "system", *(column.head for column in columns("growth")))
        lines = [
            (row.removeprefix("growth: "), system, *_cells("growth", measures))
            for row in growth
            for system, measures in results.middle(row).items()
        ]
        found.append(Grid("growth of Umbel, one worker process", heads, tuple(lines)))
    return found


def _grid(row: str, results: Results) -> Grid:
    heads = ("system", *(column.head for column in columns(row)), "spread")
    order = columns(row)[0].value
    lines = []
    for system, measures in sorted(
        results.middle(row).items(),
        key=lambda item: order(item[1]) or 0.0,
        reverse=not less_is_better(row),
    ):
        lines.append((system, *_cells(row, measures), _apart(row, results.figures[row][system])))
    return Grid(row, heads, tuple(lines))


def _apart(row: str, rounds: Sequence[Measures]) -> str:
    seen = [columns(row)[0].value(measures) for measures in rounds]
    values = [value for value in seen if value is not None]
    return f"{spread(values):.0%}" if len(values) > 1 else "–"


def _cells(row: str, measures: Measures) -> list[str]:
    values = [column.value(measures) for column in columns(row)]
    return ["–" if value is None else number(value) for value in values]


def show(console: Console, results: Results, machine: Mapping[str, str]) -> None:
    """On a terminal."""
    verdicts = judge(results.middle)
    if verdicts:
        console.print(_table(ratios(verdicts)))
    for grid in grids(results):
        console.print(_table(grid))
    for name, text in machine.items():
        console.print(f"[bold]{name}[/]: {text}", highlight=False, soft_wrap=True)
    for failure in results.failures:
        text = f"failed: {failure.row}: {failure.system}: {failure.words}"
        console.print(text, style="red", markup=False, highlight=False)


def _table(grid: Grid) -> Table:
    table = Table(title=grid.title, title_justify="left", box=box.SIMPLE_HEAD)
    for index, head in enumerate(grid.heads):
        table.add_column(head, justify="left" if index == 0 else "right", no_wrap=index == 0)
    for line in grid.lines:
        style = {"ok": "green", "missed": "yellow"}.get(line[-1], "")
        table.add_row(*line, style=style)
    return table


def markdown(results: Results, machine: Mapping[str, str]) -> str:
    """As part of a page."""
    found = [f"- {name}: {text}" for name, text in machine.items()]
    found += [f"- failed: {failure.row}: {failure.system}" for failure in results.failures]
    parts = ["\n".join(found), _written(ratios(judge(results.middle)))]
    parts += map(_written, grids(results))
    return "\n\n".join(parts)


def _written(grid: Grid) -> str:
    title = f"### {grid.title[0].upper()}{grid.title[1:]}"
    rule = ["---", *["---:"] * (len(grid.heads) - 1)]
    lines = [grid.heads, rule, *grid.lines]
    return "\n".join([title, "", *(f"| {' | '.join(line)} |" for line in lines)])


def as_json(results: Results, machine: Mapping[str, str]) -> str:
    """Every figure of every round, and the verdicts."""
    verdicts = [
        {
            "what": verdict.target.label,
            "on": verdict.target.database,
            "ours": verdict.ours,
            "peer": verdict.peer,
            "theirs": None if math.isnan(verdict.theirs) else verdict.theirs,
            "target": verdict.target.bound,
            "met": verdict.met,
        }
        for verdict in judge(results.middle)
    ]
    systems = {
        system.name: {"setup": system.setup, "promises": system.promises} for system in SYSTEMS
    }
    content = {
        "machine": dict(machine),
        "systems": systems,
        "verdicts": verdicts,
        "figures": results.figures,
        "failures": [asdict(failure) for failure in results.failures],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

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
from benchmarks.entrants import NOTES, SYSTEMS
from benchmarks.figures import Measures, spread
from benchmarks.runner import Results
from benchmarks.systems import carrier_of
from benchmarks.targets import Verdict, cpu, judge

SECTIONS = (("PostgreSQL", "SQLite"), ("Redis",), ("RabbitMQ",), ("NATS",))
"""What is shown together."""


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
_CANVAS = (
    Column("seconds", _plain("seconds")),
    Column("published in", _plain("published")),
    Column("largest message, bytes", _plain("largest")),
    Column("of a small one", _plain("small")),
    Column("all messages, MiB", _plain("bytes")),
    Column("rows or keys", _plain("rows")),
    Column("publisher MiB", _plain("publisher")),
    Column("workers MiB", _plain("workers")),
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
    "chord": _CANVAS,
    "chain": _CANVAS,
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
    return row.startswith(("start of a lone job", "round trip", "idle", "chord", "chain"))


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
            (row.removeprefix("growth: "), system, *_cells(columns("growth"), measures))
            for row in growth
            for system, measures in results.middle(row).items()
        ]
        found.append(Grid("growth of Umbel, one worker process", heads, tuple(lines)))
    return found


def _grid(row: str, results: Results) -> Grid:
    """Those together that meet, the best of them first; without what is not known of any."""
    middles = results.middle(row)
    known = tuple(
        column
        for column in columns(row)
        if any(column.value(m) is not None for m in middles.values())
    )
    heads = ("system", *(column.head for column in known), "spread")
    value, sign = columns(row)[0].value, 1 if less_is_better(row) else -1

    def order(item: tuple[str, Measures]) -> tuple[int, float]:
        name, measures = item
        return _section(name), sign * (value(measures) or 0.0)

    lines = [
        (system, *_cells(known, measures), _apart(row, results.figures[row][system]))
        for system, measures in sorted(middles.items(), key=order)
    ]
    return Grid(row, heads, tuple(lines))


def _section(system: str) -> int:
    places = [number for number, carriers in enumerate(SECTIONS) if carrier_of(system) in carriers]
    return places[0] if places else len(SECTIONS)


def entrants(results: Results) -> Grid:
    """How each system was set up, and what it promises."""
    seen = {system for systems in results.figures.values() for system in systems}
    lines = [
        (system.name, system.setup, system.promises) for system in SYSTEMS if system.name in seen
    ]
    return Grid("who promises what", ("system", "set-up", "promise"), tuple(lines))


def notes(results: Results) -> list[str]:
    """What has to be known besides."""
    seen = {carrier_of(system) for systems in results.figures.values() for system in systems}
    return [note for carrier, found in NOTES.items() if carrier in seen for note in found]


def _apart(row: str, rounds: Sequence[Measures]) -> str:
    seen = [columns(row)[0].value(measures) for measures in rounds]
    values = [value for value in seen if value is not None]
    return f"{spread(values):.0%}" if len(values) > 1 else "–"


def _cells(shown: Sequence[Column], measures: Measures) -> list[str]:
    values = [column.value(measures) for column in shown]
    return ["–" if value is None else number(value) for value in values]


def show(console: Console, results: Results, machine: Mapping[str, str]) -> None:
    """On a terminal."""
    verdicts = judge(results.middle)
    if verdicts:
        console.print(_table(ratios(verdicts)))
    for grid in (*grids(results), entrants(results)):
        console.print(_table(grid))
    for note in notes(results):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
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


def markdown(results: Results, machine: Mapping[str, str], on: str = "") -> str:
    """As part of a page. ``on`` tells its headings from those of other parts."""
    found = [f"- {name}: {text}" for name, text in machine.items()]
    found += [f"- failed: {failure.row}: {failure.system}" for failure in results.failures]
    tables = [ratios(judge(results.middle)), *grids(results), entrants(results)]
    parts = ["\n".join(found), *(_written(grid, on) for grid in tables), *notes(results)]
    return "\n\n".join(parts)


def _written(grid: Grid, on: str) -> str:
    title = f"### {grid.title[0].upper()}{grid.title[1:]}{f' ({on})' if on else ''}"
    side = "---" if grid.heads[1] == "set-up" else "---:"
    rule = ["---", *[side] * (len(grid.heads) - 1)]
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
